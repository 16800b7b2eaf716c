"""Published ablations by the gradient assay: which variant points where reward is gained?

    OMP_NUM_THREADS=1 python -m studies.gradient_ablations --regime A --out data/gradient_ablations

The batches, the held-out reward gradient G and the policy of `studies.learning_value` (same seeds,
same work folder), with other rules: strengths, thresholds and signs of CSCR and SD-GRPO; the table
of DelTA's ablations and its selection test (the better half of the tokens by lambda, a random half,
the other half); the entropy mask and what it leaves; and whose length the update follows.

    cosine           of the rule's gradient with G; `difference`: minus that of uniform credit
    cosine_length    with the gradient of the mean length of held-out responses: above 0, a step
                     makes responses longer; `uniform_sequence` divides each response by its length
    norm             length of the gradient in units of uniform's. A variant scaled to uniform's
                     norm has the same cosines, so it is no arm of its own.

A batch is a block of lines in `batches_*.csv`; a run that is stopped goes on. `table.csv` is made
anew of all runs that are there: a base a line, and `all`, with every batch alike; `ablations_*.png`
draws it. Intervals are 95 % for each rule by itself, of batches drawn anew; they say nothing about
other bases.

Source: methods/cscr.md 1.7; methods/delta.md 3.3, 3.4; arXiv:2506.01939 for the entropy mask.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from studies import learning_value
from studies.ablations import random_signs
from studies.learning_figure import BLUE, MARKERS
from studies.learning_rules import Batch, evidence
from studies.learning_tables import ALL_BASES, printed, read, short, write
from studies.learning_value import (
    held_out_batch,
    keep,
    problems,
    reference,
    small_batch,
    trained,
)
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted, weights_of
from tokensense.credit.evidence import Evidence
from tokensense.errors import TokensenseError
from tokensense.figures.style import NEUTRAL, new_figure, styled
from tokensense.models.policy import Policy
from tokensense.probes.gradients import pooled_gradients
from tokensense.segments import broadcast, segment_mean
from tokensense.stats import learning

Rule = Callable[[Evidence], np.ndarray]
QUANTILE = 0.8
HALVES = ("top", "random", "bottom")


def _of(name: str, **settings: float) -> Rule:
    rule = adjusted(CATALOGUE[name], **settings)
    return lambda told: np.asarray(rule.assign(told))


def _half(side: str) -> Rule:
    """Uniform credit on half of the tokens with an advantage, by DelTA's lambda; 0 elsewhere."""

    def credit(told: Evidence) -> np.ndarray:
        order = np.asarray(weights_of(CATALOGUE["delta"], told))
        if side == "random":
            order = np.random.default_rng([50, int(told["key"][0])]).random(order.size)
        asked = np.flatnonzero(told.spread())
        rising = asked[np.argsort(order[asked], kind="stable")]
        half = asked.size // 2
        kept = rising[:half] if side == "bottom" else rising[half:]
        return np.where(np.isin(np.arange(order.size), kept), told.spread(), 0.0)

    return credit


def _low_entropy(told: Evidence) -> np.ndarray:
    """The tokens that the entropy mask leaves out."""
    masked = np.asarray(CATALOGUE["high_entropy"].assign(told))
    return np.where(masked == 0, told.spread(), 0.0)


def _by_sequence(told: Evidence) -> np.ndarray:
    """Each response by its own length: the normalizer of GRPO."""
    return told.spread() / broadcast(np.maximum(told.length, 1), told.length)


