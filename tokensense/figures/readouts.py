"""The numbers of each token in words: what shows when a token is pointed at or in focus.

Reads  a flat Dataset of tokens, with states and weights where there are any.
Gives  readouts, one text a token; states, one word a token.
Sign   shifts and contrast with their sign; ×r is the ratio of probabilities, exp(shift).
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import xarray as xr

from tokensense.figures.glyphs import plain, quoted
from tokensense.schema import NO_STEP

NONE = "not known"


def states(tokens: xr.Dataset) -> list[str]:
    """Word of each token's state, as `token_states` names them; "" where states are not given.

    Args:
        tokens: `state` (token) with CF flags, where there is any.
    """
    if "state" not in tokens:
        return [""] * tokens.sizes["token"]
    words = str(tokens["state"].attrs["flag_meanings"]).split()
    return [words[value] for value in tokens["state"].values.tolist()]


def readouts(tokens: xr.Dataset, vocabulary: Mapping[int, bytes]) -> list[str]:
    """What is known of each token, in up to four lines.

    Args:
        tokens: as for `tokens.token_view`.
        vocabulary: token id -> its exact bytes.
    """
    lines = [_identity(tokens, vocabulary), _base(tokens)]
    if "contrast" in tokens:
        lines.append(_shifts(tokens))
    if "weight" in tokens:
        lines.append(_weights(tokens["weight"].transpose("rule", "token")))
    return ["\n".join(parts) for parts in zip(*lines, strict=True)]


def _identity(tokens: xr.Dataset, vocabulary: Mapping[int, bytes]) -> Iterator[str]:
    owner = tokens["rollout"].values
    _, first, length = np.unique(owner, return_index=True, return_counts=True)
    place = np.arange(owner.size) - np.repeat(first, length) + 1
    names = ("token_id", "kind", "step", "is_wrong_token")
    columns = [tokens[name].values.tolist() for name in names]
    quotes = {one: quoted(vocabulary[one]) for one in set(columns[0])}
    counts = zip(place.tolist(), np.repeat(length, length).tolist(), strict=True)
    for (at, of), one, kind, step, wrong in zip(counts, *columns, strict=True):
        facts = [quotes[one], f"token {at} of {of}", f"id {one}", kind.replace("_", " ")]
        if step != NO_STEP:
            facts.append(f"step {step}")
        if wrong:
            facts.append("first wrong token")
        yield " · ".join(facts)


def _base(tokens: xr.Dataset) -> Iterator[str]:
    for logp, entropy in zip(*(_numbers(tokens[n][0]) for n in ("logp", "entropy")), strict=True):
        yield (
            f"surprisal {_number(-logp, '.4f')} nats (p {_number(np.exp(logp), '.4g')})"
            f" · entropy {_number(entropy, '.4f')} nats"
        )


def _shifts(tokens: xr.Dataset) -> Iterator[str]:
    names = ("positive", "negative", "contrast", "floor")
    columns = [_numbers(tokens[name]) for name in names]
    for positive, negative, contrast, floor, state in zip(*columns, states(tokens), strict=True):
        yield (
            f"z+ {_shift(positive)} · z− {_shift(negative)} · contrast {_shift(contrast)} · "
            f"floor {_number(floor, '.4f')} nats: {state.replace('_', ' ')}"
        )


def _weights(weight: xr.DataArray) -> Iterator[str]:
    names = [plain(str(name)) for name in weight["rule"].values.tolist()]
    for values in zip(*(_numbers(row) for row in weight), strict=True):
        pairs = zip(names, values, strict=True)
        yield "weight " + " · ".join(f"{name} {_number(value, '.4g')}" for name, value in pairs)


def _numbers(values: xr.DataArray) -> Iterable[float]:
    found: list[float] = values.values.astype(np.float64).tolist()
    return found


def _shift(nats: float) -> str:
    return NONE if np.isnan(nats) else f"{nats:+.4f} nats ×{np.exp(nats):.4g}"


def _number(value: float, form: str) -> str:
    return NONE if np.isnan(value) else f"{value:{form}}"
