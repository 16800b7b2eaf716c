"""All descriptions of a study's shifts: from one flat Dataset of tokens to Datasets of results.

Reads  the Dataset of `Study.tokens()`.
Gives  a dict of Datasets (see `describe`), rows of text for a terminal, states of single tokens.
Sign   shift positive: the condition makes the token likelier; difference = verdict - placebo; AUROC
       above .5: the right response scores higher; log ratio above 0: the kind moves more.

Verdict statistics always stand beside the placebo's: a pair of irrelevant words in the same frame.
Whatever assumes that the scored policy wrote the tokens (E[exp shift] = 1, and the findings of
arXiv:2607.27888 as meant there) carries the attribute `off_policy` as it came.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.catalogue import ratio
from tokensense.stats.character import characterize
from tokensense.stats.endpoints import informative
from tokensense.stats.floors import WordingFloor, unresolved, wording_floor
from tokensense.stats.kinds import shift_by_kind
from tokensense.stats.localization import knows_wrong_tokens, locate
from tokensense.stats.neutral import single_conditions
from tokensense.stats.pairs import Terms, mean_shifts, pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.resampling import Method, Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset, plain
from tokensense.stats.sample import Pair, Sample, read_sample
from tokensense.stats.shifts import contrast
from tokensense.stats.triples import describe_pairs, family_groups, pair_sums

SIGNS = (
    "shift = logp[condition] - logp[base], positive: likelier under the condition; "
    "contrast = (shift under pos - shift under neg) / 2; difference = verdict - placebo"
)
# Fewer matched pairs, and the wordings are the sample.
WORDINGS_NEEDED = 6
ROUNDING = "which moves a token by about as much as a one-word edit: contrasts are a description"
TOKEN_STATES = ("resolved", "unresolved", "not_known")
CHARACTER, LOCALIZATION = "character", "localization"
SECTIONS = (
    *(CHARACTER, "triple", "kind", "floor", "neutral"),
    *("informative", "controls", LOCALIZATION),
)
FLOOR_STATISTICS: dict[str, str] = {
    "unresolved": "share of tokens whose mean verdict contrast over wordings is below the floor",
    "verdict_above_floor": "share of single verdict contrasts above the floor",
    "placebo_above_floor": "the same for single placebo contrasts: .05 by construction",
}


class Row(NamedTuple):
    """One line of a table, as text.

    Attributes:
        section: name of the Dataset.
        name: of the statistic, kind, score or condition.
        value: estimate [low, high] of the verdict, or of what stands alone.
        placebo: the same of the placebo; empty where it stands alone.
        difference: the same of verdict - placebo.
        unit: of the three.
        n: problem texts, rollouts and tokens.
    """

    section: str
    name: str
    value: str
    placebo: str
    difference: str
    unit: str
    n: str


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
        scores: further scores for `localization`, in the order of `tokens`.
        seed: of the resamples.
        resamples: draws of problems; 10,000 for numbers that are reported.

    Returns:
        Datasets by name; each has `estimate`, `interval` (bound), `error`, `method` (CF flags),
        `n_clusters` and `lost` unless said otherwise:
        `triple` and `triple_by_rollout` (statistic, term), tokens pooled and rollouts equal;
        `family` and `family_by_rollout` (statistic, family);
        `kind` (scale, measure, kind, term) and `balance` (kind, covariate, stage), no intervals;
        `floor` (statistic), with `floor` and `tokens` (bin);
        `neutral` (statistic, condition), if there are conditions without a level;
        `informative` (statistic, term) and `controls` (statistic, score), if a problem has both a
        right and a wrong response;
        `character` (quantity), with a word for what the verdicts do;
        `localization` (statistic, score), if first wrong tokens are known.

    Raises:
        SchemaError: `tokens` lacks a part, or conditions cannot be paired.
        StatisticsError: there is no verdict pair, or a comparable token was not scored.
    """
    read = read_sample(tokens)
    pairs = pairs_of(read)
    terms = terms_of(read, pairs)
    sample = with_shared_rollouts(read, pairs, terms)
    plan = Resampling(sample.clusters, resamples, seed)
    floor = _wording_floor(sample, pairs, terms)
    attrs = _attrs(read, pairs, terms=terms, floor=floor, plan=plan)
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
    found["floor"] = _floor_shares(sample, pairs, terms=terms, floor=floor, plan=plan, attrs=attrs)
    neutral = single_conditions(sample, pairs, terms=terms, plan=plan, attrs=attrs)
    if neutral is not None:
        found["neutral"] = neutral
    told = informative(sample, pairs, terms=terms, plan=plan, attrs=attrs)
    if told is not None:
        found["informative"], found["controls"] = told
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


