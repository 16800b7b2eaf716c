"""Do the primary endpoints keep their level? Null data sets, coverage and power, cell by cell.

    OMP_NUM_THREADS=1 python -m studies.calibration --out data/calibration
    python -m studies.calibration --out data/calibration --effects 0 0.5 1   # coverage and power
    python -m studies.calibration --out data/calibration --sets 0            # add up what is there
    python -m studies.calibration --tiny --out runs/calibration              # seconds

Data sets come from `null_data`; all that follows is what `analyze` calls: `read` (E1),
`informative` (E2), `describe_pairs` (the triple). Nothing of the inference stands here.

Cells    24 that are judged: 6, 20 and 100 problem texts, each with eight settings: one rollout a
         problem (ICC then means nothing, and E2 has no contest); four with ICC 0, .1, .5; eight
         with ICC .1, .5; four with ICC .1 and heavy tails, and with drift. Others, reported and not
         judged: 12 texts (t intervals), four generators, 400 texts (E2 says a word from 300 on).
Tests    `e1_rank`, verdict first of 20 (p = .05 can be reached, with 19 families and 3 sentences);
         `e2_auroc`, the 95 % interval of the balanced AUROC of the sum leaves out 1/2; `triple`,
         that of the difference of mean |d| leaves out 0. Secondary: lambda of the verdict and its
         difference (3 families, 6 sentences, both drawn), plain AUROC, the words of E2, four other
         statistics of the triple. 1,000 resamples: percentiles of so few leave out .052, not .05.
Judged   share of rejections among data sets that have an interval. `pass`: its 99 % Clopper-Pearson
         interval meets [.04, .06]; `conservative`: lies below; `FAIL`: above. At most one primary
         may fail, only at 6 texts. Coverage is judged likewise, 1 minus it; the truth is 0 or 1/2,
         a formula (lambda), or else the estimate on 20,000 texts.

`lines.csv` holds batches of data sets: a run that is stopped goes on, more sets are more lines, and
lines of another design (digest) are not added up. `calibration.csv`, the sum, is what
`tokensense.stats.calibrated` reads to warn.

Source   `statistics.md` 3.3 to 3.5 of the project's notes; the criterion is issue 6's.
"""

import argparse
import csv
import hashlib
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from studies.calibration_table import PRIMARIES, added, verdict
from studies.null_data import Cell, Made, made, true_lambda
from studies.rows import written
from tokensense.errors import TokensenseError
from tokensense.stats.endpoints import informative
from tokensense.stats.reading import read
from tokensense.stats.resampling import T_FROM, Resampling
from tokensense.stats.triples import describe_pairs, pair_sums
from tokensense.store.provenance import git_state

