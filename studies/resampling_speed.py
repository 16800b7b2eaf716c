"""What 10,000 resamples of 20,000 rollouts cost: 40 ratios, 40 AUROCs, and scipy.stats.bootstrap.

    OMP_NUM_THREADS=1 python -m studies.resampling_speed --out data/resampling_speed
    python -m studies.resampling_speed --tiny                                # seconds

ours      from one number a token to intervals: sums a rollout, sums a problem text, resamples,
          intervals; 5,000 problem texts x 4 rollouts, and 20,000 x 1, which is the worst case.
AUROC     within problems, balanced over four generators and plain, of 40 scores, from the scores.
scipy     `bootstrap` of a ratio of sums over the same 5,000 texts, paired, vectorized, percentile,
          of SCALE times fewer resamples of one statistic; its seconds times SCALE x 40 are the
          `scaled` line. It has no clusters: it is given the sums a text.

Everything runs in processes of their own, one after the other in one run, so that a peak of memory
is its own; `processor` is processor time, which a busy machine does not stretch. Made-up numbers.
"""

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap

from studies.memory import peak_gib
from tokensense.errors import TokensenseError
from tokensense.segments import segment_sum
from tokensense.stats.auroc import auroc, contest_sums, contests, orientations
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import Estimates, Resampling, cluster_sums, intervals, resample

SCALE = 10


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        rollouts: of all problems.
        group: rollouts a problem.
        statistics: ratios, and scores of the AUROC.
        resamples: draws.
        length: tokens a rollout.
        generators: who wrote the rollouts.
        seed: of the numbers.
    """

    rollouts: int = 20_000
    group: int = 4
    statistics: int = 40
    resamples: int = 10_000
    length: int = 20
    generators: int = 4
    seed: int = 0


TINY = Config(rollouts=400, resamples=1000, statistics=4)


class Line(NamedTuple):
    """A line of the table; `limit` is what issue 6 asks for, empty where it asks for nothing."""

    what: str
    seconds: float
    processor: float
    peak_gib: float
    limit: str = ""
    held: str = ""


def numbers(config: Config, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (statistic, token), tokens a rollout, problem text of each rollout."""
    rng = np.random.default_rng(config.seed)
    length = rng.integers(1, 2 * config.length, config.rollouts)
    values = rng.standard_normal((config.statistics, int(length.sum())))
    return values, length, np.arange(config.rollouts) // group


def ratios(config: Config, group: int) -> tuple[float, float, Estimates]:
    """Wall and processor seconds of our intervals of means over tokens."""
    values, length, cluster = numbers(config, group)
    clock = time.perf_counter(), time.process_time()
    rows = np.concatenate([segment_sum(values, length), length[None].astype(float)]).T
    clusters = int(cluster[-1]) + 1
    sums = cluster_sums(rows, cluster, clusters=clusters)
    plan = Resampling(clusters, config.resamples, config.seed)
    present = np.ones((clusters, config.statistics), dtype=bool)
    draws = resample(sums, lambda m: ratio(m[:, :-1], m[:, -1:]), plan=plan, present=present)
    found = intervals(draws)
    return *_since(clock), found


def aurocs(config: Config, group: int) -> tuple[float, float, Estimates]:
    """The same of AUROCs within problems."""
    rng = np.random.default_rng(config.seed)
    scores = rng.standard_normal((config.rollouts, config.statistics))
    reward = rng.integers(0, 2, config.rollouts).astype(float)
    generator = np.arange(config.rollouts) % config.generators
    cluster = np.arange(config.rollouts) // group
    clock = time.perf_counter(), time.process_time()
    met = contests(reward, cluster)
    faced = orientations(met, generator)
    clusters = int(cluster[-1]) + 1
    sums = contest_sums(scores, cluster, met=met, faced=faced, clusters=clusters)
    present = np.ones((clusters, config.statistics, 2), dtype=bool)
    plan = Resampling(clusters, config.resamples, config.seed)
    found = intervals(resample(sums, lambda m: auroc(m, faced), plan=plan, present=present))
    return *_since(clock), found


def scipys(config: Config, group: int) -> tuple[float, float, Estimates]:
    """Scipy's interval of the first ratio, SCALE times fewer resamples."""
    values, length, cluster = numbers(config, group)
    clusters = int(cluster[-1]) + 1
    rows = np.stack([segment_sum(values[0], length), length.astype(float)], axis=1)
    above, below = cluster_sums(rows, cluster, clusters=clusters).T
    clock = time.perf_counter(), time.process_time()
    found = bootstrap(
        (above, below),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        n_resamples=config.resamples // SCALE,
        batch=100,
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(config.seed),
    )
    low, high = found.confidence_interval
    one = np.array([above.sum() / below.sum()])
    none = np.zeros(1, dtype=np.int64)
    return *_since(clock), Estimates(
        one, np.array([low]), np.array([high]), np.array([found.standard_error]),
        none.astype(np.int8), none + clusters, none,
    )  # fmt: skip


def _since(clock: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - clock[0], time.process_time() - clock[1]


def measured(
    compute: Callable[[Config, int], tuple[float, float, Estimates]], config: Config, group: int
) -> tuple[float, float, Estimates, float]:
    """To run in a process of its own."""
    return *compute(config, group), peak_gib()


def main(config: Config, *, out: Path) -> list[Line]:
    """Measure, compare, print, write `resampling_speed.csv`."""
    jobs = (
        (f"{config.statistics} ratios, groups of {config.group}", ratios, config.group, 10.0),
        (f"{config.statistics} ratios, groups of 1", ratios, 1, 10.0),
        (f"{config.statistics} AUROCs, groups of {config.group}", aurocs, config.group, 30.0),
        (f"scipy, 1 ratio, resamples / {SCALE}", scipys, config.group, None),
    )
    found, lines = [], []
    for what, compute, group, limit in jobs:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            wall, processor, estimates, peak = pool.submit(
                measured, compute, config, group
            ).result()
        found.append(estimates)
        held = "" if limit is None else "yes" if wall < limit else "NO"
        said = "" if limit is None else f"< {limit:g}"
        lines.append(Line(what, wall, processor, peak, said, held))
    times = SCALE * config.statistics
    lines.append(
        Line(f"scipy, scaled x {times}", times * wall, times * processor, peak)._replace(
            held=f"{times * processor / lines[0].processor:.0f} x ours"
        )
    )
    _agree(found[0], found[3])
    out.mkdir(parents=True, exist_ok=True)
    with (out / "resampling_speed.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows((line.what, *(f"{v:.4g}" for v in line[1:4]), *line[4:]) for line in lines)
    for line in lines:
        print(
            f"{line.what:32} {line.seconds:9.2f} s {line.processor:9.2f} s processor "
            f"{line.peak_gib:5.2f} GiB  {line.limit:5} {line.held}"
        )
    return lines


def _agree(ours: Estimates, other: Estimates) -> None:
    """Fail where the two say different things of the first statistic."""
    np.testing.assert_allclose(ours.estimate[0], other.estimate[0], rtol=1e-9)
    np.testing.assert_allclose(ours.error[0], other.error[0], rtol=0.15)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/resampling_speed"))
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    try:
        main(TINY if given.tiny else Config(), out=given.out)
    except TokensenseError as error:
        sys.exit(f"resampling_speed: {error}")
