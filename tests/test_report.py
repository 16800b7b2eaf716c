"""The report holds what it shows, fetches nothing, and hostile texts stay texts."""

import re

import pytest

from tests.probes.tiny import tiny_policy
from tests.test_study import FIELDS, write_traces
from tokensense.analysis import analyze
from tokensense.errors import StoreError
from tokensense.report import _plain, write_report
from tokensense.study import Study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_traces(folder / "traces.jsonl")
    study = Study(folder / "<b>&amp;.zarr")
    policy = tiny_policy()
    study.ingest(folder / "traces.jsonl", format="jsonl", policy=policy, fields=FIELDS)
    study.probe(policy, ("opposed", "placebo"), frames=1, families=3, progress=False)
    return study


def test_a_store_without_analysis_is_refused(study, tmp_path):
    with pytest.raises(StoreError, match="Run analyze first"):
        write_report(study, tmp_path)


def test_the_page_holds_tables_figures_tokens_and_methods(study, tmp_path):
    analyze(study, resamples=200)
    html_path, markdown_path = write_report(study, tmp_path, problems=2)
    html, markdown = html_path.read_text("utf-8"), markdown_path.read_text("utf-8")
    assert "<h1>Report on &lt;b&gt;&amp;amp;.zarr</h1>" in html
    assert "\\<b>" in markdown.splitlines()[0]
    assert not re.findall(r"(?:src|href)=\"(?!data:)", html.replace("srcdoc", ""))
    assert html.count("data:image/png;base64,") == 3
    assert "srcdoc=" in html
    for row in study.table():
        assert row.name in html
        assert _plain(row.value) in markdown
    for text in ("placebo families", "off-policy", "200 resamples"):
        assert text in html
        assert text in markdown
    assert (tmp_path / "tokens.html").exists()
    assert set(re.findall(r"\(figures/(\w+)\.png\)", markdown)) <= {
        path.stem for path in (tmp_path / "figures").glob("*.png")
    }


def test_marks_of_markdown_in_a_text_are_shown_as_they_are():
    assert _plain("a|b\n*c* <i> [x](y) `z` _") == r"a\|b \*c\* \<i> \[x\](y) \`z\` \_"