LINES, TABLE = "lines.csv", "calibration.csv"
TRIPLES = {
    "triple": "mean_absolute_contrast",
    "triple_mean": "mean_contrast",
    "triple_share": "contrast_variance_share",
    "triple_direction": "same_direction",
    "triple_rank": "rank_correlation",
}
ALPHA = 0.05
SETTINGS = (
    (1, 0.0, False, False),
    *((4, icc, False, False) for icc in (0.0, 0.1, 0.5)),
    *((8, icc, False, False) for icc in (0.1, 0.5)),
    (4, 0.1, True, False),
    (4, 0.1, False, True),
)
CELLS = tuple(Cell(clusters, *setting) for clusters in (6, 20, 100) for setting in SETTINGS)
OTHERS = (
    Cell(12, 4, 0.1),
    Cell(12, 4, 0.1, heavy=True),
    Cell(20, 4, 0.1, writers=True),
    Cell(100, 4, 0.1, writers=True),
    Cell(400, 4, 0.1),
)


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        sets: data sets of a cell.
        batch: data sets of a line.
        resamples: of each interval.
        families: placebo families behind intervals of lambda; E2 and the triple take the first.
        frames: sentences behind them; E2 and the triple take the first.
        without: data sets of a cell below 8 texts, where no interval is given, that are asked
            for one all the same.
        ranked_families: behind the rank.
        ranked_frames: behind the rank.
        truth_texts: problem texts of the data set that stands for the truth of a planted effect.
        seed: of everything.
    """

    sets: int = 2000
    batch: int = 250
    resamples: int = 1000
    families: int = 3
    frames: int = 6
    without: int = 50
    ranked_families: int = 19
    ranked_frames: int = 3
    truth_texts: int = 20_000
    seed: int = 60_000

    @property
    def digest(self) -> str:
        """Of what decides about a line; the number of data sets does not."""
        text = json.dumps({**asdict(self), "sets": 0, "cells": [*CELLS, *OTHERS]}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


TINY = Config(sets=4, batch=2, resamples=100, families=1, truth_texts=200)


class Finding(NamedTuple):
    """What one test says of one data set; NaN where it has no interval."""

    estimate: float
    low: float
    high: float
    rejects: float


class Job(NamedTuple):
    """A batch of data sets: cell, its place, effect, number of the batch."""

    cell: Cell
    place: int
    effect: float
    batch: int


def jobs(config: Config, effects: Sequence[float]) -> list[Job]:
    """Effect by effect; batch by batch over all judged cells, so that a part tells of all."""
    return [
        Job(cell, place, effect, batch)
        for effect in effects
        for cells in (CELLS, OTHERS)
        for batch in range(math.ceil(config.sets / config.batch))
        for place, cell in enumerate(cells, start=len(CELLS) * (cells is OTHERS))
    ]


# One data set


def findings(job: Job, number: int, config: Config) -> dict[str, Finding]:
    """All tests of one data set; those of the rank have data of their own."""
    seed = [config.seed, job.place, round(1000 * job.effect), number]
    ranked = made(
        job.cell, families=config.ranked_families, frames=config.ranked_frames,
        effect=job.effect, seed=[*seed, 0],
    )  # fmt: skip
    found = {"e1_rank": _rank(ranked)}
    if job.cell.clusters < T_FROM and number >= config.without:
        return found
    data = made(
        job.cell, families=config.families, frames=config.frames, effect=job.effect,
        seed=[*seed, 1],
    )  # fmt: skip
    plan = Resampling(job.cell.clusters, config.resamples, seed=number)
    one = data.triple()
    return {**found, **_lambda(data, plan), **_informative(one, plan), **_triple(one, plan)}


def _rank(data: Made) -> Finding:
    """E1's test needs no resamples."""
    plan = Resampling(data.sample.clusters, 100)
    found, _ = read(data.sample, data.pairs, terms=data.terms, plan=plan, attrs={})
    p = found.attrs.get("p", math.nan)
    return Finding(found.attrs.get("rank", math.nan), math.nan, math.nan, _truth(p, p <= ALPHA))


def _lambda(data: Made, plan: Resampling) -> dict[str, Finding]:
    """E1's intervals."""
    found, _ = read(data.sample, data.pairs, terms=data.terms, plan=plan, attrs={})
    own = found.sel(statistic="lambda")
    return {
        "e1_lambda": _interval(own, "verdict", null=math.nan),
        "e1_difference": _interval(own, "difference", null=0.0),
    }


def _informative(data: Made, plan: Resampling) -> dict[str, Finding]:
    """E2's intervals and its word."""
    results = informative(data.sample, data.pairs, terms=data.terms, plan=plan, attrs={})
    nothing = Finding(*[math.nan] * 4)
    names = ("e2_auroc", "e2_plain", "e2_informative", "e2_equivalent")
    if results is None:
        return dict.fromkeys(names, nothing)
    found, word = results[0], results[0].attrs["word"]
    said = math.nan if word == "not_estimable" else 1.0
    return {
        "e2_auroc": _interval(found.sel(statistic="auroc_sum_balanced"), "verdict", null=0.5),
        "e2_plain": _interval(found.sel(statistic="auroc_sum_plain"), "verdict", null=0.5),
        "e2_informative": nothing._replace(
            rejects=_truth(said, word in {"informative", "reversed"})
        ),
        "e2_equivalent": nothing._replace(rejects=_truth(said, word == "equivalent")),
    }


def _triple(data: Made, plan: Resampling) -> dict[str, Finding]:
    """Differences of verdict and placebo."""
    floor = np.full(data.sample.kind.size, np.nan)
    sums = pair_sums(data.sample, data.pairs, floor=floor)
    found, _ = describe_pairs(sums, {}, terms=data.terms, weighting="token", plan=plan, attrs={})
    return {
        test: _interval(found.sel(statistic=name), "difference", null=0.0)
        for test, name in TRIPLES.items()
    }


