"""DelTA's centers on the table task: how alike, why, do they hold elsewhere, are proxies enough?

    OMP_NUM_THREADS=1 python -m studies.centers --regime A --out data/centers

One sample of groups from a policy. Five geometries: the published row proxy, the hidden gradient
in full and of the 8 likeliest tokens, the gradient of the whole head, and exact gradients of all
parameters. `numbers.csv` holds centers and coefficients in each; `claims.csv` what rows 16 to 19
of methods/claims.md ask for, with intervals: 16 cosine without format tokens, against as many
random ones; 17 contrast of held-out centers, beside a control whose centers know nothing; 18
held-out discriminator, K = 1 against K = 3; 19 alphas of each proxy against exact ones, tokens with
p < .9, a value a pool of 8 problems. `types.csv`: mean coefficient by token.

Source: methods/delta.md section 6; methods/claims.md.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.learning_rules import KINDS, Batch, drawn_batch
from studies.learning_tables import short, write
from tokensense.credit.delta import Contrast, Geometry, dense, fit, full_head, row_gradient, sigmoid
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy, load_policy
from tokensense.probes.gradients import center_products
from tokensense.probes.proxies import head_view
from tokensense.segments import broadcast
from tokensense.stats import centers, coefficients
from tokensense.stats.resampling import Estimates, Resampling, intervals, resample
from tokensense.tasks import tables

EXACT = "exact"
LIKELIEST = 8  # tokens, of 60 or so


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        regime: of `tables.REGIMES`.
        base: folder or name of the policy.
        problems: with a group each.
        group: responses a problem.
        pool: problems of a pool on which row and exact alphas are compared.
        seed: of problems and samples.
    """

    regime: str = "A"
    base: str = "tiny:tables"
    problems: int = 96
    group: int = 8
    pool: int = 8
    seed: int = 0


TINY = Config(regime="C", problems=10, group=4, pool=5)


def geometries(policy: Policy, batch: Batch) -> dict[str, Geometry]:
    """All five; the exact one runs the model whenever it is asked."""
    view = head_view(policy, batch.branches, residual=True)
    few = head_view(policy, batch.branches, top=LIKELIEST)
    hidden, logp = view.hidden.astype(np.float64), view.logp.astype(np.float64)

    def exact(positive: np.ndarray, negative: np.ndarray) -> Contrast:
        return Contrast(*center_products(policy, batch.branches, positive, negative))

    return {
        "row": dense(row_gradient(hidden, logp)),
        "hidden": dense(view.hidden_gradient.astype(np.float64)),
        f"hidden, top {LIKELIEST}": dense(few.hidden_gradient.astype(np.float64)),
        "head": full_head(view.residual.astype(np.float64), hidden),
        EXACT: exact,
    }


def numbers(made: dict[str, Geometry], advantage: np.ndarray) -> Iterator[dict[str, object]]:
    """Centers before and after the rule, and coefficients, a line a number."""
    for name, geometry in made.items():
        found = fit(geometry, advantage)
        if found is None:
            sys.exit("centers: the sample has no mixed group; ask for more --problems.")
        lam = np.where(advantage != 0, 0.8 + 0.4 * found.alpha, 0.8)
        parts = {
            "uniform": centers.center_numbers(geometry, advantage),
            "delta": centers.center_numbers(geometry, advantage, lam),
            "lambda": coefficients.lambda_numbers(found, geometry, advantage),
        }
        for part, values in parts.items():
            for number, value in values.items():
                yield {"geometry": name, "of": part, "number": number, "value": short(value)}


def mean_of(values: np.ndarray) -> Estimates:
    """Mean of one value a unit, with its interval."""
    units = np.column_stack([values, np.ones(len(values))])
    found = resample(
        units,
        lambda totals: totals[:, :1] / totals[:, 1:],
        plan=Resampling(len(values)),
        present=np.ones((len(values), 1), bool),
    )
    return intervals(found).part(0)


def pool_agreements(policy: Policy, batch: Batch, config: Config) -> dict[str, np.ndarray]:
    """Spearman of each proxy's and exact alphas in pools of their own, a value a pool.

    Pools of one side are left out.
    """
    found: dict[str, list[float]] = {}
    for first in range(0, config.problems, config.pool):
        own = np.flatnonzero((batch.group >= first) & (batch.group < first + config.pool))
        part = Batch(
            *([every[i] for i in own] for every in (batch.chains, batch.branches, batch.labels)),
            batch.group[own],
        )
        spread = broadcast(part.advantage, part.length)
        fitted = {name: fit(one, spread) for name, one in geometries(policy, part).items()}
        exact = fitted.pop(EXACT)
        if exact is None:
            continue
        compared = (np.exp(head_view(policy, part.branches).logp) < 0.9) & (spread != 0)
        for name, proxy in fitted.items():
            assert proxy is not None  # the sides do not depend on the geometry
            agreement = coefficients.proxy_agreement(proxy, exact, compared)
            found.setdefault(name, []).append(agreement.spearman)
    return {name: np.array(values) for name, values in found.items()}


