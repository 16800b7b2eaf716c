"""Primary endpoint E3, beyond uncertainty: do the shifts add anything to what one pass knows?

Reads  Steps of labelled responses: wrong step k, and step k of responses that are right there.
Gives  AUROC of a model without and with the shifts, the increase for verdict and placebos, a word.
Sign   increase above 0: with the shifts, the wrong step is told from right ones more often.

Contests  each first wrong step against the steps of the same index, of the same generator, that are
          right, of other problem texts, and alike in length (log of tokens) and mean surprisal
          (log), each within CALIPER. Steps behind a wrong one are neither right nor wrong and take
          no part; with the index matched, that they are missing predicts nothing. The balance of
          the matching stands beside the result.
Models    contests of `contests`: without, on the step's mean surprisal, entropy, sum of p^2 and
          length (position is matched exactly, so that it cannot enter); with, also on its mean
          sensitivity max(|z+|, |z-|) and mean |d| over wordings. With placebos: the same with the
          shifts of each placebo family; its AUROC is the mean over families.
AUROC     mean over wrong steps of the share of their contests that the model gets right, ties 1/2.
Increase  AUROC with minus AUROC without: p against 0 or less, one-sided, by Student's t on the
          bootstrap's standard error. `redundant`: its 90 % interval lies within +-MARGIN.

Models are fitted once and held fixed in the resamples of problem texts; both sides of a contest are
drawn. Fewer than CASES_NEEDED problem texts with a matched wrong step: not estimable.

Source   `statistics.md` 3.3, 3.7, 3.8 of the project's notes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import t as student

from tokensense.stats.contests import Contest, contest_of, crossfitted, folds_of
from tokensense.stats.kinds import log_surprisal
from tokensense.stats.ranking import Shares, Traces, draws
from tokensense.stats.resampling import Draws, Method, Resampling, intervals
from tokensense.stats.results import dataset, reason
from tokensense.stats.steps import AGGREGATES, Steps
from tokensense.stats.triples import TERMS

CALIPER = 0.3
CASES_NEEDED = 20
MARGIN = 0.02
REDUNDANT_LEVEL = 0.9
BASE_COLUMNS = ("surprisal", "entropy", "square_sum")
SHIFT_COLUMNS = ("sensitivity", "absolute_contrast")
COVARIATES = ("log_length", "log_surprisal")
STATISTICS = {
    "auroc": "P(matched wrong step scores above a right one), model with shifts",
    "increase": "the same minus that of the model without shifts",
}
BALANCE = {
    "units": "standard deviations of all steps",
    "description": "wrong steps minus right ones, before and after matching",
}
MEAN = AGGREGATES.index("mean")


def covariates(steps: Steps) -> Float[np.ndarray, " covariate step"]:
    """What contests are matched on, as COVARIATES.

    Args:
        steps: of `steps_of`.
    """
    return np.stack([np.log(steps.length), log_surprisal(steps.columns["surprisal"][MEAN])])


def matched(steps: Steps, *, caliper: float = CALIPER) -> Contest:
    """Set every wrong step against the right ones that are like it.

    Args:
        steps: of `steps_of`.
        caliper: largest distance of each covariate, natural log, borders included.
    """
    place = covariates(steps)
    _, writer = np.unique(steps.generator, return_inverse=True)
    stratum = writer * (int(steps.place.max(initial=0)) + 1) + steps.place
    first, second = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for value in np.unique(stratum[steps.wrong]):
        here = stratum == value
        cases, others = np.flatnonzero(here & steps.wrong), np.flatnonzero(here & steps.right)
        near = (np.abs(place[:, cases, None] - place[:, None, others]) <= caliper).all(axis=0)
        near &= steps.cluster[cases, None] != steps.cluster[None, others]
        one, other = np.nonzero(near)
        first.append(cases[one])
        second.append(others[other])
    return contest_of(np.concatenate(first), np.concatenate(second))


def beyond(
    steps: Steps,
    *,
    families: Sequence[str],
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate E3.

    Args:
        steps: of `steps_of`.
        families: placebo families.
        plan: the draws, of as many problem texts as the sample has.
        attrs: of the Dataset.

    Returns:
        Dims (statistic, term, bound), with `interval_90`, and `balance` (covariate, stage): wrong
        minus right steps in standard deviations of all. Attributes `auroc_without`, `n_cases`,
        `n_contests`, `statement`; `p` and `redundant` where it is estimable.
    """
    met = matched(steps)
    texts = np.unique(steps.cluster[met.first]).size
    taking = np.unique(np.concatenate([met.first, met.second]))
    facts: dict[str, object] = {
        **attrs,
        **steps.counts,
        "n_cases": np.unique(met.first).size,
        "n_contests": met.first.size,
        "n_rollouts": np.unique(steps.trace[taking]).size,
        "n_tokens": int(steps.length[taking].sum()),
        "caliper": CALIPER,
    }
    unknown = [name for name in _names(families) if not np.isfinite(steps.columns[name]).all()]
    if texts < CASES_NEEDED or unknown:
        said = (
            f"{', '.join(unknown)} not finite on some steps"
            if unknown
            else f"{texts} problem texts with a matched wrong step, {CASES_NEEDED} needed"
        )
        return _laid_out(
            _nothing(plan), steps, met, {**facts, "statement": f"not estimable: {said}"}
        )
    fold = folds_of(plan.clusters, plan.seed)[steps.cluster]
    scores = [crossfitted(each, met, fold) for each in _models(steps, families)]
    found = _draws(
        [_shares(score, steps, met, plan.clusters) for score in scores], steps, met, plan
    )
    facts["auroc_without"] = float(found.estimate[0, 0] - found.estimate[1, 0])
    return _laid_out(found, steps, met, facts)


