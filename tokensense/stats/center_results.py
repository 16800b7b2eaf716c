"""DelTA's two centers of a store, with intervals: how alike, why, and which tokens tell them apart.

Reads  vectors of tokens that stand for gradients, advantages, kinds, token ids.
Gives  center_results: `centers` (statistic, score), `center_lambda` (side, bin), `center_types`
       (type).
Sign   cosine above 0: tokens of right and wrong responses pull the same way. A larger lambda: the
       token counts for more under DelTA.

Beside the centers of all tokens stand those under advantages dealt out anew among the responses of
each problem, which know nothing of the outcome; beside those without a kind of token, those without
as many random tokens of the same responses. Both are averaged over DRAWS.

Source   methods/delta.md section 6, A, B, D, E; numbers without intervals are in `centers`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int64, Shaped

from tokensense.credit.delta import dense, fit
from tokensense.errors import StatisticsError
from tokensense.segments import broadcast, segment_ranks, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.coefficients import lambda_numbers, token_types
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset, plain

DRAWS = 8
LOW, HIGH, BINS = 0.8, 1.2, 40
TYPES_SHOWN, LEAST = 8, 20
ALL, SHUFFLED, WITHOUT, RANDOM = "all tokens", "advantages shuffled", "without", "as many random as"
STATISTICS = {
    "cosine": "cosine of mu+ and mu-",
    "contrast": "||mu+ - mu-|| / (||mu+|| + ||mu-||)",
    "cancellation": "||M+ mu+ - M- mu-|| / (M+ ||mu+|| + M- ||mu-||): what is left of the update",
    "tilt": "M+ / M-, sum of A over tokens with A > 0 over that of |A| with A < 0",
}
# Where a statistic can lie; intervals end there.
RANGES = {"cosine": (-1.0, 1.0), "contrast": (0.0, 1.0), "cancellation": (0.0, 1.0),
          "tilt": (0.0, np.inf)}  # fmt: skip


class Pool(NamedTuple):
    """Responses whose centers are wanted, tokens of a response together.

    Attributes:
        length: (rollout) tokens, at least one.
        cluster: (rollout) number of the problem text, the unit of resampling.
        problem: (rollout) index of the problem.
        kind: (token) name of its kind.
        token_id: (token).
    """

    length: Int64[np.ndarray, " rollout"]
    cluster: Int64[np.ndarray, " rollout"]
    problem: Int64[np.ndarray, " rollout"]
    kind: Shaped[np.ndarray, " token"]
    token_id: Int64[np.ndarray, " token"]


def center_results(
    vectors: Float[np.ndarray, "token dim"],
    advantage: Float[np.ndarray, " rollout"],
    pool: Pool,
    *,
    attrs: Mapping[str, object],
    resamples: int = 2_000,
    seed: int = 0,
) -> dict[str, xr.Dataset]:
    """Estimate the centers, what kinds of tokens do to them, lambda, and token types.

    Args:
        vectors: of every token, as `credit.delta.row_gradient` gives them.
        advantage: of each response, finite; 0 takes no part.
        pool: of the same responses.
        attrs: of the Datasets.
        resamples: draws of problem texts.
        seed: of everything random.

    Raises:
        StatisticsError: there is no response of one of the two sides.
    """
    spread = broadcast(advantage, pool.length)
    geometry = dense(vectors)
    found = fit(geometry, spread)
    if found is None:
        raise StatisticsError(
            "two centers need responses better and worse than their group; one side is empty. "
            "Give problems with right and wrong responses."
        )
    plan = Resampling(int(pool.cluster.max()) + 1, resamples, seed)
    counts = {"n_tokens": int((spread != 0).sum()), "n_rollouts": int((advantage != 0).sum())}
    facts = {
        **attrs,
        **counts,
        "seed": seed,
        "resamples": resamples,
        "level": 0.95,
        "statements": [
            "vectors: (1 - p) h, gradient by the sampled token's row of the head",
            "norms of means: resamples add noise of their own, so that intervals lean towards "
            "unlike centers and may miss the estimate; hold them against shuffled advantages",
        ],
    }
    weightings = _weightings(advantage, pool, seed=seed)
    owner = broadcast(pool.cluster, pool.length)
    lam = LOW + (HIGH - LOW) * found.alpha
    numbers = lambda_numbers(found, geometry, spread, low=LOW, high=HIGH)
    return {
        "centers": _centers(vectors, weightings, owner, plan=plan, attrs=facts),
        "center_lambda": _histogram(lam, spread).assign_attrs(
            {**plain(facts), **{f"lambda_{name}": value for name, value in numbers.items()}}
        ),
        "center_types": _types(pool.token_id, lam, spread, owner=owner, plan=plan, attrs=facts),
    }


def _weightings(advantage: np.ndarray, pool: Pool, *, seed: int) -> dict[str, list[np.ndarray]]:
    """Advantages of tokens by score; a score of several columns is averaged over them."""
    rng = np.random.default_rng(seed)
    length, problem, kind = pool.length, pool.problem, pool.kind
    spread = broadcast(advantage, length)
    found = {ALL: [spread], SHUFFLED: []}
    for _ in range(DRAWS):
        # Within problems: group sizes and rewards stay, only who got which changes.
        order = np.lexsort((rng.random(problem.size), problem))
        dealt = np.empty_like(advantage)
        dealt[np.argsort(problem, kind="stable")] = advantage[order]
        found[SHUFFLED].append(broadcast(dealt, length))
    for name in np.unique(kind[spread != 0]).tolist():
        removed = kind == name
        each = broadcast(segment_sum(removed.astype(np.float64), length), length)
        found[f"{WITHOUT} {name}"] = [np.where(removed, 0.0, spread)]
        found[f"{RANDOM} {name}"] = [
            np.where(segment_ranks(rng.random(kind.size), length) <= each, 0.0, spread)
            for _ in range(DRAWS)
        ]
    return found


def _centers(
    vectors: np.ndarray,
    weightings: Mapping[str, list[np.ndarray]],
    owner: np.ndarray,
    *,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Statistics of the centers of every weighting."""
    columns = [column for each in weightings.values() for column in each]
    size = np.array([len(each) for each in weightings.values()])
    masses = np.stack([side for c in columns for side in (np.maximum(c, 0), np.maximum(-c, 0))])
    sums = np.zeros((plan.clusters, masses.shape[0], vectors.shape[1] + 1))
    for text in range(plan.clusters):
        own = owner == text
        sums[text, :, :-1] = masses[:, own] @ vectors[own]
        sums[text, :, -1] = masses[:, own].sum(axis=1)
    sums = sums.reshape(plan.clusters, len(columns), 2, -1)
    first = np.cumsum(size) - size

    def statistic(totals: np.ndarray) -> np.ndarray:
        mass = totals[..., -1]
        mean = ratio(totals[..., :-1], np.broadcast_to(mass[..., None], totals[..., :-1].shape))
        length = np.linalg.norm(mean, axis=-1)
        product = (mean[:, :, 0] * mean[:, :, 1]).sum(-1)
        apart = np.linalg.norm(mean[:, :, 0] - mean[:, :, 1], axis=-1)
        pull = totals[..., :-1]
        update = np.linalg.norm(pull[:, :, 0] - pull[:, :, 1], axis=-1)
        each = [
            ratio(product, length.prod(-1)),
            ratio(apart, length.sum(-1)),
            ratio(update, (mass * length).sum(-1)),
            ratio(mass[..., 0], mass[..., 1]),
        ]
        return np.stack([np.add.reduceat(part, first, axis=1) / size for part in each], axis=1)

    taken = (np.abs(sums[..., 0, -1]) + np.abs(sums[..., 1, -1]))[:, first] > 0
    present = np.repeat(taken[:, None], len(STATISTICS), axis=1)
    found = intervals(resample(sums, statistic, plan=plan, present=present))
    result = dataset(
        found, {"statistic": tuple(STATISTICS), "score": tuple(weightings)}, attrs=attrs
    )
    # A t interval knows no limit of the quantity; what lies beyond it cannot be.
    least, most = (np.array([RANGES[name][i] for name in STATISTICS])[:, None] for i in (0, 1))
    low, high = np.moveaxis(result["interval"].transpose(..., "bound").values, -1, 0)
    kept = np.stack([np.maximum(low, least), np.minimum(high, most)], axis=-1)
    tokens = [int((each[0] != 0).sum()) for each in weightings.values()]
    total = sums.sum(axis=0)[first]
    return result.assign(
        interval=(("statistic", "score", "bound"), kept, result["interval"].attrs),
        n_tokens=("score", tokens),
        mass_positive=("score", total[:, 0, -1], {"units": "advantage", "description": "M+"}),
        mass_negative=("score", total[:, 1, -1], {"units": "advantage", "description": "M-"}),
    ).assign_coords(
        unit=("statistic", ["1"] * len(STATISTICS)),
        meaning=("statistic", list(STATISTICS.values())),
    )


