"""Warnings by a made-up table; that the shipped one can be read."""

import pytest

from tokensense.errors import SchemaError
from tokensense.stats import calibrated

PLAIN = {"icc": "0.1", "heavy": "False", "drift": "False", "writers": "False"}


def row(test, clusters, rollouts, word, rejected="0.05", **more):
    size = {"clusters": str(clusters), "rollouts": str(rollouts)}
    found = {"rejected": rejected, "low": "0.07", "high": "0.11", "word": word, "test": test}
    return {**PLAIN, **size, **found, **more}


ROWS = [
    row("triple", 6, 4, "none"),
    row("triple", 20, 1, "pass"),
    row("triple", 20, 4, "pass"),
    row("triple", 20, 4, "FAIL", "0.08"),
    row("triple", 20, 4, "FAIL", "0.09", heavy="True"),
    row("triple", 100, 4, "conservative"),
    row("e2_auroc", 100, 4, "FAIL", "0.2"),
]


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(calibrated, "table", lambda: ROWS)


@pytest.mark.usefixtures("made_up")
def test_the_worst_setting_of_the_size_below_is_named():
    found = calibrated.warning("triple", clusters=99, rollouts=3.0)
    assert found == (
        "triple: rejects too often: type I error 0.090 [0.070, 0.110] instead of .05 in "
        "simulations with 20 problem texts x 4 rollouts, ICC 0.1, heavy tails; 2 of 3 such "
        "settings fail"
    )


@pytest.mark.usefixtures("made_up")
def test_no_warning_where_the_level_was_kept():
    assert calibrated.warning("triple", clusters=100, rollouts=4.0) is None  # conservative
    assert calibrated.warning("triple", clusters=20, rollouts=1.9) is None  # 1 is nearer than 4
    assert calibrated.warning("triple", clusters=20, rollouts=2.1) is not None


@pytest.mark.usefixtures("made_up")
def test_what_was_not_simulated_is_said():
    few = calibrated.warning("triple", clusters=5, rollouts=4.0)
    assert few == "triple: level not known for 5 problem texts: the smallest simulated has 6"
    assert "nothing was simulated" in calibrated.warning("read", clusters=50, rollouts=4.0)
    none = calibrated.warning("triple", clusters=7, rollouts=4.0)
    assert none == "triple: no interval was given in simulations with 6 problem texts x 4 rollouts"


def test_endpoint_and_numbers_are_checked():
    with pytest.raises(SchemaError, match="needs one of read, informative, triple; it is 'x'"):
        calibrated.warning("x", clusters=5, rollouts=4.0)
    with pytest.raises(SchemaError, match="`rollouts` needs"):
        calibrated.warning("triple", clusters=5, rollouts=0.5)


def test_the_shipped_table_holds_every_endpoint():
    rows = calibrated.table()
    tests = {row["test"] for row in rows}
    assert set(calibrated.ENDPOINTS.values()) <= tests
    assert {int(row["clusters"]) for row in rows} >= {6, 20, 100}
    for endpoint in calibrated.ENDPOINTS:
        found = calibrated.warning(endpoint, clusters=100, rollouts=4.0)
        assert found is None or endpoint in found