RULES: dict[str, Rule] = {
    "uniform": _of("uniform"),
    "uniform_sequence": _by_sequence,
    **{f"cscr_{g:g}": _of("cscr", gamma=g, quantile=QUANTILE) for g in (0.2, 0.5, 1.0, -0.2)},
    **{f"cscr_0.8_q{q:g}": _of("cscr", gamma=0.8, quantile=q) for q in (0.5, 0.8, 0.9, 0.95)},
    "sd_grpo": _of("sd_grpo"),
    "sd_random": random_signs,
    "delta": _of("delta"),
    **{f"delta_k{k}": _of("delta", refinements=k) for k in (0, 2, 3)},
    "delta_low_0.5": _of("delta", low=0.5),
    "delta_high_1.5": _of("delta", high=1.5),
    "delta_0.5_1.5": _of("delta", low=0.5, high=1.5),
    "delta_alpha": _of("delta", low=0.0, high=1.0),
    **{n: _of(n) for n in ("delta_hard", "delta_within", "delta_unnormalized", "delta_random")},
    "delta_hidden": _of("delta_hidden"),
    **{f"delta_{side}_half": _half(side) for side in HALVES},
    "high_entropy": _of("high_entropy"),
    "low_entropy": _low_entropy,
}
NAMES = tuple(RULES)
NUMBERS = ("cosine", "difference", "cosine_length", "difference_length")
ENDS = ("", "_low", "_high")
COLUMNS = ("rule", "batches", *(f"{name}{end}" for name in NUMBERS for end in ENDS))


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        study: policy, batches and G; those of `studies.learning_value`.
        resamples: of whole batches.
    """

    study: learning_value.Config = field(default_factory=learning_value.Config)
    resamples: int = 10_000


TINY = Config(replace(learning_value.TINY, batches=2), resamples=200)


def length_gradient(
    config: learning_value.Config, policy: Policy, batch: Callable[[], Batch], path: Path
) -> np.ndarray:
    """Gradient of the mean length, from held-out rollouts; kept in a file.

    The score-function estimate, with the mean length of each group as its baseline.
    """
    if not path.exists():
        drawn = batch()
        size = drawn.length.astype(np.float64)
        counts = np.bincount(drawn.group)
        mean = np.asarray(segment_mean(size, counts))
        longer = (size - broadcast(mean, counts)) / (1 - 1 / config.group)
        (found,) = pooled_gradients(
            policy, drawn.branches, broadcast(longer, drawn.length)[None] / drawn.length.size
        )
        keep(path, gradient=found.numpy())
    with np.load(path, allow_pickle=False) as file:
        return np.asarray(file["gradient"], dtype=np.float64)


def lines(
    policy: Policy, batch: Batch, directions: np.ndarray, *, number: int
) -> Iterator[dict[str, object]]:
    """One batch, a rule a line.

    Args:
        policy: as it is.
        batch: of the assay.
        directions: G and the gradient of length, [2, parameter].
        number: of the batch.
    """
    told = evidence(policy, batch, key=number)
    credit = np.stack([rule(told) for rule in RULES.values()])
    gradients = pooled_gradients(policy, batch.branches, credit).double().numpy()
    gains = gradients @ directions.T
    squared = np.square(gradients).sum(axis=1)
    for place, name in enumerate(NAMES):
        gain, longer = gains[place]
        yield {
            "batch": number,
            "rule": name,
            "squared": squared[place],
            "gain": gain,
            "gain_length": longer,
        }


def run(config: learning_value.Config, *, out: Path, work: Path) -> None:
    """Measure the batches that are not measured yet."""
    asked, policy = problems(config), trained(config)
    held_out = reference(config, policy, asked.held_out, work / f"reference_{config.tag}.npz")

    def again() -> Batch:
        return held_out_batch(config, policy, asked.held_out)

    longer = length_gradient(config, policy, again, work / f"length_{config.tag}.npz")
    directions = np.stack([held_out.whole(0).double().numpy(), longer])
    path = out / f"batches_{config.tag}.csv"
    rows: list[dict[str, object]] = list(read(path)) if path.exists() else []
    done = 1 + max((int(str(row["batch"])) for row in rows), default=-1)
    started = time.monotonic()
    for number in range(done, config.batches):
        batch = small_batch(config, policy, asked.batches[number], number)
        if (batch.advantage != 0).any():
            found = lines(policy, batch, directions, number=number)
            rows += [printed(line) for line in found]
            write(path, rows)
        left = (time.monotonic() - started) / (number + 1 - done) * (config.batches - number - 1)
        print(f"{config.tag}  batch {number + 1}/{config.batches}  {left:.0f} s left", flush=True)
    norms = {"norm": directions[0], "norm_length": directions[1]}
    write(
        out / f"about_{config.tag}.csv",
        [
            {name: getattr(config, name) for name in ("regime", "base", "steps", "seed")}
            | {name: float(np.linalg.norm(values)) for name, values in norms.items()}
        ],
    )


def cosines(rows: Sequence[Mapping[str, str]], column: str, norm: float) -> np.ndarray:
    """[batch, rule]; NaN where the direction is 0, as that of a length that never differs."""
    gain, squared = (
        np.array([float(row[name]) for row in rows]).reshape(-1, len(NAMES))
        for name in (column, "squared")
    )
    return learning.cosines(gain, squared, norm=norm) if norm else np.full(gain.shape, np.nan)


def table(out: Path, *, resamples: int) -> list[dict[str, object]]:
    """All runs that are there, a regime and base after the other; printed."""
    parts: dict[tuple[str, str], dict[str, tuple[np.ndarray, ...]]] = {}
    for path in sorted(out.glob("about_*.csv")):
        (about,) = read(path)
        rows = read(path.with_name(path.name.replace("about_", "batches_")))
        squared = np.array([float(row["squared"]) for row in rows]).reshape(-1, len(NAMES))
        of = parts.setdefault((about["regime"], about["steps"]), {})
        of[f"{about['base']}, seed {about['seed']}"] = (
            cosines(rows, "gain", float(about["norm"])),
            cosines(rows, "gain_length", float(about["norm_length"])),
            np.sqrt(squared / squared[:, :1]),
        )
    found = []
    for (regime, steps), by_base in parts.items():
        together = tuple(np.concatenate(each) for each in zip(*by_base.values(), strict=True))
        for base, arrays in (by_base | {ALL_BASES: together}).items():
            where = {"regime": regime, "steps": steps, "base": base}
            found += [{**where, **line} for line in ranked(*arrays, resamples=resamples)]
    write(out / "table.csv", found)
    return found


def ranked(
    value: np.ndarray, length: np.ndarray, norm: np.ndarray, *, resamples: int
) -> Iterator[dict[str, object]]:
    """A line a rule.

    Args:
        value: cosine with G, [batch, rule].
        length: cosine with the gradient of length.
        norm: of the gradient, in units of uniform's.
        resamples: of whole batches.
    """
    found = learning.ranking(value, resamples=resamples)
    numbers = {"cosine": found.cosine, "difference": found.difference}
    if np.isfinite(length).all():
        longer = learning.ranking(length, resamples=resamples)
        numbers |= {"cosine_length": longer.cosine, "difference_length": longer.difference}
    for place, name in enumerate(NAMES):
        line: dict[str, object] = {"rule": name, "batches": len(value)}
        for key, interval in numbers.items():
            ends = (interval.estimate, interval.low, interval.high)
            line |= {
                f"{key}{name}": short(float(end[place]))
                for name, end in zip(ENDS, ends, strict=True)
            }
        yield {column: line.get(column, "") for column in COLUMNS} | {
            "norm": short(float(np.median(norm[:, place])))
        }


def draw(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Both differences from uniform: all batches together with an interval, each base a mark."""
    rules = [name for name in NAMES if name != "uniform"]
    names = {
        "difference": "cosine with reward gradient,\nrule minus uniform",
        "difference_length": "cosine with length gradient,\nrule minus uniform",
    }
    bases = [base for base in dict.fromkeys(row["base"] for row in rows) if base != ALL_BASES]
    with styled("plain"):
        figure = new_figure(7.0, 1.1 + 0.2 * len(rules))
        panels = figure.subplots(1, len(names), sharey=True)
        for axes, (key, said) in zip(panels, names.items(), strict=True):
            for row in rows:
                if row["rule"] not in rules or row[key] == "":
                    continue
                y, x = rules.index(str(row["rule"])), float(str(row[key]))
                if row["base"] == ALL_BASES:
                    ends = [float(str(row[f"{key}_{end}"])) for end in ("low", "high")]
                    axes.plot(ends, [y, y], color=BLUE, linewidth=1.2)
                    axes.plot([x], [y], "o", color=BLUE, markersize=3.5)
                else:
                    marker = MARKERS[bases.index(row["base"]) % len(MARKERS)]
                    axes.plot([x], [y], marker, color=NEUTRAL, markersize=2.5, fillstyle="none")
            axes.axvline(0, color=NEUTRAL, linewidth=0.6, linestyle=":")
            axes.set_xlabel(said)
        panels[0].set_yticks(range(len(rules)), rules)
        panels[0].set_ylim(len(rules) - 0.5, -0.5)
        whole = next(r for r in rows if (r["base"], r["rule"]) == (ALL_BASES, "uniform"))
        level = f"{whole['cosine']} with reward, {whole['cosine_length'] or 'none'} with length"
        figure.suptitle(
            f"uniform: {level}; n = {whole['batches']} batches of {len(bases)} bases\n"
            "bars: 95 % over all batches; open marks: each base",
            fontsize="medium",
        )
        figure.savefig(path)


