"""Texts of the study, chances under ties, and a run that goes on."""

import csv

import numpy as np
import pytest

from studies import sibling_route as study
from studies.rows import written
from tokensense.models.policy import load_policy
from tokensense.tasks.arithmetic_labels import label


def test_the_story_is_that_of_the_accounts():
    told = study.product(15, 23)
    assert "15 × 3 = 35." in told.own.wrong  # C
    assert "23 × 5 = 105." in told.siblings["other"].wrong  # D
    assert all("345" in texts.right for texts in (told.own, *told.siblings.values()))
    assert told.own.right.replace("45", "35") == told.own.wrong


def test_tiny_responses_are_right_and_wrong_at_the_carry_by_the_tasks_own_labels():
    for told in study.problems(study.SUMS, 20, seed=3):
        right, wrong = told.own.right.split(), told.own.wrong.split()
        assert label(right, told.question).right
        found = label(wrong, told.question)
        assert not found.right
        first = next(i for i, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b)
        assert found.wrong_token == first


def test_chances_under_ties():
    values = np.array([5.0, 1.0, 1.0, 1.0, 0.0])
    assert study.chance_in_top(values, 0) == 1
    assert study.chance_in_top(values, 2) == pytest.approx(2 / 3)
    assert study.chance_in_top(values, 4) == 0
    # Rounding does not break a tie.
    assert study.chance_in_top(np.ones(4) + np.arange(4) * 1e-15, 0) == pytest.approx(3 / 4)


def test_shares_count_each_problem_once_with_wilsons_interval():
    keys = dict.fromkeys(study.LINE_KEYS, "x")
    rows = [
        {**keys, "problem": str(n), "hit": str(hit), "above": "2", "tokens": "10"}
        for n, hit in enumerate([1.0, 0.0, 0.0, 1.0])
    ]
    (line,) = study.shares(rows)
    assert (line["share"], line["n"]) == (0.5, 4)
    # Wilson by hand: (p + z^2 / 2n +- z sqrt(p q / n + z^2 / 4 n^2)) / (1 + z^2 / n)
    z = 1.959964
    half = z * np.sqrt(0.25 / 4 + z**2 / 64)
    assert line["low"] == pytest.approx((0.5 + z**2 / 8 - half) / (1 + z**2 / 4), abs=1e-4)


def test_siblings_shown_are_never_the_response_itself_and_a_run_goes_on(tmp_path, monkeypatch):
    for side in ("right", "wrong"):
        told, foreign = study.problems(study.SUMS, 2, seed=0)
        pairs = study.pairs_of(told, foreign, side)
        texts = [text for _, pair in pairs.values() for text in pair]
        assert getattr(told.own, side) not in texts
    policy, config = load_policy("tiny:mixed"), study.Config(problems=2)
    path = tmp_path / "lines.csv"
    rows = study.run(policy, config, path=path)
    assert len(rows) == 2 * 2 * (3 + 4 * 3)
    with path.open() as file:
        kept = [row for row in csv.DictReader(file) if row["problem"] == "0"]
    path.unlink()
    written(path, kept)
    asked = []
    monkeypatch.setattr(
        study, "lines", lambda p, n, f: asked.append(n) or [{**kept[0], "problem": n}]
    )
    study.run(policy, config, path=path)
    assert asked == [1]
