"""What OPTW's weights do to the policy gradient: noise, bias, direction; and a learned front.

    OMP_NUM_THREADS=1 python -m studies.optimal_weights --regime A --out data/optimal_weights

Small batches of the table task, 8 problems x 4 responses, and a reference gradient G of fifty times
as many rollouts of other problems (exact values as credit, as in `learning_value`). Of each rule:

    trace         of the covariance of a batch gradient
    mean_squared  squared norm of its mean, from products of different batches, free of noise
    snr           the second over the first
    cosine        of a batch gradient with G
    error         E ||g/|g| - G/|G|||^2 = 2 - 2 cosine

each beside its ratio to (of the cosine: difference from) uniform credit on the same batches, with
95 % intervals: bootstrap of batches for cosine and error, jackknife for trace, mean and snr, whose
estimates would count a batch drawn twice as two. Controls: `random` (Exp(1)), and `optw_shuffled`,
the weights of OPTW dealt at random within each response. `learned` is the network of
`credit.weight_network`, trained on the learning value of other batches under another half of G;
`learned_blind` is one that does not see whether the response is right. The first can move the
policy without looking for tokens: what right and wrong responses get in unlike places does not
cancel, and if such a drift is along G it gains by it (`mean_squared` shows it).

A run that is stopped goes on with the batch that it was at.
"""

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import t as student

from studies import learning_value
from studies.learning_rules import Batch, drawn_batch, evidence
from studies.rows import written
from tokensense.credit import CATALOGUE
from tokensense.credit.base import weights_of
from tokensense.credit.evidence import Evidence
from tokensense.credit.weight_network import FEATURES, WeightNetwork, fit, objective
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy
from tokensense.probes.gradients import inner_products, pooled_gradients
from tokensense.segments import broadcast
from tokensense.stats import learning

RULES = ("uniform", "random", "optw_shuffled", "optw", "learned", "learned_blind")
BLIND = tuple(name for name in FEATURES if name != "side")
RATIOS = ("trace", "mean_squared", "snr")


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        regime: of `tables.REGIMES`.
        base: folder or name of the policy.
        batches: that are measured.
        taught: batches that the network learns from.
        times: rollouts behind each half of G over those of a batch.
        steps: of the network's training.
        resamples: of the batches.
        seed: of problems and samples.
    """

    regime: str = "A"
    base: str = "tiny:tables"
    batches: int = 96
    taught: int = 48
    times: int = 50
    steps: int = 200
    resamples: int = 10_000
    seed: int = 0

    @property
    def asked(self) -> learning_value.Config:
        """Problems, samples and reference as that study makes them."""
        sizes = learning_value.Config()
        return replace(
            sizes,
            regime=self.regime,
            base=self.base,
            batches=self.batches + self.taught,
            reference=2 * self.times * sizes.problems,
            check=0,
            seed=self.seed,
        )


TINY = Config(regime="C", batches=6, taught=4, times=4, steps=10, resamples=200)


class Setting(NamedTuple):
    """A policy, both halves of G (to learn from, to measure with), the batches' problems."""

    policy: Policy
    learn: torch.Tensor
    measure: torch.Tensor
    reliability: float
    problems: list[list]  # type: ignore[type-arg]  # chains of the table task


def prepared(config: Config, *, work: Path) -> Setting:
    """Policy, problems, and G, which is kept in a file."""
    asked = config.asked
    problems = learning_value.problems(asked)
    policy = learning_value.trained(asked)
    path = work / f"reference_{asked.tag}_{config.times}.npz"
    held_out = learning_value.reference(asked, policy, problems.held_out, path)
    learn, measure = held_out.halves[0]
    first, second = learn.double(), measure.double()
    cosine = max(float(torch.nn.functional.cosine_similarity(first, second, dim=0)), 0.0)
    return Setting(policy, learn, measure, cosine, problems.batches)


def sampled(setting: Setting, number: int, config: Config) -> Batch:
    """A batch by its number."""
    seed = 10**7 * (1 + config.seed) + number
    group = config.asked.group
    return drawn_batch(setting.policy, setting.problems[number], group=group, seed=seed)


