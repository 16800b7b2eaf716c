"""Flat tokens as padded tensors, for trainers that want (batch, time).

Reads  flat arrays over `token` and `length` over `rollout`.
Gives  to_padded, a Padded: tensors and the mask that says where tokens are.
Sign   kept.

The analysis has no padding; trainers do (TRL, verl). Padded places hold 0 (`pad_id` for ids), so
that a sum over `values * mask` is right; a NaN within the mask is a token that was not scored, and
stays NaN.

Source: own work.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr

from tokensense.checks import require_member
from tokensense.errors import SchemaError
from tokensense.segments import offsets

IDS = ("token_id",)


class Padded(NamedTuple):
    """Tensors of one batch.

    Attributes:
        values: name -> (B, T), or (condition, B, T).
        mask: (B, T), True where a token is.
    """

    values: dict[str, torch.Tensor]
    mask: torch.Tensor


def to_padded(
    tokens: xr.Dataset,
    names: Sequence[str],
    *,
    side: str = "right",
    pad_id: int = 0,
) -> Padded:
    """Pad flat variables to the longest rollout; B is the number of rollouts, T its tokens.

    Args:
        tokens: as `Study.tokens()` or `assign_credit` give it, with `length` (rollout).
        names: variables over (token,) or (condition, token) of numbers or booleans; (rule, token)
            too.
        side: where the padding is, "left" or "right"; TRL and verl pad responses on the right.
        pad_id: id of padded places in `token_id`.

    Returns:
        Tensors of the variables' dtypes, in the order of `names`, and the mask.

    Raises:
        SchemaError: a variable is not there, has other dims, or holds words; `side` is not known.
    """
    require_member("side", side, ("left", "right"))
    missing = [name for name in ("length", *names) if name not in tokens.variables]
    if missing:
        raise SchemaError(
            f"padding needs variables of the Dataset; {missing} are not among "
            f"{sorted(map(str, tokens.variables))}. Take it from Study.tokens()."
        )
    length = tokens["length"].values
    place, mask = _places(length, side)
    values = {}
    for name in names:
        array = tokens[name].values
        if tokens[name].dims[-1:] != ("token",) or array.dtype.kind not in "biuf":
            raise SchemaError(
                f"`{name}` needs numbers over `token` in its last dim; it is {array.dtype} over "
                f"{tokens[name].dims}. Pad numbers, and look words up by position."
            )
        fill = pad_id if name in IDS else 0
        flat = np.full((*array.shape[:-1], mask.size), fill, array.dtype)
        flat[..., place] = array
        values[name] = torch.from_numpy(flat.reshape(*array.shape[:-1], *mask.shape))
    return Padded(values, torch.from_numpy(mask))


def to_flat(values: Mapping[str, torch.Tensor], mask: torch.Tensor) -> dict[str, np.ndarray]:
    """Undo `to_padded`: the tokens of all rollouts back to back; dims (..., token)."""
    return {name: tensor[..., mask].detach().cpu().numpy() for name, tensor in values.items()}


def _places(length: np.ndarray, side: str) -> tuple[np.ndarray, np.ndarray]:
    """Places of all tokens in the padded array made flat, and the mask."""
    width = int(length.max(initial=0))
    first = offsets(length)
    within = np.arange(first[-1]) - np.repeat(first[:-1], length)
    if side == "left":
        within += np.repeat(width - length, length)
    place = np.repeat(np.arange(length.size), length) * width + within
    mask = np.zeros(length.size * width, bool)
    mask[place] = True
    return place, mask.reshape(length.size, width)
