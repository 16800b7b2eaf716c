"""Plain Python loops for what `tokensense.segments` does at once: slow, and right by reading.

Values are lists of floats, one flat list over the tokens of all rollouts; no arrays, no tricks.
"""

import math
from collections.abc import Callable


def split(values: list[float], length: list[int]) -> list[list[float]]:
    """Cut a flat list into one list a rollout."""
    rollouts, start = [], 0
    for count in length:
        rollouts.append(values[start : start + count])
        start += count
    return rollouts


def total(tokens: list[float]) -> float:
    """Sum; `fsum` rounds once."""
    return math.fsum(tokens)


def mean(tokens: list[float]) -> float:
    """Mean, NaN of nothing."""
    return math.fsum(tokens) / len(tokens) if tokens else math.nan


def largest(tokens: list[float]) -> float:
    """Maximum, NaN of nothing or where one token is NaN."""
    return math.nan if not tokens or any(map(math.isnan, tokens)) else max(tokens)


def smallest(tokens: list[float]) -> float:
    """Minimum, NaN of nothing or where one token is NaN."""
    return math.nan if not tokens or any(map(math.isnan, tokens)) else min(tokens)


def quantile(tokens: list[float], q: float) -> float:
    """Linear interpolation at position q (n - 1) of the sorted tokens."""
    if not tokens or any(map(math.isnan, tokens)):
        return math.nan
    ordered = sorted(tokens)
    low = math.floor(q * (len(tokens) - 1))
    part = q * (len(tokens) - 1) - low
    if part == 0 or ordered[low] == ordered[low + 1]:
        return ordered[low]
    return ordered[low] * (1 - part) + ordered[low + 1] * part


def ranks(tokens: list[float]) -> list[float]:
    """One plus the tokens below, plus half of the other tokens that are equal."""
    if any(map(math.isnan, tokens)):
        return [math.nan] * len(tokens)
    return [
        1 + sum(other < token for other in tokens) + (tokens.count(token) - 1) / 2
        for token in tokens
    ]


def normalized(tokens: list[float]) -> list[float]:
    """Each token over the mean of its rollout."""
    return [token * len(tokens) / math.fsum(tokens) for token in tokens]


def per_rollout(
    function: Callable[[list[float]], float], values: list[float], length: list[int]
) -> list[float]:
    """One number a rollout."""
    return [function(tokens) for tokens in split(values, length)]


def per_token(
    function: Callable[[list[float]], list[float]], values: list[float], length: list[int]
) -> list[float]:
    """One number a token, back to back again."""
    return [value for tokens in split(values, length) for value in function(tokens)]
