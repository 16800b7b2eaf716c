"""Rows 1 to 5, 7 and 8 of the claims ledger, from one store that was probed and analyzed.

Reads  a Study with the probe `opposed`; the results of `analyze`.
Gives  a Finding a row: estimate, interval at the row's level, n in words.
Sign   that of the row's `measure` in `data/claims.csv`.

Row 1   same direction among tokens above the wording floor, verdict, 95 %.
Row 2   row 1 minus its mean over placebo families, nine or more, 90 %.
Row 3   E1, 19 or more placebo families, no interval: its limits are the share of resamples in which
        the verdict ranks first and that in which it is among the first five, so that it is refuted
        where the verdict is outside them in 95 % of the resamples.
Row 4   E2, balanced over generators, 90 % by the standard error; no interval below 300 problems
        with right and wrong responses, which makes the row not testable.
Row 5   class-balanced agreement of the contrast's sign with the outcome, of tokens, 90 %.
Row 7   log ratio of the mean absolute shift, surface over content kinds, raw, 95 %. Surface:
        connectives, discourse, format; content: digits, operators, variables, copied words, final
        answers, calculator calls. Tokens of no kind (`other`) are neither.
Row 8   the same with each surface token set against the content tokens of its own response that
        are as surprising (a caliper of .1 standard deviation of log(surprisal + .001)) and in the
        same third of the response and of the store's entropies, 90 %.

Ratios are of totals over the store, shifts averaged over the verdict's wordings. Intervals: whole
problem texts drawn.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Shaped
from scipy.stats import t as student

import tokensense as ts
from tokensense.schema import BASE, VERDICT
from tokensense.segments import broadcast, segment_index
from tokensense.stats.catalogue import ratio
from tokensense.stats.kinds import CALIPER, log_surprisal, match
from tokensense.stats.pairs import pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample
from tokensense.stats.sample import Sample, read_sample
from tokensense.stats.shifts import absolute_shift

SURFACE = ("connective", "discourse", "format")
NEITHER = ("other",)
THIRDS = (1 / 3, 2 / 3)
COMPARED, RANKED = 9, 19  # placebo families that rows 2 and 3 ask for


class Finding(NamedTuple):
    """What a store says about one row.

    Attributes:
        estimate: of the row's measure.
        low: lower limit at the row's level; NaN for none.
        high: upper limit.
        n: of what and how many.
    """

    estimate: float
    low: float
    high: float
    n: str


def findings(
    study: ts.Study, results: Mapping[str, xr.Dataset], *, resamples: int, seed: int
) -> dict[int, Finding]:
    """Every row that the store can say something about.

    Args:
        study: probed.
        results: of `analyze`.
        resamples: of the ratios' bootstrap.
        seed: of it.
    """
    found = {1: _direction(results["triple"]), 5: _polarity(results["polarity"])}
    families = int((results["family"]["family"] != VERDICT).sum())
    if families >= COMPARED:
        found[2] = _beyond_placebos(results["triple"], families)
    if "read" in results and results["read"].attrs["families"] >= RANKED:
        found[3] = _rank(results["read"].attrs)
    if "informative" in results:
        found[4] = _informative(results["informative"])
    return found | kind_ratios(study.tokens(["opposed"]), resamples=resamples, seed=seed)


def _direction(triple: xr.Dataset) -> Finding:
    one = triple.sel(statistic="same_direction_above_floor", term="verdict")
    low, high = one["interval"].values.tolist()
    tokens = float(one["n_tokens"])
    n = f"{int(one['n_clusters'])} problem texts, {tokens:.0f} tokens above the wording floor"
    return Finding(float(one["estimate"]), low, high, n)


def _beyond_placebos(triple: xr.Dataset, families: int) -> Finding:
    one = triple.sel(statistic="same_direction_above_floor", term="difference")
    n = f"{int(one['n_clusters'])} problem texts, {families} placebo families; 90 % by the"
    return Finding(float(one["estimate"]), *_ninety(one), f"{n} standard error")


def _rank(facts: Mapping[str, Any]) -> Finding:
    """NaN where a share is not known."""
    first, top = (float(facts.get(name, math.nan)) for name in ("first_share", "top_share"))
    n = f"rank {facts.get('rank', '?')} of {facts['families'] + 1}; limits: shares of resamples in"
    return Finding(first, first, top, f"{n} which it is first and among the first five")


def _polarity(polarity: xr.Dataset) -> Finding:
    one = polarity.sel(statistic="agreement_of_tokens", term="verdict")
    whole = polarity.sel(statistic="agreement_of_responses", term="verdict")
    facts = polarity.attrs
    n = (
        f"{int(one['n_clusters'])} problem texts, {facts['n_right']} right of "
        f"{facts['n_rollouts']} responses, {facts['n_tokens']} tokens; 90 % by the standard error; "
        f"of responses {float(whole['estimate']):.3f}"
    )
    if math.isnan(float(one["estimate"])):
        n = f"{facts['n_right']} right of {facts['n_rollouts']} decided responses"
    return Finding(float(one["estimate"]), *_share(_ninety(one)), n)


def _informative(found: xr.Dataset) -> Finding:
    one = found.sel(statistic="auroc_sum_balanced", term="verdict")
    mixed = int(found.attrs["n_mixed_problems"])
    known = found.attrs["word"] != "not_estimable"
    limits = _share(_ninety(one)) if known else (math.nan, math.nan)
    said = "90 % by the standard error" if known else "300 needed: a description"
    return Finding(float(one["estimate"]), *limits, f"{mixed} mixed problems; {said}")


def _ninety(one: xr.Dataset) -> tuple[float, float]:
    """90 % limits: Student's t times the standard error; NaN where there is none."""
    reach = float(one["error"]) * float(student.ppf(0.95, max(int(one["n_clusters"]) - 1, 1)))
    return float(one["estimate"]) - reach, float(one["estimate"]) + reach


