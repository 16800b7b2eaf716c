"""What tokens are colored by, and the few colors there are: the same number has the same color.

Reads  values of tokens: nats, or weights.
Gives  Coloring; shades (one a token), legend rows with counts.
Sign   blue above zero (or above weight 1), orange below; green where there is no below.

A color stands for a fixed interval, a step of about sqrt(10) in size, and never depends on what
else is shown: pages can be compared. The last step is open, and the legend says how far the values
go. A weight's size is |ln weight|: twice and half lie equally far from 1. Hues are those of Okabe &
Ito (2008), safe for color blindness; they tint the page's own background, light or dark.
"""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int64

from tokensense.checks import require_dims

EDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
STEPS = len(EDGES)
NOT_KNOWN = STEPS + 1


class Coloring(NamedTuple):
    """One way to color tokens.

    Attributes:
        label: of the choice.
        meaning: what the value is, with its unit and its sign.
        values: (token) NaN where there is none.
        scale: difference (around 0), size (from 0), or ratio (around 1).
    """

    label: str
    meaning: str
    values: Float[np.ndarray, " token"]
    scale: str

    @property
    def unit(self) -> str:
        """What the edges of the colors are counted in."""
        return "ratio to 1" if self.scale == "ratio" else "nats"


class Swatch(NamedTuple):
    """One field of a legend.

    Attributes:
        shade: of `shades`.
        label: its interval.
        tokens: how many lie in it.
    """

    shade: int
    label: str
    tokens: int


def shades(coloring: Coloring) -> Int64[np.ndarray, " token"]:
    """Shade of each token: -6 to 6, 0 for what is as good as nothing; NOT_KNOWN for NaN.

    Args:
        coloring: its values decide, |value| in nats against EDGES; a value on an edge belongs
            above it.
    """
    sizes = _sizes(coloring)
    step = np.searchsorted(EDGES, np.abs(sizes), side="right") * np.sign(sizes)
    return np.where(np.isnan(sizes), NOT_KNOWN, np.nan_to_num(step)).astype(np.int64)


def shade_name(shade: int) -> str:
    """Name of a shade in class names: p1 to p6, m1 to m6, x where not known, nothing for 0.

    Args:
        shade: of `shades`.
    """
    if shade == NOT_KNOWN:
        return "x"
    return f"{'p' if shade > 0 else 'm'}{abs(shade)}" if shade else ""


def legend(coloring: Coloring) -> list[Swatch]:
    """Every shade that the coloring can have, from low to high, with its tokens counted.

    Args:
        coloring: of the page.
    """
    lowest = 0 if coloring.scale == "size" else -STEPS
    order = range(lowest, STEPS + 1)
    count = Counter(shades(coloring).tolist())
    found = [Swatch(shade, _label(shade, coloring.scale), count[shade]) for shade in order]
    return [*found, Swatch(NOT_KNOWN, "not known", count[NOT_KNOWN])]


def reach(coloring: Coloring) -> str:
    """How far the values go, in words: what the open last shades stand for.

    Args:
        coloring: of the page.
    """
    known = coloring.values[~np.isnan(coloring.values)]
    if not known.size:
        return "No token has a value."
    low, high = float(known.min()), float(known.max())
    edge, ratio = EDGES[-1], math.exp(EDGES[-1])
    last = f"×{ratio:.3g}, ÷{ratio:.3g}" if coloring.scale == "ratio" else f"{edge:g} nats"
    beyond = int((np.abs(_sizes(coloring)) >= edge).sum())
    return (
        f"n = {known.size:,} tokens, from {low:.4g} to {high:.4g}. The outermost colors are open; "
        f"tokens at {last} or beyond: {beyond:,}."
    )


def colorings(tokens: xr.Dataset) -> list[Coloring]:
    """What the tokens of a Dataset can be colored by; the first is the one to begin with.

    Args:
        tokens: `contrast`, `positive`, `negative` (token) with the attribute `wordings`, where
            there are any; `logp` (condition, token), base first; `weight` (rule, token), where
            there is any.

    Raises:
        SchemaError: `weight` has other dims.
    """
    found = []
    if "contrast" in tokens:
        mean = f"mean over {tokens.attrs['wordings']} wordings of the verdict; nats"
        likelier = "positive (blue): likelier under"
        texts = {
            "contrast": f"(z+ − z−)/2, {mean}; {likelier} the positive verdict than the negative",
            "positive": f"log p(token | positive verdict) − log p(token), {mean}; {likelier} it",
            "negative": f"log p(token | negative verdict) − log p(token), {mean}; {likelier} it",
        }
        labels = {"contrast": "contrast", "positive": "shift z+", "negative": "shift z−"}
        found = [
            Coloring(labels[name], text, tokens[name].values.astype(np.float64), "difference")
            for name, text in texts.items()
        ]
    surprisal = -tokens["logp"].values[0].astype(np.float64)
    found.append(Coloring("surprisal", "−log p(token) without condition; nats", surprisal, "size"))
    entropy = tokens["entropy"].values[0].astype(np.float64)
    meaning = "entropy of the next-token distribution without condition; nats"
    found.append(Coloring("entropy", meaning, entropy, "size"))
    if "weight" in tokens:
        require_dims("weight", tokens["weight"], ("rule", "token"), fix="assign_credit(study)")
        weight = tokens["weight"].transpose("rule", "token")
        found += [
            Coloring(f"weight {name}", f"credit weight of rule {name}; ratio to 1", values, "ratio")
            for name, values in zip(
                weight["rule"].values.tolist(), weight.values.astype(np.float64), strict=True
            )
        ]
    return found + _measured(tokens)


def _measured(tokens: xr.Dataset) -> list[Coloring]:
    """What tokens were measured to be worth, where a store says so."""
    found = []
    if "value_drop" in tokens:
        meaning = (
            "fall of the expected reward over the token's step, by continuations; share of right "
            "answers; positive (blue): worse after it"
        )
        values = tokens["value_drop"].values.astype(np.float64)
        found.append(Coloring("value drop", meaning, values, "difference"))
    if "contribution" in tokens:
        require_dims("contribution", tokens["contribution"], ("rule", "token"),
                     fix="credit times learning value")  # fmt: skip
        contribution = tokens["contribution"].transpose("rule", "token")
        for name, row in zip(tokens["rule"].values.tolist(), contribution.values, strict=True):
            values = row.astype(np.float64)
            size = float(np.sqrt(np.nanmean(values**2))) if np.isfinite(values).any() else 0.0
            meaning = (
                f"credit of rule {name} × learning value, in units of its root mean square; "
                "positive (blue): the update helps"
            )
            scaled = values / size if size else values
            found.append(Coloring(f"credit × value {name}", meaning, scaled, "difference"))
    return found


def _sizes(coloring: Coloring) -> Float[np.ndarray, " token"]:
    """Values on the scale of EDGES; weights of 0 and less lie below every edge."""
    if coloring.scale != "ratio":
        return coloring.values
    values = coloring.values
    logs = np.log(values, where=values > 0, out=np.full(values.shape, -np.inf))
    return np.where(np.isnan(values), np.nan, logs)


def _label(shade: int, scale: str) -> str:
    """Interval of a shade, by its edge that is nearer to nothing."""
    if shade == 0:
        return {"difference": "0", "size": f"<{EDGES[0]:g}", "ratio": "1"}[scale]
    edge = EDGES[abs(shade) - 1] * (1 if shade > 0 else -1)
    if scale == "ratio":
        return f"{'≥' if shade > 0 else '≤'}{math.exp(edge):.3g}"
    return f"{'≥' if shade > 0 else '≤'}{edge:g}".replace("-", "−")