def learned(setting: Setting, config: Config) -> dict[str, WeightNetwork]:
    """Both networks, taught by the batches behind those that are measured."""
    told = []
    for number in range(config.batches, config.batches + config.taught):
        batch = sampled(setting, number, config)
        if np.any(batch.advantage):
            values = inner_products(setting.policy, batch.branches, setting.learn[None])[0]
            seen = evidence(setting.policy, batch, key=number)
            told.append(replace(seen, learning_value=values))
    found = {}
    for name, features in (("learned", FEATURES), ("learned_blind", BLIND)):
        network, course = fit(told, features=features, steps=config.steps, seed=config.seed)
        print(f"{name}: mean objective {course[0]:.4g} -> {course[-1]:.4g}", flush=True)
        found[name] = network
    return found


def weightings(networks: Mapping[str, WeightNetwork], told: Evidence, *, seed: int) -> np.ndarray:
    """Weights of every token, [rule, token], in the order of RULES."""
    plain = {
        name: np.asarray(weights_of(CATALOGUE[name], told))
        for name in ("uniform", "random", "optw")
    }
    rng, start = np.random.default_rng([seed, 7]), np.cumsum(told.length) - told.length
    order = np.concatenate(
        [s + rng.permutation(n) for s, n in zip(start, told.length, strict=True)]
    )
    found = plain | {"optw_shuffled": plain["optw"][order]}
    found |= {name: network(told) for name, network in networks.items()}
    return np.stack([found[name] for name in RULES])


def measured(
    setting: Setting, networks: Mapping[str, WeightNetwork], config: Config, *, number: int
) -> dict[str, np.ndarray] | None:
    """Gradients of a batch by each rule and what is asked of them; None without any advantage."""
    batch = sampled(setting, number, config)
    if not np.any(batch.advantage):
        return None
    told = evidence(setting.policy, batch, key=number)
    weights = weightings(networks, told, seed=number)
    credit = weights * broadcast(batch.advantage, batch.length)
    gradients = pooled_gradients(setting.policy, batch.branches, credit / credit.shape[1])
    values = inner_products(setting.policy, batch.branches, setting.measure[None])[0]
    valued = replace(told, learning_value=values)
    return {
        "gradients": gradients.numpy(),
        "score": np.array([objective(valued, row)[0] for row in weights]),
        "spread": weights.std(axis=1),
    }


def collected(
    setting: Setting, networks: Mapping[str, WeightNetwork], config: Config, *, work: Path
) -> dict[str, np.ndarray]:
    """All batches, [batch, rule, ...]; each lies in a file of its own once it is measured."""
    found, folder = [], work / f"batches_{config.asked.tag}_{config.taught}_{config.steps}"
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for number in range(config.batches):
        path = folder / f"{number}.npz"
        if not path.exists():
            one = measured(setting, networks, config, number=number)
            learning_value.keep(path, **(one or {"nothing": np.zeros(1)}))
            passed = time.monotonic() - started
            print(f"batch {number + 1}/{config.batches}  {passed:.0f} s", flush=True)
        with np.load(path, allow_pickle=False) as file:
            if "gradients" in file:
                found.append(dict(file))
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def moments(gram: np.ndarray, kept: np.ndarray) -> dict[str, float]:
    """Trace of the covariance, squared norm of the mean, and their ratio, over some batches.

    Args:
        gram: inner products of the batches' gradients.
        kept: which batches.
    """
    own = gram[np.ix_(kept, kept)]
    found = learning.alignment(
        total_squared=float(own.sum()),
        sum_squared=float(np.trace(own)),
        total_gain=0.0,
        batches=len(own),
        norm=1.0,
    )
    # Not ||E g||^2 of `found`, which is cut at 0: a negative estimate has to stay one.
    return {"trace": found.noise, "mean_squared": found.snr * found.noise, "snr": found.snr}


def jackknifed(gradients: np.ndarray) -> Iterator[dict[str, float]]:
    """Of each rule the moments and their ratios to those of uniform, with intervals."""
    batches = len(gradients)
    grams = np.einsum("bri,cri->rbc", gradients, gradients, optimize=True)
    whole = np.ones(batches, bool)
    sets = [whole, *(np.arange(batches) != left for left in range(batches))]
    each = [[moments(gram, kept) for kept in sets] for gram in grams]
    for own in each:
        line: dict[str, float] = {}
        for name in RATIOS:
            values = np.array([found[name] for found in own])
            ratio = values / np.array([found[name] for found in each[0]])
            line |= _with_ends(name, values) | _with_ends(f"{name}_ratio", ratio)
        yield line


