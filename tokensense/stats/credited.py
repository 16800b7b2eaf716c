"""What credit rules do to the tokens of a store, with intervals: for figures and tables.

Reads  the Dataset of `Study.tokens()`; credit of each rule and the advantage, as `/credit` has it.
Gives  credited: `rules` (statistic, rule), `rules_by_kind` (rule, kind), `rule_agreement` (score,
       other).
Sign   scores are credit along the advantage's sign: high means that the rule picks the token. A log
       ratio above 0: the kind has more of the credit than of the tokens.

Looked at are responses with an advantage, for a rule gives the others nothing. The sizes of shifts
under verdicts and under the first placebo family stand beside the rules: a rule that agrees with
both alike has nothing from the verdict.

gini, effective, top_tenth_mass   as in `concentration`: within responses, mean over responses.
rotation      degrees between the update's direction and that of uniform credit; gradients of tokens
              count as orthogonal and ||onehot - p|| long, as in `credit.report`.
with_length   correlation over responses of the ranks of length and of mean credit a token, as a
              share of the advantage's size.

Source   methods/cscr.md 5.8; `credit.report` has the same numbers without intervals, of tokens
         pooled, where these are of responses.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped
from scipy.stats import rankdata

from tokensense.errors import StatisticsError
from tokensense.segments import broadcast, segment_mean, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.concentration import CONCENTRATIONS, agreement, concentration, shift_scores
from tokensense.stats.pairs import pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.sample import Sample, read_sample

UPDATES = {
    "rotation": ("degrees", "angle between the update and that of uniform credit; 0: the same"),
    "with_length": ("1", "rank correlation over responses of length and mean credit a token"),
}
# Scores beside the rules, which are no rules.
REFERENCES = ("surprisal", "entropy", "position")
SHIFTS = {
    "absolute_contrast": "verdict contrast",
    "placebo_absolute_contrast": "placebo contrast",
}
RESAMPLES = 2_000


def credited(
    tokens: xr.Dataset, credit: xr.Dataset, *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, xr.Dataset]:
    """Estimate what each rule does: how concentrated, on which kinds, like which other score.

    Args:
        tokens: as `Study.tokens()` gives it.
        credit: `credit` (rule, token) and `advantage` (token), in the order of `tokens`; NaN where
            a rollout was left out. A coordinate `grade` (rule) says which are reconstructions.
        seed: of the resamples.
        resamples: draws of problem texts.

    Returns:
        `rules`, `rules_by_kind` and `rule_agreement`, each with `estimate`, `interval` (bound),
        `method` and `n_clusters`; numbers of rollouts and tokens. Attributes of `tokens`, `seed`,
        `resamples`, `level`, `statements`.

    Raises:
        SchemaError: `tokens` lacks a part.
        StatisticsError: no response has an advantage.
    """
    sample = read_sample(tokens)
    advantage = credit["advantage"].values[sample.order].astype(np.float64)
    given = np.isfinite(advantage) & (advantage != 0)
    if not given.any():
        raise StatisticsError(
            "figures of credit need a response with an advantage; all are 0 or undecided. Take "
            "problems with right and wrong responses, or `tokensense credit --advantage pooled`."
        )
    values = dict(
        zip(credit["rule"].values.astype(str).tolist(), credit["credit"].values, strict=True)
    )
    rules = {
        name: np.where(given, row[sample.order] * np.sign(advantage), np.nan)
        for name, row in values.items()
    }
    plan = Resampling(sample.clusters, resamples, seed)
    attrs = {
        **sample.attrs,
        "seed": seed,
        "resamples": resamples,
        "level": 0.95,
        "all_tokens": int(sample.length.sum()),
        "statements": [*_statements(sample, given), *_reconstructed(credit)],
    }
    concentrated = concentration(rules, sample, plan=plan, attrs=attrs)
    updated = _updates(rules, np.abs(advantage), sample, plan=plan, attrs=attrs)
    beside = _references(tokens, sample, given)
    agreed = agreement(rules | beside, sample, plan=plan, attrs=attrs)
    return {
        "rules": _joined(concentrated, updated, sample, given),
        "rules_by_kind": _by_kind(concentrated, sample, given),
        "rule_agreement": _square(agreed, list(rules | beside), rules=len(rules)),
    }


def _statements(sample: Sample, given: Shaped[np.ndarray, " token"]) -> list[str]:
    """How many responses there are, and how many have no advantage."""
    own = segment_sum(given.astype(np.int64), sample.length) > 0
    return [
        f"{int(own.sum()):,} of {own.size:,} responses have an advantage, and only they are "
        "looked at"
    ]


def _reconstructed(credit: xr.Dataset) -> list[str]:
    """Rules whose formula was inferred, which no figure shows without saying so."""
    if "grade" not in credit.coords:
        return []
    names = credit["rule"].values[credit["grade"].values == "inferred"].astype(str).tolist()
    return [f"reconstructions, part of the formula is a guess: {', '.join(names)}"] * bool(names)


def _references(
    tokens: xr.Dataset, sample: Sample, given: Shaped[np.ndarray, " token"]
) -> dict[str, Float[np.ndarray, " token"]]:
    """Scores that a rule may be a copy of; shifts where the store has verdicts."""
    entropy = tokens["entropy"].transpose("condition", "token").values[sample.base, sample.order]
    start = np.cumsum(sample.length) - sample.length
    place = np.arange(sample.kind.size) - broadcast(start, sample.length)
    scores = {
        "surprisal": sample.surprisal,
        "entropy": entropy.astype(np.float64),
        "position": place.astype(np.float64),
    }
    try:
        pairs = pairs_of(sample)
        terms = terms_of(sample, pairs)
        shared = with_shared_rollouts(sample, pairs, terms)
    except StatisticsError:  # no verdict was asked
        return {name: np.where(given, score, np.nan) for name, score in scores.items()}
    sizes, _ = shift_scores(shared, pairs, terms=terms)
    scores |= {label: sizes[name] for name, label in SHIFTS.items() if name in sizes}
    return {name: np.where(given, score, np.nan) for name, score in scores.items()}


def _updates(
    rules: Mapping[str, Float[np.ndarray, " token"]],
    size: Float[np.ndarray, " token"],
    sample: Sample,
    *,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Rotation and correlation with length of every rule."""
    rows = np.stack([_update_columns(along, size, sample) for along in rules.values()], axis=1)
    sums = cluster_sums(rows, sample.cluster, clusters=sample.clusters)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        both, own, other, count, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
        cosine = np.clip(ratio(both, np.sqrt(own * other)), -1.0, 1.0)
        n = np.where(count > 0, count, 1.0)
        spread = (xx / n - (x / n) ** 2) * (yy / n - (y / n) ** 2)
        # Centered columns, so that rounding cannot make a constant vary.
        varies = (count > 0) & (spread > 1e-12)
        held = np.sqrt(np.where(varies, spread, 1.0))
        with_length = np.where(varies, (xy / n - x * y / n**2) / held, np.nan)
        return np.stack([np.degrees(np.arccos(cosine)), np.clip(with_length, -1, 1)], axis=1)

    present = np.repeat(sums[:, None, :, 3] > 0, len(UPDATES), axis=1)
    found = intervals(resample(sums, statistic, plan=plan, present=present))
    return dataset(found, {"statistic": tuple(UPDATES), "score": tuple(rules)}, attrs=attrs)


