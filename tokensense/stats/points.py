"""Both shifts of every token, side by side: what the shift figure draws.

Reads  the Dataset of `Study.tokens()`.
Gives  shift_points (pair, token): the verdict pairs of the triple, and as many placebo pairs.
Sign   shift positive: the condition makes the sampled token likelier; nats.

A panel that pools more pairs reaches further out, whatever the pairs do. So each verdict pair gets
one placebo pair beside it, in its own frame where there is one, from the placebo families in turn.
The statistics of the triple rest on all pairs; the points are a like-sized part of them.
"""

import json
from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float32

from tokensense.errors import StatisticsError
from tokensense.segments import broadcast
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.sample import Pair, Sample, read_sample
from tokensense.stats.triples import PLACEBO_TERM, VERDICT_TERM


def shift_points(tokens: xr.Dataset) -> xr.Dataset:
    """Give both shifts of every token under the verdict pairs and a placebo pair for each.

    Args:
        tokens: dims (condition, token), as `Study.tokens()` gives it; base among the conditions.

    Returns:
        Dims (pair, token): `positive`, `negative`, nats, NaN where the pair cannot use the rollout.
        Coordinates of a pair: `pair` (its name), `term` (verdict or placebo), `family`, `frame`.
        Attributes as in the results of `describe`: provenance, `verdict_pairs`,
        `placebo_families`, `all_tokens`.

    Raises:
        SchemaError: `tokens` lacks a part, or conditions cannot be paired.
        StatisticsError: there is no verdict pair, or no placebo pair to put beside it.
    """
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    terms = terms_of(sample, pairs)
    if not terms.placebo:
        raise StatisticsError(
            "Points need a placebo pair beside the verdict; there are "
            f"{[pair.name for pair in pairs]}. Run the probe `placebo` first."
        )
    verdict = [pairs[index] for index in terms.verdict]
    families = [[pairs[index] for index in members] for members in terms.placebo.values()]
    kept = [*verdict, *_companions(verdict, families)]
    units = {
        "units": "nats",
        "description": "shift of the token; positive: the condition makes it likelier",
    }
    return xr.Dataset(
        {
            "positive": (("pair", "token"), _shifts(sample, kept, "positive"), units),
            "negative": (("pair", "token"), _shifts(sample, kept, "negative"), units),
        },
        coords={
            "pair": [pair.name for pair in kept],
            "term": ("pair", np.repeat([VERDICT_TERM, PLACEBO_TERM], len(verdict))),
            "family": ("pair", [pair.family for pair in kept]),
            "frame": ("pair", [pair.frame for pair in kept]),
        },
        attrs={
            **sample.attrs,
            "verdict_pairs": json.dumps([pair.name for pair in verdict]),
            "placebo_families": json.dumps(list(terms.placebo)),
            "all_tokens": int(sample.length.sum()),
        },
    )


def _companions(verdict: Sequence[Pair], families: Sequence[Sequence[Pair]]) -> list[Pair]:
    """One placebo pair for each verdict pair: families in turn, in the verdict's frame if any is.

    Families that have used up their turn come again, so that a pair may stand there twice.
    """
    every = [pair for members in families for pair in members]
    found = []
    for turn, pair in enumerate(verdict):
        place = (pair.frame, pair.placement)
        choices = [other for other in every if (other.frame, other.placement) == place] or every
        found.append(choices[turn % len(choices)])
    return found


def _shifts(sample: Sample, pairs: Sequence[Pair], side: str) -> Float32[np.ndarray, "pair token"]:
    """Shifts under one side of each pair; NaN in rollouts that the pair cannot use."""
    found = np.full((len(pairs), sample.kind.size), np.nan, dtype=np.float32)
    for row, pair in enumerate(pairs):
        usable = broadcast(sample.usable(pair), sample.length)
        found[row, usable] = sample.shift(getattr(pair, side))[usable]
    return found
