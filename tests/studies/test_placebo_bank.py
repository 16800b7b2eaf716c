"""Openings of the placebo bank: whole steps, honest labels, one a question."""

from dataclasses import replace

from studies.placebo_bank import CONFIGS, openings


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
