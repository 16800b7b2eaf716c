"""What the statistics read: one flat Dataset of tokens, checked at the door and laid out as arrays.

Reads  the Dataset of `Study.tokens()`: dims (condition, token), base among the conditions.
Gives  Sample (arrays over token and rollout), Pair (two opposed conditions of it).
Sign   shift = logp[condition] - logp[base], nats; positive: the condition makes the token likelier.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Shaped

from tokensense.errors import SchemaError, StatisticsError
from tokensense.schema import BASE
from tokensense.stats.shifts import onehot_distance

PLACEBO = "placebo"
NO_TONE = "none"
CONDITION_COORDS = (
    "condition",
    "probe",
    "family",
    "level",
    "frame",
    "wording",
    "tone",
    "placement",
)
TOKEN_COORDS = ("kind", "problem", "cluster", "rollout", "reward", "generator")
SOURCE = "take them from Study.tokens()"


class Pair(NamedTuple):
    """Two opposed conditions that differ in the edited word alone.

    Attributes:
        name: unique; no spaces.
        family: what the edited word is about.
        frame: the sentence around it.
        wording: which word pair of the family.
        tone: `none`, or the tone or tones of its conditions.
        placement: where in the prompt it stands.
        probe: where it comes from.
        positive: index of the condition of level pos.
        negative: index of the condition of level neg.
    """

    name: str
    family: str
    frame: str
    wording: str
    tone: str
    placement: str
    probe: str
    positive: int
    negative: int

    @property
    def is_placebo(self) -> bool:
        """Whether the edited word is irrelevant."""
        return self.probe == PLACEBO or self.family.startswith(PLACEBO)


@dataclass(frozen=True)
class Sample:
    """All tokens of all rollouts, tokens of a rollout together, rollouts of no tokens left out.

    Attributes:
        logp: (condition, token) nats; an array of dask stays on disk and is read row by row.
        base: index of the base condition.
        comparable: (condition, rollout), comparable with base, and base itself usable.
        labels: (condition) arrays by coordinate name.
        length: (rollout) tokens.
        cluster: (rollout) number of the problem text, 0 to clusters - 1.
        problem: (rollout) problem index.
        reward: (rollout) 1, 0, NaN.
        generator: (rollout) who wrote it.
        kind: (token) name of the token's kind.
        surprisal: (token) -logp[base], nats.
        distance: (token) ||onehot - p|| under base.
        clusters: problem texts.
        order: (token) where each token stood in the Dataset.
        attrs: of the Dataset, passed on to the results.
    """

    logp: Any  # NumPy or dask
    base: int
    comparable: Bool[np.ndarray, "condition rollout"]
    labels: dict[str, Shaped[np.ndarray, " condition"]]
    length: Int64[np.ndarray, " rollout"]
    cluster: Int64[np.ndarray, " rollout"]
    problem: Int64[np.ndarray, " rollout"]
    reward: Float[np.ndarray, " rollout"]
    generator: Shaped[np.ndarray, " rollout"]
    kind: Shaped[np.ndarray, " token"]
    surprisal: Float[np.ndarray, " token"]
    distance: Float[np.ndarray, " token"]
    clusters: int
    order: Int64[np.ndarray, " token"]
    attrs: dict[str, object] = field(default_factory=dict)

    def usable(self, pair: Pair) -> Bool[np.ndarray, " rollout"]:
        """Which rollouts may be compared under both conditions of the pair."""
        return np.asarray(self.comparable[pair.positive] & self.comparable[pair.negative])

    def shift(self, condition: int) -> Float[np.ndarray, " token"]:
        """Shift of every token under a condition, nats; NaN where it was not scored."""
        logp: Float[np.ndarray, " token"] = np.asarray(self.logp[condition], dtype=np.float64)
        return np.asarray(logp + self.surprisal)


def read_sample(tokens: xr.Dataset) -> Sample:
    """Check a Dataset of tokens and lay it out; the order of tokens and rollouts does not matter.

    Args:
        tokens: dims (condition, token) with `logp`, `p_square_sum`; `comparable` (condition,
            rollout) and `length` (rollout); coordinates of conditions and tokens as in
            `Study.tokens()`. Whole rollouts may be missing, parts of one may not.

    Raises:
        SchemaError: a variable, coordinate or the base condition is missing, names repeat, a
            rollout is there in part, or one has two problems, rewards or generators, or an
            infinite reward.
        StatisticsError: a token of a comparable rollout was not scored.
    """
    _require_parts(tokens)
    owner = tokens["rollout"].values.astype(np.int64)
    order = np.argsort(owner, kind="stable")
    found, start, length = np.unique(owner[order], return_index=True, return_counts=True)
    _require_whole(found, length, tokens["length"].values)
    names = tokens["condition"].values.astype(str)
    base = int(np.flatnonzero(names == BASE)[0])
    logp = tokens["logp"].transpose("condition", "token").data
    if (np.diff(order) != 1).any():
        logp = logp[:, order]
    comparable = (
        tokens["comparable"].transpose("condition", "rollout").values[:, found].astype(bool)
    )
    comparable = comparable & comparable[base]
    square_sum = tokens["p_square_sum"].isel(condition=base).values[order]
    where = {"rollouts": found, "length": length}
    for row, name in enumerate(names):
        _require_scored("logp", np.asarray(logp[row]), comparable[row], condition=name, **where)
    _require_scored("p_square_sum", square_sum, comparable[base], condition=BASE, **where)
    per_rollout = {
        name: _one_each(
            name, tokens[name].values[order], start=start, length=length, rollouts=found
        )
        for name in ("cluster", "problem", "reward", "generator")
    }
    infinite = np.flatnonzero(np.isinf(per_rollout["reward"].astype(np.float64)))
    if infinite.size:
        raise SchemaError(
            f"`reward` needs finite numbers, or NaN for undecided; rollout {found[infinite[0]]} "
            f"has {per_rollout['reward'][infinite[0]]} ({infinite.size} such). Correct the rewards."
        )
    texts, cluster = np.unique(per_rollout["cluster"], return_inverse=True)
    own = np.asarray(logp[base], dtype=np.float64)
    return Sample(
        logp=logp,
        base=base,
        comparable=comparable,
        labels={name: tokens[name].values.astype(str) for name in CONDITION_COORDS},
        length=length.astype(np.int64),
        cluster=cluster.astype(np.int64),
        problem=per_rollout["problem"].astype(np.int64),
        reward=per_rollout["reward"].astype(np.float64),
        generator=per_rollout["generator"].astype(str),
        kind=tokens["kind"].values[order].astype(str),
        surprisal=-own,
        distance=onehot_distance(own, square_sum.astype(np.float64)),
        clusters=len(texts),
        order=order.astype(np.int64),
        attrs={
            **{str(key): value for key, value in tokens.attrs.items()},
            "rollouts_without_tokens": int(np.count_nonzero(tokens["length"].values == 0)),
        },
    )


def _require_parts(tokens: xr.Dataset) -> None:
    """Check that variables, coordinates and the base condition are there."""
    dims = {
        "logp": {"condition", "token"},
        "p_square_sum": {"condition", "token"},
        "comparable": {"condition", "rollout"},
        "length": {"rollout"},
        **{name: {"condition"} for name in CONDITION_COORDS},
        **{name: {"token"} for name in TOKEN_COORDS},
    }
    wrong = [
        f"{name} {tuple(sorted(want))}"
        for name, want in dims.items()
        if name not in tokens.variables or set(tokens.variables[name].dims) != want
    ]
    if wrong:
        found = {str(name): array.dims for name, array in tokens.variables.items()}
        raise SchemaError(f"`tokens` needs {wrong}; it has {found}. To get them: {SOURCE}.")
    names, count = np.unique(tokens["condition"].values.astype(str), return_counts=True)
    if BASE not in names or (count > 1).any():
        raise SchemaError(
            f"`tokens` needs unique conditions with {BASE!r} among them; it has {names.tolist()}, "
            f"{int((count > 1).sum())} of them more than once. To get them: {SOURCE}."
        )
    if not tokens.sizes["token"]:
        raise StatisticsError(
            f"`tokens` needs at least one response token; it has none. To get them: {SOURCE}."
        )


def _require_whole(found: np.ndarray, length: np.ndarray, stored: np.ndarray) -> None:
    """Check that every rollout present is present with all its tokens."""
    if found[0] < 0 or found[-1] >= len(stored):
        raise SchemaError(
            f"`rollout` needs indices from 0 to {len(stored) - 1}; it has {found[0]} to "
            f"{found[-1]}. To get them: {SOURCE}."
        )
    partial = np.flatnonzero(length != stored[found])
    if partial.size:
        first = partial[0]
        raise SchemaError(
            f"`tokens` needs all tokens of a rollout or none; rollout {found[first]} has "
            f"{length[first]} of {stored[found[first]]} ({partial.size} such). "
            "Select whole rollouts."
        )


def _require_scored(
    name: str,
    values: np.ndarray,
    comparable: np.ndarray,
    *,
    condition: str,
    rollouts: np.ndarray,
    length: np.ndarray,
) -> None:
    """Check that the tokens of comparable rollouts were scored under a condition."""
    bad = ~np.isfinite(values) & np.repeat(comparable, length)
    if bad.any():
        token = np.flatnonzero(bad)[0]
        rollout = rollouts[np.repeat(np.arange(length.size), length)[token]]
        raise StatisticsError(
            f"`{name}` needs finite numbers where a rollout is comparable; condition "
            f"{str(condition)!r}, rollout {rollout} has {values[token]} ({int(bad.sum())} such "
            "tokens). Finish the probe, or mark the rollout as not comparable."
        )


def _one_each(
    name: str, values: np.ndarray, *, start: np.ndarray, length: np.ndarray, rollouts: np.ndarray
) -> np.ndarray:
    """Give the one value of each rollout of a coordinate that must not vary inside it."""
    first: np.ndarray = values[start]
    spread = np.repeat(first, length)
    differs = values != spread
    if values.dtype.kind == "f":
        differs &= ~(np.isnan(values) & np.isnan(spread))
    if differs.any():
        rollout = rollouts[np.repeat(np.arange(length.size), length)[np.flatnonzero(differs)[0]]]
        raise SchemaError(
            f"`{name}` needs one value for all tokens of a rollout; rollout {rollout} has several. "
            f"To get them: {SOURCE}."
        )
    return first
