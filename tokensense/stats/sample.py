"""What the statistics read: one flat Dataset of tokens, checked at the door and laid out as arrays.

Reads  the Dataset of `Study.tokens()`: dims (condition, token), base among the conditions.
Gives  Sample (arrays over token and rollout), Pair (two opposed conditions), Terms (which pairs are
       the verdict's and which the placebo's).
Sign   shift = logp[condition] - logp[base], nats; positive: the condition makes the token likelier.

A pair holds the two levels of one family, frame, wording and placement under one probe. Where a
level was given in several tones (outcome x tone), the pair keeps to one tone; where each level has
one tone only (the published praise and blame), the tones go together and the pair says so.

The triple compares like with like: verdict pairs without tone against placebo pairs, in the frames
and placements that both have. A placebo pair is one of the probe `placebo`, or of a family whose
name starts with that word. A rollout that may not be compared under one condition of a pair is left
out of that pair, with all its tokens, and counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int64, Shaped

from tokensense.errors import SchemaError, StatisticsError
from tokensense.schema import BASE, NEGATIVE, NO_LEVEL, POSITIVE, VERDICT
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
        logp: (condition, token) nats.
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
        attrs: of the Dataset, passed on to the results.
    """

    logp: Float[np.ndarray, "condition token"]
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
    attrs: dict[str, object] = field(default_factory=dict)

    def usable(self, pair: Pair) -> Bool[np.ndarray, " rollout"]:
        """Which rollouts may be compared under both conditions of the pair."""
        return np.asarray(self.comparable[pair.positive] & self.comparable[pair.negative])

    def shift(self, condition: int) -> Float[np.ndarray, " token"]:
        """Shift of every token under a condition, nats; NaN where it was not scored."""
        return np.asarray(self.logp[condition].astype(np.float64) + self.surprisal)


class Terms(NamedTuple):
    """Pairs of the triple: indices into the list of pairs.

    Attributes:
        verdict: pairs of the verdict without tone.
        placebo: pairs of each placebo family.
        statements: what was left out, in words.
    """

    verdict: tuple[int, ...]
    placebo: dict[str, tuple[int, ...]]
    statements: tuple[str, ...]


def read_sample(tokens: xr.Dataset) -> Sample:
    """Check a Dataset of tokens and lay it out; the order of tokens and rollouts does not matter.

    Args:
        tokens: dims (condition, token) with `logp`, `p_square_sum`; `comparable` (condition,
            rollout) and `length` (rollout); coordinates of conditions and tokens as in
            `Study.tokens()`. Whole rollouts may be missing, parts of one may not.

    Raises:
        SchemaError: a variable, coordinate or the base condition is missing, names repeat, a
            rollout is there in part, or one has two problems, rewards or generators.
        StatisticsError: a token of a comparable rollout was not scored.
    """
    _require_parts(tokens)
    owner = tokens["rollout"].values.astype(np.int64)
    order = np.argsort(owner, kind="stable")
    found, start, length = np.unique(owner[order], return_index=True, return_counts=True)
    _require_whole(found, length, tokens["length"].values)
    names = tokens["condition"].values.astype(str)
    base = int(np.flatnonzero(names == BASE)[0])
    logp = tokens["logp"].transpose("condition", "token").values[:, order]
    comparable = (
        tokens["comparable"].transpose("condition", "rollout").values[:, found].astype(bool)
    )
    comparable = comparable & comparable[base]
    _require_scored(logp, comparable, names=names, rollouts=found, length=length)
    per_rollout = {
        name: _one_each(
            name, tokens[name].values[order], start=start, length=length, rollouts=found
        )
        for name in ("cluster", "problem", "reward", "generator")
    }
    texts, cluster = np.unique(per_rollout["cluster"], return_inverse=True)
    square_sum = tokens["p_square_sum"].transpose("condition", "token").values[base, order]
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
        surprisal=-logp[base].astype(np.float64),
        distance=onehot_distance(logp[base].astype(np.float64), square_sum.astype(np.float64)),
        clusters=len(texts),
        attrs={str(key): value for key, value in tokens.attrs.items()},
    )


def pairs_of(sample: Sample) -> list[Pair]:
    """Put opposed conditions together; conditions without a level make no pair.

    Returns:
        Pairs in the order of their names.

    Raises:
        SchemaError: a level has no counterpart, or two conditions have all coordinates in common.
    """
    groups: dict[tuple[str, ...], dict[str, list[int]]] = {}
    labels = sample.labels
    for index, level in enumerate(labels["level"]):
        if index == sample.base or level == NO_LEVEL:
            continue
        key = tuple(
            str(labels[name][index])
            for name in ("probe", "family", "frame", "wording", "placement")
        )
        groups.setdefault(key, {}).setdefault(str(level), []).append(index)
    pairs = [pair for key, levels in groups.items() for pair in _match(key, levels, labels)]
    return sorted(pairs)


