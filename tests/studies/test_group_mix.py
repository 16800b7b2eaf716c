import csv

import numpy as np
import pytest
import torch

from studies import group_mix as study
from tokensense.models.policy import load_policy
from tokensense.rollouts.trajectory import Trace
from tokensense.tasks.problem import Problem


def test_sides_are_the_first_different_ones_and_need_seven_of_each():
    traces = [Trace("p", str(i), "", ids=(i // 2,), reward=float(i // 2 % 2)) for i in range(32)]
    found = study.sides_of(traces)
    assert [t.ids[0] for t in found["right"]] == [1, 3, 5, 7, 9, 11, 13]
    assert [t.ids[0] for t in found["wrong"]] == [0, 2, 4, 6, 8, 10, 12]
    assert study.sides_of(traces[:26]) is None  # six right ones


def test_the_contrast_is_of_log_means_or_of_pairs():
    right = np.log(np.array([[1.0, 2.0], [3.0, 2.0]]))
    wrong = np.log(np.array([[2.0, 1.0]]))
    found = study.contrast(right, wrong)
    # Log-means log 2, log 2 against log 2, log 1.
    assert found["contrast"] == pytest.approx((0 + np.log(2)) / 2)
    assert found["signed"] == pytest.approx(np.log(2) / 2)
    # Pairs: |log 1/2|, |log 2|; |log 3/2|, |log 2|.
    assert found["pairwise"] == pytest.approx((3 * np.log(2) + np.log(1.5)) / 4)


def test_shifts_are_those_of_an_example_before_the_question():
    policy = load_policy("tiny:mixed")
    problem = Problem("p", "1 2 + 3", "15")
    own, sibling = (
        Trace("p", n, "", ids=tuple(policy.encode(t)))
        for n, t in (("a", "first 1 2 + 3 = 1 5 ;"), ("b", "first 1 2 + 3 = 1 6 ;"))
    )
    moved, requested = study.shifts(policy, problem, own, [sibling])
    base = policy.render(problem.question)
    told = policy.render(problem.question, insert="verdict wrong")
    assert told != base
    truth = plain(policy, base, own.ids)
    example = plain(policy, [*base, *sibling.ids, *base], own.ids)
    np.testing.assert_allclose(moved, [example - truth], atol=1e-4)
    np.testing.assert_allclose(requested, plain(policy, told, own.ids) - truth, atol=1e-4)


def plain(policy, prompt, response):
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return logp.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()


def test_the_ratio_is_of_the_ends_over_the_middle_for_the_same_responses():
    rows = []
    for problem in range(20):
        for side in ("wrong", "right"):
            for right in range(1, 8):
                if (side, right) in (("wrong", 7), ("right", 1)):
                    continue
                end = (side, right) in (("wrong", 1), ("right", 7))
                size = (1.0 + problem) * (0.5 + problem % 2 / 5 if end else 1.0)
                row = {"problem": f"p{problem}", "scored": side, "right": str(right)}
                rows.append(row | {n: str(size) for n in study.NUMBERS} | {"signed": "0.0"})
    lines = study.table(rows, study.Config(resamples=200))
    (ratio,) = (one for one in lines if one["what"] == "ratio" and one["number"] == "contrast")
    # Sizes 1 to 20, the odd ones halved, the even ones (110 in all) at .7.
    assert ratio["estimate"] == pytest.approx((100 * 0.5 + 110 * 0.7) / 210)
    assert 0.5 < ratio["low"] < ratio["estimate"] < ratio["high"] < 0.7
    means = {
        (one["scored"], one["right"]): one["estimate"]
        for one in lines
        if one["what"] == "mean" and one["number"] == "contrast"
    }
    assert len(means) == 12
    assert means["wrong", 1] == pytest.approx(10.5 * ratio["estimate"])
    assert means["right", 4] == pytest.approx(10.5)


def test_a_small_study_is_made_once(tmp_path, monkeypatch, capsys):
    study.main(study.TINY, out=tmp_path)
    with (tmp_path / "table.csv").open(newline="") as file:
        first = list(csv.DictReader(file))
    ratios = {row["number"]: float(row["estimate"]) for row in first if row["what"] == "ratio"}
    assert ratios["gcpo"] == pytest.approx(1.0)  # it knows no group
    assert ratios["contrast"] > 0
    monkeypatch.setattr(study, "measured", None)
    study.main(study.TINY, out=tmp_path)
    with (tmp_path / "table.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == first
    assert "gcpo" in capsys.readouterr().out
