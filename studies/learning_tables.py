"""Tables of the learning-value study: rules ranked, gain and squared norm by kind of token.

Reads  `about_*.csv` and `batches_*.csv` of `studies.learning_value`.
Gives  summary, which writes `table.csv`, `shares.csv` and `pairs.csv` (rules beside their matched
       controls, rows 11 and 12 of methods/claims.md); read, write, short for its other files.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from studies.learning_rules import KINDS, NAMES, ORACLE
from tokensense.stats import learning

UNIFORM = NAMES.index("uniform")
# Row of the claims, rule, its control: the same form fed by surprisal or by placebo pairs.
PAIRS = (
    *(("11", f"cscr_{gamma}", f"cscr_surprisal_{gamma}") for gamma in (0.2, 0.8)),
    *(("12", f"cscr_{gamma}", f"placebo_{gamma}") for gamma in (0.2, 0.8)),
)
ALL_BASES = "all"


def summary(out: Path, *, resamples: int) -> None:
    """Rank the rules of every run that is there; print and write the tables."""
    table, split = [], []
    cosine: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for path in sorted(out.glob("about_*.csv")):
        (about,) = read(path)
        rows = read(path.with_name(path.name.replace("about_", "batches_")))
        run_of = {name: about[name] for name in ("regime", "base", "steps", "seed")}
        table += [{**run_of, **line} for line in ranked(about, rows, resamples=resamples)]
        split += [{**run_of, **line} for line in split_by_kind(rows, resamples=resamples)]
        alike = cosine.setdefault((about["regime"], about["steps"]), {})
        alike[f"{about['base']}, seed {about['seed']}"] = _cosines(about, rows)
    write(out / "table.csv", table)
    write(out / "shares.csv", split)
    write(out / "pairs.csv", list(pairs(cosine, resamples=resamples)))
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
    cosine = {end: _cosines(about, rows, end) for end in ("", "_uniform")}
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


def pairs(
    cosine: Mapping[tuple[str, str], Mapping[str, np.ndarray]], *, resamples: int
) -> Iterator[dict[str, object]]:
    """Cosine of a rule minus that of its control, in every base and over all of them.

    Over all: every batch counts alike, and the interval is of batches drawn anew. It says nothing
    about other bases.

    Args:
        cosine: by regime and steps, then by base; [batch, rule].
        resamples: of whole batches.
    """
    for (regime, steps), by_base in cosine.items():
        every = by_base | {ALL_BASES: np.concatenate(list(by_base.values()))}
        for (row, rule, control), (base, values) in product(PAIRS, every.items()):
            columns = [NAMES.index(control), NAMES.index(rule)]
            found = learning.ranking(values[:, columns], resamples=resamples).difference
            yield {
                **{"row": row, "regime": regime, "steps": steps, "base": base, "rule": rule},
                **{"control": control, "difference": short(found.estimate[1])},
                **{end: short(getattr(found, end)[1]) for end in ("low", "high")},
                "batches": len(values),
            }


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


def _cosines(about: dict[str, str], rows: Sequence[dict[str, str]], end: str = "") -> np.ndarray:
    """[batch, rule], with G of exact values or, for `_uniform`, of uniform credit."""
    gain, squared = _grid(rows, f"gain{end}"), _grid(rows, "squared")
    return learning.cosines(gain, squared, norm=float(about[f"norm{end}"]))


def _grid(rows: Sequence[dict[str, str]], column: str) -> np.ndarray:
    """A column as [batch, rule]."""
    return np.array([float(row[column]) for row in rows]).reshape(-1, len(NAMES))


def short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def printed(row: dict[str, Any]) -> dict[str, Any]:
    """A line as it stands in a CSV: numbers with six digits."""
    return {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}


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
        writer.writerows(printed(row) for row in rows)
    part.replace(path)
