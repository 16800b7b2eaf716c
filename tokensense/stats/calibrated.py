"""What simulation says of an endpoint at a given number of problem texts and rollouts: a warning.

Reads  `calibration.csv`, shipped with the package; made by `studies/calibration.py`.
Gives  the text of a warning, or None where the endpoint kept its level of 5 %.
Sign   none.

The rows looked at: those of the largest simulated number of texts that is not above the one at
hand, and among these of the nearest number of rollouts by ratio; all intra-class correlations and
tails of it, since the data's own are not known. A conservative test is no reason for a warning.

Source   own simulations; `studies/calibration.py` says how data sets are made.
"""

import csv
import math
from collections.abc import Sequence
from functools import cache

from tokensense.bundled import bundled
from tokensense.checks import require_range
from tokensense.errors import SchemaError

# Name of an endpoint -> test of the table whose level speaks for it.
ENDPOINTS = {"read": "e1_rank", "informative": "e2_auroc", "triple": "triple"}
CONDITIONS = ("heavy", "drift", "writers")
WORDS = {"heavy": "heavy tails", "drift": "drift with the position", "writers": "four generators"}

Row = dict[str, str]


def warning(endpoint: str, *, clusters: int, rollouts: float) -> str | None:
    """Say what is known against the level of an endpoint.

    Args:
        endpoint: one of ENDPOINTS.
        clusters: problem texts that take part.
        rollouts: a problem text, on average.

    Raises:
        SchemaError: there is no such endpoint, or a number is below 1.
    """
    if endpoint not in ENDPOINTS:
        raise SchemaError(
            f"`endpoint` needs one of {', '.join(ENDPOINTS)}; it is {endpoint!r}. Name one."
        )
    require_range("clusters", float(clusters), 1.0, math.inf)
    require_range("rollouts", float(rollouts), 1.0, math.inf)
    rows = [row for row in table() if row["test"] == ENDPOINTS[endpoint]]
    sizes = [int(row["clusters"]) for row in rows]
    if not sizes or clusters < min(sizes):
        fewest = f"the smallest simulated has {min(sizes)}" if sizes else "nothing was simulated"
        return f"{endpoint}: level not known for {clusters} problem texts: {fewest}"
    size = max(number for number in sizes if number <= clusters)
    rows = [row for row in rows if int(row["clusters"]) == size]
    group = min((int(row["rollouts"]) for row in rows), key=lambda n: abs(math.log(n / rollouts)))
    near = [row for row in rows if int(row["rollouts"]) == group]
    where = f"{size} problem texts x {group} rollouts"
    if all(row["word"] == "none" for row in near):
        return f"{endpoint}: no interval was given in simulations with {where}"
    failed = [row for row in near if row["word"] == "FAIL"]
    if not failed:
        return None
    worst = max(failed, key=lambda row: float(row["rejected"]))
    return (
        f"{endpoint}: rejects too often: type I error {float(worst['rejected']):.3f} "
        f"[{float(worst['low']):.3f}, {float(worst['high']):.3f}] instead of .05 in simulations "
        f"with {where}{_under(worst)}; {len(failed)} of {len(near)} such settings fail"
    )


@cache
def table() -> Sequence[Row]:
    """Rows of the calibration without a planted effect."""
    with bundled("calibration/calibration.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if float(row["effect"]) == 0]


def _under(row: Row) -> str:
    """What else the setting had."""
    found = [WORDS[name] for name in CONDITIONS if row[name] == "True"]
    return "".join(f", {text}" for text in [f"ICC {row['icc']}", *found])
