"""Which cells, that a run goes on where it stopped, and what findings and lines say."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from studies import calibration as study
from studies import calibration_page
from studies.calibration_table import added, limits, verdict, word
from studies.null_data import Cell

CONFIG = replace(study.TINY, sets=2, batch=1, ranked_families=19, truth_texts=30)


def test_24_cells_are_judged_once_each():
    assert len(study.CELLS) == len(set(study.CELLS)) == 24
    assert {cell.clusters for cell in study.CELLS} == {6, 20, 100}
    assert {cell.rollouts for cell in study.CELLS} == {1, 4, 8}
    assert {cell.icc for cell in study.CELLS} == {0.0, 0.1, 0.5}
    assert sum(cell.heavy for cell in study.CELLS) == sum(cell.drift for cell in study.CELLS) == 3
    assert not any(cell.writers for cell in study.CELLS)


def test_every_cell_gets_2000_data_sets_with_numbers_of_their_own():
    jobs = study.jobs(study.Config(), [0.0, 1.0])
    assert len(jobs) == 2 * 8 * 29
    assert len({(job.place, job.effect, job.batch) for job in jobs}) == len(jobs)
    assert [job.cell for job in jobs[:24]] == list(study.CELLS)
    assert {job.place: job.cell for job in jobs}[25] == study.OTHERS[1]


def test_a_large_effect_is_found_and_a_lack_of_intervals_is_said(monkeypatch):
    strong = study.Job(Cell(24, 4, 0.1), 0, 3.0, 0)
    found = study.findings(strong, 0, CONFIG)
    assert found["e1_rank"].estimate == 1
    assert [found[test].rejects for test in ("e1_rank", "e1_difference", "e2_auroc", "triple")] == [
        1
    ] * 4
    assert math.isnan(found["e2_informative"].rejects)  # fewer than 300 mixed problems
    single = study.findings(study.Job(Cell(24, 1, 0.0), 0, 0.0, 0), 0, CONFIG)
    assert math.isnan(single["e2_auroc"].estimate)
    few = study.Job(Cell(6, 4, 0.1), 0, 0.0, 0)
    asked = study.findings(few, 0, CONFIG)
    assert math.isnan(asked["triple"].low)
    assert math.isnan(asked["triple"].rejects)
    assert set(study.findings(few, CONFIG.without, CONFIG)) == {"e1_rank"}


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "CELLS", (Cell(8, 4, 0.1), Cell(6, 1, 0.0)))
    monkeypatch.setattr(study, "OTHERS", ())
    config = replace(CONFIG, ranked_families=2, ranked_frames=2, frames=2)
    study.main(config, out=tmp_path, effects=[0.0])
    text = (tmp_path / study.LINES).read_text()
    shorter = [line for line in text.splitlines(keepends=True) if not line.startswith("6,1")]
    assert len(shorter) < len(text.splitlines())
    (tmp_path / study.LINES).write_text("".join(shorter))
    study.main(config, out=tmp_path, effects=[0.0])
    again = (tmp_path / study.LINES).read_text()

    def numbers(text):
        return sorted(line.split(",")[:16] for line in text.splitlines())  # seconds differ

    assert numbers(again) == numbers(text)
    (tmp_path / study.TABLE).unlink()
    study.main(replace(config, sets=0), out=tmp_path, effects=[0.0])  # adds up, and no more
    assert (tmp_path / study.LINES).read_text() == again
    assert (tmp_path / study.TABLE).exists()
    study.main(replace(config, seed=1), out=tmp_path, effects=[0.0])  # lines of another design
    with (tmp_path / study.TABLE).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["n"] for row in rows} == {"2"}
    assert "criterion held" in capsys.readouterr().out


def test_the_truth_of_a_planted_effect():
    truth = study.truths(Cell(0, 4, 0.1), 1.0, replace(CONFIG, truth_texts=2000))
    assert truth["e1_difference"] == pytest.approx(math.log(1 + 6 * 0.8625 / 0.8) - math.log(2.5))
    assert truth["e2_auroc"] == pytest.approx(0.65, abs=0.03)
    assert 0.2 < truth["triple"] < 0.27
    # no effect: without a look at any data
    assert study.truths(Cell(0, 4, 0.1), 0.0, CONFIG)["e2_auroc"] == 0.5


def test_limits_are_scipys():
    for hits, n in ((0, 50), (3, 50), (50, 50), (120, 2000)):
        other = binomtest(hits, n).proportion_ci(0.99, method="exact")
        np.testing.assert_allclose(limits(hits, n), (other.low, other.high), rtol=1e-9)


def test_words_of_the_criterion():
    assert word(100, 2000) == word(60, 1000) == "pass"
    assert word(146, 2000) == "pass"  # .073, lower limit .0589
    assert word(160, 2000) == "FAIL"  # .080, lower limit .0651
    assert word(40, 2000) == "conservative"
    assert word(0, 0) == "none"


def line(test, clusters, rejected, **more):
    cell = Cell(clusters, 4, 0.1)._asdict()
    counts = {"n": 2000, "n_decided": 2000, "n_rejected": rejected}
    counts |= {"n_interval": 2000, "n_covered": 2000 - rejected, "n_estimate": 2000}
    facts = {"effect": 0.0, "test": test, "truth": 0.0, "sum_estimate": 20.0}
    return {name: str(value) for name, value in {**cell, **counts, **facts, **more}.items()}


def test_lines_add_up_to_rows_and_the_criterion():
    cells = (Cell(6, 4, 0.1), Cell(20, 4, 0.1))
    table = added([line("triple", 20, 90), line("triple", 20, 110)], judged=cells)
    (row,) = table
    assert (row["n"], row["rejected"], row["word"], row["judged"]) == (4000, 0.05, "pass", 1)
    assert (row["coverage"], row["coverage_word"], row["mean_estimate"]) == (0.95, "pass", 0.01)
    assert verdict(table) == "criterion held: judged cells that fail: none"
    few = added([line("e1_rank", 6, 300)], judged=cells)
    assert verdict(few).startswith("criterion held: judged cells that fail: [('e1_rank', 6)]")
    assert "NOT HELD" in verdict(added([line("e1_rank", 20, 300)], judged=cells))
    both = [line("e1_rank", 6, 300), line("triple", 6, 300)]
    assert "NOT HELD" in verdict(added(both, judged=cells))
    (cover,) = added([line("e1_lambda", 20, 90)], judged=cells)
    assert (cover["n_decided"], cover["word"], cover["coverage"]) == (0, "power", 0.955)
    # A secondary test and a planted effect are not judged.
    rest = [line("triple_rank", 20, 300), line("triple", 20, 1900, effect=1.0)]
    assert verdict(added(rest, judged=cells)) == "criterion held: judged cells that fail: none"
    assert [row["word"] for row in added(rest, judged=cells)] == ["FAIL", "power"]


def test_the_page_says_what_was_found_and_heeds_judged_cells_alone(tmp_path):
    row = {**dict.fromkeys(("heavy", "drift", "writers"), "False"), "icc": "0.1", "rollouts": "4"}
    row |= {"n": "2000", "n_decided": "2000", "low": "0.04", "high": "0.07", "coverage": "0.95"}
    row |= {"clusters": "20", "effect": "0.0", "judged": "1", "test": "e1_rank", "word": "pass"}
    rows = [
        row | {"rejected": "0.051"},
        row | {"rejected": "0.9", "effect": "1.0", "n": "250", "word": "power"},
        row | {"rejected": "0.2", "judged": "0", "clusters": "12", "word": "FAIL"},
    ]
    text = calibration_page.page(rows)
    assert "**criterion held: judged cells that fail: none**" in text
    assert "| E1: verdict first of 20 | 20 | 1 | 2000 | 0.051 | 0.950 |" in text
    assert "| E1: verdict first of 20 | 20 | 1 | 1 | 250 | 0.900 |" in text
    failed = calibration_page.page([rows[0] | {"word": "FAIL"}])
    assert "NOT HELD" in failed
    calibration_page.draw(rows, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
