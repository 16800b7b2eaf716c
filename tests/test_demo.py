"""The demonstration, small: what it leaves behind, and that its report says what the store says."""

from tokensense.demo import Demo, run
from tokensense.study import Study

SMALL = Demo(policies=("mixed",), problems=8, group=2, frames=1, resamples=100)


def test_the_demo_leaves_what_its_report_says_and_a_second_run_scores_nothing(
    tmp_path, monkeypatch
):
    told = []
    report = run(tmp_path, config=SMALL, tell=told.append)
    assert told == ["1/1 tiny:mixed"]
    study = Study(tmp_path / "mixed.zarr", mode="r")
    assert study.info()["problems"] == SMALL.problems
    assert study.info()["credit"] == ["cscr", "uniform"]
    assert list((tmp_path / "mixed" / "figures").glob("*.pdf"))
    assert (tmp_path / "mixed" / "tokens.html").read_text().count("<script") == 1  # its own
    assert (tmp_path / "report.txt").read_text().splitlines() == report
    results = study.results()
    assert f"  analyze calls it: {results['character'].attrs['word']}" in report
    shift = results["triple"].sel(statistic="mean_absolute_shift", term="verdict")["estimate"]
    assert any(f"verdict {float(shift):.4f}" in line for line in report)
    assert [line.split()[0] for line in report[-3:]] == ["tokensense"] * 3

    def refuse(*_, **__):
        raise AssertionError("nothing is left to score")

    monkeypatch.setattr("tokensense.probes.rescore.score", refuse)
    assert run(tmp_path, config=SMALL, tell=told.append) == report
