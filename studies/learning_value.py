"""Which credit rules point where reward is gained? Gradients of small batches against held-out G.

    OMP_NUM_THREADS=1 python -m studies.learning_value --regime A --out data/learning_value

Regimes A, B, C of the table task (C is blind to credit by design: the control). G, the reward
gradient, is that of exact value differences on the rollouts of a few hundred problems that no batch
has, in two halves; that of uniform credit on the same rollouts is a cross-check. Each batch, 8
problems x 4 responses, gives the gradient of every rule; its cosine with G ranks the rules at equal
norm. Controls with known answers: cscr_0 differs from uniform by exactly 0, random is below, the
oracles are far above.

A batch is a block of lines in `batches_*.csv`; sums of gradients and G lie in --work. A run that
is stopped goes on. `table.csv`, `shares.csv` and `pairs.csv` are made anew of all that is there.

    --steps 20     the policy after so many RL steps with uniform credit, Adam 3e-4
    --base FOLDER  another policy of the task (studies.build_tiny_policy tables --seed 11)
    --check        one real step along mean gradients, reward before and after on other problems

Source: methods/statistics.md, "Three measurements" A; notes/assay.md sections 1, 2 and 7.
"""

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from studies.learning_rules import (
    KINDS,
    NAMES,
    ORACLE,
    Batch,
    credit_table,
    drawn_batch,
    energies,
    evidence,
    measured_skills,
)
from studies.learning_tables import printed, read, short, summary, write
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy, load_policy
from tokensense.probes.gradients import inner_products, own_products, pooled_gradients
from tokensense.segments import broadcast
from tokensense.stats import learning
from tokensense.tasks import tables
from tokensense.tasks.tables_values import Form, Skills


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        regime: of `tables.REGIMES`.
        base: folder or name of the policy.
        steps: of RL before the measurement, uniform credit.
        batches: small batches.
        shared: of these, the first so many are also split by kind.
        problems: of a batch.
        group: responses a problem.
        reference: held-out problems behind G.
        check: problems of the real steps.
        seed: of problems and samples.
    """

    regime: str = "A"
    base: str = "tiny:tables"
    steps: int = 0
    batches: int = 64
    shared: int = 24
    problems: int = 8
    group: int = 4
    reference: int = 768
    check: int = 1024
    seed: int = 0

    @property
    def tag(self) -> str:
        """Names the files of a run."""
        base = self.base.replace("tiny:", "").strip("/").replace("/", "-")
        return f"{self.regime}_{base}_{self.steps}_{self.seed}"


TINY = Config(regime="C", batches=8, shared=8, problems=4, reference=16, check=8)
ETAS = (0.003, 0.01, 0.03, 0.1, 0.3)  # length of a step over that of all parameters


class Problems(NamedTuple):
    """No problem twice. Those of a batch do not depend on how many batches there are."""

    held_out: list[tables.Chain]
    check: list[tables.Chain]
    batches: list[list[tables.Chain]]


def problems(config: Config) -> Problems:
    """Problems of G, of the real steps, and of each batch."""
    seen: set[tables.Chain] = set()

    def fresh(count: int, *key: int) -> list[tables.Chain]:
        rng, found = np.random.default_rng([config.seed, *key]), list[tables.Chain]()
        while len(found) < count:
            (chain,) = tables.draw_chains(tables.REGIMES[config.regime], count=1, generator=rng)
            if chain not in seen:
                found.append(chain)
                seen.add(chain)
        return found

    held_out, check = fresh(config.reference, 1), fresh(config.check, 3)
    return Problems(
        held_out, check, [fresh(config.problems, 4, number) for number in range(config.batches)]
    )


def trained(config: Config) -> Policy:
    """The base policy after some steps of plain GRPO, as in the notes: 8 x 4, Adam, no clip."""
    policy = load_policy(config.base)
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=3e-4, betas=(0.9, 0.99))
    rng = np.random.default_rng([config.seed, 2])
    for step in range(config.steps):
        regime = tables.REGIMES[config.regime]
        chains = tables.draw_chains(regime, count=config.problems, generator=rng)
        seed = 10**9 + 10**4 * config.seed + step
        batch = drawn_batch(policy, chains, group=config.group, seed=seed)
        credit = broadcast(batch.advantage, batch.length)[None]
        (found,) = pooled_gradients(policy, batch.branches, credit / credit.size)
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, torch.split(-found, sizes), strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
    return policy


@dataclass(frozen=True, eq=False)
class Reference:
    """The held-out reward gradient.

    Attributes:
        halves: [credit, half, parameter], per token; credit is exact value, then uniform.
        skills: measured on the same rollouts.
        accuracy: of the policy on them.
        energy: sum of ||onehot - p||^2 by kind of token, in the order of KINDS.
    """

    halves: torch.Tensor
    skills: Skills
    accuracy: float
    energy: np.ndarray

    def whole(self, credit: int = 0) -> torch.Tensor:
        """G."""
        return self.halves[credit].mean(0)

    def reliability(self, credit: int = 0) -> float:
        """Of the whole of G."""
        first, second = self.halves[credit].double()
        return learning.reliability(
            float(first @ second), float(first @ first), float(second @ second)
        )


def held_out_batch(config: Config, policy: Policy, chains: list[tables.Chain]) -> Batch:
    """Rollouts of the held-out problems; the same for all that is measured on them."""
    return drawn_batch(policy, chains, group=config.group, seed=10**8 + config.seed)


def small_batch(config: Config, policy: Policy, chains: list[tables.Chain], number: int) -> Batch:
    """Rollouts of a small batch by its number."""
    seed = 10**7 * (1 + config.seed) + number
    return drawn_batch(policy, chains, group=config.group, seed=seed)


def reference(config: Config, policy: Policy, chains: list[tables.Chain], path: Path) -> Reference:
    """G of the held-out problems; kept in a file."""
    if not path.exists():
        batch = held_out_batch(config, policy, chains)
        skills = measured_skills(batch)
        half = broadcast(batch.group % 2, batch.length)
        credit = np.stack([batch.oracle(skills), broadcast(batch.advantage, batch.length)])
        parts = np.stack([np.where(half == side, row, 0.0) for row in credit for side in (0, 1)])
        # As a mean over tokens, so that both halves estimate the same.
        parts /= np.array([(half == side).sum() for _ in credit for side in (0, 1)])[:, None]
        found = pooled_gradients(policy, batch.branches, parts)
        keep(
            path,
            halves=found.reshape(2, 2, -1).numpy(),
            answers=skills.answers,
            form=np.array(list(vars(skills.form).values())),
            accuracy=batch.reward.mean(),
            energy=np.bincount(batch.kinds(), energies(policy, batch), minlength=len(KINDS)),
        )
    with np.load(path, allow_pickle=False) as file:
        kept = dict(file)
    skills = Skills(kept["answers"], Form(*kept["form"].tolist()))
    return Reference(
        torch.from_numpy(kept["halves"]), skills, float(kept["accuracy"]), kept["energy"]
    )


def measured(
    config: Config, policy: Policy, held_out: Reference, batch: Batch, *, number: int
) -> tuple[list[dict[str, object]], torch.Tensor]:
    """Lines of one batch, one a rule, and the gradients [rule, parameter]."""
    told = evidence(policy, batch, key=number)
    credit = credit_table(told, batch.oracle(held_out.skills))
    references = torch.stack([held_out.whole(0), held_out.whole(1)])
    values = inner_products(policy, batch.branches, references[:1])[0]
    if number < config.shared:
        pairs = own_products(policy, batch.branches, credit)
        gradients = torch.stack([pair.gradient for pair in pairs])
        own = np.stack([pair.products for pair in pairs])
    else:
        gradients, own = pooled_gradients(policy, batch.branches, credit), None
    squared = gradients.double().square().sum(-1).numpy()
    gains = (gradients.double() @ references.double().T).numpy()
    kinds = batch.kinds()
    worth = told.spread() * values
    lines = []
    for place, name in enumerate(NAMES):
        line = {"batch": number, "rule": name, "right": float(batch.reward.mean())}
        line |= {
            "squared": squared[place],
            "gain": gains[place, 0],
            "gain_uniform": gains[place, 1],
        }
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(told.spread() != 0, credit[place] / told.spread(), 0.0)
        line["agreement"] = learning.rank_agreement(weights, worth, batch.length)
        parts = {"gain": credit[place] * values}
        parts |= {} if own is None else {"squared": credit[place] * own[place]}
        for part in ("gain", "squared"):
            sums = np.bincount(kinds, parts[part], minlength=len(KINDS)) if part in parts else []
            by_kind = dict(zip(KINDS, sums, strict=False))
            line |= {f"{part}_{kind}": by_kind.get(kind, "") for kind in KINDS}
        lines.append(line)
    return lines, gradients


def run(config: Config, *, out: Path, work: Path) -> None:
    """Measure all batches that are not measured yet."""
    asked = problems(config)
    policy = trained(config)
    held_out = reference(config, policy, asked.held_out, work / f"reference_{config.tag}.npz")
    sums_path, path = work / f"sums_{config.tag}.npz", out / f"batches_{config.tag}.csv"
    sums = np.zeros((len(NAMES), held_out.halves.shape[-1]))
    rows: list[dict[str, Any]] = []
    if sums_path.exists() and path.exists():
        with np.load(sums_path, allow_pickle=False) as file:
            sums, done = file["sums"], int(file["done"])
        rows = [row for row in read(path) if int(row["batch"]) < done]
    done = 1 + max((int(row["batch"]) for row in rows), default=-1)
    started = time.monotonic()
    for number in range(done, config.batches):
        batch = small_batch(config, policy, asked.batches[number], number)
        if (batch.advantage != 0).any():  # else no rule but the oracle has a gradient
            lines, gradients = measured(config, policy, held_out, batch, number=number)
            rows += map(printed, lines)  # as they will be read by a run that goes on
            sums += gradients.double().numpy()
        write(path, rows)
        keep(sums_path, sums=sums, done=np.array(number + 1))
        if len(rows) > len(NAMES):  # mean and noise need two
            _write_about(config, held_out, rows, sums, done=number + 1, out=out)
        seconds = (time.monotonic() - started) / (number + 1 - done)
        left = seconds * (config.batches - number - 1)
        print(f"{config.tag}  batch {number + 1}/{config.batches}  {left:.0f} s left", flush=True)


def _write_about(
    config: Config,
    held_out: Reference,
    rows: list[dict[str, Any]],
    sums: np.ndarray,
    *,
    done: int,
    out: Path,
) -> None:
    """What a run needs beside its lines to be read: G, and mean and noise of each rule."""
    norms = [float(held_out.whole(credit).double().norm()) for credit in (0, 1)]
    agree = torch.cosine_similarity(held_out.whole(0), held_out.whole(1), dim=0)
    about: dict[str, object] = {
        **{name: getattr(config, name) for name in ("regime", "base", "steps", "seed")},
        **{"accuracy": held_out.accuracy, "norm": norms[0], "norm_uniform": norms[1]},
        "reliability": held_out.reliability(0),
        "reliability_uniform": held_out.reliability(1),
        "cosine_of_both": float(agree),
        "batches": len(rows) // len(NAMES),
        "batches_without_contrast": done - len(rows) // len(NAMES),
        "reference_rollouts": config.reference * config.group,
    }
    energy = held_out.energy / held_out.energy.sum()
    about |= {f"energy_{kind}": share for kind, share in zip(KINDS, energy, strict=True)}
    whole = held_out.whole(0).double().numpy()
    for place, name in enumerate(NAMES):
        own = [float(row["squared"]) for row in rows if row["rule"] == name]
        found = learning.alignment(
            total_squared=float(sums[place] @ sums[place]),
            sum_squared=sum(own),
            total_gain=float(sums[place] @ whole),
            batches=len(own),
            norm=norms[0],
        )
        about |= {f"alignment_{name}": found.cosine, f"snr_{name}": found.snr}
    write(out / f"about_{config.tag}.csv", [about])


def check(config: Config, *, out: Path, work: Path) -> None:
    """One real step along the mean gradient of two rules: reward gained against first order."""
    chains = problems(config).check
    policy = trained(config)
    held_out = reference(config, policy, [], work / f"reference_{config.tag}.npz")
    with np.load(work / f"sums_{config.tag}.npz", allow_pickle=False) as file:
        sums = torch.from_numpy(file["sums"])
    start = torch.nn.utils.parameters_to_vector(policy.model.parameters()).detach()
    # The gain per unit of G is per token; per response it is that times the mean length.
    before = drawn_batch(policy, chains, group=1, seed=3)
    lines = []
    for name in ("uniform", ORACLE):
        direction = sums[NAMES.index(name)]
        direction = direction / direction.norm()
        slope = float(direction @ held_out.whole(0).double()) * float(before.length.mean())
        for eta in ETAS:
            moved = start + (eta * float(start.norm()) * direction).float()
            torch.nn.utils.vector_to_parameters(moved, policy.model.parameters())
            gained = drawn_batch(policy, chains, group=1, seed=3).reward - before.reward
            error = gained.std(ddof=1) / len(gained) ** 0.5
            predicted = slope * eta * float(start.norm())
            numbers = {"eta": eta, "predicted": predicted, "gained": gained.mean(), "se": error}
            lines.append({"rule": name, **{k: short(v) for k, v in numbers.items()}})
            print(config.tag, lines[-1], flush=True)
    write(out / f"steps_{config.tag}.csv", lines)


def keep(path: Path, **arrays: np.ndarray) -> None:
    """Arrays in a file, put in place at once."""
    part = path.with_suffix(".part.npz")
    np.savez(part, **arrays)
    part.replace(path)


def main(
    config: Config, *, out: Path, work: Path = Path("runs/learning_value"), real_steps: bool = False
) -> None:
    """Measure what is missing, then rank all that is there."""
    torch.set_num_threads(1)
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    run(config, out=out, work=work)
    summary(out, resamples=10_000 if config.batches > TINY.batches else 200)
    if real_steps:
        check(config, out=out, work=work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--regime", choices=("A", "B", "C"), default="A")
    parser.add_argument("--base", default=Config.base, help="policy of the table task")
    parser.add_argument("--steps", type=int, default=0, help="RL steps before the measurement")
    parser.add_argument("--batches", type=int, default=Config.batches)
    parser.add_argument("--seed", type=int, default=0, help="of problems and samples")
    parser.add_argument("--out", type=Path, default=Path("runs/learning_value"))
    parser.add_argument("--work", type=Path, default=Path("runs/learning_value"))
    parser.add_argument("--check", action="store_true", help="real steps too")
    parser.add_argument("--tiny", action="store_true", help="regime C, 8 batches: seconds")
    given = parser.parse_args()
    sizes = ("regime", "base", "steps", "batches", "seed")
    asked = replace(Config(), **{name: getattr(given, name) for name in sizes})
    try:
        main(
            replace(TINY, base=given.base) if given.tiny else asked,
            out=given.out,
            work=given.work,
            real_steps=given.check,
        )
    except TokensenseError as error:
        sys.exit(f"learning_value: {error}")
