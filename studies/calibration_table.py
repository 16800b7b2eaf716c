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
# Of these no share of 5 % is promised under no effect; lambda has no null of its own.
NO_LEVEL = {"e1_lambda", "e2_equivalent"}
ONLY_COVERS = "e1_lambda"


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
    """Add lines up.

    Args:
        rows: of `lines.csv`.
        judged: cells that the criterion asks about.

    Returns:
        One row for each cell, effect and test.
    """
    names = (*Cell._fields, "effect", "test")
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    asked = {tuple(map(str, cell)) for cell in judged}
    table = []
    for values, own in groups.items():
        named = dict(zip(names, values, strict=True))
        inside = values[: len(Cell._fields)] in asked and named["test"] in PRIMARIES
        table.append({**named, "judged": int(inside), **_total(own)})
    return table


def _total(own: Sequence[dict[str, str]]) -> dict[str, object]:
    """Numbers and words of the lines of one cell, effect and test."""
    counts = ("n", "n_decided", "n_rejected", "n_interval", "n_covered", "n_estimate")
    sets, decided, rejected, kept, covered, known = (
        sum(int(row[name]) for row in own) for name in counts
    )
    first = own[0]
    if first["test"] == ONLY_COVERS:
        decided = rejected = 0
    low, high = limits(rejected, decided) if decided else (math.nan, math.nan)
    true = first["truth"] != "nan"
    return {
        "n": sets,
        "n_decided": decided,
        "rejected": _share(rejected, decided),
        "low": round(low, 4),
        "high": round(high, 4),
        "word": word(rejected, decided) if _has_level(first) else "power",
        "coverage": _share(covered, kept) if true else math.nan,
        "coverage_word": word(kept - covered, kept) if true else "none",
        "truth": first["truth"],
        "mean_estimate": _share(sum(float(row["sum_estimate"]) for row in own), known),
    }


def _has_level(row: dict[str, str]) -> bool:
    """Whether 5 % of rejections are promised."""
    biased = row["test"] == "e2_plain" and row["writers"] == "True"
    return float(row["effect"]) == 0 and row["test"] not in NO_LEVEL and not biased


def _share(part: float, whole: int) -> float:
    return round(part / whole, 4) if whole else math.nan


def verdict(table: Sequence[dict[str, object]]) -> str:
    """The criterion in words."""
    failed = sorted(
        (str(row["test"]), int(str(row["clusters"]))) for row in table
        if row["judged"] and row["word"] == "FAIL"
    )  # fmt: skip
    tests, at = {test for test, _ in failed}, {clusters for _, clusters in failed}
    held = len(tests) <= 1 and at <= {FEWEST}
    return f"criterion {'held' if held else 'NOT HELD'}: judged cells that fail: {failed or 'none'}"
