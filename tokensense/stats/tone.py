"""Outcome x tone: how far the word of the outcome moves tokens, and praise or blame beside it.

Reads  conditions that give both levels in both tones (probe `outcome_tone`).
Gives  (statistic, effect): outcome, tone, interaction.
Sign   outcome: positive where "right" makes the token likelier than "wrong", mean over tones; tone:
       where praise does against blame, mean over outcomes; interaction: where the outcome's effect
       is larger under praise.

With shifts z of the four cells, all effects are half differences, as a contrast is:
    outcome      (z[right praise] - z[wrong praise] + z[right blame] - z[wrong blame]) / 4
    tone         (z[right praise] + z[wrong praise] - z[right blame] - z[wrong blame]) / 4
    interaction  (z[right praise] - z[wrong praise] - z[right blame] + z[wrong blame]) / 4
Each is averaged over frames and wordings first. `share` is the effect's part of the sum of the
three mean squares: three orthogonal contrasts of the four cells, so that the parts add up to one.
They hold for these wordings; problems alone are resampled.

Source   `cscr.md` 5.6 of the project's notes (outcome and tone are confounded in the published
         pair).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample

PRAISE, BLAME = "praise", "blame"
EFFECTS = ("outcome", "tone", "interaction")
STATISTICS = {
    "mean": ("nats", "mean of the effect, with sign"),
    "mean_absolute": ("nats", "mean of its size"),
    "share": ("1", "its part of the sum of the three mean squares"),
}
# Signs of the cells (right praise, wrong praise, right blame, wrong blame).
CELLS = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 4.0


def crossed_pairs(pairs: Sequence[Pair]) -> list[tuple[Pair, Pair]]:
    """Pairs under praise, each with its twin under blame.

    Args:
        pairs: of `pairs_of`.
    """
    fields = ("probe", "family", "frame", "wording", "placement")
    toned: dict[tuple[str, ...], dict[str, Pair]] = {}
    for pair in pairs:
        key = tuple(getattr(pair, name) for name in fields)
        toned.setdefault(key, {})[pair.tone] = pair
    both = (found for found in toned.values() if {PRAISE, BLAME} <= set(found))
    return [(found[PRAISE], found[BLAME]) for found in both]


def outcome_and_tone(
    sample: Sample, pairs: Sequence[Pair], *, plan: Resampling, attrs: Mapping[str, object]
) -> xr.Dataset | None:
    """Estimate the three effects.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        plan: the draws.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, effect, bound); None where no outcome stands in both tones, or no rollout
        may be compared under all of them.
    """
    twins = crossed_pairs(pairs)
    if not twins:
        return None
    used = np.logical_and.reduce([sample.usable(pair) for twin in twins for pair in twin])
    if not used.any():
        return None
    length = sample.length[used]
    effects = _effects(sample, twins)[:, np.asarray(broadcast(used, sample.length))]
    columns = np.concatenate([np.ones_like(effects[:1]), effects, np.abs(effects), effects**2])
    sums = cluster_sums(
        segment_sum(columns, length).T, sample.cluster[used], clusters=sample.clusters
    )

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        tokens, squares = totals[:, :1], totals[:, 7:]
        whole = squares.sum(axis=1, keepdims=True)
        parts = [ratio(totals[:, 1:4], tokens), ratio(totals[:, 4:7], tokens)]
        return np.stack([*parts, ratio(squares, whole)], axis=1)

    present = np.repeat(sums[:, :1] > 0, len(STATISTICS) * len(EFFECTS), axis=1)
    shape = (len(sums), len(STATISTICS), len(EFFECTS))
    found = intervals(resample(sums, statistic, plan=plan, present=present.reshape(shape)))
    facts = {
        **attrs,
        "crossed": [praise.name for praise, _ in twins],
        "n_rollouts": int(used.sum()),
        "n_tokens": int(length.sum()),
    }
    units, meanings = zip(*STATISTICS.values(), strict=True)
    result = dataset(found, {"statistic": tuple(STATISTICS), "effect": EFFECTS}, attrs=facts)
    return result.assign_coords(
        unit=("statistic", list(units)), meaning=("statistic", list(meanings))
    )


def _effects(
    sample: Sample, twins: Sequence[tuple[Pair, Pair]]
) -> Float[np.ndarray, " effect token"]:
    """Outcome, tone and interaction of every token, mean over frames and wordings, nats."""
    total = np.zeros((len(EFFECTS), sample.kind.size))
    for praise, blame in twins:
        cells = (praise.positive, praise.negative, blame.positive, blame.negative)
        total += CELLS @ np.stack([sample.shift(condition) for condition in cells])
    return np.asarray(total / len(twins))
