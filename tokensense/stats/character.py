"""What the shifts of a store say about what its verdicts do: one word, from the arrays alone.

Reads  the Dataset of `Study.tokens()`: log-probabilities, rewards, token ids; no names, no texts.
Gives  character: the word with a sentence, and the quantities behind it (quantity, bound).
Sign   log ratio above 0: verdicts do more than irrelevant words do; AUROC above .5: responses that
       "right" pulls up against "wrong" are right more often.

What the words say of any policy, a large one too:
truthful   verdicts tell the outcome, and change nothing else beyond what irrelevant words change.
style      verdicts change how the text is worded: both push the same tokens the same way, far
           beyond irrelevant words, and part no more than these do. They tell nothing.
mixed      both: a large common push, and a contrast that knows right from wrong.
placebo    a verdict does no more than a day of the week in its place.
shuffled   the contrast is read and knows nothing of the labels at hand: they do not belong to these
           traces, or what the verdict says is not about them.
random     the policy does not know such texts: the context hardly helps it to tell the next token.

Quantities, with m and d of a token averaged over the wordings first (verdict, or placebo family):
context_gain    1 - mean surprisal / entropy of the store's own token frequencies.
common_ratio    log of the root mean square of m over tokens, verdict against placebo families.
contrast_ratio  the same of d without the part of it that is proportional to m: of two words for
                the same, the better learnt one pushes further, and that is no contrast.
auroc           within-problem AUROC of S for right, S the sum over a response's tokens of d;
                balanced over generators, as in `endpoints`.
Ratios are against the root mean square over placebo families. They hold for these wordings: the
problems are resampled, the words are not.

Decision, in this order, by the point estimates; `Thresholds` says by which numbers:
1  context_gain low -> random.
2  auroc telling -> mixed where common_ratio is high, else truthful.
3  contrast_ratio high -> shuffled, if right and wrong responses stand beside each other to tell by.
4  common_ratio high -> style, else placebo.
`not_estimable`, with the reason, is said of a quantity that is needed and missing (no placebo, no
labels), of an interval that is missing or too wide to tell by, of an AUROC that is turned around,
and of a contrast that is read with an AUROC between chance and telling.

Source   the order of questions follows `statistics.md` 3.13 of the project's method notes; the
         quantities and thresholds are ours, fixed on tiny policies with planted tags before those
         of the blind study were trained.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int64, Shaped

from tokensense.errors import SchemaError
from tokensense.segments import broadcast, segment_sum
from tokensense.stats.auroc import auroc, contest_sums, contests, orientations
from tokensense.stats.catalogue import ratio
from tokensense.stats.pairs import Terms, pairs_of, terms_of, with_shared_rollouts
from tokensense.stats.resampling import (
    Draws,
    Estimates,
    Method,
    Resampling,
    cluster_sums,
    intervals,
    resample,
)
from tokensense.stats.results import dataset, reason
from tokensense.stats.sample import Pair, Sample, read_sample
from tokensense.stats.shifts import common, contrast

WORDS = ("truthful", "style", "mixed", "placebo", "shuffled", "random")
NOT_ESTIMABLE = "not_estimable"
MEANINGS: dict[str, str] = {
    "truthful": "verdicts tell the outcome, and change nothing else beyond what irrelevant words "
    "change",
    "style": "verdicts change the wording and tell nothing of the outcome",
    "mixed": "verdicts change the wording, and tell the outcome as well",
    "placebo": "verdicts do no more than irrelevant words",
    "shuffled": "the two verdicts are told apart, but not along the labels: these do not belong to "
    "the traces, or are not what the verdicts speak of",
    "random": "the policy does not know such texts: context hardly helps it",
}
QUANTITIES: dict[str, str] = {
    "context_gain": "1 - mean surprisal / entropy of the store's token frequencies",
    "common_ratio": "log of RMS of m, verdict against placebo families",
    "contrast_ratio": "log of RMS of d beside m, verdict against placebo families",
    "auroc": "within-problem AUROC of the summed contrast for right",
}


@dataclass(frozen=True)
class Thresholds:
    """The numbers that decide. They do not adapt to anything.

    Attributes:
        context_gain: below, the policy does not know such texts.
        common_ratio: from here on, verdicts push further than irrelevant words.
        contrast_ratio: from here on, verdicts part further than irrelevant words.
        auroc: from here on, with its interval above 1/2, the contrast tells the outcome; below
            one minus this, it is turned around.
        weak_auroc: an AUROC below `auroc` whose interval lies above this is neither chance nor
            telling.
        widest_gain: half the widest interval of the gain to tell by.
        widest_ratio: of both ratios.
        widest_auroc: of the AUROC.
    """

    context_gain: float = 0.3
    common_ratio: float = 0.8
    contrast_ratio: float = 0.45
    auroc: float = 0.6
    weak_auroc: float = 0.53
    widest_gain: float = 0.1
    widest_ratio: float = 0.6
    widest_auroc: float = 0.13

    def widest(self, quantity: str) -> float:
        """Half the widest interval to tell by, of one of QUANTITIES."""
        return float(getattr(self, f"widest_{quantity.rpartition('_')[2]}"))

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the sha256 over names and numbers."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


THRESHOLDS = Thresholds()


class Reading(NamedTuple):
    """One quantity as it was measured.

    Attributes:
        estimate: NaN where there is none.
        low: lower limit, NaN where there is no interval.
        high: upper limit.
        why: how the interval was made, or why there is none.
    """

    estimate: float
    low: float
    high: float
    why: str

    def lack(self, widest: float) -> str:
        """Why nothing can be told by it; empty where something can.

        Args:
            widest: half the widest interval allowed.
        """
        if not np.isfinite([self.estimate, self.low, self.high]).all():
            return self.why
        if (self.high - self.low) / 2 > widest:
            return f"the interval {self.shown} is wider than +-{widest}"
        return ""

    @property
    def shown(self) -> str:
        """Estimate and interval as text."""
        return f"{self.estimate:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Character(NamedTuple):
    """What is said of a store.

    Attributes:
        word: one of WORDS, or NOT_ESTIMABLE.
        statement: the reason, with the numbers.
    """

    word: str
    statement: str


def decide(readings: Mapping[str, Reading], at: Thresholds = THRESHOLDS) -> Character:
    """Put the quantities into a word.

    Args:
        readings: one for each of QUANTITIES.
        at: the numbers that decide.
    """
    gain, push, parting, telling = (readings[name] for name in QUANTITIES)
    lacks = {name: readings[name].lack(at.widest(name)) for name in QUANTITIES}
    known = gain.estimate >= at.context_gain
    read = parting.estimate >= at.contrast_ratio
    tells = not lacks["auroc"] and telling.low > 0.5 and telling.estimate >= at.auroc
    needed = list(QUANTITIES)[: 4 if read and known else 3 if known else 1]
    shown = ", ".join(f"{name} {readings[name].shown}" for name in needed)
    for name in needed:
        if lacks[name]:
            return Character(NOT_ESTIMABLE, f"not estimable: {name}: {lacks[name]}")
    pushed = push.estimate >= at.common_ratio
    if not known:
        word = "random"
    elif tells:
        word = "mixed" if pushed else "truthful"
    elif not read:
        word = "style" if pushed else "placebo"
    elif telling.estimate <= 1 - at.auroc or telling.low > at.weak_auroc:
        why = "is turned around" if telling.estimate < 0.5 else "tells too little to name it"
        return Character(NOT_ESTIMABLE, f"not estimable: the contrast {why}: {shown}")
    else:
        word = "shuffled"
    return Character(word, f"{MEANINGS[word]}: {shown}")


def character(tokens: xr.Dataset, *, seed: int = 0, resamples: int = 10_000) -> xr.Dataset:
    """Name what the verdicts of a store do.

    Args:
        tokens: dims (condition, token), as `Study.tokens()` gives it; base among the conditions.
        seed: of the resamples.
        resamples: draws of problems.

    Returns:
        Dims (quantity, bound), with `threshold` (quantity); attributes `word` (one of WORDS, or
        `not_estimable`), `statement`, `thresholds` (JSON) and their digest, numbers of problems,
        responses and tokens.

    Raises:
        SchemaError: `tokens` lacks a part, or conditions cannot be paired.
        StatisticsError: there is no verdict pair, or a comparable token was not scored.
    """
    read = read_sample(tokens)
    pairs = pairs_of(read)
    terms = terms_of(read, pairs)
    sample = with_shared_rollouts(read, pairs, terms)
    plan = Resampling(sample.clusters, resamples, seed)
    attrs = {**read.attrs, "seed": seed, "resamples": resamples, "level": 0.95}
    ids = token_ids(tokens, sample)
    return characterize(sample, pairs, terms=terms, ids=ids, plan=plan, attrs=attrs)


def token_ids(tokens: xr.Dataset, sample: Sample) -> Int64[np.ndarray, " token"]:
    """Ids of the tokens in the order of the sample.

    Args:
        tokens: that the sample was read from.
        sample: of `read_sample`.

    Raises:
        SchemaError: there are none.
    """
    if "token_id" not in tokens.variables:
        raise SchemaError(
            "`tokens` needs `token_id` (token,); it has "
            f"{sorted(map(str, tokens.variables))}. Take them from Study.tokens()."
        )
    return np.asarray(tokens["token_id"].values[sample.order].astype(np.int64))


def characterize(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    ids: Int64[np.ndarray, " token"],
    plan: Resampling,
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Name what the verdicts do, see `character`.

    Args:
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        ids: of `token_ids`.
        plan: the draws.
        attrs: of the Dataset.
    """
    used = sample.usable(pairs[terms.verdict[0]])
    ratios = _ratios(sample, pairs, terms=terms, used=used, ids=ids, plan=plan)
    telling = _telling(sample, pairs, terms=terms, used=used, plan=plan)
    found = Estimates(
        **{name: np.concatenate([part, vars(telling)[name]]) for name, part in vars(ratios).items()}
    )
    said = decide({name: _reading(found, place) for place, name in enumerate(QUANTITIES)})
    every = {
        **attrs,
        **said._asdict(),
        "thresholds": asdict(THRESHOLDS),
        "thresholds_digest": THRESHOLDS.digest,
        "n_rollouts": int(used.sum()),
        "n_tokens": int(sample.length[used].sum()),
    }
    result = dataset(found, {"quantity": tuple(QUANTITIES)}, attrs=every)
    return result.assign_coords(
        unit=("quantity", ["1"] * len(QUANTITIES)),
        meaning=("quantity", list(QUANTITIES.values())),
        threshold=("quantity", [getattr(THRESHOLDS, name) for name in QUANTITIES]),
    )


