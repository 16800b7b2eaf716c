"""Leave one generator out: do the primary endpoints hang on one of the models that wrote?

Reads  the Dataset of `Study.tokens()`.
Gives  (left_out, endpoint): estimates without the responses of each generator in turn.
Sign   that of the endpoints.

Generators are crossed with problems: a score that smells one model's style finds "answer signal"
as long as that model is there. Estimates alone are given, and words by the same thresholds: the
interval of the whole stands in the endpoints' own results.
"""

from typing import NamedTuple

import numpy as np
import xarray as xr

from tokensense.errors import StatisticsError
from tokensense.stats.decision import ENDPOINTS, decide
from tokensense.stats.pairs import pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.primaries import estimate
from tokensense.stats.resampling import Resampling
from tokensense.stats.results import plain
from tokensense.stats.sample import read_sample

WITHOUT = ("read", "informative", "beyond")
NOBODY = "(none)"
MOST = 40


def leave_one_generator_out(
    tokens: xr.Dataset, *, seed: int = 0, resamples: int = 1_000
) -> xr.Dataset | None:
    """Estimate E1 to E3 without each generator.

    Args:
        tokens: as `Study.tokens()` gives it.
        seed: of the resamples that E2's word and the folds of E3 need.
        resamples: draws of problems.

    Returns:
        Dims (left_out, endpoint): `estimate`, coordinate `statement`; `rank` of the verdict and
        `word` of the decision (left_out). The whole, `(none)` left out, comes first.
        `largest_change` (endpoint): of the estimates from the whole's. None for one generator, or
        for more than 40: these are sources, and no longer models.
    """
    writers = np.unique(tokens["generator"].values.astype(str))
    if not 1 < writers.size <= MOST:
        return None
    rows = [_without(tokens, name, seed=seed, resamples=resamples) for name in (NOBODY, *writers)]
    estimates = np.array([row.estimates for row in rows])
    change = np.abs(estimates[1:] - estimates[:1])
    known = np.isfinite(change)
    farthest = np.where(known.any(axis=0), np.where(known, change, -1.0).max(axis=0), np.nan)
    return xr.Dataset(
        {
            "estimate": (("left_out", "endpoint"), estimates),
            "largest_change": ("endpoint", farthest),
            "rank": ("left_out", [row.rank for row in rows]),
        },
        coords={
            "left_out": [NOBODY, *writers],
            "endpoint": list(WITHOUT),
            "statement": (("left_out", "endpoint"), [row.statements for row in rows]),
            "word": ("left_out", [row.word for row in rows]),
            "meaning": ("endpoint", [ENDPOINTS[name] for name in WITHOUT]),
        },
        attrs=plain({"seed": seed, "resamples": resamples, "generators": writers.size}),
    )


class _Row(NamedTuple):
    """What is found without one generator."""

    estimates: list[float]
    statements: list[str]
    word: str
    rank: float


def _without(tokens: xr.Dataset, name: str, *, seed: int, resamples: int) -> _Row:
    """Endpoints and word without one generator."""
    rest = tokens.isel(token=np.flatnonzero(tokens["generator"].values.astype(str) != name))
    try:
        whole = read_sample(rest)
        pairs = pairs_of(whole)
        terms = terms_of(whole, pairs)
        sample = with_shared_rollouts(whole, pairs, terms)
    except StatisticsError as cause:  # nobody else wrote anything that may be compared
        said = [f"not estimable: {cause}"] * len(WITHOUT)
        return _Row([np.nan] * len(WITHOUT), said, "not_estimable", np.nan)
    found, reasons, _ = estimate(
        rest,
        sample,
        pairs,
        terms=terms,
        scores={},
        plan=Resampling(sample.clusters, resamples, seed),
        attrs={},
    )
    decision = decide(found, reasons=reasons, attrs={})
    shown = decision.sel(endpoint=list(WITHOUT))
    return _Row(
        shown["estimate"].values.tolist(),
        shown["statement"].values.tolist(),
        str(decision.attrs["word"]),
        float(found["read"].attrs.get("rank", np.nan)),
    )