def _share(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits of a share: by a standard error they may pass 0 or 1, and no band holds that."""
    low, high = np.clip(limits, 0.0, 1.0).tolist()
    return low, high


# Surface against content


def kind_ratios(tokens: xr.Dataset, *, resamples: int, seed: int) -> dict[int, Finding]:
    """Rows 7 and 8.

    Args:
        tokens: of the probe `opposed`, as `Study.tokens()` gives them.
        resamples: draws of problem texts.
        seed: of them.
    """
    whole = read_sample(tokens)
    pairs = pairs_of(whole)
    terms = terms_of(whole, pairs)
    sample = with_shared_rollouts(whole, pairs, terms)
    verdicts = [pairs[i] for i in terms.verdict]
    used = np.logical_and.reduce([sample.usable(pair) for pair in verdicts])
    judged = broadcast(used, sample.length) & ~np.isin(sample.kind, NEITHER)
    surface = np.isin(sample.kind, SURFACE) & judged
    entropy = tokens["entropy"].sel(condition=BASE).values[sample.order].astype(np.float64)
    own, partner = matched_weights(sample, surface, judged=judged, entropy=entropy)
    sizes = [absolute_shift(sample.shift(p.positive), sample.shift(p.negative)) for p in verdicts]
    size = np.where(judged, np.mean(sizes, axis=0), 0.0)
    weights = (surface, judged & ~surface, own, partner)
    columns = np.stack([w * v for w in weights for v in (size, np.ones_like(size))], axis=1)
    cluster = broadcast(sample.cluster, sample.length)
    sums = cluster_sums(columns, cluster, clusters=sample.clusters)
    plan = Resampling(sample.clusters, resamples, seed)
    draws = resample(sums, _log_ratios, plan=plan, present=sums[:, [1, 5]] > 0)
    facts = f"{int(surface.sum())} surface tokens, {int((judged & ~surface).sum())} of content"
    share = ratio(np.array([own.sum()]), np.array([surface.sum()]))[0]
    notes = {7: (0.95, facts), 8: (0.90, f"{facts}; {share:.0%} of surface tokens matched")}
    found = {}
    for place, (row, (level, note)) in enumerate(notes.items()):
        one = intervals(draws, level=level).part(place)
        n = f"{int(one.clusters)} problem texts, {note}"
        found[row] = Finding(float(one.estimate), float(one.low), float(one.high), n)
    return found


def matched_weights(
    sample: Sample,
    surface: Bool[np.ndarray, " token"],
    *,
    judged: Bool[np.ndarray, " token"],
    entropy: Float[np.ndarray, " token"],
) -> tuple[Float[np.ndarray, " token"], Float[np.ndarray, " token"]]:
    """Weights of surface tokens that have partners, and of the content tokens they are set against.

    Args:
        sample: of `read_sample`.
        surface: which tokens are.
        judged: tokens of either sort.
        entropy: nats, in the order of the sample.
    """
    at = np.flatnonzero(judged)
    start = broadcast(np.cumsum(sample.length) - sample.length, sample.length)
    relative = (np.arange(start.size) - start + 0.5) / broadcast(sample.length, sample.length)
    place = log_surprisal(sample.surprisal)
    own, partner = np.zeros(start.size), np.zeros(start.size)
    if not at.size:
        return own, partner
    third = np.searchsorted(np.quantile(entropy[at], THIRDS), entropy[at])
    part = np.minimum(relative[at] * 3, 2).astype(np.int64)
    stratum = (segment_index(sample.length)[at] * 3 + part) * 3 + third
    order = np.argsort(stratum, kind="stable")
    found = match(
        place[at][order],
        surface[at][order],
        np.unique(stratum, return_counts=True)[1],
        caliper=CALIPER * float(place[at].std()),
    )
    own[at[order]] = found.matched
    partner[at[order]] = found.weight
    return own, partner


def _log_ratios(totals: Shaped[np.ndarray, "row column"]) -> Shaped[np.ndarray, "row output"]:
    """Raw and matched log ratio of mean sizes; NaN where a side has no token or no shift."""
    means = ratio(totals[:, 0::2], totals[:, 1::2])
    above, below = means[:, 0::2], means[:, 1::2]
    known = (above > 0) & (below > 0)
    return np.where(
        known, np.log(np.where(known, above, 1.0) / np.where(known, below, 1.0)), np.nan
    )
