"""Tables of the learning-value study: rules ranked, gain and squared norm by kind of token.

Reads  `about_*.csv` and `batches_*.csv` of `studies.learning_value`.
Gives  summary, which writes `table.csv` and `shares.csv`; read, write, short for its other files.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.learning_rules import KINDS, NAMES, ORACLE
from tokensense.stats import learning

UNIFORM = NAMES.index("uniform")


def summary(out: Path, *, resamples: int) -> None:
    """Rank the rules of every run that is there; print and write the tables."""
    table, split = [], []
    for path in sorted(out.glob("about_*.csv")):
        (about,) = read(path)
        rows = read(path.with_name(path.name.replace("about_", "batches_")))
        run_of = {name: about[name] for name in ("regime", "base", "steps", "seed")}
        table += [{**run_of, **line} for line in ranked(about, rows, resamples=resamples)]
        split += [{**run_of, **line} for line in split_by_kind(rows, resamples=resamples)]
    write(out / "table.csv", table)
    write(out / "shares.csv", split)
    for line in table:
        print(
            f"{line['regime']} {line['base']} {line['steps']:>3}  {line['rule']:<20}"
            f"{line['cosine']:>8} [{line['cosine_low']}, {line['cosine_high']}]"
            f"{line['difference']:>9} [{line['difference_low']}, {line['difference_high']}]"
            f"  n {line['batches']}  reliability {line['reliability']}"
        )


def ranked(
    about: dict[str, str], rows: Sequence[dict[str, str]], *, resamples: int
) -> Iterator[dict[str, object]]:
    """Lines of the table of one run."""
    cosine = {
        end: learning.cosines(
            _grid(rows, f"gain{end}"), _grid(rows, "squared"), norm=float(about[f"norm{end}"])
        )
        for end in ("", "_uniform")
    }
    found = learning.ranking(cosine[""], baseline=UNIFORM, resamples=resamples)
    agreement = np.array([[float(row["agreement"])] for row in rows]).reshape(-1, len(NAMES))
    reliability = float(about["reliability"])
    for place, name in enumerate(NAMES):
        line: dict[str, object] = {"rule": name, "signed": int(name == ORACLE)}
        for part in ("cosine", "difference", "distance_ratio"):
            own = getattr(found, part)
            line |= {part: short(own.estimate[place])}
            line |= {f"{part}_{end}": short(getattr(own, end)[place]) for end in ("low", "high")}
        line["cosine_corrected"] = short(
            found.cosine.estimate[place] / reliability**0.5 if reliability else math.nan
        )
        line["cosine_uniform_g"] = short(cosine["_uniform"][:, place].mean())
        line["alignment_of_mean"] = short(float(about[f"alignment_{name}"]))
        line["snr"] = short(float(about[f"snr_{name}"]))
        own_agreement = agreement[:, place]
        varies = np.isfinite(own_agreement)
        line["rank_agreement"] = short(own_agreement[varies].mean()) if varies.any() else ""
        line |= {"batches": about["batches"], "reliability": short(reliability)}
        yield line


def split_by_kind(rows: Sequence[dict[str, str]], *, resamples: int) -> Iterator[dict[str, object]]:
    """Endpoint E4: shares of gain and of squared norm by kind, and minus uniform's."""
    split = [row for row in rows if row[f"squared_{KINDS[0]}"] != ""]
    gain, squared = (
        np.stack([_grid(split, f"{part}_{kind}") for kind in KINDS], axis=-1)
        for part in ("gain", "squared")
    )
    found = learning.shares(gain, squared, baseline=UNIFORM, resamples=resamples)
    for place, name in enumerate(NAMES):
        for k, kind in enumerate(KINDS):
            line: dict[str, object] = {"rule": name, "kind": kind, "batches": len(gain)}
            for part in found._fields:
                own = getattr(found, part)
                line |= {part: short(own.estimate[place, k])}
                line |= {f"{part}_{e}": short(getattr(own, e)[place, k]) for e in ("low", "high")}
            yield line


def _grid(rows: Sequence[dict[str, str]], column: str) -> np.ndarray:
    """A column as [batch, rule]."""
    return np.array([float(row[column]) for row in rows]).reshape(-1, len(NAMES))


def short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def read(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A table as CSV, put in place at once."""
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
    part.replace(path)
