"""All descriptions of a study's shifts: from one flat Dataset of tokens to Datasets of results.

Reads  the Dataset of `Study.tokens()`.
Gives  a dict of Datasets (see `describe`), states of single tokens.
Sign   shift positive: the condition makes the token likelier; difference = verdict - placebo; AUROC
       above .5: the right response scores higher; log ratio above 0: the kind moves more.

Verdict statistics always stand beside the placebo's: a pair of irrelevant words in the same frame.
Whatever assumes that the scored policy wrote the tokens (E[exp shift] = 1, and the findings of
arXiv:2607.27888 as meant there) carries the attribute `off_policy` as it came.
"""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats import calibrated
from tokensense.stats.catalogue import ratio
from tokensense.stats.character import characterize
from tokensense.stats.concentration import agreement, concentration, shift_scores
from tokensense.stats.floors import WordingFloor, unresolved, wording_floor
from tokensense.stats.generators import leave_one_generator_out
from tokensense.stats.kinds import shift_by_kind
from tokensense.stats.localization import knows_wrong_tokens, locate
from tokensense.stats.neutral import single_conditions
from tokensense.stats.pairs import Terms, mean_shifts, pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.permuted import kind_permuted
from tokensense.stats.polarity import polarity
from tokensense.stats.primaries import primaries
from tokensense.stats.resampling import T_FROM, Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset, plain
from tokensense.stats.rows import CHARACTER, LOCALIZATION
from tokensense.stats.sample import Pair, Sample, read_sample
from tokensense.stats.shifts import contrast
from tokensense.stats.tone import outcome_and_tone
from tokensense.stats.triples import describe_pairs, family_groups, pair_sums

SIGNS = (
    "shift = logp[condition] - logp[base], positive: likelier under the condition; "
    "contrast = (shift under pos - shift under neg) / 2; difference = verdict - placebo"
)
# Fewer matched pairs, and the wordings are the sample.
WORDINGS_NEEDED = 6
ROUNDING = "which moves a token by about as much as a one-word edit: contrasts are a description"
# Words need an interval; the estimates, which are what is shown, need no resample.
LEFT_OUT_RESAMPLES = 1_000
TOKEN_STATES = ("resolved", "unresolved", "not_known")
FLOOR_STATISTICS: dict[str, str] = {
    "unresolved": "share of tokens whose mean verdict contrast over wordings is below the floor",
    "verdict_above_floor": "share of single verdict contrasts above the floor",
    "placebo_above_floor": "the same for single placebo contrasts: .05 by construction",
}


