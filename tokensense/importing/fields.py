"""What the fields of a rollout may hold, whatever they are called.

Reads  single values of a row, and the name of their field for messages.
Gives  ids, log-probabilities, a reward, a finish reason; each refuses what it cannot be sure of.
Sign   rewards as given, larger is better; log-probabilities in nats, at most 0.

Not known is None in files and NaN in arrays; it is never 0. Ids and log-probabilities of different
number are refused, never zipped: an end token is in one and not in the other, or the two belong to
different rows, and every value would be shifted by one token.

Source: own rules. Unequal lengths: eval-protocol/python-sdk#457, trl#6191; narrow ids: knnlm#6.
"""

import math
from collections.abc import Sequence

from tokensense.schema import Finish
from tokensense.tasks.records import RowError, shown

LARGEST_ID = 2**31 - 1
LARGEST_REWARD = 3e38  # rewards are stored as float32
ROUNDING = 1e-3  # float16 and bfloat16 sums may put a sure token just above 0
FINISHES = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "end_turn": Finish.STOP,
    "completed": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "truncated": Finish.LENGTH,
    "abort": Finish.ABORT,
    "aborted": Finish.ABORT,
    "unknown": Finish.UNKNOWN,
}


def ids_of(value: object, field: str) -> tuple[int, ...] | None:
    """Token ids; None for null.

    Raises:
        RowError: not a list, or it holds anything but integers from 0 to `LARGEST_ID`.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise RowError(f"`{field}` must be a list of token ids; {shown(value)} came")
    for place, item in enumerate(value):
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= LARGEST_ID:
            raise RowError(
                f"`{field}` must hold integers from 0 to {LARGEST_ID}; {shown(item)} came at "
                f"token {place}"
            )
    return tuple(value)


def logps_of(value: object, ids: Sequence[int] | None, field: str) -> tuple[float, ...] | None:
    """Log-probabilities, nats, one a token, NaN where one is null; None for null or without ids.

    Raises:
        RowError: not a list of one value a token, or a value is no log-probability.
    """
    if value is None or ids is None:
        return None
    if not isinstance(value, list) or len(value) != len(ids):
        came = f"{len(value)} values" if isinstance(value, list) else shown(value)
        raise RowError(f"`{field}` must hold one value a token, {len(ids)}; {came} came")
    for place, item in enumerate(value):
        number = isinstance(item, int | float) and not isinstance(item, bool)
        if item is not None and not (number and not item > ROUNDING and item != -math.inf):
            raise RowError(
                f"`{field}` must hold log-probabilities, finite and at most 0, or null; "
                f"{shown(item)} came at token {place}"
            )
    return tuple(math.nan if item is None else float(item) for item in value)


def reward_of(value: object, field: str) -> float:
    """A reward; NaN for null and NaN. Numbers may be text, true is 1 and false 0.

    Raises:
        RowError: it is none of these, or too large to be stored.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    try:
        number = float(value) if isinstance(value, bool | int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        raise RowError(
            f"`{field}` must be a finite number, true, false or null; {shown(value)} came"
        )
    return number


def finish_of(value: object, field: str) -> Finish:
    """Why a response ended; null is not known.

    Raises:
        RowError: no word of `FINISHES`.
    """
    if value is None:
        return Finish.UNKNOWN
    reason = value.lower() if isinstance(value, str) else ""
    if reason not in FINISHES:
        raise RowError(f"`{field}` must be one of {sorted(FINISHES)} or null; {shown(value)} came")
    return FINISHES[reason]
