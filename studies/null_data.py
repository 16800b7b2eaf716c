"""Made-up samples in which the verdict is one irrelevant word more, or does more by a known amount.

Reads  a Cell (how many of what, how alike, how spread) and a seed.
Gives  Sample and its pairs, as `stats` reads them; lambda as it is in truth.
Sign   as in `stats`: contrast positive where the token is likelier under pos.

Contrast of word k in sentence f at a token: s (v + u_k + e_kf), u of variance SHARE and e of
1 - SHARE, both with layers for problem (share `icc` of the variance), rollout and token (half of
the rest each). All words are alike, so that no difference is there to be found. Every condition
moves a token by a joint shift too, half of whose variance all pairs share. Rewards follow a
difficulty of the problem (`icc` again) and the generator, never a contrast.

heavy    layers are Student's t with 3 degrees of freedom, scaled to variance 1.
drift    s falls from 1.5 to .5 along the rollout and v = .3 instead of 0: the first tokens are
         moved further, by all words alike.
writers  four generators, right in ACCURACY of responses, each with a style that moves its
         contrasts and tells nothing: what the balance of E2 is for.
effect   u of the verdict is larger by a factor 1 + effect; its contrasts are raised by effect / 4
         on right responses and lowered on wrong ones.

Rollouts are 2 to 6 tokens long: a token here stands for a stretch of text, and what is estimated
depends on sums a rollout.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from tokensense.schema import VERDICT
from tokensense.segments import broadcast
from tokensense.stats.pairs import Terms
from tokensense.stats.sample import NO_TONE, PLACEBO, Pair, Sample
from tokensense.stats.triples import USUAL_PLACEMENT

SHARE = 0.2
DRIFT = 0.3
STYLE = 0.3
LENGTHS = (2, 6)
TAIL_FREEDOM = 3
ACCURACY = (0.22, 0.40, 0.35, 0.57)  # of the four generators of GSM8K's groups
SURPRISAL = 1.0


class Cell(NamedTuple):
    """What a data set is like.

    Attributes:
        clusters: problem texts.
        rollouts: a problem.
        icc: share of the variance that rollouts of one problem have in common.
        heavy: heavy tails.
        drift: shifts fall with the position.
        writers: several generators.
    """

    clusters: int
    rollouts: int
    icc: float
    heavy: bool = False
    drift: bool = False
    writers: bool = False

    @property
    def name(self) -> str:
        """Such as `20x4 icc .1 heavy`."""
        marks = [mark for mark in ("heavy", "drift", "writers") if getattr(self, mark)]
        return " ".join([f"{self.clusters}x{self.rollouts}", f"icc {self.icc:g}", *marks])


class Made(NamedTuple):
    """A data set.

    Attributes:
        sample: as `read_sample` gives it.
        pairs: of the verdict and the placebo families, the verdict's first.
        terms: all of them.
    """

    sample: Sample
    pairs: list[Pair]
    terms: Terms

    def triple(self) -> "Made":
        """The same tokens with one sentence of the verdict and of one placebo family alone."""
        name, own = next(iter(self.terms.placebo.items()))
        pairs = [self.pairs[index] for index in (self.terms.verdict[0], own[0])]
        return Made(self.sample, pairs, Terms((0,), {name: (1,)}, ()))


def made(cell: Cell, *, families: int, frames: int, effect: float, seed: list[int]) -> Made:
    """Draw a data set.

    Args:
        cell: what it is like.
        families: placebo families.
        frames: sentences that every word stands in.
        effect: planted in the verdict; 0: one word more.
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    problem = np.repeat(np.arange(cell.clusters), cell.rollouts)
    length = rng.integers(LENGTHS[0], LENGTHS[1] + 1, problem.size)
    writer = np.tile(np.arange(cell.rollouts) % len(ACCURACY), cell.clusters) * cell.writers
    reward = _rewards(rng, cell, problem=problem, writer=writer)
    layers = _Layers(rng, cell, problem, length)
    words = layers.drawn(1 + families) * math.sqrt(SHARE)
    words[0] *= 1.0 + effect
    words[0] += broadcast(effect / 4 * (2 * reward - 1), length)
    words += broadcast(STYLE * (writer - 1.5) * cell.writers, length)
    alone = layers.drawn((1 + families) * frames) * math.sqrt(1.0 - SHARE)
    contrast = (words + DRIFT * cell.drift)[:, None] + alone.reshape(1 + families, frames, -1)
    joint = math.sqrt(0.5) * (layers.drawn(1) + layers.drawn(1 + families))
    size = _size(length) if cell.drift else np.ones(int(length.sum()))
    middle, half = (size * joint)[:, None], size * contrast
    sides = np.stack([middle + half, middle - half], axis=2)
    shifts = sides.reshape(-1, size.size)
    who = np.array(["a", "b", "c", "d"])[writer]
    about = {"length": length, "problem": problem, "reward": reward, "generator": who}
    pairs, terms = _pairs(families, frames)
    return Made(_sample(shifts, cell, **about), pairs, terms)


