"""Published claims, the criteria that were fixed before the runs, and how runs came out.

Reads  `data/claims.csv` (criteria) and `data/claim_results.csv` (a line a run of a study).
Gives  read_claims, judge, add_result, ledger.
Sign   that of each row's `measure`.

A verdict follows from the interval alone: wholly inside the row's `supported` bands -> supported,
wholly inside `refuted` -> refuted, else inconclusive; without an interval, not testable. The level
is 95 %, or 90 % where a band is an equivalence band (two one-sided tests at 5 %). A result carries
the digest of the row that it was judged by: where the row has changed since, it is `post hoc`.

Source: methods/claims.md; design.md section 12.
"""

import csv
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from tokensense.bundled import bundled
from tokensense.errors import InputError, StatisticsError

VERDICTS = ("supported", "refuted", "inconclusive", "not testable here")
Band = tuple[float, float]
WORDS = ("claim", "source", "measure", "study", "policies", "note")
_NUMBER = r"(-?(?:\d+\.?\d*|inf))"
_BAND = re.compile(rf"\[{_NUMBER}, {_NUMBER}\]")


@dataclass(frozen=True)
class Claim:
    """One row: what is claimed by whom, what is measured, and what decides.

    Attributes:
        row: number in the list of candidate claims.
        claim: in words.
        source: who claims it.
        measure: the estimand; its unit and sign.
        study: name of the study that measures it.
        policies: T tiny policies, L SmolLM2, G Gemma.
        supported: bands of the measure; an interval inside one of them supports.
        refuted: the same for refuting.
        level: of the interval, percent.
        note: what else has to be said beside the verdict.
        digest: sha256 of the row's fields, first 12 digits.
    """

    row: int
    claim: str
    source: str
    measure: str
    study: str
    policies: str
    supported: tuple[Band, ...]
    refuted: tuple[Band, ...]
    level: int
    note: str
    digest: str


@dataclass(frozen=True)
class Result:
    """How one run of a study came out.

    Attributes:
        row: of the claim.
        policy: who scored, or was trained.
        estimate: of the measure.
        low: lower limit at the row's level, NaN for none.
        high: upper limit.
        n: of what and how many, in words.
        digest: of the row when it was judged.
        verdict: one of VERDICTS.
        date: of the run, ISO.
        commit: of the code.
        command: that prints the number.
    """

    row: int
    policy: str
    estimate: float
    low: float
    high: float
    n: str
    digest: str
    verdict: str
    date: str
    commit: str
    command: str


def read_claims(path: Path | None = None) -> dict[int, Claim]:
    """Claims by row number.

    Args:
        path: of the criteria; the shipped ones by default.

    Raises:
        InputError: a row cannot be read; it names file, line and field.
    """
    path = path or bundled("claims.csv")
    with path.open(encoding="utf-8", newline="") as file:
        found = [
            _claim(line, f"{path}, line {i}") for i, line in enumerate(csv.DictReader(file), 2)
        ]
    return {claim.row: claim for claim in found}


def judge(claim: Claim, *, low: float, high: float) -> str:
    """The verdict that an interval gives.

    Args:
        claim: its bands.
        low: lower limit of the interval at the claim's level; NaN: there is none.
        high: upper limit.

    Raises:
        StatisticsError: the limits are the wrong way round.
    """
    if math.isnan(low) or math.isnan(high):
        return "not testable here"
    if low > high:
        raise StatisticsError(
            f"claim {claim.row} needs an interval with low <= high; it is [{low}, {high}]. Give "
            "the lower limit first."
        )
    for verdict, bands in (("supported", claim.supported), ("refuted", claim.refuted)):
        if any(left <= low and high <= right for left, right in bands):
            return verdict
    return "inconclusive"


def add_result(result: Result, path: Path) -> None:
    """Put a result behind those that the file holds; a lock keeps two writers apart."""
    line = {name: str(value) for name, value in asdict(result).items()}
    with FileLock(f"{path}.lock"):
        fresh = not path.exists()
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(line), lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(line)


def ledger(claims: dict[int, Claim], path: Path | None = None) -> list[dict[str, str]]:
    """One line a claim and policy, the last run of each; claims that were not run as well.

    Args:
        claims: see `read_claims`.
        path: of the results; the shipped ones by default.

    Returns:
        Fields `row`, `claim`, `source`, `policy`, `estimate`, `n`, `verdict`, `run`; a verdict by
        criteria that have changed since ends in ", post hoc".
    """
    path = path or bundled("claim_results.csv")
    last: dict[tuple[int, str], dict[str, str]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                last[int(line["row"]), line["policy"]] = line
    found = []
    for claim in claims.values():
        runs = [line for (row, _), line in last.items() if row == claim.row]
        found += [_shown(claim, line) for line in runs] or [_shown(claim, None)]
    return found


def _shown(claim: Claim, line: dict[str, str] | None) -> dict[str, str]:
    """A line for people."""
    about = {"row": str(claim.row), "claim": claim.claim, "source": claim.source}
    if line is None:
        return {**about, "policy": "", "estimate": "", "n": "", "verdict": "not run", "run": ""}
    numbers = [float(line[name]) for name in ("estimate", "low", "high")]
    estimate, low, high = (f"{number:.3g}" for number in numbers)
    interval = "" if math.isnan(numbers[1]) else f" [{low}, {high}]"
    late = "" if line["digest"] == claim.digest else ", post hoc"
    return {
        **about,
        "policy": line["policy"],
        "estimate": estimate + interval,
        "n": line["n"],
        "verdict": line["verdict"] + late,
        "run": f"{line['date']}, {line['commit'][:7]}, {line['command']}",
    }


def _claim(line: dict[str, str], where: str) -> Claim:
    """One line of the criteria."""
    wrong = InputError(
        f"{where} needs the fields of a claim, numbers in `row` and `level`, and bands as "
        f"`[0.9, inf]` joined by ` or `; it is {line}. Compare with the shipped data/claims.csv."
    )
    bands = {name: _bands(line.get(name) or "") for name in ("supported", "refuted")}
    if not all(bands.values()) or not all(str(line.get(n)).isdecimal() for n in ("row", "level")):
        raise wrong
    text = "\x1f".join(f"{name}={value}" for name, value in sorted(line.items()))
    if not set(WORDS) <= set(line):
        raise wrong
    return Claim(
        row=int(line["row"]),
        claim=line["claim"],
        source=line["source"],
        measure=line["measure"],
        study=line["study"],
        policies=line["policies"],
        supported=bands["supported"],
        refuted=bands["refuted"],
        level=int(line["level"]),
        note=line["note"],
        digest=hashlib.sha256(text.encode()).hexdigest()[:12],
    )


def _bands(text: str) -> tuple[Band, ...]:
    """Bands of a field, each with low <= high; none where one cannot be read."""
    matches = [_BAND.fullmatch(part) for part in text.split(" or ")]
    found = [(float(match[1]), float(match[2])) for match in matches if match]
    good = len(found) == len(matches) and all(low <= high for low, high in found)
    return tuple(found) if good else ()


def verdict_counts(lines: Sequence[dict[str, str]]) -> dict[str, int]:
    """How many lines of a ledger have each verdict, `post hoc` ones by themselves."""
    found: dict[str, int] = {}
    for line in lines:
        found[line["verdict"]] = found.get(line["verdict"], 0) + 1
    return found
