from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokensense.probes.blocks import block_table


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