def _update_columns(
    along: Float[np.ndarray, " token"], size: Float[np.ndarray, " token"], sample: Sample
) -> Float[np.ndarray, " rollout column"]:
    """What each response adds to the sums of one rule; 0 where the rule has nothing for it."""
    own = np.asarray(segment_sum((~np.isfinite(along)).astype(np.float64), sample.length) == 0)
    inside = broadcast(own, sample.length)
    credit = np.where(inside, along, 0.0) * sample.distance
    uniform = np.where(inside, size, 0.0) * sample.distance
    share = np.where(inside, np.abs(along) / np.where(inside, size, 1.0), 0.0)
    mean = np.asarray(np.round(segment_mean(share, sample.length), 12))
    ranks = np.zeros((2, own.size))
    for row, column in enumerate((sample.length.astype(np.float64), mean)):
        placed = np.asarray(rankdata(np.asarray(column)[own]))
        spread = float(placed.std())
        ranks[row, own] = (placed - placed.mean()) / (spread or 1.0)
    x, y = ranks
    columns = [segment_sum(p, sample.length) for p in (credit * uniform, credit**2, uniform**2)]
    return np.stack([*columns, own.astype(np.float64), x, y, x * x, y * y, x * y], axis=1)


def _counts(
    sample: Sample, given: Shaped[np.ndarray, " token"], rollouts: xr.DataArray
) -> dict[str, object]:
    """Tokens and rollouts that numbers rest on."""
    return {
        "n_tokens": int(given.sum()),
        "n_rollouts": ("rule", rollouts.values),
    }


