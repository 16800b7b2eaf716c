import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stats.builders import made_up_tokens, with_steps
from tokensense.errors import SchemaError
from tokensense.stats.pairs import pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.sample import read_sample
from tokensense.stats.steps import aggregates, knows_steps, steps_of


def steps_in(tokens, **options):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    terms = terms_of(sample, pairs)
    shared = with_shared_rollouts(sample, pairs, terms)
    return steps_of(tokens, shared, pairs, terms=terms, **options)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5))
def test_aggregates_are_the_plain_ones(rows):
    found = aggregates(np.concatenate(rows), np.array([len(row) for row in rows]))
    expected = [
        [np.mean(row) for row in rows],
        [max(row) for row in rows],
        [np.mean(sorted(row)[-3:]) for row in rows],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_nan_is_kept_to_its_step_and_infinity_is_a_number():
    found = aggregates(np.array([1.0, np.nan, 2.0, -np.inf, 3.0]), np.array([2, 1, 2]))
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_array_equal(found[:, 1], 2.0)
    assert found[1, 2] == 3.0
    assert found[0, 2] == -np.inf


def test_rows_are_the_steps_one_would_count():
    tokens = with_steps(made_up_tokens(problems=5, length=(3, 14), frames=2))
    steps = steps_in(tokens, scores={"given": np.arange(tokens.sizes["token"], dtype=float)})
    rollout, step = tokens.rollout.values, tokens.step.values
    row = 0
    for r in range(tokens.sizes["rollout"]):
        wrong = tokens.wrong_step.values[r]
        for k in range(step[rollout == r].max() + 1):
            at = (rollout == r) & (step == k)
            assert (steps.trace[row], steps.place[row], steps.length[row]) == (r, k, at.sum())
            assert steps.wrong[row] == (k == wrong)
            assert steps.right[row] == (wrong == -1 or k < wrong)
            assert steps.columns["surprisal"][0, row] == pytest.approx(
                -tokens.logp.values[0, at].mean(), rel=1e-5
            )
            assert steps.columns["given"][1, row] == np.flatnonzero(at).max()
            _, count = np.unique(tokens.kind.values[at], return_counts=True)
            assert sorted(steps.kinds[row][steps.kinds[row] > 0]) == pytest.approx(
                sorted(count / at.sum())
            )
            row += 1
    assert row == len(steps.trace)
    assert steps.kinds.sum(axis=1) == pytest.approx(1.0)


def test_responses_whose_label_does_not_fit_take_no_part():
    tokens = with_steps(made_up_tokens(problems=3, length=(5, 9), frames=1))
    label = tokens.label.values.astype("<U10")
    wrong = np.flatnonzero(label == "error")
    label[0] = "unlabeled"
    tokens["label"] = ("rollout", label)
    tokens.wrong_step.values[wrong[wrong > 0][0]] = -1
    tokens.comparable.values[1, wrong[-1]] = False
    steps = steps_in(tokens)
    assert steps.counts["n_unlabelled"] == 1
    assert steps.counts["n_label_does_not_fit"] == 1
    assert steps.counts["n_not_comparable"] == 1
    assert len(np.unique(steps.trace)) == 9


def test_tokens_outside_steps_and_order_of_the_rows():
    tokens = with_steps(made_up_tokens(problems=3, length=(5, 9), frames=1))
    last = np.flatnonzero(np.diff(tokens.rollout.values, append=99))
    tokens.step.values[last] = -1
    steps = steps_in(tokens)
    assert steps.length.sum() == tokens.sizes["token"] - last.size
    order = np.argsort(-tokens.rollout.values, kind="stable")
    np.testing.assert_array_equal(steps_in(tokens.isel(token=order)).length, steps.length)


def test_what_is_missing_is_said():
    tokens = made_up_tokens(problems=3)
    assert knows_steps(tokens) == "no step labels: the Dataset has no label, wrong_step"
    labelled = with_steps(tokens)
    assert knows_steps(labelled) == ""
    labelled["label"] = ("rollout", np.full(12, "no_error"))
    assert "labelled wrong" in knows_steps(labelled)
    labelled = with_steps(tokens)
    labelled.step.values[:] = -1
    assert "no token belongs to a step" in knows_steps(labelled)


def test_steps_that_go_back_and_scores_of_another_length_are_refused():
    tokens = with_steps(made_up_tokens(problems=3, length=(9, 9), frames=1))
    with pytest.raises(SchemaError, match="a score needs 108 numbers"):
        steps_in(tokens, scores={"x": np.zeros(3)})
    tokens.step.values[:9] = 2 - tokens.step.values[:9]
    with pytest.raises(SchemaError, match="ascend"):
        steps_in(tokens)