def true_lambda(cell: Cell, *, frames: int, effect: float) -> float:
    """Lambda of the verdict: log of the expected mean squares.

    Args:
        cell: what data sets are like.
        frames: sentences.
        effect: planted in the word; 0 for a placebo.
    """
    level = SHARE * (1.0 + effect) ** 2 + (effect / 4) ** 2 + DRIFT**2 * cell.drift
    if cell.writers:
        level += STYLE**2 * 1.25  # mean square of 0, 1, 2, 3 about 1.5
    return math.log(1.0 + frames * level / (1.0 - SHARE))


class _Layers:
    """Numbers of variance 1 that are alike within problems and within rollouts."""

    def __init__(
        self, rng: np.random.Generator, cell: Cell, problem: np.ndarray, length: np.ndarray
    ) -> None:
        self.rng, self.cell, self.problem, self.length = rng, cell, problem, length

    def drawn(self, rows: int) -> np.ndarray:
        """As many rows over tokens."""
        shared = math.sqrt(self.cell.icc) * self._plain(rows, self.cell.clusters)[:, self.problem]
        part = math.sqrt((1.0 - self.cell.icc) / 2)
        rollout = shared + part * self._plain(rows, self.length.size)
        token = part * self._plain(rows, int(self.length.sum()))
        return np.repeat(rollout, self.length, axis=1) + token

    def _plain(self, rows: int, columns: int) -> np.ndarray:
        shape = (rows, columns)
        normal = self.rng.standard_normal(shape)
        if not self.cell.heavy:
            return normal
        # chi squared over its freedom; t has variance freedom / (freedom - 2)
        spread = self.rng.standard_gamma(TAIL_FREEDOM / 2, shape) * 2 / (TAIL_FREEDOM - 2)
        return normal / np.sqrt(spread)


def _rewards(
    rng: np.random.Generator, cell: Cell, *, problem: np.ndarray, writer: np.ndarray
) -> np.ndarray:
    """1 right, 0 wrong: half of all, or as the generators do."""
    ease = math.sqrt(cell.icc) * rng.standard_normal(cell.clusters)[problem]
    ease += math.sqrt(1.0 - cell.icc) * rng.standard_normal(problem.size)
    share = np.array(ACCURACY)[writer] if cell.writers else 0.5
    return (ease < norm.ppf(share)).astype(np.float64)


def _size(length: np.ndarray) -> np.ndarray:
    """From 1.5 at the first token to .5 at the last."""
    start = np.repeat(np.cumsum(length) - length, length)
    place = np.arange(int(length.sum())) - start
    return 1.5 - place / (np.repeat(length, length) - 1)


def _pairs(families: int, frames: int) -> tuple[list[Pair], Terms]:
    """Pairs in the order of the shifts, two conditions each behind base."""
    names = [VERDICT, *(f"{PLACEBO}-{k:02d}" for k in range(families))]
    pairs = [
        Pair(
            f"{name}/f{frame}",
            *(name, f"f{frame}", "w0", NO_TONE, USUAL_PLACEMENT),
            "opposed" if name == VERDICT else PLACEBO,
            *(1 + 2 * (place * frames + frame), 2 + 2 * (place * frames + frame)),
        )
        for place, name in enumerate(names)
        for frame in range(frames)
    ]
    own = [tuple(range(place * frames, (place + 1) * frames)) for place in range(len(names))]
    return pairs, Terms(own[0], dict(zip(names[1:], own[1:], strict=True)), ())


def _sample(
    shifts: np.ndarray,
    cell: Cell,
    *,
    length: np.ndarray,
    problem: np.ndarray,
    reward: np.ndarray,
    generator: np.ndarray,
) -> Sample:
    """As `read_sample` lays it out: base, then the two sides of each pair in turn."""
    total = int(length.sum())
    return Sample(
        logp=np.concatenate([np.zeros((1, total)), shifts]) - SURPRISAL,
        base=0,
        comparable=np.ones((1 + len(shifts), length.size), dtype=bool),
        labels={},
        length=length,
        cluster=problem,
        problem=problem,
        reward=reward,
        generator=generator,
        kind=np.full(total, "x"),
        surprisal=np.full(total, SURPRISAL),
        distance=np.full(total, 0.5),
        clusters=cell.clusters,
        order=np.arange(total),
    )
