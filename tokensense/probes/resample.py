"""What a prefix is worth: how often fresh continuations of it end right.

Reads  a Policy, responses with places to cut them, a judge of whole responses.
Gives  require_estimable; resample: the value before every cut with its count of trials, what each
       piece between two cuts gained, and how reliable these gains are (split-half).
Sign   value in [0, 1]; gain = value after the piece - value before it: positive, it made a right
       answer likelier.

Continuations are allotted in rounds: `first` at every cut, then as many again at the half of the
cuts whose value is least certain, until the gains are reliable enough or no cut may have more. A
value of 0 or 1 stays uncertain in that order (one right and one wrong trial are added), so that a
first round without luck does not end a cut's trials. The value behind a whole response is its own
reward, without trials.

Cost: trials x cuts continuations; at K = 16 a gain has a standard error of up to .18, so single
gains are rough and `reliability` below .5 forbids a correlation with them (statistics.md 3.9).

Source: VinePPO, arXiv:2410.01679 (value of a prefix by continuations, K = 9); sequential allocation
    and the bounds on accuracy: statistics.md 3.9. Departure: VinePPO has a fixed K and a last value
    of 0; here a judge may also leave a continuation undecided, which counts as not right and is
    counted.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr

from tokensense.checks import require_range
from tokensense.errors import SchemaError, StatisticsError
from tokensense.models.policy import Policy
from tokensense.models.sampler import sample

# Of the policy's accuracy from the start: outside, values hardly move and gains are noise.
LEAST_ACCURACY, MOST_ACCURACY = 0.1, 0.9
Judge = Callable[[int, tuple[int, ...]], bool | None]


class Start(NamedTuple):
    """A response to be cut.

    Attributes:
        prompt: ids that the policy is fed before the response.
        response: ids, end token included; kept up to a cut.
        cuts: numbers of response tokens kept, ascending, 0 to the response's length.
        right: reward of the whole response, for a cut at its end; None where it is not known.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    cuts: tuple[int, ...]
    right: bool | None = None


@dataclass(frozen=True)
class Trials:
    """How continuations are drawn and allotted.

    Attributes:
        max_new_tokens: most tokens of a continuation.
        first: continuations of a round at a cut; even, so that they fall into two halves.
        most: continuations of a cut in all.
        reliability: of the gains, at which no further round is made.
        temperature: of the continuations.
        seed: of the continuations.
    """

    max_new_tokens: int
    first: int = 16
    most: int = 64
    reliability: float = 0.5
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            SchemaError: `first` is odd or below 2, or `most` is below `first`.
        """
        require_range("first", self.first, 2, 10**6)
        require_range("most", self.most, self.first, 10**6)
        if self.first % 2:
            raise SchemaError(
                f"`first` needs an even number, for two halves; it is {self.first}. Add one."
            )


def resample(
    policy: Policy,
    starts: Sequence[Start],
    judge: Judge,
    *,
    ends: Collection[int],
    plan: Trials,
    progress: Callable[[int], object] | None = None,
) -> xr.Dataset:
    """Value at every cut and gain of every piece.

    Args:
        policy: continues.
        starts: responses and their cuts.
        judge: (place in `starts`, ids of the whole response) -> right, wrong, or None: undecided.
        ends: ids that end a response.
        plan: how many continuations, where, and how they are drawn.
        progress: called with the number of continuations finished since the last call.

    Returns:
        Dims `cut`: `start`, `position`, `value`, `error` (standard error, of a binomial with one
        right and one wrong trial added), `trials`, `undecided`; `half` (2, cut): values of the even
        and odd trials. Dims `piece`: `gain`, `gain_error`, `first_cut` (index of the cut before).
        Attributes `reliability` (Spearman-Brown of the halves' gains; absent where it cannot be
        computed), `accuracy` (mean value at position 0; absent without such cuts).

    Raises:
        SchemaError: a cut lies outside its response or cuts do not ascend; a number is out of
            range.
        StatisticsError: the policy's accuracy from the start is outside [.1, .9].
    """
    _require_cuts(starts)
    owner = np.array([i for i, start in enumerate(starts) for _ in start.cuts], np.int64)
    position = np.array([cut for start in starts for cut in start.cuts], np.int64)
    pieces = np.flatnonzero(owner[:-1] == owner[1:])
    tally = _Tally.empty(_known(starts, owner, position))
    chosen = np.flatnonzero(np.isnan(tally.known))
    seed = plan.seed
    while chosen.size:
        asked = np.repeat(chosen, plan.first)
        kept = [starts[owner[cut]].response[: position[cut]] for cut in asked]
        prompts = [(*starts[owner[cut]].prompt, *ids) for cut, ids in zip(asked, kept, strict=True)]
        drawn = sample(
            policy,
            prompts,
            max_new_tokens=plan.max_new_tokens,
            ends=ends,
            temperature=plan.temperature,
            seed=seed,
            progress=progress,
        )
        for place, cut in enumerate(asked):
            verdict = judge(int(owner[cut]), (*kept[place], *drawn[place].ids))
            tally.add(int(cut), place % 2, verdict=verdict)
        require_estimable(_accuracy(tally.values(), position))
        if _reliability(tally.halves(), pieces) >= plan.reliability:
            break
        chosen = tally.least_certain(plan.most - plan.first)
        seed += 1
    return _laid_out(tally, owner=owner, position=position, pieces=pieces)


class _Tally(NamedTuple):
    """Counts so far. right, trials: (half, cut). undecided: (cut). known: (cut) or NaN."""

    right: np.ndarray
    trials: np.ndarray
    undecided: np.ndarray
    known: np.ndarray

    @classmethod
    def empty(cls, known: np.ndarray) -> "_Tally":
        """No trial yet."""
        shape = (2, known.size)
        return cls(
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(known.size, np.int64),
            known,
        )

    def add(self, cut: int, half: int, *, verdict: bool | None) -> None:
        """Count one continuation."""
        self.right[half, cut] += verdict is True
        self.trials[half, cut] += 1
        self.undecided[cut] += verdict is None

    def values(self) -> np.ndarray:
        """Share of right continuations; known values as they are."""
        return self._shares(self.right.sum(0), self.trials.sum(0))

    def halves(self) -> np.ndarray:
        """The same of each half of the trials."""
        return self._shares(self.right, self.trials)

    def errors(self) -> np.ndarray:
        """Standard errors, one right and one wrong trial added; 0 where the value is known."""
        trials = self.trials.sum(0)
        p = (self.right.sum(0) + 1) / (trials + 2)
        return np.where(np.isnan(self.known), np.sqrt(p * (1 - p) / (trials + 2)), 0.0)

    def least_certain(self, room: int) -> np.ndarray:
        """The less certain half of the cuts that have at most `room` trials."""
        free = np.flatnonzero(np.isnan(self.known) & (self.trials.sum(0) <= room))
        order = np.argsort(-self.errors()[free], kind="stable")
        return np.sort(free[order[: (free.size + 1) // 2]])

    def _shares(self, right: np.ndarray, trials: np.ndarray) -> np.ndarray:
        """Right / trials, NaN without a trial; known values as they are."""
        share = np.divide(right, trials, out=np.full(right.shape, np.nan), where=trials > 0)
        return np.where(np.isnan(self.known), share, self.known)


def _require_cuts(starts: Sequence[Start]) -> None:
    """Check the cuts of every response."""
    for place, start in enumerate(starts):
        cuts = list(start.cuts)
        if cuts != sorted(set(cuts)) or not all(0 <= c <= len(start.response) for c in cuts):
            raise SchemaError(
                f"`cuts` need to ascend from 0 to the response's length, {len(start.response)}; "
                f"those of start {place} are {cuts[:20]}. Give each place once, in order."
            )


def _known(starts: Sequence[Start], owner: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Values that need no trial: 0 or 1 behind a whole response of known reward, else NaN."""
    whole = [
        start.right is not None and cut == len(start.response)
        for start, cut in ((starts[i], p) for i, p in zip(owner, position, strict=True))
    ]
    reward = np.array([float(bool(starts[i].right)) for i in owner])
    return np.where(whole, reward, np.nan)


