"""How well a score picks the first wrong step out of all steps of a wrong response.

Reads  Steps of labelled responses; scores of tokens, drawn together by step.
Gives  step_choice: (statistic, score, bound).
Sign   the first wrong step should score highest; which way a score is turned stands beside it.

The unit is the step, and the truth a person's. All other steps of the response are the others, also
those behind the wrong one (without them the last would always be the wrong one): this is a choice,
and no claim that a later step is right. Position and length are among the scores for that reason,
and the models are told them. `beyond` compares with right steps alone.

auroc              P(wrong step scores above another of its response), ties 1/2.
average_precision  1 / (steps of the response that score as high or higher).
hit_at_1           chance that the highest step of a response is its wrong one, ties at random.
auroc_at_equal_surprisal   the wrong step against others of all responses, within deciles of the
                   wrong steps' mean surprisal, as in `localization`.

All are means over wrong steps. Fixed in advance: a score of tokens is drawn together by its mean;
`_max` and `_top_3` (mean of the three largest) are secondary. `kind`, `model_without` (position,
length, surprisal, entropy, sum of p^2), `model_with` (also sensitivity and |d|) and its placebo
(those of irrelevant words, averaged over families) are cross-fitted over problem texts, see
`contests`, and held fixed in the resamples. Intervals: of each by itself, and `simultaneous` over
all scores of a statistic. Responses of one step offer no choice and take no
part.

Source   `statistics.md` 3.8 and 3.12 of the project's notes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Shaped

from tokensense.segments import broadcast, segment_sum
from tokensense.stats.beyond import BASE_COLUMNS, MEAN, SHIFT_COLUMNS
from tokensense.stats.catalogue import ratio
from tokensense.stats.contests import contest_of, crossfitted_steps, folds_of
from tokensense.stats.localization import DIRECTIONS, GIVEN, surprisal_bins
from tokensense.stats.ranking import Traces, draws, wins
from tokensense.stats.resampling import Draws, Resampling, cluster_sums, intervals, resample
from tokensense.stats.results import dataset
from tokensense.stats.simultaneous import max_t
from tokensense.stats.steps import AGGREGATES, Steps

STATISTICS = {
    "auroc": "P(first wrong step scores above another step of its response), ties 1/2",
    "average_precision": "mean of 1 / (steps of the response that score as high or higher); not "
    "1/2 by chance but what `constant` and the lengths of responses make of it",
    "hit_at_1": "chance that the highest step of a response is its first wrong one",
    "auroc_at_equal_surprisal": "against others of all responses within deciles of mean surprisal",
}
SECONDARY = ("sensitivity", "absolute_contrast", "signed_contrast")
OWN_DIRECTIONS = {
    "square_sum": "peaked: the sum of squared probabilities is large",
    "length": "many tokens",
    "constant": "nothing: all steps alike",
    "model_without": "cross-fitted: position, length, surprisal, entropy, sum of p^2",
    "model_with": "cross-fitted: the same, sensitivity and |d|",
    "placebo_model_with": "cross-fitted: the same with those of a placebo family",
    "kind": "cross-fitted: of kinds of tokens that often go wrong",
    "position": "late in the response",
}


def step_choice(
    steps: Steps,
    *,
    families: Sequence[str],
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset | None:
    """Estimate how well each score picks the first wrong step of its response.

    Args:
        steps: of `steps_of`.
        families: placebo families; scores of theirs have their statistics averaged.
        plan: seed and number of the draws of problem texts.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, score, bound) with `simultaneous`, `direction` (score), numbers
        of responses and `statement` in the attributes. A score that is not a number on some step
        has no value, and `statement` says so. None where no response offers a choice.
    """
    offers = _offering(steps)
    if not offers.any():
        return None
    texts, cluster = np.unique(steps.cluster[offers], return_inverse=True)
    _, trace = np.unique(steps.trace[offers], return_inverse=True)
    size = np.bincount(trace).astype(np.int64)
    traces = Traces(steps.wrong[offers], cluster.astype(np.int64), size, len(texts))
    own = Resampling(len(texts), plan.resamples, plan.seed)
    table = _scores(steps, offers, trace, traces, families=families, seed=plan.seed)
    bins = surprisal_bins(steps.columns["surprisal"][MEAN, offers], traces.marked)
    facts = {
        **attrs,
        **steps.counts,
        "n_rollouts": size.size,
        "n_steps": int(size.sum()),
        "n_tokens": int(steps.length[offers].sum()),
        "n_single_step": np.unique(steps.trace[steps.wrong]).size - size.size,
        "seed": plan.seed,
        "resamples": plan.resamples,
        "level": 0.95,
    }
    return _result(table, traces, bins, plan=own, attrs=facts)


def _offering(steps: Steps) -> Bool[np.ndarray, " step"]:
    """Steps of responses that have a wrong step and another."""
    failed = np.bincount(steps.trace, steps.wrong) > 0
    several = np.bincount(steps.trace) > 1
    return np.asarray((failed & several)[steps.trace])


def _scores(
    steps: Steps,
    offers: Bool[np.ndarray, " step"],
    trace: Int64[np.ndarray, " offered"],
    traces: Traces,
    *,
    families: Sequence[str],
    seed: int,
) -> dict[str, list[Float[np.ndarray, " offered"]]]:
    """Every score as one or more columns; statistics are averaged over the columns."""
    kept = {name: values[:, offers] for name, values in steps.columns.items()}
    of_family = {f"{family}:{name}" for family in families for name in SHIFT_COLUMNS}
    own = {name: values for name, values in kept.items() if name not in of_family}
    found = {name: [values[MEAN]] for name, values in own.items()}
    if families:
        for name in SHIFT_COLUMNS:
            found[f"placebo_{name}"] = [kept[f"{family}:{name}"][MEAN] for family in families]
    given = [name for name in own if name not in DIRECTIONS and name not in BASE_COLUMNS]
    for place, aggregate in enumerate(AGGREGATES[1:], 1):
        found |= {f"{name}_{aggregate}": [own[name][place]] for name in (*SECONDARY, *given)}
    place = np.arange(trace.size) - (np.cumsum(traces.length) - traces.length)[trace]
    position, length = (place + 0.5) / traces.length[trace], steps.length[offers].astype(np.float64)
    found |= {"position": [position], "length": [length], "constant": [np.zeros(trace.size)]}
    without = [position, np.log(length), *(kept[name][MEAN] for name in BASE_COLUMNS)]

    def told(prefix: str) -> Float[np.ndarray, " offered column"]:
        return np.column_stack([*without, *(kept[prefix + name][MEAN] for name in SHIFT_COLUMNS)])

    models = {
        "kind": [steps.kinds[offers]],
        "model_without": [np.column_stack(without)],
        "model_with": [told("")],
    }
    if families:
        models["placebo_model_with"] = [told(f"{family}:") for family in families]
    wrong = np.flatnonzero(traces.marked)
    first = np.repeat(wrong, traces.length - 1)
    second = np.flatnonzero(~traces.marked)
    met = contest_of(first, second)
    fold = folds_of(traces.clusters, seed)[traces.cluster]
    for name, tables in models.items():
        found[name] = [
            crossfitted_steps(columns, met, fold)
            if np.isfinite(columns).all()
            else np.full(trace.size, np.nan)
            for columns in tables
        ]
    return found


def chosen(
    score: Float[np.ndarray, " step"], traces: Traces
) -> Float[np.ndarray, " trace statistic"]:
    """AUROC, precision and hit of the marked step among those of its trace.

    Args:
        score: infinite ones too; no NaN.
        traces: of two steps or more, one marked.
    """
    own = broadcast(score[traces.marked], traces.length)
    lower, equal = (
        segment_sum(each.astype(np.float64), traces.length) for each in (score < own, score == own)
    )
    higher = traces.length - lower - equal
    auroc = (lower + (equal - 1) / 2) / (traces.length - 1)
    return np.stack([auroc, 1 / (higher + equal), np.where(higher == 0, 1 / equal, 0.0)], axis=1)


def _result(
    table: Mapping[str, Sequence[Float[np.ndarray, " offered"]]],
    traces: Traces,
    bins: Int64[np.ndarray, " offered"],
    *,
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate all statistics of all scores and lay them out."""
    unknown = [name for name, columns in table.items() if np.isnan(columns).any()]
    known = {name: columns for name, columns in table.items() if name not in unknown}
    found = _draws(known, traces, bins, plan=plan)
    limits = np.stack(
        [
            max_t(
                Draws(
                    found.estimate[at], found.values[:, at], found.pseudo[:, at], found.clusters[at]
                )
            )
            for at in range(len(STATISTICS))
        ]
    )
    said = f"{attrs['n_rollouts']} wrong responses of two steps or more"
    if unknown:
        said += f"; not estimable: NaN, or no fit, on some step in {', '.join(unknown)}"
    coords = {"statistic": tuple(STATISTICS), "score": tuple(known)}
    result = dataset(intervals(found), coords, attrs={**attrs, "statement": said})
    held = {"description": "limits that hold for all scores of a statistic together"}
    return result.assign(simultaneous=((*coords, "bound"), limits, held)).assign_coords(
        unit=("statistic", ["1"] * len(STATISTICS)),
        meaning=("statistic", list(STATISTICS.values())),
        direction=("score", [_direction(name) for name in known]),
    )


