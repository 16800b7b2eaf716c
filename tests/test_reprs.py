"""What a notebook shows of a study, a policy and results: escaped, in place, with a stated end."""

from html.parser import HTMLParser

import pytest

import tokensense as ts
from tests.figures.builders import kind_and_balance, triple
from tests.probes.tiny import tiny_policy
from tests.test_study import FIELDS, write_traces
from tokensense.errors import StoreError
from tokensense.reprs import MOST_ROWS, table_html
from tokensense.results import Results


class Seen(HTMLParser):
    """Tags, and texts of cells row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"style", "scope"}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


INERT = {"p", "b", "table", "thead", "tr", "th", "td"}


def test_everything_in_a_table_is_text():
    evil = "<script>alert(1)</script>\"'&"
    found = Seen(table_html(evil, [(evil, evil)], heads=[evil, evil], notes=[evil]))
    assert found.tags == INERT
    assert found.text.count(evil) == 6
    assert found.rows[0] == [evil, evil]


def test_long_tables_end_and_say_so():
    found = Seen(table_html("t", [(str(i), "x") for i in range(MOST_ROWS + 7)]))
    assert len(found.rows) == MOST_ROWS
    assert "7 more rows are not shown." in found.text


def test_a_study_shows_what_info_says(tmp_path):
    study = ts.Study(tmp_path / "<b>.zarr")
    assert "no store there yet" in Seen(study._repr_html_()).text
    policy = tiny_policy()
    traces = write_traces(tmp_path / "traces.jsonl")
    study.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=2)
    found = Seen(study._repr_html_())
    assert found.tags <= INERT
    rows = dict(found.rows)
    assert rows["rollouts"].startswith("4 of 2 problems")
    assert rows["analyses"] == "none; run analyze"
    assert "<b>.zarr" in found.text


def test_a_policy_shows_what_it_is():
    policy = tiny_policy()
    policy.name = "a, <b>"
    found = Seen(policy._repr_html_())
    facts = [fact for (fact,) in found.rows]
    assert facts[2:] == ["float32", "cpu", f"vocabulary {policy.head_width}",
                         f"context {policy.context_length}"]  # fmt: skip
    assert "Policy a, <b>" in found.text


def test_results_show_their_table_with_verdict_placebo_and_difference():
    kind, balance = kind_and_balance()
    found = Seen(Results({"triple": triple(), "kind": kind, "balance": balance})._repr_html_())
    assert found.tags <= INERT
    assert found.rows[0] == ["statistic", "verdict, or alone", "placebo", "difference", "unit", "n"]
    rows = {row[0]: row[1:] for row in found.rows}
    verdict, placebo, difference = rows["triple: same direction"][:3]
    assert verdict.startswith("0.951 [")
    assert placebo.startswith("0.962 [")
    assert difference.startswith(("-0.011 [", "−0.011 ["))
    assert "More, each a Dataset: balance, kind." in found.text


def test_results_that_were_not_analyzed_say_what_to_run():
    assert "centers" in Seen(Results({"centers": triple()})._repr_html_()).text
    with pytest.raises(StoreError, match="Run analyze first"):
        Results({"centers": triple()}).table()
