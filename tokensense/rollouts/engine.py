"""Of which distribution an engine's log-probabilities are.

Reads  what is known of the engine's settings; no file of a trainer says it all.
Gives  Engine: the distribution, and whether its values may be compared with a probe's `logp`.
Sign   none: nothing here is signed.

Probes score under log-softmax of the logits: temperature 1, the whole vocabulary. Engines report
that (`raw`), or what is left of it after temperature, top-p and top-k (`processed`). With z the
logits and l = log-softmax(z):

    raw                  l[t]                               comparable
    temperature T        z[t] / T - logsumexp(z / T)        comparable where T = 1: they are equal
    top-p or top-k       l[t] - log(mass that was kept)     not comparable: that mass is not kept

One number a token does not hold the logits, so nothing else can be turned back exactly, and nothing
is turned back approximately: values are stored as they came, with this beside them.

Source: ecosystem notes 22; vllm `--logprobs-mode`; trl#4159, #4163, open-instruct#1678.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from tokensense.errors import InputError

RAW, PROCESSED, UNKNOWN = "raw", "processed", "unknown"
MODES = (RAW, PROCESSED, UNKNOWN)
TEMPERATURE, TRUNCATED = "temperature", "top-p"


class Engine(NamedTuple):
    """What is known of the engine that reported log-probabilities; None where nothing is.

    Attributes:
        mode: `raw`, `processed` (as vllm's `processed_logprobs`) or `unknown`.
        temperature: of sampling; 0 is greedy.
        top_p: nucleus; 1 cuts nothing.
        top_k: most tokens that were left; 0 and -1 cut nothing.
    """

    mode: str = UNKNOWN
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @property
    def distribution(self) -> str:
        """`raw`, `temperature`, `top-p` (top-k too) or `unknown`."""
        if self.mode != PROCESSED:
            return self.mode
        if self.cuts is None:
            return UNKNOWN
        return TRUNCATED if self.cuts else TEMPERATURE

    @property
    def cuts(self) -> bool | None:
        """Were tokens left out before the renormalization? None where that is not known."""
        known = [
            None if self.top_p is None else self.top_p < 1,
            None if self.top_k is None else self.top_k > 0,
        ]
        if True in known:
            return True
        return None if None in known else False

    @property
    def not_comparable(self) -> str:
        """Why values must not be compared with a probe's `logp`; "" where they may be."""
        if self.distribution == UNKNOWN:
            return "the engine's distribution is not known"
        if self.distribution == TRUNCATED:
            return "renormalized over the tokens that top-p or top-k left; their mass is not kept"
        if self.distribution == TEMPERATURE and self.temperature is None:
            return "the temperature is not known"
        if self.distribution == TEMPERATURE and self.temperature != 1:
            return f"of temperature {self.temperature:g}; the other logits are not kept"
        return ""

    def attributes(self) -> dict[str, object]:
        """What a store keeps, as plain JSON values."""
        known = {name: value for name, value in self._asdict().items() if value is not None}
        return known | {
            "distribution": self.distribution,
            "comparable": not self.not_comparable,
            "not_comparable": self.not_comparable,
        }


def engine(settings: Mapping[str, object] | None) -> Engine:
    """The settings as a person gives them: numbers may be text.

    Args:
        settings: any of `mode`, `temperature`, `top_p`, `top_k`.

    Returns:
        See Engine.

    Raises:
        InputError: another name, another mode, or a value out of range.

    >>> engine({"mode": "processed", "temperature": "1", "top_p": 1, "top_k": -1}).not_comparable
    ''
    >>> engine({"mode": "processed", "top_p": 0.95}).distribution
    'top-p'
    """
    given = dict(settings or {})
    if unknown := sorted(set(given) - set(Engine._fields)):
        raise InputError(
            f"settings of the engine need names of {list(Engine._fields)}; {unknown} came. "
            "Give those that are known and leave out the others."
        )
    mode = given.get("mode", UNKNOWN)
    if mode not in MODES:
        raise InputError(
            f"the engine's `mode` needs one of {list(MODES)}; {mode!r} came. vllm's "
            "`raw_logprobs` is raw, its `processed_logprobs` is processed."
        )
    top_k = _number(given, "top_k", -1.0, math.inf)
    return Engine(
        str(mode),
        _number(given, "temperature", 0.0, math.inf),
        _number(given, "top_p", 0.0, 1.0),
        None if top_k is None else int(top_k),
    )


def _number(given: Mapping[str, object], name: str, low: float, high: float) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not low <= number <= high or math.isinf(number):
        raise InputError(
            f"the engine's `{name}` needs a number in [{low:g}, {high:g}]; {value!r} came. "
            "Leave it out if it is not known."
        )
    return number