def _joined(
    concentrated: xr.Dataset,
    updated: xr.Dataset,
    sample: Sample,
    given: Shaped[np.ndarray, " token"],
) -> xr.Dataset:
    """Concentration and update of each rule as one result."""
    names = ["estimate", "interval", "error", "method", "n_clusters", "lost"]
    parts = [part[names].rename(score="rule") for part in (concentrated, updated)]
    joined = xr.concat([p.drop_vars(("unit", "meaning"), errors="ignore") for p in parts],
                       dim="statistic", combine_attrs="override")  # fmt: skip
    units = [*(("1", text) for text in CONCENTRATIONS.values()), *UPDATES.values()]
    return joined.assign(_counts(sample, given, concentrated["n_rollouts"])).assign_coords(
        unit=("statistic", [unit for unit, _ in units]),
        meaning=("statistic", [text for _, text in units]),
    )


def _by_kind(
    concentrated: xr.Dataset, sample: Sample, given: Shaped[np.ndarray, " token"]
) -> xr.Dataset:
    """Log of the share of credit over the share of tokens of each kind, as a result."""
    kinds = concentrated["kind"].values.astype(str)
    kind, clusters = sample.kind[given], broadcast(sample.cluster, sample.length)[given]
    texts = [np.unique(clusters[kind == name]).size for name in kinds]
    found = xr.Dataset(
        {
            "estimate": concentrated["lift"],
            "interval": concentrated["lift_interval"],
            "method": concentrated["lift_method"],
            "n_clusters": ("kind", texts),
            "n_tokens": ("kind", [int((kind == name).sum()) for name in kinds]),
        },
        attrs=concentrated.attrs,
    )
    return found.rename(score="rule").drop_vars(("unit", "meaning"), errors="ignore")


def _square(agreed: xr.Dataset, names: list[str], *, rules: int) -> xr.Dataset:
    """Rank agreement of each two scores as a square, nothing on the diagonal."""
    one = agreed.sel(statistic="rank_agreement", drop=True)
    place = {name: index for index, name in enumerate(names)}
    first = [place[str(name)] for name in one["first"].values]
    second = [place[str(name)] for name in one["second"].values]
    size = len(names)
    found: dict[str, Any] = {}
    for name in ("estimate", "method", "n_clusters", "n_rollouts"):
        square = np.full((size, size), np.nan if name == "estimate" else 0, one[name].dtype)
        square[first, second] = square[second, first] = one[name].values
        found[name] = (("score", "other"), square, one[name].attrs)
    limits = np.full((size, size, 2), np.nan)
    limits[first, second] = limits[second, first] = one["interval"].values
    found["interval"] = (("score", "other", "bound"), limits, {})
    return xr.Dataset(
        found,
        coords={
            "score": names,
            "other": names,
            "is_rule": ("score", [index < rules for index in range(size)]),
            "bound": agreed["bound"].values,
        },
        attrs=agreed.attrs,
    )
