"""What counts as no shift: the machine's floor, and the floor that irrelevant words set.

Reads  log-probabilities of the same tokens under two row plans; contrasts of placebo pairs, nats.
Gives  numerical_floor (one number), WordingFloor (one a decile of ||onehot - p||), unresolved.
Sign   floors are sizes, nats, never negative; compared with |contrast|.

numerical floor  q99 of |difference| between two row plans. It checks the machine and selects
                 nothing: in fp32 nearly every shift exceeds it.
wording floor    q95 of |contrast| of placebo pairs, within deciles of ||onehot - p|| under base,
                 over all placebo families and frames: how far the choice between two irrelevant
                 words moves a token that uncertain. With fewer than three families there is none.
unresolved       |mean over wordings of the verdict's contrast| < wording floor. A state to show,
                 not a test. By construction 5 % of single placebo contrasts exceed the floor.

Source   `statistics.md` 3.1 of the project's method notes. Borders of the deciles are values that
         occur, so that no bin is empty; the quantiles inside interpolate linearly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from tokensense.errors import StatisticsError

NUMERICAL_QUANTILE = 0.99
WORDING_QUANTILE = 0.95
DECILES = 10
FAMILIES_NEEDED = 3


class WordingFloor(NamedTuple):
    """The size of contrast that irrelevant words reach, by uncertainty of the token.

    Attributes:
        edges: inner borders of the bins of ||onehot - p||, ascending; a value on a border belongs
            above it. Fewer than nine where many tokens are equally certain.
        floor: nats, one a bin; all NaN where there are too few families.
        tokens: contrasts in each bin.
        families: placebo families behind it.
        statement: empty, or why there is no floor.
    """

    edges: Float[np.ndarray, " edge"]
    floor: Float[np.ndarray, " bin"]
    tokens: Int64[np.ndarray, " bin"]
    families: tuple[str, ...]
    statement: str

    def at(self, distance: Float[np.ndarray, " token"]) -> Float[np.ndarray, " token"]:
        """Floor of each token, nats.

        Args:
            distance: ||onehot - p|| of the token under base.
        """
        return np.asarray(self.floor[np.searchsorted(self.edges, distance, side="right")])


def numerical_floor(first: Float[np.ndarray, "..."], second: Float[np.ndarray, "..."]) -> float:
    """99th percentile of |difference| between two scorings of the same tokens, nats.

    Args:
        first: log-probabilities under one row plan, nats.
        second: the same tokens in the same order under another.

    Raises:
        StatisticsError: shapes differ, nothing came, or a value is not finite.
    """
    if first.shape != second.shape or first.size == 0:
        raise StatisticsError(
            f"The numerical floor needs the same tokens twice; shapes {first.shape} and "
            f"{second.shape} came. Score the replica on the same rollouts and conditions."
        )
    difference = np.abs(first.astype(np.float64) - second.astype(np.float64))
    if not np.isfinite(difference).all():
        raise StatisticsError(
            "The numerical floor needs finite log-probabilities; "
            f"{int(np.count_nonzero(~np.isfinite(difference)))} of {difference.size} differences "
            "are not. Give only tokens that both plans scored."
        )
    return float(np.quantile(difference, NUMERICAL_QUANTILE))


def wording_floor(
    contrasts: Float[np.ndarray, "pair token"],
    distance: Float[np.ndarray, " token"],
    *,
    families: Sequence[str],
) -> WordingFloor:
    """95th percentile of |placebo contrast| within deciles of ||onehot - p||.

    Args:
        contrasts: d of each placebo pair, nats; NaN where the pair cannot use the token.
        distance: ||onehot - p|| under base, finite where any pair uses the token.
        families: placebo family of each pair.

    Returns:
        The floor; all NaN, with a statement, for fewer than three families or no tokens.
    """
    names = tuple(sorted(set(families)))
    used = ~np.isnan(contrasts)
    if len(names) < FAMILIES_NEEDED or not used.any():
        statement = (
            f"no wording floor: it needs {FAMILIES_NEEDED} placebo families with comparable "
            f"tokens, there are {len(names)}; probe `placebo` with more families"
        )
        return WordingFloor(
            np.empty(0), np.full(1, np.nan), np.zeros(1, dtype=np.int64), names, statement
        )
    known = distance[used.any(axis=0)]
    inner = np.arange(1, DECILES) / DECILES
    edges = np.unique(np.quantile(known, inner, method="inverted_cdf"))
    edges = edges[edges > known.min()]
    where = np.searchsorted(edges, distance, side="right")
    floor = np.empty(edges.size + 1)
    tokens = np.empty(edges.size + 1, dtype=np.int64)
    for index in range(edges.size + 1):
        inside = contrasts[:, where == index]
        sizes = np.abs(inside[~np.isnan(inside)])
        floor[index], tokens[index] = np.quantile(sizes, WORDING_QUANTILE), sizes.size
    return WordingFloor(edges, floor, tokens, names, "")


def unresolved(
    contrast: Float[np.ndarray, " token"], floor: Float[np.ndarray, " token"]
) -> Bool[np.ndarray, " token"]:
    """Which tokens no wording-independent contrast lifts above the floor.

    Args:
        contrast: mean of d over the wordings and frames of the verdict, nats.
        floor: of `WordingFloor.at`; NaN compares as not unresolved, so ask for the floor first.
    """
    return np.asarray(np.abs(contrast) < floor)
