from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.models.plan import Branch, Row, loads, plan_padded, plan_rows, predictor_rows

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


def questions(branches: list[Branch]) -> list[tuple[list[int], int]]:
    """What a model has to see before each response token, and the token; all branches in order."""
    return [
        ([*branch.context, *branch.response[:n]], token)
        for branch in branches
        for n, token in enumerate(branch.response)
    ]


def answered(stream: list[Row]) -> dict[int, tuple[list[int], int]]:
    """What a stream lets a model see for each slot, by its carried tokens and its segments."""
    found = {}
    carried: list[int] = []
    for row in stream:
        axis = [*carried, *row.ids[0].tolist()]
        for place, target, slot in zip(row.rows, row.targets, row.slots, strict=True):
            here = place + len(carried)
            (segment,) = (s for s in row.segments if s.start <= here < s.end)
            path = [i for start, end in segment.before for i in range(start, end)]
            path += range(segment.start, here + 1)
            assert row.positions[0, place] == len(path) - 1
            assert slot not in found
            found[int(slot)] = ([axis[i] for i in path], int(target))
        carried = [axis[i] for start, end in row.keep for i in range(start, end)]
    return found


def trie_size(branches: list[Branch]) -> int:
    """Distinct beginnings of contexts, and each response's own fed tokens."""
    scored = [b for b in branches if b.response]
    beginnings = {b.context[: i + 1] for b in scored for i in range(len(b.context))}
    return len(beginnings) + sum(len(b.response) - 1 for b in scored)


@given(branches=branch_lists, size=st.integers(1, 40))
def test_every_response_token_is_predicted_from_its_own_path(branches, size):
    found = {}
    for stream in plan_rows(branches, tokens_per_row=size):
        part = answered(stream)
        assert not found.keys() & part.keys()
        found |= part
    assert found == dict(enumerate(questions(branches)))


@given(branches=branch_lists, size=st.integers(1, 40))
def test_rows_are_full_and_nothing_is_fed_twice(branches, size):
    owner = [branch for branch in branches for _ in branch.response]
    for stream in plan_rows(branches, tokens_per_row=size):
        fed = [row.ids.size for row in stream]
        slots = np.concatenate([row.slots for row in stream])
        responses = {id(owner[slot]): owner[slot] for slot in slots}
        assert sum(fed) == trie_size(list(responses.values()))
        assert all(n == size for n in fed[:-1])
        assert 0 < fed[-1] <= size
        for row in stream:
            # Segments cover what is fed, in order, without gaps.
            joints = [s.start for s in row.segments] + [row.segments[-1].end]
            assert joints == [row.segments[0].start, *(s.end for s in row.segments)]
            assert joints[-1] - joints[0] == row.ids.size


@given(branches=branch_lists, size=st.integers(1, 40))
def test_what_a_plan_costs_is_known_without_making_its_rows(branches, size):
    planned = [
        (
            sum(row.ids.size for row in stream),
            sum(int((row.positions + 1).sum()) for row in stream),
            sum(row.slots.size for row in stream),
        )
        for stream in plan_rows(branches, tokens_per_row=size)
    ]
    assert sorted(loads(branches, tokens_per_row=size)) == sorted(planned)


def test_the_stream_with_the_longest_path_comes_first():
    branches = [Branch((i,) * (30 if i == 25 else 20), (1,) * 10) for i in range(40)]
    paths = [
        max(int(row.positions.max()) + 1 for row in stream)
        for stream in plan_rows(branches, tokens_per_row=64)
    ]
    assert paths == [39, 29, 29, 29, 29, 29]


def test_streams_are_equally_long_and_even_in_number():
    # 40 problems of 20 + 9 fed tokens: 1160 in rows of 64, four to a stream: 4.5, so 6.
    branches = [Branch((i,) * 20, (1,) * 10) for i in range(40)]
    streams = plan_rows(branches, tokens_per_row=64)
    fed = [sum(row.ids.size for row in stream) for stream in streams]
    assert len(fed) == 6
    assert sum(fed) == 1160
    assert max(fed) - min(fed) <= 29
    assert len(plan_rows(branches, tokens_per_row=580)) == 1
    assert plan_rows([], tokens_per_row=64) == []


@given(branches=branch_lists, size=st.integers(1, 40), seed=st.integers(0, 9))
def test_plans_do_not_depend_on_the_order_of_branches(branches, size, seed):
    order = np.random.default_rng(seed).permutation(len(branches))
    shuffled = [branches[i] for i in order]
    for planner in (plan_rows, plan_padded):
        one, two = (planner(b, tokens_per_row=size) for b in (branches, shuffled))
        for a, b in zip(chain(*one), chain(*two), strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            assert a.rows.tolist() == b.rows.tolist()
            assert a[-2:] == b[-2:]


@given(branches=branch_lists, size=st.integers(1, 60))
def test_padded_rows_hold_every_branch_whole(branches, size):
    found = {}
    for (row,) in plan_padded(branches, tokens_per_row=size):
        lines, width = row.ids.shape
        assert row.ids.size <= size or lines == 1
        assert row.positions.tolist() == [list(range(width))] * lines
        for place, target, slot in zip(row.rows, row.targets, row.slots, strict=True):
            line, last = divmod(int(place), width)
            found[int(slot)] = (row.ids[line, : last + 1].tolist(), int(target))
    assert found == dict(enumerate(questions(branches)))


def test_a_prompt_is_fed_once_and_carried_on():
    prompt = tuple(range(10))
    branches = [
        Branch((*prompt, *condition), response)
        for condition in ((20,), (21, 22))
        for response in ((30, 31, 32), (40,))
    ]
    # Fed: 10 of prompt; 20, 30, 31; 21, 22, 30, 31: the last response token never.
    ((first, second),) = plan_rows(branches, tokens_per_row=12)
    assert first.ids.tolist() == [[*range(10), 20, 30]]
    assert second.ids.tolist() == [[31, 21, 22, 30, 31]]
    assert second.positions.tolist() == [[12, 10, 11, 12, 13]]
    # The whole path goes on; the second condition sees its front, the prompt, only.
    assert first.keep == ((0, 12),)
    assert [s.before for s in second.segments] == [((0, 12),), ((0, 10),), ((0, 10), (13, 15))]
    # Token 20, once fed, predicts 30 and 40.
    assert first.rows.tolist() == [10, 10, 11]
    assert first.targets.tolist() == [30, 40, 31]


def test_contexts_nested_a_thousand_deep_are_planned():
    branches = [Branch((1,) * n, (2,)) for n in range(1, 1100)]
    ((row,),) = plan_rows(branches, tokens_per_row=10_000)
    assert row.ids.size == 1099


@pytest.mark.parametrize(("responses", "expected"), [(0, []), (1, [12]), (3, [10, 11, 12])])
def test_the_last_context_token_predicts_the_first_response_token(responses, expected):
    assert predictor_rows(np.arange(10, 13), responses).tolist() == expected