def _histogram(lam: np.ndarray, advantage: np.ndarray) -> xr.Dataset:
    """Share of the tokens of each side whose lambda lies in a bin."""
    edges = np.linspace(LOW, HIGH, BINS + 1)
    sides = {"right": advantage > 0, "wrong": advantage < 0}
    shares = [np.histogram(lam[own], edges)[0] / max(int(own.sum()), 1) for own in sides.values()]
    return xr.Dataset(
        {
            "share": (("side", "bin"), np.stack(shares), {"units": "1"}),
            "n_tokens": ("side", [int(own.sum()) for own in sides.values()]),
        },
        coords={"side": list(sides), "low": ("bin", edges[:-1]), "high": ("bin", edges[1:])},
    )


def _types(
    token_id: np.ndarray,
    lam: np.ndarray,
    advantage: np.ndarray,
    *,
    owner: np.ndarray,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Mean lambda of the token types with the most and the least, over problem texts."""
    types = token_types(token_id, lam, advantage, least=LEAST)
    names = types["token_id"]
    kept = np.unique(np.r_[np.arange(min(TYPES_SHOWN, names.size)),
                           np.arange(max(0, names.size - TYPES_SHOWN), names.size)])  # fmt: skip
    place = {int(name): row for row, name in enumerate(names[kept])}
    own = np.flatnonzero((advantage != 0) & np.isin(token_id, names[kept]))
    row = np.array([place[int(one)] for one in token_id[own]], dtype=np.int64)
    cell = owner[own] * len(place) + row
    values = np.stack([lam[own], np.ones(own.size)], axis=1)
    flat = cluster_sums(values, cell, clusters=plan.clusters * len(place))
    sums = flat.reshape(plan.clusters, len(place), 2)  # a small store may have no type with LEAST
    found = intervals(
        resample(sums, lambda t: ratio(t[..., 0], t[..., 1]), plan=plan, present=sums[..., 1] > 0)
    )
    labels = [str(int(name)) for name in names[kept]]
    result = dataset(found, {"type": tuple(labels)}, attrs=attrs)
    about = {"units": "1", "description": "1: used alike by both sides"}
    return result.assign(
        n_tokens=("type", types["count"][kept]),
        shared=("type", types["shared"][kept], about),
        token_id=("type", names[kept]),
    )