def terms_of(sample: Sample, pairs: list[Pair]) -> Terms:
    """Say which pairs are the triple's verdict and placebo, in frames that both have.

    Args:
        sample: for the rollouts that a pair can use.
        pairs: of `pairs_of`.

    Raises:
        StatisticsError: there is no verdict pair without tone that any rollout can use.
    """
    statements: list[str] = []
    live = [index for index, pair in enumerate(pairs) if sample.usable(pair).any()]
    if len(live) < len(pairs):
        dead = [pair.name for pair in pairs if not sample.usable(pair).any()]
        statements.append(f"pairs without a comparable rollout, left out: {', '.join(dead)}")
    verdict = [i for i in live if pairs[i].family == VERDICT and pairs[i].tone == NO_TONE]
    placebo = [i for i in live if pairs[i].is_placebo]
    if not verdict:
        raise StatisticsError(
            f"The triple needs a pair of family {VERDICT!r} and tone {NO_TONE!r}; there are "
            f"{[pair.name for pair in pairs]}. Run the probe `opposed` first."
        )
    if placebo:
        verdict, placebo = _same_frames(pairs, verdict, placebo, statements)
    else:
        statements.append("no placebo pair: run the probe `placebo` to get the other two terms")
    families = sorted({pairs[i].family for i in placebo})
    grouped = {name: tuple(i for i in placebo if pairs[i].family == name) for name in families}
    return Terms(tuple(verdict), grouped, tuple(statements))


def _same_frames(
    pairs: list[Pair], verdict: list[int], placebo: list[int], statements: list[str]
) -> tuple[list[int], list[int]]:
    """Keep the pairs in frames and placements that verdict and placebo share, if there are any."""
    places = [{(pairs[i].frame, pairs[i].placement) for i in side} for side in (verdict, placebo)]
    shared = places[0] & places[1]
    if not shared:
        statements.append("verdict and placebo share no frame: all frames of each are compared")
        return verdict, placebo
    kept = [
        [i for i in side if (pairs[i].frame, pairs[i].placement) in shared]
        for side in (verdict, placebo)
    ]
    lost = len(verdict) + len(placebo) - len(kept[0]) - len(kept[1])
    if lost:
        statements.append(
            f"{lost} pairs stand in frames that only verdict or only placebo has: not in the triple"
        )
    return kept[0], kept[1]


def _match(
    key: tuple[str, ...], levels: dict[str, list[int]], labels: dict[str, np.ndarray]
) -> Iterable[Pair]:
    """Pair the conditions of one probe, family, frame, wording and placement."""
    probe, family, frame, wording, placement = key
    sides = [levels.get(POSITIVE, []), levels.get(NEGATIVE, [])]
    tones = [[str(labels["tone"][index]) for index in side] for side in sides]
    name = "/".join((probe, family, frame, wording, placement))
    others = sorted(set(levels) - {POSITIVE, NEGATIVE})
    if others or any(len(set(side)) < len(side) for side in tones):
        raise SchemaError(
            f"Conditions {name} need levels {POSITIVE!r} and {NEGATIVE!r}, once a tone; they have "
            f"{ {level: len(found) for level, found in levels.items()} }. "
            "Give each pair its own wording."
        )
    if len(sides[0]) == len(sides[1]) == 1:
        tone = tones[0][0] if tones[0] == tones[1] else f"{tones[0][0]}-{tones[1][0]}"
        suffix = "" if tone == NO_TONE else f"/{tone}"
        return [
            Pair(
                name + suffix,
                family,
                frame,
                wording,
                tone,
                placement,
                probe,
                sides[0][0],
                sides[1][0],
            )
        ]
    if sorted(tones[0]) != sorted(tones[1]):
        raise SchemaError(
            f"Conditions {name} need both levels in the same tones; pos has {sorted(tones[0])}, "
            f"neg has {sorted(tones[1])}. Add the missing condition."
        )
    other = dict(zip(tones[1], sides[1], strict=True))
    return [
        Pair(f"{name}/{tone}", family, frame, wording, tone, placement, probe, index, other[tone])
        for tone, index in zip(tones[0], sides[0], strict=True)
    ]


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
    logp: np.ndarray,
    comparable: np.ndarray,
    *,
    names: np.ndarray,
    rollouts: np.ndarray,
    length: np.ndarray,
) -> None:
    """Check that the tokens of comparable rollouts have a finite log-probability."""
    bad = ~np.isfinite(logp) & np.repeat(comparable, length, axis=1)
    if bad.any():
        condition, token = np.argwhere(bad)[0]
        rollout = rollouts[np.repeat(np.arange(length.size), length)[token]]
        raise StatisticsError(
            f"`logp` needs finite nats where a rollout is comparable; condition "
            f"{names[condition]!r}, rollout {rollout} has {logp[condition, token]} "
            f"({int(bad.sum())} such tokens). Finish the probe, or mark the rollout as not "
            "comparable."
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