def _draws(
    table: Mapping[str, Sequence[Float[np.ndarray, " offered"]]],
    traces: Traces,
    bins: Int64[np.ndarray, " offered"],
    *,
    plan: Resampling,
) -> Draws:
    """All statistics: those within a response from sums over problem texts, the last from pairs."""
    inside = np.stack(
        [np.mean([chosen(c, traces) for c in columns], axis=0) for columns in table.values()],
        axis=2,
    )
    whole = np.concatenate([inside, np.ones_like(inside[:, :1])], axis=1)
    sums = cluster_sums(whole, traces.owner, clusters=traces.clusters)

    def means(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return ratio(totals[:, :-1], totals[:, -1:])

    present = np.ones((traces.clusters, *inside.shape[1:]), dtype=bool)
    found = resample(sums, means, plan=plan, present=present)
    pairs = [
        [draws([wins(c, traces, stratum=bins)], traces, plan=plan) for c in columns]
        for columns in table.values()
    ]
    parts = {
        "estimate": found.estimate,
        "values": found.values,
        "pseudo": found.pseudo,
        "clusters": found.clusters,
    }
    for name, part in parts.items():
        last = np.stack(
            [np.mean([getattr(e, name) for e in each], axis=0) for each in pairs], axis=-1
        )
        if name == "pseudo":
            last = last[: len(part)]
        parts[name] = np.concatenate([part, last.astype(part.dtype)], axis=-2)
    return Draws(**parts)


def _direction(name: str) -> str:
    """What a high value of a score says."""
    for aggregate in AGGREGATES[1:]:
        if name.endswith(f"_{aggregate}"):
            return f"{_direction(name.removesuffix(f'_{aggregate}'))}; {aggregate} over the step"
    return (DIRECTIONS | OWN_DIRECTIONS).get(name, GIVEN)