def _names(families: Sequence[str]) -> list[str]:
    """Columns of all models."""
    shifts = [f"{family}:{name}" for family in families for name in SHIFT_COLUMNS]
    return [*BASE_COLUMNS, *SHIFT_COLUMNS, *shifts]


def _models(steps: Steps, families: Sequence[str]) -> list[Float[np.ndarray, " step column"]]:
    """Columns of the model without shifts, with the verdict's, and with each placebo family's."""
    base = [*(steps.columns[name][MEAN] for name in BASE_COLUMNS), np.log(steps.length)]
    prefixes = ["", *(f"{family}:" for family in families)]
    shifts = [[steps.columns[f"{p}{name}"][MEAN] for name in SHIFT_COLUMNS] for p in prefixes]
    return [np.stack(columns, axis=1) for columns in (base, *([*base, *each] for each in shifts))]


def _shares(
    score: Float[np.ndarray, " contest"], steps: Steps, met: Contest, clusters: int
) -> Shares:
    """Contests won by each wrong step against each problem text, and all of them."""
    cases, case = np.unique(met.first, return_inverse=True)
    found = np.zeros((2, cases.size, clusters))
    place = (case, steps.cluster[met.second])
    np.add.at(found[0], place, np.where(score == 0, 0.5, score > 0))
    np.add.at(found[1], place, 1.0)
    return Shares(found[0], found[1])


def _draws(shares: Sequence[Shares], steps: Steps, met: Contest, plan: Resampling) -> Draws:
    """AUROC with shifts and its increase, for verdict, placebo families, and their difference."""
    owner = steps.cluster[np.unique(met.first)]
    # The wrong steps are all that is looked for, so that each is a trace of one.
    traces = Traces(np.ones(owner.size, dtype=bool), owner, np.ones_like(owner), plan.clusters)
    found = draws(shares, traces, plan=plan)

    def outputs(values: Float[np.ndarray, " row model"]) -> Float[np.ndarray, " row two three"]:
        without, verdict = values[:, 0], values[:, 1]
        placebo = np.full_like(verdict, np.nan)
        if values.shape[1] > 2:
            placebo = values[:, 2:].mean(axis=1)
        auroc = np.stack([verdict, placebo, verdict - placebo], axis=1)
        own = without[:, None] * np.array([1.0, 1.0, 0.0])
        return np.stack([auroc, auroc - own], axis=1)

    return Draws(
        outputs(found.estimate[None])[0],
        outputs(found.values),
        outputs(found.pseudo),
        np.full((len(STATISTICS), len(TERMS)), found.clusters[0]),
    )


def _nothing(plan: Resampling) -> Draws:
    """No value of any output."""
    shape = (len(STATISTICS), len(TERMS))
    unknown = np.full((plan.resamples, *shape), np.nan)
    return Draws(unknown[0], unknown, unknown[:0], np.zeros(shape, dtype=np.int64))


def _laid_out(found: Draws, steps: Steps, met: Contest, facts: dict[str, object]) -> xr.Dataset:
    """Intervals, the test of the verdict's increase, and the balance of the matching."""
    wide, narrow = intervals(found), intervals(found, level=REDUNDANT_LEVEL)
    increase, error = float(wide.estimate[1, 0]), float(wide.error[1, 0])
    low, high = (float(limit[1, 0]) for limit in (narrow.low, narrow.high))
    if error > 0:
        freedom = int(wide.clusters[1, 0]) - 1
        facts["p"] = float(student.sf(increase / error, freedom))
    if wide.method[1, 0] == Method.NONE_NO_VARIATION:  # the shifts change no contest in any text
        low = high = increase
        facts["p"] = 1.0 if increase <= 0 else 0.0
    if np.isfinite([low, high]).all():
        facts["redundant"] = low > -MARGIN and high < MARGIN
        facts["statement"] = (
            f"{facts['n_cases']} of {int(steps.wrong.sum())} wrong steps matched, AUROC "
            f"{facts['auroc_without']:.3f} without shifts, increase {increase:.3f} "
            f"[{low:.3f}, {high:.3f}] (90 %)"
        )
    facts.setdefault("statement", f"not estimable: {reason(int(wide.method[1, 0]))}")
    result = dataset(wide, {"statistic": tuple(STATISTICS), "term": TERMS}, attrs=facts)
    limits = np.stack([narrow.low, narrow.high], axis=-1)
    balance = (("covariate", "stage"), _balance(steps, met), BALANCE)
    return result.assign(
        interval_90=(("statistic", "term", "bound"), limits), balance=balance
    ).assign_coords(
        unit=("statistic", ["1"] * len(STATISTICS)),
        meaning=("statistic", list(STATISTICS.values())),
        covariate=list(COVARIATES),
        stage=["before", "after"],
    )


def _balance(steps: Steps, met: Contest) -> Float[np.ndarray, " covariate stage"]:
    """Mean of wrong steps minus mean of right ones, all and matched, over the spread of all."""
    place = covariates(steps)
    table = np.full((len(COVARIATES), 2), np.nan)
    spread = place.std(axis=1) if place.shape[1] else np.zeros(len(COVARIATES))
    if not (spread > 0).all() or not steps.wrong.any() or not steps.right.any():
        return table
    table[:, 0] = place[:, steps.wrong].mean(axis=1) - place[:, steps.right].mean(axis=1)
    if met.first.size:
        gap = place[:, met.first] - place[:, met.second]
        table[:, 1] = np.average(gap, axis=1, weights=met.weight)
    return np.asarray(table / spread[:, None])
