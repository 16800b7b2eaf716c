"""Evidence for credit rules from a store: what its rollouts and probes say, laid out once.

Reads  the flat view of a study, its rollouts.
Gives  gather: all that the rules asked for, and which rollouts may be used for which of it.
Sign   shifts are log p(token | told) - log p(token), nats; positive: telling makes it likelier.

z+ and z- are means over the wordings of the verdict without tone, in the frames that the placebo
has too where there is one (`stats.pairs`), so that CSCR and its placebo control read the same
sentences. The placebo is one family, the first by name: as many words and passes as the verdict
takes. Shifts under siblings are log-means of exp over the siblings that a rollout may be shown
(RLCSD's form); those of the other probes are means over sentences. Planted tokens are the computed
digits of right responses and the first wrong token of wrong ones.
"""

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float64

from tokensense.credit.evidence import SUPPLIERS
from tokensense.errors import StatisticsError
from tokensense.schema import Kind
from tokensense.segments import broadcast, segment_sum
from tokensense.stats.pairs import log_means, mean_shifts, pairs_of, terms_of
from tokensense.stats.sample import Pair, Sample

VERDICT_SHIFTS = ("z_pos", "z_neg")
PLACEBO_SHIFTS = ("placebo_pos", "placebo_neg")
ANSWER_SHIFTS = ("answer_pos", "answer_neg")
SIBLING_SHIFTS = ("sibling_pos", "sibling_neg")
REQUEST_SHIFTS = ("", "negative_prompt")  # the right request is its placebo, which no rule reads
# Evidence that is the mean over all pairs of a probe.
OF_PROBES = {ANSWER_SHIFTS: "answer", REQUEST_SHIFTS: "negative_prompt"}


class Gathered(NamedTuple):
    """All evidence of a store, and which rollouts may be used for which of it.

    Attributes:
        arrays: as the fields of `Evidence`, by name; NaN where there is none.
        usable: (rollout) by name of the evidence; what is not named may be used for all.
        said: by name of the evidence: the pairs of conditions it is made of.
    """

    arrays: dict[str, np.ndarray]
    usable: dict[str, Bool[np.ndarray, " rollout"]]
    said: dict[str, str]


def gather(
    tokens: xr.Dataset, sample: Sample, *, rollouts: xr.Dataset, needed: frozenset[str]
) -> Gathered:
    """Lay out what the rules need, for all rollouts of the store in its order.

    Args:
        tokens: of `Study.tokens()`.
        sample: of the same tokens.
        rollouts: the node `/rollouts`.
        needed: names of evidence.

    Raises:
        StatisticsError: a probe that supplies some of it has not been run.
    """
    length = rollouts["length"].values
    entropy = tokens["entropy"].transpose("condition", "token").values[sample.base, sample.order]
    arrays = {
        "length": length.astype(np.int64),
        "key": np.arange(length.size),
        "group": rollouts["problem_of"].values.astype(np.int64),
        "reward": rollouts["reward"].values.astype(np.float64),
        "token_id": tokens["token_id"].values[sample.order].astype(np.int64),
        "step": tokens["step"].values[sample.order].astype(np.int64),
        "logp": -sample.surprisal,
        "entropy": entropy.astype(np.float64),
        "distance": sample.distance,
    }
    if "planted" in needed:
        arrays |= _planted(tokens, sample)
    base = _of_all(sample.comparable[sample.base], length)
    found = Gathered(arrays, dict.fromkeys(("logp", "entropy", "distance"), base), {})
    _add_shifts(found, sample, length, needed=needed)
    if "reference" in needed:
        _add_reference(found, sample, length)
    if "learning_value" in needed and "learning_value" in tokens.variables:
        values = tokens["learning_value"].values[sample.order]
        found.arrays["learning_value"] = values
        found.usable["learning_value"] = segment_sum(np.isnan(values), length) == 0
        found.said["learning_value"] = "gradients of other problems"
    return found


def _planted(tokens: xr.Dataset, sample: Sample) -> dict[str, Bool[np.ndarray, " token"]]:
    """Tokens that decide, where a planted task knows them; nothing where none is known."""
    if "is_wrong_token" not in tokens.variables:
        return {}
    wrong = tokens["is_wrong_token"].values[sample.order].astype(bool)
    computed = sample.kind == Kind.COMPUTED_DIGIT.name.lower()
    right = broadcast(sample.reward == 1, sample.length)
    planted = np.asarray((right & computed) | (~right & wrong))
    return {"planted": planted} if planted.any() else {}


