"""Steps of labelled responses as rows: what each is like, which is wrong, which are right.

Reads  the Dataset of `Study.tokens()` with `step`, `label` and `wrong_step`; the triple's pairs.
Gives  Steps: one row a step, with means of token columns; or why there are none.
Sign   none of its own: columns keep that of their tokens.

A person says which *step* of a response is the first wrong one, so a step is the unit. Steps before
it are right, those behind it are neither. Where no step is wrong all are right. A response without
a label, or whose label and rest do not fit, takes no part.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Num, Shaped

from tokensense.errors import SchemaError
from tokensense.schema import NO_STEP, Label
from tokensense.segments import broadcast, segment_index
from tokensense.stats.pairs import Terms, mean_shifts
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.shifts import contrast, sensitivity

AGGREGATES = ("mean", "max", "top_3")
TOP = 3


class Steps(NamedTuple):
    """Steps of labelled responses, those of a response together and in order.

    Attributes:
        columns: aggregates of each score over the tokens of a step, (aggregate, step).
        kinds: share of each kind of token in a step.
        trace: number of the response, 0 to responses - 1.
        place: of the step within its response.
        length: tokens.
        cluster: problem text.
        generator: who wrote the response.
        wrong: the first wrong step of its response.
        right: known to be right.
        counts: responses by what became of them.
    """

    columns: dict[str, Float[np.ndarray, " aggregate step"]]
    kinds: Float[np.ndarray, " step kind"]
    trace: Int64[np.ndarray, " step"]
    place: Int64[np.ndarray, " step"]
    length: Int64[np.ndarray, " step"]
    cluster: Int64[np.ndarray, " step"]
    generator: Shaped[np.ndarray, " step"]
    wrong: Bool[np.ndarray, " step"]
    right: Bool[np.ndarray, " step"]
    counts: dict[str, int]


def knows_steps(tokens: xr.Dataset) -> str:
    """Why there are no labelled steps; empty where there are some.

    Args:
        tokens: as `Study.tokens()` gives it.
    """
    lacking = [name for name in ("step", "label", "wrong_step") if name not in tokens.variables]
    if lacking:
        return f"no step labels: the Dataset has no {', '.join(lacking)}"
    if not (tokens["label"].values == Label.ERROR.name.lower()).any():
        return "no response has a step that is labelled wrong"
    if not (tokens["step"].values != NO_STEP).any():
        return "no token belongs to a step"
    return ""


def steps_of(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    scores: Mapping[str, Num[np.ndarray, " token"]] | None = None,
) -> Steps:
    """Lay out the steps of all labelled responses that are comparable under the triple's pairs.

    Args:
        tokens: of `knows_steps`, that the sample was read from.
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        scores: further ones by name, one number a token in the order of `tokens`.

    Raises:
        SchemaError: the steps of a response do not ascend, or a score has another length.
    """
    label, wrong_step, counts, kept = _labelled(tokens, sample, pairs, terms=terms)
    step = tokens["step"].values[sample.order].astype(np.int64)
    owner = segment_index(sample.length)
    inside = np.flatnonzero(broadcast(kept, sample.length) & (step != NO_STEP))
    if (np.diff(step[inside])[np.diff(owner[inside]) == 0] < 0).any():
        raise SchemaError(
            "`step` needs numbers that ascend within a response; they do not. Take them from "
            "Study.tokens()."
        )
    starts = np.flatnonzero(
        (np.diff(owner[inside], prepend=-1) != 0) | (np.diff(step[inside], prepend=-1) != 0)
    )
    length = np.diff(starts, append=inside.size).astype(np.int64)
    rollout, index = owner[inside][starts], step[inside][starts]
    table = _columns(tokens, sample, pairs, terms=terms, scores=scores or {})
    _, kind = np.unique(sample.kind[inside], return_inverse=True)
    failed = label[rollout] == Label.ERROR.name.lower()
    _, trace = np.unique(rollout, return_inverse=True)
    return Steps(
        columns={name: aggregates(values[inside], length) for name, values in table.items()},
        kinds=_shares(kind.astype(np.int64), length),
        trace=trace.astype(np.int64),
        place=index,
        length=length,
        cluster=sample.cluster[rollout],
        generator=sample.generator[rollout],
        wrong=failed & (index == wrong_step[rollout]),
        right=~failed | (index < wrong_step[rollout]),
        counts=counts,
    )


def aggregates(
    values: Float[np.ndarray, " token"], length: Int64[np.ndarray, " step"]
) -> Float[np.ndarray, " aggregate step"]:
    """Mean, largest, and mean of the three largest values of each step, as AGGREGATES.

    Args:
        values: of the tokens, those of a step together; NaN makes all three NaN.
        length: tokens of each step, at least one.

    Returns:
        Unit of the values. A step of fewer than three tokens has the mean of all as `top_3`.
    """
    if not length.size:
        return np.empty((len(AGGREGATES), 0))
    start = np.cumsum(length) - length
    owner = np.repeat(np.arange(length.size), length)
    ordered = values[np.lexsort((-values, owner))]
    place = np.arange(values.size) - start[owner]
    head = np.where(place < TOP, ordered, 0.0)
    unknown = np.add.reduceat(np.isnan(values), start) > 0
    found = np.stack(
        [
            np.add.reduceat(values, start) / length,
            ordered[start],
            np.add.reduceat(head, start) / np.minimum(length, TOP),
        ]
    )
    return np.where(unknown, np.nan, found)


def _labelled(
    tokens: xr.Dataset, sample: Sample, pairs: Sequence[Pair], *, terms: Terms
) -> tuple[np.ndarray, np.ndarray, dict[str, int], Bool[np.ndarray, " rollout"]]:
    """Labels in the order of the sample, which responses take part, and numbers of the others."""
    rollout = tokens["rollout"].values[sample.order]
    own = rollout[np.cumsum(sample.length) - sample.length]
    label = tokens["label"].values.astype(str)[own]
    wrong_step = tokens["wrong_step"].values.astype(np.int64)[own]
    error, clean = (label == each.name.lower() for each in (Label.ERROR, Label.NO_ERROR))
    fits = (error & (wrong_step != NO_STEP)) | (clean & (wrong_step == NO_STEP))
    usable = sample.usable(pairs[terms.verdict[0]])
    kept = fits & usable
    return (
        label,
        wrong_step,
        {
            "n_with_wrong_step": int((kept & error).sum()),
            "n_without_wrong_step": int((kept & clean).sum()),
            "n_unlabelled": int((~error & ~clean).sum()),
            "n_label_does_not_fit": int(((error | clean) & ~fits).sum()),
            "n_not_comparable": int((fits & ~usable).sum()),
        },
        kept,
    )


def _columns(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    scores: Mapping[str, Num[np.ndarray, " token"]],
) -> dict[str, Float[np.ndarray, " token"]]:
    """Token columns: base pass, verdict, each placebo family, scores of the caller."""
    found = {"surprisal": sample.surprisal}
    for name, source in (("entropy", "entropy"), ("square_sum", "p_square_sum")):
        values = tokens[source].isel(condition=sample.base).values
        found[name] = values[sample.order].astype(np.float64)
    members = {"": terms.verdict, **{f"{name}:": each for name, each in terms.placebo.items()}}
    for prefix, indices in members.items():
        sides = mean_shifts(sample, (pairs[i] for i in indices))
        found[f"{prefix}sensitivity"] = sensitivity(*sides)
        found[f"{prefix}absolute_contrast"] = np.abs(contrast(*sides))
        if not prefix:
            found["signed_contrast"] = -contrast(*sides)
    for name, values in scores.items():
        if name in found or values.shape != sample.order.shape:
            raise SchemaError(
                f"a score needs {sample.order.size} numbers, one a token, and a name other than "
                f"{list(found)}; {name!r} has shape {values.shape}."
            )
        found[name] = values[sample.order].astype(np.float64)
    return found


def _shares(
    kind: Int64[np.ndarray, " token"], length: Int64[np.ndarray, " step"]
) -> Float[np.ndarray, " step kind"]:
    """Share of each kind in each step."""
    kinds = int(kind.max(initial=-1)) + 1
    owner = np.repeat(np.arange(length.size), length)
    count = np.bincount(owner * kinds + kind, minlength=length.size * kinds)
    return np.asarray(count.reshape(length.size, kinds) / length[:, None])
