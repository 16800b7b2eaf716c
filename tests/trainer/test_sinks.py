import json
import math

from tokensense.trainer.sinks import JsonLines, Sink


def test_records_are_lines_and_what_lies_behind_the_kept_ones_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path, kept=0)
    for step in range(3):
        sink.record({"kind": "step", "step": step})
    again = JsonLines(path, kept=2)
    again.record({"kind": "step", "step": 9})
    found = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert found == [0, 1, 9]
    assert isinstance(again, Sink)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_is_no_number_is_null(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl", kept=0)
    sink.record({"loss": math.nan, "ratio": math.inf, "step": 1, "kind": "step"})
    text = (tmp_path / "m.jsonl").read_text()
    assert json.loads(text) == {"loss": None, "ratio": None, "step": 1, "kind": "step"}
    assert "NaN" not in text
