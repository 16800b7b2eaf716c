"""Adding up the lines of `calibration`, and the criterion of issue 6 on what comes of it.

Reads  lines: numbers of data sets, of intervals, of rejections, a batch and a test each.
Gives  one row for each cell, effect and test, with a word; the criterion in words.

Type I error is the share of rejections among data sets in which the test decides. `pass`: its 99 %
Clopper-Pearson interval meets [.04, .06]; `conservative`: lies below; `FAIL`: above; `none`: it
never decides. Coverage is judged likewise, by 1 minus it. `power`: an effect was planted, or the
test has no level of 5 % there. Judged are PRIMARIES on the cells named before the runs.

Source   Clopper & Pearson 1934, Biometrika 26, 404.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from scipy.stats import beta

from studies.null_data import Cell

PRIMARIES = ("e1_rank", "e2_auroc", "triple")
NEAR, SURE = (0.04, 0.06), 0.99
FEWEST = 6  # texts at which one primary may fail
# Of these no share of 5 % is promised under no effect.
NO_LEVEL = {"e1_lambda", "e2_equivalent"}


def limits(hits: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, exact, at SURE."""
    tail = (1 - SURE) / 2
    low = float(beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


def word(hits: int, n: int) -> str:
    """Whether a share of errors is as announced."""
    if not n:
        return "none"
    low, high = limits(hits, n)
    return "FAIL" if low > NEAR[1] else "conservative" if high < NEAR[0] else "pass"


def added(rows: Sequence[dict[str, str]], *, judged: Sequence[Cell]) -> list[dict[str, object]]:
    """One row for each cell, effect and test."""
    names = (*Cell._fields, "effect", "test")
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    asked = {tuple(map(str, cell)) for cell in judged}
    table = []
    for values, own in groups.items():
        total = {
            name: sum(float(row[name]) for row in own) for name in own[0] if name[:2] in {"n", "n_"}
        }
        decided, rejected = int(total["n_decided"]), int(total["n_rejected"])
        kept, covered = int(total["n_interval"]), int(total["n_covered"])
        row = dict(zip(names, values, strict=True))
        null, true = float(row["effect"]) == 0, own[0]["truth"] != "nan"
        is_null = null and row["test"] not in {"e1_lambda", "e2_equivalent"}
        is_null = is_null and not (row["test"] == "e2_plain" and row["writers"] == "True")
        low, high = limits(rejected, decided) if decided else (math.nan, math.nan)
        mean = sum(float(r["sum_estimate"]) for r in own) / max(total["n_estimate"], 1)
        table.append(
            {
                **row,
                "judged": int(values[: len(Cell._fields)] in asked and row["test"] in PRIMARIES),
                "n": int(total["n"]),
                "n_decided": decided,
                "rejected": _share(rejected, decided),
                "low": round(low, 4),
                "high": round(high, 4),
                "word": word(rejected, decided) if is_null else "power",
                "coverage": _share(covered, kept) if true else math.nan,
                "coverage_word": word(kept - covered, kept) if true else "none",
                "truth": own[0]["truth"],
                "mean_estimate": round(mean, 4) if total["n_estimate"] else math.nan,
            }
        )
    return table


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else math.nan


def verdict(table: Sequence[dict[str, object]]) -> str:
    """The criterion in words."""
    failed = sorted(
        (str(row["test"]), int(str(row["clusters"]))) for row in table
        if row["judged"] and row["word"] == "FAIL"
    )  # fmt: skip
    tests, at = {test for test, _ in failed}, {clusters for _, clusters in failed}
    held = len(tests) <= 1 and at <= {6}
    return f"criterion {'held' if held else 'NOT HELD'}: judged cells that fail: {failed or 'none'}"
