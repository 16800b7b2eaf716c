"""How well a score finds the first wrong token of a wrong response, raw and at equal surprisal.

Reads  the Dataset of `Study.tokens()` with `is_wrong_token`; further scores, one number a token.
Gives  localization: (statistic, score, bound).
Sign   the first wrong token should score highest: AUROC above .5 says that it does. Which way a
       score is turned stands beside it, as `direction`.

The unit is the token, and the truth is planted: a generator knows the first token that differs from
the right solution. Looked at are wrong responses that have one. All their other tokens are
negatives, also those behind it: without them the last token would always be the wrong one.

auroc              P(wrong token scores above another token), tokens of all responses pooled, ties
                   1/2: the mean over wrong tokens of the share of the others that score lower.
auroc_at_equal_surprisal   the same mean, each wrong token against the others of its own bin of
                   surprisal. Rare tokens move more under any condition, and wrong tokens are rare,
                   so only this tells a score from rarity. The ten bins are deciles of the *wrong*
                   tokens' surprisal, from the least to the most surprising of them: nearly all lie
                   in the topmost decile of all tokens, within which surprisal alone would go on
                   finding them. What surprisal itself still gets here shows how well the bins hold.
                   A wrong token alone in its bin takes no part; `n_compared` counts the others.
auroc_at_equal_surprisal_and_kind   each wrong token against the others of its bin and of its kind.
                   At equal surprisal wrong digits stand against unusual words, and any condition
                   moves a digit that the policy was sure against: scores that know nothing of the
                   outcome still get .75 to .87 there. This leaves about 1/2 of it.
average_precision  mean over wrong tokens of the share of wrong ones among all tokens that score as
                   high or higher; by chance the share of wrong tokens, as `random` shows.
hit_at_1           chance that the highest token of a response is its wrong one, ties broken at
                   random.

Held fixed in the resamples of problems: the bins, and the rates behind the score `kind`, which are
those of the same tokens. (Rates of the other problems alone would be lower wherever a token of the
kind is wrong, and look worse than chance.) Placebo scores are those of each placebo family; their
statistics are averaged over families.

Source   `statistics.md` 3.8 and `tinymodel.md` 5 of the project's notes. The bins by wrong tokens
         are ours: the notes cut at p < .2.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Num

from tokensense.errors import SchemaError
from tokensense.schema import BASE
from tokensense.segments import broadcast, segment_sum
from tokensense.stats.pairs import Terms, mean_shifts, pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.ranking import Shares, Traces, draws, hits, precisions, wins
from tokensense.stats.resampling import Draws, Resampling, intervals
from tokensense.stats.results import dataset
from tokensense.stats.sample import Pair, Sample, read_sample
from tokensense.stats.shifts import contrast, sensitivity

DECILES = 10
STATISTICS: dict[str, str] = {
    "auroc": "P(first wrong token scores above another token of a wrong response), ties 1/2",
    "auroc_at_equal_surprisal": "the same within deciles of the wrong tokens' surprisal",
    "auroc_at_equal_surprisal_and_kind": "the same within those deciles and kinds of tokens",
    "average_precision": "mean share of wrong tokens among those that score as high; not 1/2 "
    "but the share of wrong tokens by chance",
    "hit_at_1": "chance that the highest token of a response is its first wrong one",
}
# Score -> what a high value says.
DIRECTIONS: dict[str, str] = {
    "sensitivity": "moved far by one of the verdicts, max(|z+|, |z-|)",
    "signed_contrast": "likelier under neg than under pos, (z- - z+)/2",
    "absolute_contrast": "moved apart by the verdicts, |z+ - z-|/2",
    "placebo_sensitivity": "moved far by an irrelevant word; mean over families",
    "placebo_absolute_contrast": "moved apart by two irrelevant words; mean over families",
    "surprisal": "unlikely, -logp",
    "entropy": "drawn where much was possible",
    "onehot_distance": "unlikely, ||onehot - p||",
    "position": "late in the response",
    "kind": "of a kind that often goes wrong",
    "random": "nothing",
}
GIVEN = "as given: high is blamed"


def localization(
    tokens: xr.Dataset,
    *,
    scores: Mapping[str, Num[np.ndarray, " token"]] | None = None,
    seed: int = 0,
    resamples: int = 10_000,
) -> xr.Dataset | None:
    """Estimate how well each score finds the first wrong token.

    Args:
        tokens: as `Study.tokens()` gives it, with `is_wrong_token` (token).
        scores: more of them by name, one number a token in the order of `tokens`, high = blamed;
            credit weights, for instance.
        seed: of the resamples and of the score `random`.
        resamples: draws of problems.

    Returns:
        Dims (statistic, score, bound), with `direction` (score), and in the attributes the numbers
        of responses and tokens, and `statement`. A score that is NaN on one of the tokens has no
        value, and `statement` says so. None where no wrong token is known.

    Raises:
        SchemaError: `tokens` lacks a part, or a score has another length.
        StatisticsError: there is no verdict pair that any rollout can use.
    """
    if not knows_wrong_tokens(tokens):
        return None
    read = read_sample(tokens)
    pairs = pairs_of(read)
    terms = terms_of(read, pairs)
    sample = with_shared_rollouts(read, pairs, terms)
    return locate(tokens, sample, pairs, terms=terms, scores=scores, seed=seed, resamples=resamples)


def knows_wrong_tokens(tokens: xr.Dataset) -> bool:
    """Whether the first wrong token of any rollout is known."""
    return "is_wrong_token" in tokens.variables and bool(tokens["is_wrong_token"].values.any())


def locate(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    scores: Mapping[str, Num[np.ndarray, " token"]] | None,
    seed: int,
    resamples: int,
) -> xr.Dataset:
    """Estimate how well each score finds the first wrong token, see `localization`.

    Args:
        tokens: of `knows_wrong_tokens`, that the sample was read from.
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        scores: as for `localization`.
        seed: as for `localization`.
        resamples: as for `localization`.

    Raises:
        SchemaError: a score has another length, or a rollout has two first wrong tokens.
    """
    wrong = tokens["is_wrong_token"].values[sample.order].astype(bool)
    kept, counts = _kept(sample, wrong, pairs, terms=terms)
    inside = np.asarray(broadcast(kept, sample.length))
    texts, cluster = np.unique(sample.cluster[kept], return_inverse=True)
    length = sample.length[kept]
    owner = np.asarray(broadcast(cluster.astype(np.int64), length))
    traces = Traces(wrong[inside], owner, length, len(texts))
    entropy = tokens["entropy"].sel(condition=BASE).values[sample.order].astype(np.float64)
    columns = {
        **_shift_scores(sample, pairs, terms=terms),
        **_plain_scores(sample, seed=seed),
        "entropy": [entropy],
        "kind": [np.zeros(inside.size)],
        **_given(scores or {}, sample.order),
    }
    names = [name for name in DIRECTIONS if name in columns]
    names += [name for name in columns if name not in DIRECTIONS]
    table = {name: [values[inside] for values in columns[name]] for name in names}
    _, kind = np.unique(sample.kind[inside], return_inverse=True)
    table["kind"] = [_kind_rates(kind, traces.marked)]
    attrs: dict[str, object] = {**sample.attrs, **counts, "n_tokens": int(inside.sum())}
    plan = Resampling(max(traces.clusters, 1), resamples, seed)
    strata = _strata(sample.surprisal[inside], kind.astype(np.int64), traces)
    return _result(table, traces, strata=strata, plan=plan, attrs=attrs)


def _kept(
    sample: Sample, wrong: Bool[np.ndarray, " token"], pairs: Sequence[Pair], *, terms: Terms
) -> tuple[Bool[np.ndarray, " rollout"], dict[str, int]]:
    """Wrong responses with a wrong token, comparable throughout; and numbers of all others."""
    marks = segment_sum(wrong.astype(np.int64), sample.length)
    if (marks > 1).any():
        raise SchemaError(
            "`is_wrong_token` needs at most one token a rollout, the first wrong one; "
            f"{int((marks > 1).sum())} rollouts have more. Take it from Study.tokens()."
        )
    usable = sample.usable(pairs[terms.verdict[0]])
    failed = sample.reward == 0
    kept = failed & (marks == 1) & usable
    return kept, {
        "n_rollouts": int(kept.sum()),
        "n_wrong_without_wrong_token": int((failed & (marks == 0)).sum()),
        "n_right_with_wrong_token": int(((sample.reward == 1) & (marks == 1)).sum()),
        "n_not_comparable": int((failed & (marks == 1) & ~usable).sum()),
    }


def _shift_scores(
    sample: Sample, pairs: Sequence[Pair], *, terms: Terms
) -> dict[str, list[Float[np.ndarray, " token"]]]:
    """Scores of the verdict, shifts averaged over its wordings, and of each placebo family."""
    positive, negative = mean_shifts(sample, (pairs[i] for i in terms.verdict))
    found = {
        "sensitivity": [sensitivity(positive, negative)],
        "signed_contrast": [-contrast(positive, negative)],
        "absolute_contrast": [np.abs(contrast(positive, negative))],
    }
    for members in terms.placebo.values():
        sides = mean_shifts(sample, (pairs[i] for i in members))
        found.setdefault("placebo_sensitivity", []).append(sensitivity(*sides))
        found.setdefault("placebo_absolute_contrast", []).append(np.abs(contrast(*sides)))
    return found


def _plain_scores(sample: Sample, *, seed: int) -> dict[str, list[Float[np.ndarray, " token"]]]:
    """Scores that need no condition."""
    start = np.cumsum(sample.length) - sample.length
    within = np.arange(sample.kind.size) - broadcast(start, sample.length)
    return {
        "surprisal": [sample.surprisal],
        "onehot_distance": [sample.distance],
        "position": [(within + 0.5) / broadcast(sample.length, sample.length)],
        "random": [np.random.default_rng(seed).random(sample.kind.size)],
    }


def _given(
    scores: Mapping[str, Num[np.ndarray, "..."]], order: Int64[np.ndarray, " token"]
) -> dict[str, list[Float[np.ndarray, " token"]]]:
    """Scores of the caller, in the order of the sample."""
    for name, values in scores.items():
        if name in DIRECTIONS or values.shape != order.shape:
            raise SchemaError(
                f"a score needs {order.size} numbers, one a token, and a name other than "
                f"{list(DIRECTIONS)}; {name!r} has shape {values.shape}. Give one number a token, "
                "in the order of `tokens`."
            )
    return {name: [values[order].astype(np.float64)] for name, values in scores.items()}


def _kind_rates(
    kind: Int64[np.ndarray, " token"], wrong: Bool[np.ndarray, " token"]
) -> Float[np.ndarray, " token"]:
    """Share of wrong tokens among those of the same kind."""
    count = np.bincount(kind)
    return np.asarray((np.bincount(kind, wrong.astype(np.float64)) / np.maximum(count, 1))[kind])


def _strata(
    surprisal: Float[np.ndarray, " token"], kind: Int64[np.ndarray, " token"], traces: Traces
) -> list[Int64[np.ndarray, " token"]]:
    """What is compared with what: all, tokens of a bin, tokens of a bin and kind."""
    if not traces.marked.any():
        return [kind, kind, kind]
    bins = surprisal_bins(surprisal, traces.marked)
    return [np.zeros_like(bins), bins, bins * (int(kind.max()) + 1) + kind]


def surprisal_bins(
    surprisal: Float[np.ndarray, " token"], marked: Bool[np.ndarray, " token"]
) -> Int64[np.ndarray, " token"]:
    """Deciles of the marked tokens' surprisal; the first and the last bin lie beyond them all.

    Inner borders interpolate, so that they lie between wrong tokens and not upon them.

    Args:
        surprisal: nats.
        marked: the tokens (or steps) that are to be found, at least one.
    """
    wrong = surprisal[marked]
    inner = np.quantile(wrong, np.arange(1, DECILES) / DECILES)
    top = np.nextafter(wrong.max(), np.inf)
    edges = np.unique(np.concatenate([[wrong.min()], inner, [top]]))
    return np.searchsorted(edges, surprisal, side="right").astype(np.int64)


def _shares(
    score: Float[np.ndarray, " token"],
    traces: Traces,
    strata: Sequence[Int64[np.ndarray, " token"]],
) -> list[Shares]:
    """Shares of each of STATISTICS."""
    auroc = [wins(score, traces, stratum=stratum) for stratum in strata]
    return [*auroc, precisions(score, traces), hits(score, traces)]


def _draws(
    columns: Sequence[Float[np.ndarray, " token"]],
    traces: Traces,
    *,
    strata: Sequence[Int64[np.ndarray, " token"]],
    plan: Resampling,
) -> Draws:
    """AUROC in each of the strata, average precision and hit@1 of one score.

    Args:
        columns: of the score; where it has several, statistics are averaged over them. Where one
            is NaN somewhere, or there is no problem text, nothing has a value.
        traces: the tokens (or steps).
        strata: what is compared with what, once an AUROC.
        plan: the draws.
    """
    if not traces.clusters or any(np.isnan(column).any() for column in columns):
        size = len(strata) + 2
        return Draws(
            np.full(size, np.nan),
            np.full((plan.resamples, size), np.nan),
            np.full((plan.clusters, size), np.nan),
            np.full(size, traces.clusters, dtype=np.int64),
        )
    found = [draws(_shares(score, traces, strata), traces, plan=plan) for score in columns]
    return Draws(
        estimate=np.mean([each.estimate for each in found], axis=0),
        values=np.mean([each.values for each in found], axis=0),
        pseudo=np.mean([each.pseudo for each in found], axis=0),
        clusters=found[0].clusters,
    )


def _result(
    table: Mapping[str, Sequence[Float[np.ndarray, " token"]]],
    traces: Traces,
    *,
    strata: Sequence[Int64[np.ndarray, " token"]],
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Estimate all statistics of all scores and lay them out."""
    unknown = [name for name, columns in table.items() if np.isnan(columns).any()]
    each = [_draws(columns, traces, strata=strata, plan=plan) for columns in table.values()]
    together = Draws(
        *(
            np.stack([getattr(one, part) for one in each], axis=-1)
            for part in ("estimate", "values", "pseudo", "clusters")
        )
    )
    statements = [
        f"{attrs['n_rollouts']} wrong responses with a known first wrong token; left out: "
        f"{attrs['n_wrong_without_wrong_token']} wrong ones without (cut off, say), "
        f"{attrs['n_right_with_wrong_token']} right ones with one (by luck), "
        f"{attrs['n_not_comparable']} not comparable"
    ]
    if not traces.clusters:
        statements.append("not estimable: no wrong response with a known wrong token")
    if unknown:
        statements.append(f"not estimable: NaN on some tokens in {', '.join(unknown)}")
    result = dataset(
        intervals(together),
        {"statistic": tuple(STATISTICS), "score": tuple(table)},
        attrs={
            **attrs,
            "seed": plan.seed,
            "resamples": plan.resamples,
            "level": 0.95,
            "statement": "; ".join(statements),
        },
    )
    compared = [
        int(shares.whole.any(axis=1).sum())
        for shares in _shares(np.zeros(traces.marked.size), traces, strata)
    ]
    counted = {"units": "1", "description": "wrong tokens that have others to be compared with"}
    return result.assign(n_compared=("statistic", compared, counted)).assign_coords(
        unit=("statistic", ["1"] * len(STATISTICS)),
        meaning=("statistic", list(STATISTICS.values())),
        direction=("score", [DIRECTIONS.get(name, GIVEN) for name in table]),
    )
