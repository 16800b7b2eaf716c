import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.models.plan import Branch, Row, plan_padded, plan_rows, predictor_rows

# Two letters only: contexts that begin alike are common, equal and nested ones too.
ids = st.integers(0, 1)
branch_lists = st.lists(
    st.builds(
        Branch,
        st.lists(ids, min_size=1, max_size=9).map(tuple),
        st.lists(ids, max_size=5).map(tuple),
    ),
    max_size=12,
)


def path_of(row: Row, place: int) -> list[int]:
    """Packed places that the token at `place` sees, by the segments."""
    segment = next(s for s in row.segments if s.start <= place < s.end)
    before = [i for start, end in segment.before for i in range(start, end)]
    return [*before, *range(segment.start, place + 1)]


def trie_size(branches: list[Branch]) -> int:
    """Distinct (context beginnings), and each response's own fed tokens."""
    beginnings = {b.context[: i + 1] for b in branches for i in range(len(b.context))}
    return len(beginnings) + sum(len(b.response) - 1 for b in branches)


@given(branches=branch_lists, budget=st.integers(1, 60))
def test_every_response_token_is_predicted_from_its_own_path(branches, budget):
    rows = plan_rows(branches, tokens_per_row=budget)
    seen = []
    for row in rows:
        assert row.ids.shape == row.positions.shape == (1, row.segments[-1].end)
        assert row.ids.size <= budget or len(row.branches) == 1
        assert row.ids.size == trie_size([branches[i] for i in row.branches])
        start = 0
        for i in row.branches:
            context, response = branches[i]
            predictors = row.rows[start : start + len(response)]
            start += len(response)
            for n, place in enumerate(predictors):
                path = path_of(row, place)
                assert row.ids[0, path].tolist() == [*context, *response[:n]]
                assert row.positions[0, path].tolist() == list(range(len(path)))
        assert start == len(row.rows)
        seen += row.branches
    assert sorted(seen) == [i for i, b in enumerate(branches) if b.response]


@given(branches=branch_lists, budget=st.integers(1, 60), seed=st.integers(0, 9))
def test_plans_do_not_depend_on_the_order_of_branches(branches, budget, seed):
    order = np.random.default_rng(seed).permutation(len(branches))
    shuffled = [branches[i] for i in order]

    def content(plan, source):
        return [
            (row.ids.tolist(), row.rows.tolist(), row.segments, [source[i] for i in row.branches])
            for row in plan
        ]

    for planner in (plan_rows, plan_padded):
        one = content(planner(branches, tokens_per_row=budget), branches)
        assert one == content(planner(shuffled, tokens_per_row=budget), shuffled)


@given(branches=branch_lists, budget=st.integers(1, 60))
def test_padded_rows_hold_every_branch_whole(branches, budget):
    seen = []
    for row in plan_padded(branches, tokens_per_row=budget):
        assert row.ids.size <= budget or len(row.branches) == 1
        predictors = iter(row.rows)
        for line, i in enumerate(row.branches):
            context, response = branches[i]
            fed = [*context, *response[:-1]]
            assert row.ids[line, : len(fed)].tolist() == fed
            for n in range(len(response)):
                assert next(predictors) == line * row.ids.shape[1] + len(context) - 1 + n
        assert row.positions.tolist() == [list(range(row.ids.shape[1]))] * len(row.branches)
        seen += row.branches
    assert sorted(seen) == [i for i, b in enumerate(branches) if b.response]


def test_a_prompt_is_fed_once_and_a_tree_too_big_is_rooted_again():
    prompt = tuple(range(10))
    branches = [
        Branch((*prompt, *condition), response)
        for condition in ((20,), (21, 22))
        for response in ((30, 31, 32), (40,))
    ]
    (row,) = plan_rows(branches, tokens_per_row=17)
    # 10 of prompt, 1 and 2 of conditions, 2 + 0 fed of the responses, twice.
    assert row.ids.size == 17
    first, second = plan_rows(branches, tokens_per_row=16)
    # The prompt again for the second condition: 10 + 2 + 2 and 10 + 1 + 2.
    assert (first.ids.size, second.ids.size) == (14, 13)
    assert [len(row.branches) for row in (first, second)] == [2, 2]


def test_small_tries_share_a_row():
    branches = [Branch((problem, 5), (6, 7)) for problem in range(6)]
    rows = plan_rows(branches, tokens_per_row=9)
    assert [row.ids.size for row in rows] == [9, 9]


def test_contexts_nested_a_thousand_deep_are_planned():
    branches = [Branch((1,) * n, (2,)) for n in range(1, 1500)]
    (row,) = plan_rows(branches, tokens_per_row=10_000)
    assert row.ids.size == 1499


@pytest.mark.parametrize(("responses", "expected"), [(0, []), (1, [12]), (3, [10, 11, 12])])
def test_the_last_context_token_predicts_the_first_response_token(responses, expected):
    assert predictor_rows(np.arange(10, 13), responses).tolist() == expected
