"""Blocks of whole rollouts: how much is scored between two writes, and by whom.

Reads  the rollouts of each problem, and how many tokens each rollout is scored with.
Gives  the block table of a probe. It is fixed when the probe starts, so that a resumed run computes
       the same things together as an uninterrupted one. `owners`: which process scores which block;
       that decides nothing but the time.

Source: design section 4; longest processing time first, Graham 1969 (doi:10.1137/0117039).
"""

import heapq
from collections.abc import Sequence


def block_table(
    groups: Sequence[tuple[int, int]], scored: Sequence[int], *, tokens: int
) -> list[tuple[int, int]]:
    """Cut rollouts into blocks of at most `tokens` scored tokens.

    A group is cut only if it is larger than a block, a rollout never.

    Args:
        groups: rollouts [start, end) of each problem, in order.
        scored: tokens to score for each rollout.
        tokens: most in a block.

    Returns:
        Rollouts [start, end) of each block, in order and without gaps.

    Examples:
        >>> block_table([(0, 2), (2, 4), (4, 6)], [3, 3, 3, 3, 9, 9], tokens=12)
        [(0, 4), (4, 5), (5, 6)]
    """
    pieces: list[tuple[int, int]] = []
    for start, end in groups:
        whole = sum(scored[start:end]) <= tokens
        pieces += [(start, end)] if whole else [(i, i + 1) for i in range(start, end)]
    blocks: list[tuple[int, int]] = []
    size = 0
    for start, end in pieces:
        added = sum(scored[start:end])
        if blocks and size + added <= tokens:
            blocks[-1], size = (blocks[-1][0], end), size + added
        else:
            blocks.append((start, end))
            size = added
    return blocks


def owners(costs: Sequence[int], *, processes: int) -> list[int]:
    """Which process scores which block: the costliest first, each to the one with least to do.

    The longest share is at most 4/3 of the best one.

    Args:
        costs: scored tokens of each block. Prompts are left out: a block feeds about as many of
            them for each scored token as any other of its probe.
        processes: how many.

    Returns:
        Number of the process for each block.

    Examples:
        >>> owners([5, 9, 4, 1], processes=2)
        [1, 0, 1, 0]
    """
    found = [0] * len(costs)
    free = [(0, rank) for rank in range(processes)]
    for block in sorted(range(len(costs)), key=lambda block: (-costs[block], block)):
        load, rank = free[0]
        found[block] = rank
        heapq.heapreplace(free, (load + costs[block], rank))
    return found
