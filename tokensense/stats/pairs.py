"""Which conditions oppose each other, and which pairs the triple compares.

Reads  labels of the conditions, comparability of the rollouts.
Gives  the pairs of a sample; Terms: which of them are the verdict's and which the placebo's.
Sign   a pair's contrast is positive where the token is likelier under pos.

A pair holds the two levels of one family, frame, wording and placement under one probe. Where a
level was given in several tones (outcome x tone), the pair keeps to one tone; where each level has
one tone only (the published praise and blame), the tones go together and the pair says so.

The triple compares like with like: verdict pairs without tone against placebo pairs, in the frames
and placements that both have. A placebo pair is one of the probe `placebo`, or of a family whose
name starts with that word. A rollout that may not be compared under one condition of a pair is left
out of that pair, with all its tokens, and counted.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from tokensense.errors import SchemaError, StatisticsError
from tokensense.schema import NEGATIVE, NO_LEVEL, POSITIVE, VERDICT
from tokensense.stats.sample import NO_TONE, Pair, Sample


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


def with_shared_rollouts(sample: Sample, pairs: list[Pair], terms: Terms) -> Sample:
    """Leave a rollout that one pair of the triple cannot use out of all of its pairs.

    Verdict and placebo then speak of the same tokens: a rollout missing on one side alone would
    make a difference by itself.

    Args:
        sample: of `read_sample`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.

    Raises:
        StatisticsError: no rollout can be used under all of them.
    """
    chosen = [*terms.verdict, *(i for members in terms.placebo.values() for i in members)]
    conditions = sorted({c for i in chosen for c in (pairs[i].positive, pairs[i].negative)})
    comparable = sample.comparable.copy()
    together = sample.comparable[conditions].all(axis=0)
    if not together.any():
        raise StatisticsError(
            "The triple needs a rollout that may be compared under all its pairs; of "
            f"{together.size} rollouts there is none for {[pairs[i].name for i in chosen]}. "
            "Leave out the probe or the family that excludes them."
        )
    comparable[conditions] = together
    return replace(sample, comparable=comparable)


def mean_shifts(
    sample: Sample, pairs: Iterable[Pair]
) -> tuple[Float[np.ndarray, " token"], Float[np.ndarray, " token"]]:
    """Means of z+ and of z- over pairs, nats; comparability is the caller's to heed.

    Args:
        sample: of `read_sample`.
        pairs: one or more, as all wordings of the verdict.
    """
    sides = zip(*((pair.positive, pair.negative) for pair in pairs), strict=True)
    positive, negative = (np.mean([sample.shift(c) for c in side], axis=0) for side in sides)
    return positive, negative


def log_means(
    shift: Float[np.ndarray, "pair token"], inside: Bool[np.ndarray, "pair token"]
) -> Float[np.ndarray, " token"]:
    """Log of the mean of exp(shift) over the pairs that each token may use, nats; NaN for none.

    Args:
        shift: under one side of each pair, nats; NaN where it may not be used.
        inside: where it may.
    """
    some = inside.any(axis=0)
    used = np.where(inside, shift, -np.inf)
    total = np.logaddexp.reduce(np.where(some, used, 0.0), axis=0)
    return np.asarray(np.where(some, total - np.log(np.maximum(inside.sum(axis=0), 1)), np.nan))


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
