from itertools import pairwise, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokensense.probes.blocks import block_table, owners


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=6), st.integers(1, 30)
)
def test_blocks_cover_all_rollouts_and_are_as_small_as_they_can_be(groups, tokens):
    scored = [size for group in groups for size in group]
    edges = np.cumsum([0, *map(len, groups)]).tolist()
    blocks = block_table(list(pairwise(edges)), scored, tokens=tokens)
    assert [i for start, end in blocks for i in range(start, end)] == list(range(len(scored)))
    for start, end in blocks:
        assert end - start == 1 or sum(scored[start:end]) <= tokens
    for group, (start, end) in zip(groups, pairwise(edges), strict=True):
        if sum(group) <= tokens:  # a group that fits is never cut
            assert any(a <= start and end <= b for a, b in blocks)
    # A block begins only where its first group (or rollout, of a large group) did not fit before.
    whole = {
        a: b for (a, b), group in zip(pairwise(edges), groups, strict=True) if sum(group) <= tokens
    }
    for (before, start), (_, _) in pairwise(blocks):
        first = sum(scored[start : whole.get(start, start + 1)])
        assert sum(scored[before:start]) + first > tokens


@given(st.lists(st.integers(0, 9), max_size=7), st.integers(1, 3))
def test_every_block_has_one_owner_and_the_longest_share_is_near_the_best(costs, processes):
    found = owners(costs, processes=processes)
    assert len(found) == len(costs)
    assert set(found) <= set(range(processes))

    def longest(owner):
        return max(
            sum(cost for cost, o in zip(costs, owner, strict=True) if o == rank)
            for rank in range(processes)
        )

    best = min(longest(other) for other in product(range(processes), repeat=len(costs)))
    assert 3 * processes * longest(found) <= (4 * processes - 1) * best  # Graham's bound


def test_fewer_blocks_than_processes_go_to_as_many():
    assert sorted(owners([3, 1, 2], processes=8)) == [0, 1, 2]
