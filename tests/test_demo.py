"""The demonstration, small: what it leaves behind, and that its report says what the stores say."""

import pytest

from tokensense.demo import TAUGHT, Demo, run
from tokensense.study import Study

SMALL = Demo(problems=8, group=2, frames=1, resamples=100)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    told = []
    return folder, run(folder, config=SMALL, tell=told.append), told


def test_every_policy_leaves_a_store_figures_and_a_page(shown):
    folder, _, told = shown
    for place, variant in enumerate(TAUGHT, 1):
        assert told[place - 1] == f"{place}/3 tiny:{variant}"
        study = Study(folder / f"{variant}.zarr", mode="r")
        assert study.info()["problems"] == SMALL.problems
        assert study.info()["credit"] == ["cscr", "uniform"]
        assert list((folder / variant / "figures").glob("*.pdf"))
        assert "<script" not in (folder / variant / "tokens.html").read_text()


def test_the_report_says_what_the_stores_say_and_what_to_type_next(shown):
    folder, report, _ = shown
    assert (folder / "report.txt").read_text().splitlines() == report
    for variant in TAUGHT:
        results = Study(folder / f"{variant}.zarr", mode="r").results()
        start = next(i for i, line in enumerate(report) if line.startswith(f"tiny:{variant},"))
        part = report[start : report.index("", start)]
        assert f"  analyze calls it: {results['character'].attrs['word']}" in part
        shift = results["triple"].sel(statistic="mean_absolute_shift", term="verdict")["estimate"]
        assert any(f"verdict {float(shift):.4f}" in line for line in part)
    assert [line.split()[0] for line in report[-3:]] == ["tokensense"] * 3


def test_a_second_run_samples_and_scores_nothing_and_says_the_same(shown, monkeypatch):
    folder, report, _ = shown

    def refuse(*_, **__):
        raise AssertionError("nothing is left to score")

    monkeypatch.setattr("tokensense.probes.rescore.score", refuse)
    assert run(folder, config=SMALL, tell=lambda _: None) == report
