"""Do kinds of tokens move more than others at the same place and surprisal of their trace? A test.

Reads  Sample, its pairs, the triple's terms.
Gives  kind_permuted: mean size of a kind's shifts beyond what permuted kinds have, with p values.
Sign   excess above 0: tokens of the kind move more than others of their stratum.

Names of kinds are permuted within strata of trace x third of position x third of surprisal (thirds
of the trace's own tokens), where they can be exchanged. Shifting kinds around the trace instead is
invalid: kinds and shifts both drift with position (size .89 at .05, `statistics.md` 3.6).

The null is that within a stratum kinds say nothing. Mean and variance of a kind's sum over all
permutations are known in closed form (n of N drawn without replacement, stratum by stratum), so
none is drawn: p is two-sided from the normal limit of that sum, which no number of permutations
bounds from below. Departure from drawing: the limit stands for the discrete distribution, so that a
kind with fewer than 20 tokens in strata of several kinds gets no p. Benjamini-Hochberg over kinds.

Cost: one sort of the tokens and four sums a measure and term.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int64
from scipy.stats import false_discovery_control, norm

from tokensense.segments import broadcast, segment_index
from tokensense.stats.catalogue import ratio
from tokensense.stats.kinds import MEASURES
from tokensense.stats.pairs import Terms
from tokensense.stats.results import plain
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import absolute_shift, contrast, sensitivity
from tokensense.stats.triples import TERMS

THIRDS = 3
FEWEST = 20  # tokens of a kind that could have been another


def kind_permuted(
    sample: Sample, pairs: Sequence[Pair], *, terms: Terms, attrs: Mapping[str, object]
) -> xr.Dataset:
    """Test every kind against permuted kinds.

    Args:
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        attrs: of the Dataset.

    Returns:
        Dims (measure, kind, term): `excess`, mean of the kind minus its mean over permutations, and
        `error`, its standard deviation over them, nats; `p` and `p_adjusted`, NaN where there are
        fewer than 20 exchangeable tokens or nothing varies; `exchangeable` (kind), tokens in strata
        that hold another kind too; `n_tokens` (kind). Terms without a placebo are NaN.
    """
    used = broadcast(sample.usable(pairs[terms.verdict[0]]), sample.length)
    names, kind = np.unique(sample.kind[used], return_inverse=True)
    _, stratum = np.unique(strata(sample)[used], return_inverse=True)
    cells = _cells(kind, stratum)
    verdict = _sizes(sample, [pairs[i] for i in terms.verdict])
    families = [_sizes(sample, [pairs[i] for i in own]) for own in terms.placebo.values()]
    placebo = np.mean(families, axis=0) if families else np.full_like(verdict, np.nan)
    sizes = np.stack([verdict, placebo, verdict - placebo], axis=1)[..., used]
    shape = (len(MEASURES), len(names), len(TERMS))
    excess, error = np.empty(shape), np.empty(shape)
    for measure, term in np.ndindex(sizes.shape[:2]):
        excess[measure, :, term], error[measure, :, term] = _moments(
            sizes[measure, term], kind, stratum, cells
        )
    count = np.bincount(kind)
    free = np.bincount(cells.kind, np.where(cells.own < cells.whole, cells.own, 0)).astype(int)
    testable = (error > 0) & (free >= FEWEST)[:, None]
    p = np.where(testable, 2 * norm.sf(np.abs(ratio(excess, error))), np.nan)
    dims, nats = ("measure", "kind", "term"), {"units": "nats"}
    return xr.Dataset(
        {
            "excess": (dims, excess, {**nats, "description": "mean minus that of permuted kinds"}),
            "error": (dims, error, {**nats, "description": "standard deviation over permutations"}),
            "p": (dims, p, {"units": "1", "description": "two-sided, normal limit"}),
            "p_adjusted": (dims, _adjusted(p), {"units": "1", "description": "BH over kinds"}),
            "exchangeable": (("kind",), free, {"units": "1"}),
            "n_tokens": (("kind",), count, {"units": "1"}),
        },
        coords={"measure": list(MEASURES), "kind": names.tolist(), "term": list(TERMS)},
        attrs=plain(attrs),
    )


def strata(sample: Sample) -> Int64[np.ndarray, " token"]:
    """Number of each token's stratum: trace x third of position x third of surprisal.

    Args:
        sample: lengths and surprisals; tokens of equal surprisal share a third.
    """
    owner = segment_index(sample.length)
    place = np.arange(owner.size) - broadcast(
        np.cumsum(sample.length) - sample.length, sample.length
    )
    size = broadcast(sample.length, sample.length)
    order = np.lexsort((sample.surprisal, owner))
    rank = np.empty(owner.size, dtype=np.int64)
    rank[order] = place  # sorted by owner, the places of a trace are the ranks of its tokens
    # Ties take the rank of their first.
    line = sample.surprisal[order]
    fresh = np.r_[True, (np.diff(line) != 0) | (np.diff(owner[order]) != 0)]
    first = np.flatnonzero(fresh)[np.cumsum(fresh) - 1]
    rank[order] = place[first]
    return np.asarray((owner * THIRDS + place * THIRDS // size) * THIRDS + rank * THIRDS // size)


def _sizes(sample: Sample, pairs: Sequence[Pair]) -> Float[np.ndarray, "measure token"]:
    """Mean over pairs of each measure of MEASURES."""
    total = np.zeros((len(MEASURES), sample.surprisal.size))
    for pair in pairs:
        sides = sample.shift(pair.positive), sample.shift(pair.negative)
        total += [absolute_shift(*sides), sensitivity(*sides), np.abs(contrast(*sides))]
    return np.asarray(total / len(pairs))


class _Cells(NamedTuple):
    """Tokens of one kind in one stratum; (cell,) each, where there are any.

    kind, stratum: numbers from 0. own: tokens of the kind. whole: tokens of the stratum.
    """

    kind: Int64[np.ndarray, " cell"]
    stratum: Int64[np.ndarray, " cell"]
    own: Int64[np.ndarray, " cell"]
    whole: Int64[np.ndarray, " cell"]


def _cells(kind: Int64[np.ndarray, " token"], stratum: Int64[np.ndarray, " token"]) -> _Cells:
    """Count tokens by stratum and kind."""
    kinds = int(kind.max(initial=0)) + 1
    found, own = np.unique(stratum * kinds + kind, return_counts=True)
    where = found // kinds
    return _Cells(found % kinds, where, own, np.bincount(stratum)[where])


def _moments(
    size: Float[np.ndarray, " token"],
    kind: Int64[np.ndarray, " token"],
    stratum: Int64[np.ndarray, " token"],
    cells: _Cells,
) -> tuple[Float[np.ndarray, " kind"], Float[np.ndarray, " kind"]]:
    """Mean of each kind minus its mean over permutations, and the standard deviation of that."""
    whole = np.bincount(stratum)
    mean = np.bincount(stratum, size) / whole
    spread = np.bincount(stratum, (size - mean[stratum]) ** 2) / np.maximum(whole - 1, 1)
    drawn = cells.own * (cells.whole - cells.own) / cells.whole
    count = np.bincount(kind)
    expected = np.bincount(cells.kind, cells.own * mean[cells.stratum])
    variance = np.bincount(cells.kind, drawn * spread[cells.stratum])
    excess = (np.bincount(kind, size) - expected) / count
    return np.asarray(excess), np.asarray(np.sqrt(variance) / count)


def _adjusted(p: Float[np.ndarray, "measure kind term"]) -> Float[np.ndarray, "measure kind term"]:
    """Benjamini-Hochberg over the kinds that have a p, measure by measure and term by term."""
    found = np.full_like(p, np.nan)
    for measure, term in np.ndindex(p.shape[0], p.shape[2]):
        known = ~np.isnan(p[measure, :, term])
        if known.any():
            found[measure, known, term] = false_discovery_control(p[measure, known, term])
    return found
