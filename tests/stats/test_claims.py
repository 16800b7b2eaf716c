"""The ledger of claims: both verdicts can come out of every row, and late criteria show."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.errors import InputError, StatisticsError
from tokensense.stats.claims import Result, add_result, judge, ledger, read_claims, verdict_counts

CLAIMS = read_claims()


def inside(band):
    """An interval inside a band, however wide the band."""
    low, high = band
    if math.isinf(low) and math.isinf(high):
        return -1.0, 1.0
    if math.isinf(low):
        return high - 1.0, high
    return (low, low + 1.0) if math.isinf(high) else (low, high)


def test_there_are_24_rows_each_with_its_study():
    assert list(CLAIMS) == list(range(1, 25))
    assert all(
        claim.study and claim.measure and claim.level in (90, 95) for claim in CLAIMS.values()
    )


@pytest.mark.parametrize("row", CLAIMS)
def test_every_verdict_can_come_out_of_every_row(row):
    claim = CLAIMS[row]
    for verdict, bands in (("supported", claim.supported), ("refuted", claim.refuted)):
        for band in bands:
            low, high = inside(band)
            assert judge(claim, low=low, high=high) == verdict
    assert judge(claim, low=-1e9, high=1e9) == "inconclusive"
    assert judge(claim, low=math.nan, high=math.nan) == "not testable here"
    with pytest.raises(StatisticsError, match="low <= high"):
        judge(claim, low=1.0, high=0.0)


@given(st.sampled_from(sorted(CLAIMS)), st.floats(-2, 2), st.floats(0, 2))
def test_no_interval_of_some_width_is_both(row, low, width):
    claim = CLAIMS[row]
    swapped = replace(claim, supported=claim.refuted, refuted=claim.supported)
    first, second = (judge(c, low=low, high=low + width + 1e-6) for c in (claim, swapped))
    assert (first, second) in {
        ("supported", "refuted"),
        ("refuted", "supported"),
        ("inconclusive", "inconclusive"),
    }


def result(**fields):
    given = {
        "row": 6, "policy": "tiny:mixed", "estimate": 0.9, "low": 0.85, "high": 0.95,
        "n": "60 problem texts", "digest": CLAIMS[6].digest, "verdict": "supported",
        "date": "2026-12-01", "commit": "0123456789", "command": "python -m studies.x, --y",
    }  # fmt: skip
    return Result(**(given | fields))


def test_the_last_run_of_a_policy_counts_and_changed_criteria_show(tmp_path):
    path = tmp_path / "results.csv"
    add_result(result(estimate=0.1), path)
    add_result(result(), path)
    add_result(result(policy="SmolLM2", digest="changed"), path)
    add_result(
        result(
            row=7, digest=CLAIMS[7].digest, low=math.nan, high=math.nan, verdict="not testable here"
        ),
        path,
    )
    lines = {(line["row"], line["policy"]): line for line in ledger(CLAIMS, path)}
    assert lines["6", "tiny:mixed"]["estimate"] == "0.9 [0.85, 0.95]"
    assert lines["6", "tiny:mixed"]["run"] == "2026-12-01, 0123456, python -m studies.x, --y"
    assert lines["6", "SmolLM2"]["verdict"] == "supported, post hoc"
    assert lines["7", "tiny:mixed"]["estimate"] == "0.9"
    assert verdict_counts(list(lines.values())) == {
        "not run": 22, "supported": 1, "supported, post hoc": 1, "not testable here": 1,
    }  # fmt: skip


@pytest.mark.parametrize("band", ["0.9", "[1, 0]", "[a, b]", ""])
def test_a_row_that_cannot_be_read_names_its_line(tmp_path, band):
    path = tmp_path / "claims.csv"
    fields = "row,claim,source,measure,study,policies,supported,refuted,level,note"
    path.write_text(f'{fields}\n1,a,b,c,d,T,"{band}","[0, 1]",95,\n', "utf-8")
    with pytest.raises(InputError, match=r"claims.csv, line 2 needs the fields of a claim"):
        read_claims(path)