def blind_alpha(vectors: np.ndarray, advantage: np.ndarray, batch: Batch) -> np.ndarray:
    """Alphas of the true sides from centers of responses whose advantages were shuffled.

    Margins mirror each other on the two sides, so that any direction drives the centers apart: what
    is left of the change beyond this has to do with right and wrong.
    """
    shuffled = np.random.default_rng(0).permutation(batch.advantage)
    geometry = dense(vectors)
    found = fit(geometry, broadcast(shuffled, batch.length))
    assert found is not None
    seen = geometry(*found.weights)
    toward = 2 * seen.alignment + (seen.negative - seen.positive)
    return sigmoid(np.where(advantage > 0, toward, -toward) / np.mean(found.gamma))


def claims(policy: Policy, batch: Batch, config: Config) -> Iterator[dict[str, object]]:
    """What rows 16 to 19 ask for, in the row proxy; format tokens and fillers apart."""
    view = head_view(policy, batch.branches)
    vectors = row_gradient(view.hidden.astype(np.float64), view.logp.astype(np.float64))
    advantage, kinds = broadcast(batch.advantage, batch.length), batch.kinds()
    problem = broadcast(batch.group, batch.length)
    for kind in ("format", "operator", "discourse"):
        removed = kinds == KINDS.index(kind)
        if removed.any():
            found = centers.removal(
                vectors, advantage, removed, length=batch.length, problem=batch.group
            )
            yield _line("16", f"fall of the cosine without {kind}", found.fall)
            yield _line("16", f"that minus a random removal, {kind}", found.excess)
    elsewhere = centers.held_out(dense(vectors), advantage, problem)
    for k, alpha in enumerate(elsewhere.alpha):
        change = centers.contrast_change(vectors, advantage, 0.8 + 0.4 * alpha, problem=problem)
        yield _line("17", f"change of held-out contrast, K = {k}", change)
        yield _line("18", f"held-out AUROC of tokens, K = {k}", mean_of(elsewhere.auroc[k]))
    blind = blind_alpha(vectors, advantage, batch)
    change = centers.contrast_change(vectors, advantage, 0.8 + 0.4 * blind, problem=problem)
    yield _line("17", "the same with centers of shuffled responses, K = 1", change)
    gap = mean_of(elsewhere.auroc[1] - elsewhere.auroc[3])
    yield _line("18", "held-out AUROC, K = 1 minus K = 3", gap)
    for name, values in pool_agreements(policy, batch, config).items():
        yield _line("19", f"Spearman of alpha, {name} against exact, p < .9", mean_of(values))


def _line(row: str, number: str, found: Estimates) -> dict[str, object]:
    values = {"estimate": found.estimate, "low": found.low, "high": found.high}
    kept = {name: short(float(value)) for name, value in values.items()}
    return {"row": row, "number": number, **kept, "n": int(found.clusters)}


def main(config: Config, *, out: Path) -> None:
    """Sample, measure, write three tables."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    policy = load_policy(config.base)
    chains = tables.draw_chains(
        tables.REGIMES[config.regime],
        count=config.problems,
        generator=np.random.default_rng([config.seed, 5]),
        distinct=True,
    )
    batch = drawn_batch(policy, chains, group=config.group, seed=20 + config.seed)
    advantage = broadcast(batch.advantage, batch.length)
    made = geometries(policy, batch)
    about = {"regime": config.regime, "base": config.base, "seed": config.seed}
    _put(out / "numbers.csv", [about | line for line in numbers(made, advantage)])
    _put(out / "claims.csv", [about | line for line in claims(policy, batch, config)])
    found = fit(made["row"], advantage)
    assert found is not None
    types = coefficients.token_types(
        np.concatenate([branch.response for branch in batch.branches]),
        0.8 + 0.4 * found.alpha,
        advantage,
    )
    words = [tables.VOCABULARY[token] for token in types.pop("token_id")]
    columns = {name: [short(float(v)) for v in column] for name, column in types.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    _put(out / "types.csv", [about | {"word": w} | r for w, r in zip(words, rows, strict=True)])


def _put(path: Path, rows: list[dict[str, Any]]) -> None:
    write(path, rows)
    for row in rows if path.name != "types.csv" else []:
        print("  ".join(str(value) for value in row.values()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--regime", choices=("A", "B", "C"), default="A")
    parser.add_argument("--base", default=Config.base, help="policy of the table task")
    parser.add_argument("--problems", type=int, default=Config.problems)
    parser.add_argument("--seed", type=int, default=0, help="of problems and samples")
    parser.add_argument("--out", type=Path, default=Path("runs/centers"))
    parser.add_argument("--tiny", action="store_true", help="regime C, 10 problems: seconds")
    given = parser.parse_args()
    sizes = ("regime", "base", "problems", "seed")
    asked = replace(Config(), **{name: getattr(given, name) for name in sizes})
    try:
        main(replace(TINY, base=given.base) if given.tiny else asked, out=given.out)
    except TokensenseError as error:
        sys.exit(f"centers: {error}")