def _with_ends(name: str, values: np.ndarray) -> dict[str, float]:
    """The first value, and its interval from those without one batch."""
    count = len(values) - 1
    pseudo = count * values[0] - (count - 1) * values[1:]
    half = student.ppf(0.975, count - 1) * pseudo.std(ddof=1) / math.sqrt(count)
    return {name: values[0], f"{name}_low": values[0] - half, f"{name}_high": values[0] + half}


def table(found: dict[str, np.ndarray], setting: Setting, config: Config) -> list[dict]:  # type: ignore[type-arg]
    """A line a rule."""
    gradients, target = found["gradients"].astype(np.float64), setting.measure.double().numpy()
    gain, squared = gradients @ target, np.square(gradients).sum(axis=-1)
    norm = float(np.linalg.norm(target))
    ranked = learning.ranking(
        learning.cosines(gain, squared, norm=norm), resamples=config.resamples, seed=config.seed
    )
    rows = []
    for place, (rule, line) in enumerate(zip(RULES, jackknifed(gradients), strict=True)):
        row: dict[str, object] = {"regime": config.regime, "base": config.base, "rule": rule}
        for name in ("cosine", "difference", "distance_ratio"):
            own = getattr(ranked, name)
            ends = {"": own.estimate, "_low": own.low, "_high": own.high}
            shown = "error_ratio" if name == "distance_ratio" else name
            row |= {shown + end: _short(float(values[place])) for end, values in ends.items()}
        row["error"] = _short(2 - 2 * float(ranked.cosine.estimate[place]))
        row |= {name: _short(value) for name, value in line.items()}
        scores = found["score"]
        row["surrogate_ratio"] = _short(float(scores[:, place].mean() / scores[:, 0].mean()))
        row["spread"] = _short(float(found["spread"][:, place].mean()))
        row |= {"batches": len(gradients), "half_cosine": _short(setting.reliability)}
        rows.append(row | {"reference_rollouts": config.asked.reference * config.asked.group // 2})
    return rows


def _short(value: float) -> str:
    return f"{value:.4g}"


def main(config: Config, *, out: Path, work: Path = Path("runs/optimal_weights")) -> None:
    """Teach, measure, one table; lines of other regimes in it are kept."""
    torch.set_num_threads(1)
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    setting = prepared(config, work=work)
    networks = learned(setting, config)
    rows = table(collected(setting, networks, config, work=work), setting, config)
    path = out / "table.csv"
    others = []
    if path.exists():
        with path.open(encoding="utf-8") as file:
            others = [row for row in csv.DictReader(file) if row["regime"] != config.regime]
    written(path, [*others, *rows])
    for row in rows:
        print(
            f"{row['regime']} {row['rule']:<14} cosine {row['cosine']:>7}  difference "
            f"{row['difference']:>8} [{row['difference_low']}, {row['difference_high']}]  trace x "
            f"{row['trace_ratio']} [{row['trace_ratio_low']}, {row['trace_ratio_high']}]  "
            f"|mean|^2 x {row['mean_squared_ratio']}  snr x {row['snr_ratio']} "
            f"[{row['snr_ratio_low']}, {row['snr_ratio_high']}]  n {row['batches']}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--regime", choices=("A", "B", "C"), default="A")
    parser.add_argument("--base", default=Config.base, help="policy of the table task")
    parser.add_argument("--batches", type=int, default=Config.batches)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/optimal_weights"))
    parser.add_argument("--work", type=Path, default=Path("runs/optimal_weights"))
    parser.add_argument("--tiny", action="store_true", help="regime C, 6 batches: seconds")
    given = parser.parse_args()
    sizes = ("regime", "base", "batches", "seed")
    asked = replace(Config(), **{name: getattr(given, name) for name in sizes})
    try:
        main(TINY if given.tiny else asked, out=given.out, work=given.work)
    except TokensenseError as error:
        sys.exit(f"optimal_weights: {error}")