def main(config: Config, *, out: Path, work: Path = Path("runs/learning_value")) -> None:
    """Measure what is missing, then rank all that is there."""
    torch.set_num_threads(1)
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    run(config.study, out=out, work=work)
    rows = table(out, resamples=config.resamples)
    regime = config.study.regime
    draw([row for row in rows if row["regime"] == regime], out / f"ablations_{regime}.png")
    for line in rows:
        print(
            f"{line['regime']} {line['base']}  {line['rule']:<20}{line['difference']:>9} "
            f"[{line['difference_low']}, {line['difference_high']}]  length "
            f"{line['difference_length']} [{line['difference_length_low']}, "
            f"{line['difference_length_high']}]  n {line['batches']}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--regime", choices=("A", "B", "C"), default="A")
    parser.add_argument("--base", default=learning_value.Config.base, help="of the table task")
    parser.add_argument("--batches", type=int, default=learning_value.Config.batches)
    parser.add_argument("--out", type=Path, default=Path("runs/gradient_ablations"))
    parser.add_argument("--work", type=Path, default=Path("runs/learning_value"))
    parser.add_argument("--tiny", action="store_true", help="regime C, 2 batches: seconds")
    given = parser.parse_args()
    chosen = learning_value.Config(given.regime, given.base, batches=given.batches)
    try:
        main(
            TINY if given.tiny else Config(chosen),
            out=given.out,
            work=given.work,
        )
    except TokensenseError as error:
        sys.exit(f"gradient_ablations: {error}")
