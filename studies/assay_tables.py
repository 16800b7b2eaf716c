"""Tables and figure of the credit assay: rules against uniform credit, paired by seed.

    python -m studies.assay_tables --out data/assay --gradients data/learning_value

Reads  `runs_*.csv` of `studies.credit_assay`; `table.csv` of `studies.learning_value`, if there.
Gives  summary, which writes `weighting.csv`, `signed.csv` and `curves_*.png`; compared.
Sign   difference = rule - uniform; positive: the rule is better (or longer, for a length).

A rule that only weighs keeps the sign of the advantage; one that is signed may turn it, and can go
further: they stand in separate tables. Intervals are Student's over paired seeds, 95 %; those
called simultaneous hold for all rules of a table and both primary outcomes together (Bonferroni:
exact enough for a handful of rules and valid for few seeds, where a bootstrap is not). `detectable`
is the true difference that such a comparison finds in 80 % of cases at its own spread.

Search seeds and confirmation seeds never meet in one line.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from studies.assay_figure import draw
from studies.learning_tables import read, short, write

BASELINE = "uniform"
OF_A_RUN = ("regime", "base", "lr", "phase")
LEVEL, POWER = 0.95, 0.8
Row = Mapping[str, Any]


class Difference(NamedTuple):
    """A mean of paired differences, unit of the outcome; NaN where there are too few seeds.

    mean. low, high: of its own interval. joint_low, joint_high: of the simultaneous one. spread:
    standard deviation over seeds. detectable: with POWER, two-sided, at its own level. n: seeds.
    """

    mean: float
    low: float
    high: float
    joint_low: float
    joint_high: float
    spread: float
    detectable: float
    n: int


def compared(differences: Sequence[float], *, comparisons: int) -> Difference:
    """Interval of a mean of paired differences.

    Args:
        differences: one a seed.
        comparisons: that are to hold together.

    Example:
        >>> found = compared([1.0, 3.0], comparisons=1)
        >>> found.mean, round(found.high - found.mean, 3), found.n
        (2.0, 12.706, 2)
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < 2:
        mean = float(values.mean()) if n else math.nan
        return Difference(mean, *[math.nan] * 6, n)
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    error = spread / math.sqrt(n)
    tail = (1 - LEVEL) / 2
    alone, together = (float(student.isf(tail / m, n - 1)) for m in (1, comparisons))
    detectable = (alone + float(student.ppf(POWER, n - 1))) * error
    ends = [mean + side * t * error for t in (alone, together) for side in (-1, 1)]
    return Difference(mean, *ends, spread, detectable, n)


def steps_of(rows: Sequence[Row]) -> list[int]:
    """Steps after which the policy was judged."""
    names = (name.removeprefix("accuracy_") for name in rows[0] if name.startswith("accuracy_"))
    return sorted(int(name) for name in names)