def describe(
    tokens: xr.Dataset,
    *,
    scores: Mapping[str, Shaped[np.ndarray, " token"]] | None = None,
    seed: int = 0,
    resamples: int = 10_000,
) -> dict[str, xr.Dataset]:
    """Compute every description of a study's shifts.

    Args:
        tokens: dims (condition, token), as `Study.tokens()` gives it; base among the conditions.
        scores: further scores for `localization` and `step_choice`, in the order of `tokens`.
        seed: of the resamples.
        resamples: draws of problems; 10,000 for numbers that are reported.

    Returns:
        Datasets by name; each has `estimate`, `interval` (bound), `error`, `method` (CF flags),
        `n_clusters` and `lost` unless said otherwise:
        `triple` and `triple_by_rollout` (statistic, term), tokens pooled and rollouts equal;
        `family` and `family_by_rollout` (statistic, family);
        `kind` (scale, measure, kind, term) and `balance` (kind, covariate, stage), no intervals;
        `kind_permuted` (measure, kind, term), p values instead: see there;
        `floor` (statistic), with `floor` and `tokens` (bin);
        `neutral` (statistic, condition), if there are conditions without a level;
        `read`, `read_by_family`, `informative`, `controls`, `beyond`, `step_choice`, `decision`:
        see `primaries`;
        `polarity` (statistic, term); `outcome_tone` (statistic, effect), if both stand crossed;
        `left_out` (left_out, endpoint), no intervals, if several generators wrote;
        `concentration` (statistic, score) with `lift` (score, kind), `agreement` (statistic, pair)
        of scores, `frame_agreement` of the verdict's contrasts, pair by pair of conditions;
        `character` (quantity), with a word for what the verdicts do;
        `localization` (statistic, score), if first wrong tokens are known.

    Raises:
        SchemaError: `tokens` lacks a part, or conditions cannot be paired.
        StatisticsError: there is no verdict pair, or a comparable token was not scored.
    """
    whole = read_sample(tokens)
    pairs = pairs_of(whole)
    terms = terms_of(whole, pairs)
    sample = with_shared_rollouts(whole, pairs, terms)
    plan = Resampling(sample.clusters, resamples, seed)
    floor = _wording_floor(sample, pairs, terms)
    attrs = _attrs(whole, pairs, terms=terms, floor=floor, plan=plan)
    sums = pair_sums(sample, pairs, floor=floor.at(sample.distance))
    groups = family_groups(sample, pairs)
    found: dict[str, xr.Dataset] = {}
    for weighting, suffix in (("token", ""), ("rollout", "_by_rollout")):
        triple, family = describe_pairs(
            sums, groups, terms=terms, weighting=weighting, plan=plan, attrs=attrs
        )
        found |= {f"triple{suffix}": triple, f"family{suffix}": family}
    found["kind"], found["balance"] = shift_by_kind(
        sample, pairs, terms=terms, plan=plan, attrs=attrs
    )
    found["kind_permuted"] = kind_permuted(sample, pairs, terms=terms, attrs=attrs)
    found["floor"] = _floor_shares(sample, pairs, terms=terms, floor=floor, plan=plan, attrs=attrs)
    neutral = single_conditions(sample, pairs, terms=terms, plan=plan, attrs=attrs)
    if neutral is not None:
        found["neutral"] = neutral
    found |= primaries(
        tokens, sample, pairs, terms=terms, scores=scores or {}, plan=plan, attrs=attrs
    )
    found |= _further(tokens, sample, pairs, terms=terms, plan=plan, attrs=attrs)
    found |= _picked(sample, pairs, terms=terms, scores=scores or {}, plan=plan, attrs=attrs)
    endpoint = found.get("informative")
    found[CHARACTER] = characterize(
        tokens, sample, pairs, terms=terms, endpoint=endpoint, plan=plan, attrs=attrs
    )
    if knows_wrong_tokens(tokens):
        located = locate(
            tokens, sample, pairs, terms=terms, scores=scores, seed=seed, resamples=resamples
        )
        found[LOCALIZATION] = located.assign_attrs({**plain(attrs), **located.attrs})
    return found


def token_states(tokens: xr.Dataset) -> xr.Dataset:
    """Say for every token whether the verdict's contrast rises above what irrelevant words do.

    Args:
        tokens: as for `describe`.

    Returns:
        Dims (token,), in the order of `tokens`: `positive` and `negative`, mean shifts z+ and z-
        over the wordings of the verdict, `contrast` of the two, and `floor`, nats; `state`, CF
        flags TOKEN_STATES (`not_known`: not comparable under all verdict pairs, or no wording
        floor). Attribute `wordings`: verdict pairs behind the means.

    Raises:
        SchemaError: as `describe`.
        StatisticsError: as `describe`.
    """
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    terms = terms_of(sample, pairs)
    floor = _wording_floor(sample, pairs, terms)
    sides = dict(zip(("positive", "negative"), _verdict_shifts(sample, pairs, terms), strict=True))
    mean, level = contrast(*sides.values()), floor.at(sample.distance)
    known = ~np.isnan(mean) & ~np.isnan(level)
    state = np.where(known, np.where(unresolved(mean, level), 1, 0), 2).astype(np.int8)
    back = np.argsort(sample.order)
    flags = {
        "flag_values": list(range(len(TOKEN_STATES))),
        "flag_meanings": " ".join(TOKEN_STATES),
        "description": "is |contrast| below the wording floor?",
    }
    nats = {"units": "nats"}
    return xr.Dataset(
        {
            **{
                side: (
                    ("token",),
                    shift[back],
                    {**nats, "description": f"mean shift over the verdict's {side} conditions"},
                )
                for side, shift in sides.items()
            },
            "contrast": (
                ("token",),
                mean[back],
                {**nats, "description": "mean of d over the verdict's wordings"},
            ),
            "floor": (("token",), level[back], {**nats, "description": "wording floor"}),
            "state": (("token",), state[back], flags),
        },
        attrs={"sign": SIGNS, "statement": floor.statement, "wordings": len(terms.verdict)},
    )