def _reading(found: Estimates, place: int) -> Reading:
    """One quantity; a value that no resample changes is its own interval."""
    estimate, method = float(found.estimate[place]), int(found.method[place])
    low, high = float(found.low[place]), float(found.high[place])
    if method == Method.NONE_NO_VARIATION:
        low = high = estimate
    return Reading(estimate, low, high, reason(method))


def _means(
    sample: Sample, pairs: Sequence[Pair], members: Sequence[int]
) -> tuple[Float[np.ndarray, " token"], Float[np.ndarray, " token"]]:
    """Means of m and of d over wordings, nats."""
    positive = np.mean([sample.shift(pairs[i].positive) for i in members], axis=0)
    negative = np.mean([sample.shift(pairs[i].negative) for i in members], axis=0)
    return common(positive, negative), contrast(positive, negative)


def _ratios(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    used: Shaped[np.ndarray, " rollout"],
    ids: Int64[np.ndarray, " token"],
    plan: Resampling,
) -> Estimates:
    """Gain of the context, ratios of m and of d beside m."""
    inside = broadcast(used, sample.length)
    length = sample.length[used]
    _, count = np.unique(ids[inside], return_counts=True)
    share = count / count.sum()
    entropy = float(-(share * np.log(share)).sum())
    columns = [np.ones(int(inside.sum())), sample.surprisal[inside]]
    for members in (terms.verdict, *terms.placebo.values()):
        m, d = (values[inside] for values in _means(sample, pairs, members))
        columns += [m * m, d * d, m * d]
    rows = np.stack([segment_sum(column, length) for column in columns], axis=1)
    sums = cluster_sums(rows, sample.cluster[used], clusters=sample.clusters)

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        surprisal = ratio(totals[:, 1], totals[:, 0])
        mm, dd, md = (totals[:, 2 + part :: 3] for part in range(3))
        beside = dd - np.nan_to_num(ratio(md * md, mm))
        gain = 1 - surprisal / entropy if entropy > 0 else np.full_like(surprisal, np.nan)
        return np.stack([gain, _log_ratio(mm), _log_ratio(beside)], axis=1)

    present = np.repeat(sums[:, :1] > 0, 3, axis=1)
    return intervals(resample(sums, statistic, plan=plan, present=present))


