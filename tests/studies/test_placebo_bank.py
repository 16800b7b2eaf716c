"""Openings of the placebo bank: whole steps, honest labels, one a question."""

import json
from dataclasses import replace

from studies.placebo_bank import CONFIGS, openings, probed, traces_for


def record(problem, steps, label):
    return {"problem": problem, "steps": steps, "label": label, "final_answer_correct": label == -1}


def words(text):
    return len(text.split())


CONFIG = replace(CONFIGS["bank"], opening=4, limit=3)


def test_whole_steps_are_kept_and_a_label_behind_the_cut_is_not():
    lines = [
        record("late", ["a b", "c d", "e f"], 2),
        record("early", ["a b", "c d", "e f"], 1),
        record("long", ["a b c d e f", "g"], 0),
    ]
    found = {line["problem"]: line for line in openings(lines, words, CONFIG)}
    assert found["late"]["steps"] == ["a b", "c d"]
    assert (found["late"]["label"], found["late"]["final_answer_correct"]) == (-1, True)
    assert (found["early"]["label"], found["early"]["final_answer_correct"]) == (1, False)
    assert found["long"]["steps"] == ["a b c d e f"]  # one step at least
    assert found["long"]["label"] == 0


def test_the_seed_draws_and_a_question_comes_once():
    lines = [record(f"q{n // 2}", [str(n)], -1) for n in range(40)]
    first, again = openings(lines, words, CONFIG), openings(lines, words, CONFIG)
    assert first == again
    assert len({line["problem"] for line in first}) == 3
    assert openings(lines, words, replace(CONFIG, seed=1)) != first


class Noted:
    """A study that notes what is asked of it; a file of traces is one of questions."""

    def __init__(self, path):
        self.path, self.held, self.asked = path, 0, []

    def info(self):
        return {"problems": self.held}

    def ingest(self, file, *, append, **_):
        self.path.mkdir(exist_ok=True)
        self.held += len(file.read_text().splitlines())
        self.asked.append((file.name, append))

    def probe(self, *_, **sizes):
        self.asked.append(sizes["families"])


def test_questions_come_in_portions_and_none_twice(tmp_path):
    traces = tmp_path / "all.jsonl"
    traces.write_text("".join(json.dumps({"question": n}) + "\n" for n in range(5)))
    config = replace(CONFIGS["answers"], portion=2)
    files = traces_for(config, traces, policy=None, out=tmp_path / "out")
    assert [len(file.read_text().splitlines()) for file in files] == [2, 2, 1]
    study = Noted(tmp_path / "s.zarr")
    for place, file in enumerate(files[:2]):
        probed(study, file, config, policy=None, there=2 * place)
    assert study.asked == [("questions_0.jsonl", False), 1, ("questions_2.jsonl", True), 1]
    # stopped and started again: what is held is not imported, and is probed to its end
    study.asked = []
    for place, file in enumerate(files):
        probed(study, file, config, policy=None, there=2 * place)
    assert study.asked == [1, 1, ("questions_4.jsonl", True), 1]
    assert study.held == 5


def test_traces_without_portions_are_one_file(tmp_path):
    config = replace(CONFIGS["answers"], portion=None)
    assert traces_for(config, tmp_path / "x", policy=None, out=tmp_path) == [tmp_path / "x"]