def table(
    result: Mapping[str, xr.Dataset],
    *,
    sections: tuple[str, ...] = SECTIONS,
    measures: tuple[str, ...] = ("absolute_shift",),
) -> list[Row]:
    """Write results as rows of text.

    Args:
        result: of `describe`.
        sections: which of its Datasets, in this order; those it lacks are passed over.
        measures: which measures of `kind` to show.
    """
    rows: list[Row] = []
    for section in sections:
        if section not in result:
            continue
        found = result[section]
        if section == CHARACTER:
            counts = _counts(found.isel(quantity=0))
            rows.append(Row(section, "verdicts", found.attrs["word"], "", "", "", counts))
            continue
        lead = [str(dim) for dim in found["estimate"].dims if dim != "term"]
        shown = found.sel(measure=list(measures)) if "measure" in lead else found
        stacked = shown.stack(row=lead)
        for index in range(stacked.sizes["row"]):
            rows.append(_row(section, stacked.isel(row=index), lead))
    return rows


def notes(result: Mapping[str, xr.Dataset]) -> list[str]:
    """What has to stand beside the numbers: what was left out, by whom sampled, the machine.

    Args:
        result: of `describe`; the `numerical_floor` of the store beside it, where there is one.
    """
    attrs = result["triple"].attrs
    found: list[str] = json.loads(attrs["statements"])
    if attrs["off_policy"]:
        found.append(
            "off-policy: the scoring policy is not known to have drawn these tokens; no number is "
            "an expectation under it"
        )
    if "informative" in result:
        word, statement = (result["informative"].attrs[key] for key in ("word", "statement"))
        known = "" if word == "not_estimable" else f"{word}, "
        found.append(f"AUROC of the summed contrast: {known}{statement}")
    if CHARACTER in result:
        found.append(f"what the verdicts do: {result[CHARACTER].attrs['statement']}")
    if LOCALIZATION in result:
        found.append(f"localization: {result[LOCALIZATION].attrs['statement']}")
    if "numerical_floor" in result:
        floor = result["numerical_floor"].sel(quantity="shift")
        found.append(
            f"numerical floor: q99 of |difference| of shifts between two row plans "
            f"{float(floor['q99']):.2g} nats, over {int(floor['n'])} tokens; checks the machine"
        )
    return found


def _row(section: str, one: xr.Dataset, lead: list[str]) -> Row:
    """Write one line."""
    name = " ".join(str(one[dim].item()) for dim in lead)
    unit = str(one["unit"].item()) if "unit" in one.coords else "1"
    terms = [one] if "term" not in one.dims else [one.isel(term=i) for i in range(3)]
    values = [_value(term, unit) for term in terms] + ["", "", ""]
    return Row(section, name, values[0], values[1], values[2], unit, _counts(terms[0]))


def _counts(one: xr.Dataset) -> str:
    """Problem texts, rollouts and tokens behind an estimate, as far as they are known."""
    counts = []
    for label in ("n_clusters", "n_rollouts", "n_tokens"):
        number = one[label].item() if label in one else one.attrs.get(label)
        if number is not None:
            counts.append(f"{float(number):.0f} {label.removeprefix('n_')}")
    return ", ".join(counts)


def _value(one: xr.Dataset, unit: str) -> str:
    """Write an estimate with its interval, or why there is none."""
    digits = 4 if unit == "nats" else 3
    estimate = float(one["estimate"])
    if np.isnan(estimate):
        return "not estimable"
    low, high = one["interval"].values
    if np.isnan(low):
        return f"{estimate:.{digits}f} [{Method(int(one['method'])).name.lower()}]"
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


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