def _verdict_shifts(
    sample: Sample, pairs: list[Pair], terms: Terms
) -> tuple[Float[np.ndarray, " token"], Float[np.ndarray, " token"]]:
    """Means of z+ and of z- over the verdict's wordings; NaN where not comparable under all."""
    parts = [pairs[i] for i in terms.verdict]
    usable = np.logical_and.reduce([sample.usable(pair) for pair in parts])
    known = broadcast(usable, sample.length)
    positive, negative = (np.where(known, mean, np.nan) for mean in mean_shifts(sample, parts))
    return positive, negative


def _wording_floor(sample: Sample, pairs: list[Pair], terms: Terms) -> WordingFloor:
    """Floor from the placebo pairs of the triple."""
    kept = [pairs[i] for members in terms.placebo.values() for i in members]
    contrasts = np.full((len(kept), sample.kind.size), np.nan)
    for index, pair in enumerate(kept):
        tokens = broadcast(sample.usable(pair), sample.length)
        d = contrast(sample.shift(pair.positive), sample.shift(pair.negative))
        contrasts[index, tokens] = d[tokens]
    return wording_floor(contrasts, sample.distance, families=[pair.family for pair in kept])


def _floor_shares(
    sample: Sample,
    pairs: list[Pair],
    *,
    terms: Terms,
    floor: WordingFloor,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate how many contrasts rise above the wording floor."""
    level = floor.at(sample.distance)
    mean = contrast(*_verdict_shifts(sample, pairs, terms))
    known = ~np.isnan(mean) & ~np.isnan(level)
    columns = [known & unresolved(np.where(known, mean, 0.0), level), known]
    placebo = [i for members in terms.placebo.values() for i in members]
    for members in (list(terms.verdict), placebo):
        above, counted = np.zeros(level.size), np.zeros(level.size)
        for pair in (pairs[i] for i in members):
            d = contrast(sample.shift(pair.positive), sample.shift(pair.negative))
            used = broadcast(sample.usable(pair), sample.length) & ~np.isnan(level)
            above += used & (np.abs(d) > level)
            counted += used
        columns += [above, counted]
    rows = np.stack([segment_sum(np.asarray(c, dtype=float), sample.length) for c in columns], 1)
    sums = cluster_sums(rows, sample.cluster, clusters=sample.clusters)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return ratio(totals[:, 0::2], totals[:, 1::2])

    found = intervals(resample(sums, statistic, plan=plan, present=sums[:, 1::2] > 0))
    result = dataset(found, {"statistic": tuple(FLOOR_STATISTICS)}, attrs=attrs)
    edges = np.concatenate([[0.0], floor.edges])
    nats = {"units": "nats", "description": "95th percentile of |placebo contrast| in the bin"}
    return result.assign(
        n_rollouts=("statistic", np.count_nonzero(rows[:, 1::2], axis=0)),
        n_tokens=("statistic", sums[:, 1::2].sum(axis=0)),
        floor=("bin", floor.floor, nats),
        tokens=("bin", floor.tokens, {"units": "1", "description": "placebo contrasts in the bin"}),
    ).assign_coords(
        unit=("statistic", ["1"] * len(FLOOR_STATISTICS)),
        meaning=("statistic", list(FLOOR_STATISTICS.values())),
        lower_edge=("bin", edges, {"description": "smallest ||onehot - p|| of the bin"}),
    )


def _further(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: list[Pair],
    *,
    terms: Terms,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> dict[str, xr.Dataset]:
    """Agreement with outcomes, outcome x tone, and the endpoints without each generator."""
    found = {"polarity": polarity(sample, pairs, terms=terms, plan=plan, attrs=attrs)}
    toned = outcome_and_tone(sample, pairs, plan=plan, attrs=attrs)
    if toned is not None:
        found["outcome_tone"] = toned
    fewer = min(plan.resamples, LEFT_OUT_RESAMPLES)
    without = leave_one_generator_out(tokens, seed=plan.seed, resamples=fewer)
    if without is not None:
        found["left_out"] = without.assign_attrs({**plain(attrs), **without.attrs})
    return found


def _picked(
    sample: Sample,
    pairs: list[Pair],
    *,
    terms: Terms,
    scores: Mapping[str, Shaped[np.ndarray, " token"]],
    plan: Resampling,
    attrs: Mapping[str, object],
) -> dict[str, xr.Dataset]:
    """How concentrated scores are, and whether they, and the frames, pick the same tokens."""
    own, frames = shift_scores(sample, pairs, terms=terms)
    every = own | {name: values[sample.order] for name, values in scores.items()}
    facts = {**attrs, "n_tokens": int(sample.length.sum())}
    found = {
        "concentration": concentration(every, sample, plan=plan, attrs=facts),
        "agreement": agreement(every, sample, plan=plan, attrs=facts),
    }
    if len(frames) > 1:
        found["frame_agreement"] = agreement(frames, sample, plan=plan, attrs=facts)
    return found


def _attrs(
    sample: Sample,
    pairs: list[Pair],
    *,
    terms: Terms,
    floor: WordingFloor,
    plan: Resampling,
) -> dict[str, object]:
    """What every result carries: provenance as it came, seed, counts, what was left out."""
    statements = [*terms.statements, *([floor.statement] if floor.statement else [])]
    if len(terms.verdict) < WORDINGS_NEEDED:
        statements.append(
            f"{len(terms.verdict)} verdict pairs: results hold for these wordings, not for others"
        )
    if (dtype := sample.attrs.get("dtype", "float32")) != "float32":
        statements.append(f"scored in {dtype}, {ROUNDING}; see the numerical floor")
    out = {
        pair.name: int(np.count_nonzero(~sample.usable(pair)))
        for pair in pairs
        if not sample.usable(pair).all()
    }
    if out:
        statements.append(
            f"rollouts left out as not comparable: up to {max(out.values())} of "
            f"{len(sample.length)}, in {len(out)} of {len(pairs)} pairs; out of one pair of the "
            "triple is out of all"
        )
    clusters, rollouts = sample.clusters, len(sample.length)
    # Below, there is no interval whose level could be wrong.
    for endpoint in calibrated.ENDPOINTS if clusters >= T_FROM else ():
        known = calibrated.warning(endpoint, clusters=clusters, rollouts=rollouts / clusters)
        statements += [f"calibration: {known}"] if known else []
    return {
        **sample.attrs,
        "sign": SIGNS,
        "seed": plan.seed,
        "resamples": plan.resamples,
        "level": 0.95,
        "statements": statements,
        "left_out": out,
        "verdict_pairs": [pairs[i].name for i in terms.verdict],
        "placebo_families": list(terms.placebo),
        "all_rollouts": len(sample.length),
        "all_problems": len(np.unique(sample.problem)),
        "all_clusters": sample.clusters,
        "all_tokens": int(sample.length.sum()),
    }