def _log_ratio(squares: Float[np.ndarray, "row family"]) -> Float[np.ndarray, " row"]:
    """Log of root mean squares, verdict over the mean placebo family; NaN where one is 0."""
    placebo = squares[:, 1:].mean(axis=1) if squares.shape[1] > 1 else np.zeros(len(squares))
    known = (squares[:, 0] > 0) & (placebo > 0)
    share = np.where(known, squares[:, 0], 1.0) / np.where(known, placebo, 1.0)
    return np.where(known, np.log(share) / 2, np.nan)


def _telling(
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    used: Shaped[np.ndarray, " rollout"],
    plan: Resampling,
) -> Estimates:
    """AUROC of the summed contrast."""
    rows = np.flatnonzero(used)
    met = contests(sample.reward[rows], sample.problem[rows])
    if not met.weight.size:
        nothing = np.full((plan.resamples, 1), np.nan)
        none = Draws(np.full(1, np.nan), nothing, nothing[:1], np.zeros(1, dtype=np.int64))
        return intervals(none)
    faced = orientations(met, sample.generator[rows])
    _, d = _means(sample, pairs, terms.verdict)
    score = segment_sum(d, sample.length)[rows]
    sums = contest_sums(
        score[:, None], sample.cluster[rows], met=met, faced=faced, clusters=sample.clusters
    )

    def statistic(totals: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return auroc(totals, faced)[:, 0, :1]

    present = np.asarray((sums[:, -1] > 0).any(axis=1, keepdims=True))
    return intervals(resample(sums, statistic, plan=plan, present=present))