def _interval(found: xr.Dataset, term: str, *, null: float) -> Finding:
    """Estimate and interval of one term, and whether the interval leaves the null out."""
    one = found.sel(term=term)
    low, high = one["interval"].values.tolist()
    return Finding(float(one["estimate"]), low, high, _truth(low, not low <= null <= high))


def _truth(known: float, value: bool) -> float:
    return math.nan if math.isnan(known) else float(value)


# One batch


@cache
def truths(cell: Cell, effect: float, config: Config) -> dict[str, float]:
    """What the intervals of a cell should cover; NaN for what has no interval."""
    alike = {"frames": config.frames}
    verdict = true_lambda(cell, effect=effect, **alike)
    found = dict.fromkeys(TRIPLES, 0.0) | {"e2_auroc": 0.5}
    if effect:
        large = cell._replace(clusters=config.truth_texts)
        data = made(large, families=1, frames=1, effect=effect, seed=[config.seed, 1, 1, 1])
        plan = Resampling(large.clusters, 100)
        every = {**_triple(data, plan), **_informative(data, plan)}
        found = {test: every[test].estimate for test in found}
    return found | {
        "e1_lambda": verdict,
        "e1_difference": verdict - true_lambda(cell, effect=0.0, **alike),
    }


def lines(job: Job, config: Config, *, commit: str) -> Iterator[dict[str, object]]:
    """A line for each test of a batch."""
    started = time.process_time()
    first = job.batch * config.batch
    last = min(first + config.batch, config.sets)
    every: dict[str, list[Finding]] = defaultdict(list)
    for number in range(first, last):
        for test, finding in findings(job, number, config).items():
            every[test].append(finding)
    truth = truths(job.cell._replace(clusters=0), job.effect, config)
    seconds = round((time.process_time() - started) / len(every), 2)
    for test, found in every.items():
        estimate, low, high, rejects = np.array(found).T
        true = truth.get(test, math.nan)
        yield {
            **key(job),
            "test": test,
            "n": len(found),
            "n_decided": int((~np.isnan(rejects)).sum()),
            "n_rejected": int(np.nansum(rejects)),
            "n_interval": int((~np.isnan(low)).sum()),
            "n_covered": int(((low <= true) & (true <= high)).sum()),
            "truth": round(true, 6),
            "sum_estimate": round(float(np.nansum(estimate)), 6),
            "n_estimate": int((~np.isnan(estimate)).sum()),
            "seconds": seconds,
            "design": config.digest,
            "commit": commit,
        }


def key(job: Job) -> dict[str, object]:
    """Names of a batch."""
    return {**job.cell._asdict(), "effect": job.effect, "batch": job.batch}


# All of them


def known(out: Path, config: Config) -> list[dict[str, str]]:
    """Lines of this design."""
    if not (out / LINES).exists():
        return []
    with (out / LINES).open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["design"] == config.digest]


def main(config: Config, *, out: Path, effects: Sequence[float] = (0.0,)) -> None:
    """Test all batches that are not tested yet, then add up; resumes."""
    out.mkdir(parents=True, exist_ok=True)
    names = (*Cell._fields, "effect", "batch")
    done = {tuple(row[name] for name in names) for row in known(out, config)}
    commit = (git_state(Path(__file__).parent) or {}).get("commit", "none")
    todo = [
        job for job in jobs(config, effects) if tuple(str(v) for v in key(job).values()) not in done
    ]
    for place, job in enumerate(todo):
        found = list(lines(job, config, commit=commit))
        written(out / LINES, found, add=True)
        print(f"{place + 1}/{len(todo)}  {job.cell.name}, effect {job.effect:g}", flush=True)
    table = added(known(out, config), judged=CELLS)
    written(out / TABLE, table)
    for row in table:
        if row["test"] in PRIMARIES:
            print("  ".join(f"{value!s:>8}" for value in row.values()))
    print(verdict(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--sets", type=int, default=Config.sets, help="data sets of a cell")
    parser.add_argument("--effects", type=float, nargs="+", default=[0.0], help="0: null data sets")
    parser.add_argument("--tiny", action="store_true", help="a few small data sets")
    given = parser.parse_args()
    chosen = TINY if given.tiny else replace(Config(), sets=given.sets)
    try:
        main(chosen, out=given.out, effects=given.effects)
    except TokensenseError as error:
        sys.exit(f"calibration: {error}")