def outcomes(steps: Sequence[int]) -> dict[str, str]:
    """What is compared: short name -> column; the first two are primary."""
    middle, last = steps[len(steps) // 2], steps[-1]
    return {
        f"at_{middle}": f"accuracy_{middle}",
        "auc": "auc",
        f"at_{last}": f"accuracy_{last}",
    }


def lines(rows: Sequence[Row], *, signed: bool) -> list[dict[str, object]]:
    """One table of runs that share regime, base, learning rate and phase.

    Args:
        rows: of these runs.
        signed: the table of signed rules, or of those that weigh; uniform heads both.
    """
    by_rule: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row["rule"] == BASELINE or (row["signed"] == "1") == signed:
            by_rule[row["rule"]][int(row["seed"])] = row
    steps, base = steps_of(rows), by_rule.get(BASELINE, {})
    rules = [BASELINE, *sorted(set(by_rule) - {BASELINE})] if base else sorted(by_rule)
    comparisons = 2 * max(1, len(set(by_rule) - {BASELINE}))
    found = []
    for rule in rules:
        own = by_rule[rule]
        line: dict[str, object] = {name: rows[0][name] for name in OF_A_RUN}
        line |= {"rule": rule, "oracle": next(iter(own.values()))["oracle"], "seeds": len(own)}
        line |= _levels(list(own.values()), steps)
        shared = sorted(set(own) & set(base)) if rule != BASELINE else []
        for name, column in outcomes(steps).items():
            gaps = [float(own[seed][column]) - float(base[seed][column]) for seed in shared]
            difference = compared(gaps, comparisons=comparisons)
            line["pairs"] = difference.n
            for part in Difference._fields[:-1]:
                value = getattr(difference, part)
                line[f"{name}_{part}"] = "" if math.isnan(value) else short(value)
        found.append(line)
    return found


def _levels(rows: Sequence[Row], steps: Sequence[int]) -> dict[str, object]:
    """Means over seeds, with the standard error of accuracies."""
    last, found = steps[-1], dict[str, object]()
    for column in (*(f"accuracy_{step}" for step in steps), "auc"):
        values = np.array([float(row[column]) for row in rows])
        found[column] = short(values.mean())
        found[f"{column}_se"] = (
            short(values.std(ddof=1) / len(values) ** 0.5) if len(rows) > 1 else ""
        )
    for name in ("structural", "length", "fillers", "filler_entropy", "capped", "lucky"):
        found[f"{name}_{last}"] = short(np.mean([float(row[f"{name}_{last}"]) for row in rows]))
    found["collapsed"] = sum(row["collapsed"] != "" for row in rows)
    # Below its start at the end: what the health rules, made for longer runs, would miss.
    first = f"accuracy_{steps[0]}"
    found["lost"] = sum(float(row[f"accuracy_{last}"]) < float(row[first]) for row in rows)
    return found


def groups(out: Path) -> dict[tuple[str, ...], list[Row]]:
    """Runs that are there, by regime, base, learning rate and phase."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for path in sorted(out.glob("runs_*.csv")):
        for row in read(path):
            found[tuple(row[name] for name in OF_A_RUN)].append(row)
    return found


def summary(out: Path, *, gradients: Path | None = None) -> None:
    """Write and print both tables, and a figure for each group of runs.

    Args:
        out: folder of the study.
        gradients: folder of `studies.learning_value`; None, or without a table: not shown.
    """
    tables: dict[str, list[dict[str, object]]] = {"weighting": [], "signed": []}
    found = groups(out)
    for rows in found.values():
        for name, own in tables.items():
            own.extend(lines(rows, signed=name == "signed"))
    for name, own in tables.items():
        # Groups may have been judged at other steps: every line has all columns.
        columns = dict.fromkeys(column for line in own for column in line)
        write(out / f"{name}.csv", [{c: line.get(c, "") for c in columns} for line in own])
        print(f"{name}\n" + "\n".join(map(_told, own)))
    path = gradients / "table.csv" if gradients else None
    table = read(path) if path is not None and path.exists() else []
    for key, rows in found.items():
        own = [line for part in tables.values() for line in part if _key(line) == key]
        name = "_".join(key).replace("tiny:", "").replace("/", "-")
        draw(out / f"curves_{name}.png", rows, own, table)


def _key(line: Row) -> tuple[str, ...]:
    return tuple(str(line[name]) for name in OF_A_RUN)


def _told(line: Row) -> str:
    names = [n.removesuffix("_mean") for n in line if n.endswith("_mean") and line[n] != ""]
    parts = [
        f"{name} {line[f'{name}_mean']:+.3f} [{line[f'{name}_low']}, {line[f'{name}_high']}]"
        for name in names
    ]
    curve = " ".join(
        f"{value:.3f}" for name, value in line.items()
        if name.startswith("accuracy_") and not name.endswith("_se") and value != ""
    )  # fmt: skip
    return (
        f"  {' '.join(_key(line))}  {line['rule']:<20} n {line['seeds']}  {curve}  "
        f"auc {line['auc']:.3f}  {'  '.join(parts)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data/assay"))
    parser.add_argument("--gradients", type=Path, default=Path("data/learning_value"))
    given = parser.parse_args()
    summary(given.out, gradients=given.gradients)
