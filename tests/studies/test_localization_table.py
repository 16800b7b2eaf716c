import csv
from dataclasses import replace

import pytest

from studies import localization_table as study
from tests.stats.test_localization import planted
from tokensense.stats.localization import localization


@pytest.fixture(scope="module")
def found():
    return localization(planted(), resamples=100)


def test_a_row_a_score_with_intervals_and_counts(found):
    rows = list(study.rows("mixed", found))
    assert [row["score"] for row in rows] == found["score"].values.tolist()
    (row,) = (row for row in rows if row["score"] == "surprisal")
    at = found.sel(score="surprisal", statistic="auroc_at_equal_surprisal")
    assert row["auroc_at_equal_surprisal"] == pytest.approx(at["estimate"].item(), abs=1e-4)
    low, high = at["interval"].values
    assert row["auroc_at_equal_surprisal_low"] == pytest.approx(low, abs=1e-4)
    assert row["auroc_at_equal_surprisal_high"] == pytest.approx(high, abs=1e-4)
    assert row["rollouts"] == found.attrs["n_rollouts"]
    assert "surprisal" in study.shown(row)


def test_the_table_holds_all_variants(found, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "located", lambda variant, config, out: found)
    study.main(replace(study.TINY, variants=("mixed", "style")), out=tmp_path)
    with (tmp_path / "localization.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * found.sizes["score"]
    assert {row["variant"] for row in rows} == {"mixed", "style"}
    assert "hit@1" in capsys.readouterr().out