def require_estimable(accuracy: float | None) -> None:
    """Refuse a policy that is nearly always right or wrong from the start.

    Args:
        accuracy: share of right responses; None where it is not known.

    Raises:
        StatisticsError: it is outside [.1, .9].
    """
    if accuracy is not None and not LEAST_ACCURACY <= accuracy <= MOST_ACCURACY:
        raise StatisticsError(
            f"values of prefixes need a policy that is right in {LEAST_ACCURACY:.0%} to "
            f"{MOST_ACCURACY:.0%} of its responses; this one is right in {accuracy:.1%} from the "
            "start: not estimable. Choose problems of fitting difficulty, or another policy."
        )


def _accuracy(values: np.ndarray, position: np.ndarray) -> float | None:
    """Mean value before the first token; None where no cut lies there."""
    return float(values[position == 0].mean()) if (position == 0).any() else None


def _reliability(halves: np.ndarray, pieces: np.ndarray) -> float:
    """Spearman-Brown reliability of the gains from the two halves; NaN where it has no value."""
    gains = np.diff(halves, axis=-1)[:, pieces]
    if gains.shape[1] < 3 or (gains.std(axis=1) == 0).any():
        return float("nan")
    correlation = float(np.corrcoef(gains)[0, 1])
    return 2 * correlation / (1 + correlation) if correlation > -1 else float("nan")


def _laid_out(
    tally: _Tally, *, owner: np.ndarray, position: np.ndarray, pieces: np.ndarray
) -> xr.Dataset:
    """The result."""
    values, error, halves = tally.values(), tally.errors(), tally.halves()
    numbers = {
        "reliability": _reliability(halves, pieces),
        "accuracy": _accuracy(values, position),
    }
    attrs = {name: x for name, x in numbers.items() if x is not None and np.isfinite(x)}
    probability = {"units": "1", "description": "probability that a continuation ends right"}
    gain = {"units": "1", "sign": "positive: the piece made a right answer likelier"}
    return xr.Dataset(
        {
            "start": ("cut", owner),
            "position": ("cut", position, {"units": "tokens kept"}),
            "value": ("cut", values, probability),
            "error": ("cut", error, {"units": "1", "description": "standard error of the value"}),
            "trials": ("cut", tally.trials.sum(0), {"units": "continuations"}),
            "undecided": ("cut", tally.undecided, {"units": "continuations"}),
            "half": (("side", "cut"), halves, probability),
            "gain": ("piece", np.diff(values)[pieces], gain),
            "gain_error": ("piece", np.hypot(error[:-1], error[1:])[pieces], {"units": "1"}),
            "first_cut": ("piece", pieces),
        },
        attrs=attrs,
    )