def _add_shifts(
    found: Gathered, sample: Sample, length: np.ndarray, *, needed: frozenset[str]
) -> None:
    """Add shifts, usable rollouts and what they are made of."""
    for names, pairs in _pairs_needed(sample, needed).items():
        if names == SIBLING_SHIFTS:
            shifts, usable = _log_means(sample, pairs)
        else:
            shifts = mean_shifts(sample, pairs)
            usable = np.logical_and.reduce([sample.usable(pair) for pair in pairs])
        for name, shift in zip(names, shifts, strict=True):
            if name:
                found.arrays[name] = shift
                found.usable[name] = _of_all(usable, length)
                found.said[name] = f"mean of {', '.join(pair.name for pair in pairs)}"


def _add_reference(found: Gathered, sample: Sample, length: np.ndarray) -> None:
    """Add the shift under the reference solution: a condition without a side."""
    labels = sample.labels
    shown = [i for i, probe in enumerate(labels["probe"]) if probe == "reference"]
    if not shown:
        raise StatisticsError(
            "the evidence `reference` needs the probe `reference`; probes are "
            f"{sorted(set(map(str, labels['probe'])))}. Run the probe `reference` first."
        )
    found.arrays["reference"] = np.mean([sample.shift(i) for i in shown], axis=0)
    found.usable["reference"] = _of_all(np.asarray(sample.comparable[shown].all(axis=0)), length)
    found.said["reference"] = "the reference solution shown"


def _pairs_needed(sample: Sample, needed: frozenset[str]) -> dict[tuple[str, str], list[Pair]]:
    """Which pairs of conditions make the shifts that the rules read."""
    every = {*VERDICT_SHIFTS, *PLACEBO_SHIFTS, *SIBLING_SHIFTS}.union(*OF_PROBES)
    if not needed & every:
        return {}
    pairs = pairs_of(sample)
    found: dict[tuple[str, str], list[Pair]] = {}
    if needed & {*VERDICT_SHIFTS, *PLACEBO_SHIFTS}:
        terms = terms_of(sample, pairs)
        found[VERDICT_SHIFTS] = [pairs[i] for i in terms.verdict]
        if needed & set(PLACEBO_SHIFTS):
            family = terms.placebo[min(terms.placebo)] if terms.placebo else ()
            found[PLACEBO_SHIFTS] = [pairs[i] for i in family]
    for names, probe in {**OF_PROBES, SIBLING_SHIFTS: "sibling"}.items():
        if needed & set(names):
            found[names] = [pair for pair in pairs if pair.probe == probe]
    for names, chosen in found.items():
        if not chosen:
            probe = "placebo" if names == PLACEBO_SHIFTS else SUPPLIERS[names[1]].text.split("`")[1]
            raise StatisticsError(
                f"the evidence {[name for name in names if name]} needs pairs of the probe "
                f"`{probe}`; there are pairs of {sorted({pair.probe for pair in pairs})}. Run the "
                f"probe `{probe}` first."
            )
    return found


def _log_means(
    sample: Sample, pairs: list[Pair]
) -> tuple[tuple[Float64[np.ndarray, " token"], ...], Bool[np.ndarray, " rollout"]]:
    """Log of the mean of exp(shift) over the pairs that each rollout can use, by side."""
    usable = np.stack([sample.usable(pair) for pair in pairs])
    inside = np.stack([broadcast(row, sample.length) for row in usable])
    sides = [
        log_means(np.stack([sample.shift(condition) for condition in side]), inside)
        for side in zip(*((pair.positive, pair.negative) for pair in pairs), strict=True)
    ]
    return tuple(sides), np.asarray(usable.any(axis=0))


def _of_all(
    comparable: Bool[np.ndarray, " filled"], length: np.ndarray
) -> Bool[np.ndarray, " rollout"]:
    """Widen to all rollouts; those without tokens have nothing to compare and stay in."""
    widened = np.ones(length.size, dtype=bool)
    widened[length > 0] = comparable
    return widened
