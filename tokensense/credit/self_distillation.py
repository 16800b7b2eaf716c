"""Self-distillation: the same policy, told more, says which of its tokens it would write again.

Reads  shifts lT - lS, nats: lS = log p of the sampled token under the plain prompt, lT under one
       that gives a reference, an answer, feedback or a rubric; or those of another teacher.
Gives  opsd, sdpo, Rlsd, Cepo, CalOpd, PsOpd, sd_grpo, Cort, DistilledRl, sc_grpo;
       divergence, the full-vocabulary objective of OPSD and SDPO.
Sign   a positive shift makes the token likelier under the teacher. Rules that multiply keep the
       sign of the advantage; those that replace it take that of the shift.

Each class states its formula, its departures, its grade and the setting at which it is uniform.
Source   methods/cscr.md section 2, by number beside each rule.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from array_api_compat import array_namespace
from jaxtyping import Float, Float64

from tokensense.checks import require_range
from tokensense.credit.evidence import Evidence
from tokensense.credit.shaping import clipped, mean_one
from tokensense.segments import broadcast, segment_mean, segment_normalize

Array: TypeAlias = Any  # NumPy or PyTorch, as in `segments`
LARGEST_LOG = 60.0  # nats; RLCSD's release clamps exponents there (methods/cscr.md 2.5)


def opsd(evidence: Evidence) -> Float64[Array, " token"]:
    """OPSD, sampled tokens: credit = lT - lS, the teacher told the reference solution.

    Departures: the paper minimizes a divergence over the vocabulary (`divergence`; to train on it
    give `trainer.config.OPSD`); this is what reaches the sampled token. Grade: code (2.1). Never
    uniform: the reward plays no part.

    Args:
        evidence: `reference`.
    """
    return evidence["reference"]


def sdpo(evidence: Evidence) -> Float64[Array, " token"]:
    """SDPO, sampled tokens: credit = lT - lS, the teacher shown a right response of the group.

    Departures: the release's default is a divergence with its own alpha (`divergence`) and an EMA
    teacher (both: `trainer.config.SDPO`), and other feedback too. Grade: code (2.2). Never uniform:
    the reward plays no part.

    Args:
        evidence: `sibling_pos`.
    """
    return evidence["sibling_pos"]


@dataclass(frozen=True)
class Rlsd:
    """RLSD: w = 1 - mix + mix clip(exp(sign(A) (lT - lS)), 1 - bound, 1 + bound).

    The teacher is told the right answer. Departures: the shift is that of the policy that sampled
    (the release takes the current one). Grade: code (2.3). Uniform at mix 0. Weights lie in
    [1 - mix bound, 1 + mix bound]; their mean is not 1.

    Attributes:
        mix: share of the clipped ratio, lambda in [0, 1].
        bound: epsilon in [0, 1].

    Raises:
        SchemaError: a setting is out of its range.
    """

    mix: float = 0.5
    bound: float = 0.2

    def __post_init__(self) -> None:
        require_range("mix", self.mix, 0.0, 1.0)
        require_range("bound", self.bound, 0.0, 1.0)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `answer_pos`.
        """
        return self.mixed(evidence["answer_pos"], evidence)

    def mixed(
        self, shift: Float64[Array, " token"], evidence: Evidence
    ) -> Float64[Array, " token"]:
        """Weights that a shift gives, no unit.

        Args:
            shift: in the place of lT - lS, nats.
            evidence: for the sign of the advantage.
        """
        xp = array_namespace(shift)
        exponent = clipped(xp.sign(evidence.spread()) * shift, -LARGEST_LOG, LARGEST_LOG)
        ratio = clipped(xp.exp(exponent), 1 - self.bound, 1 + self.bound)
        return (1 - self.mix) + self.mix * ratio


@dataclass(frozen=True)
class Cepo(Rlsd):
    """CEPO: RLSD with l(y | right answer) - l(y | wrong answer) in the place of lT - lS.

    Departures: the answers stand in the prompt, not behind the generation header; the decay of mix
    over the first 25 steps is the trainer's. Grade: code (2.4). Uniform at mix 0.
    """

    bound: float = 0.5

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `answer_pos` and `answer_neg`.
        """
        return self.mixed(evidence["answer_pos"] - evidence["answer_neg"], evidence)


@dataclass(frozen=True)
class CalOpd:
    """Cal-OPD: credit = sign(g) (|g| - strength x noise)+, g = lT - lS of another teacher.

    noise = max(0, -z+, -z-) where g > 0, else max(0, z+, z-); z are the teacher's own shifts under
    the two verdicts. What survives exceeds what any feedback could do. Departures: none known.
    Grade: code (2.6). Never uniform: the reward plays no part; at strength 0 it is plain OPD.

    Attributes:
        strength: lambda >= 0: 5 in the paper, 1 by default in the code.

    Raises:
        SchemaError: a setting is out of its range.
    """

    strength: float = 5.0

    def __post_init__(self) -> None:
        require_range("strength", self.strength, 0.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Credit of every token, nats.

        Args:
            evidence: `teacher`, `teacher_pos` and `teacher_neg`.
        """
        gap, positive, negative = (
            evidence[name] for name in ("teacher", "teacher_pos", "teacher_neg")
        )
        xp = array_namespace(gap)
        zero = xp.zeros_like(gap)
        up = xp.maximum(zero, xp.maximum(positive, negative))
        down = xp.maximum(zero, xp.maximum(-positive, -negative))
        noise = xp.where(gap > 0, down, up)
        return xp.sign(gap) * xp.maximum(zero, xp.abs(gap) - self.strength * noise)


@dataclass(frozen=True)
class PsOpd:
    """PS-OPD: weight `kept` where |teacher's shift under "wrong"| > threshold, else 1.

    Departures: the code weighs the distillation loss; here the advantage is weighed, so that the
    choice of tokens can be compared with that of other rules. Grade: inferred (2.6). Uniform at
    kept 1. Weights lie in [kept, 1].

    Attributes:
        threshold: nats.
        kept: weight of a token that the feedback moves, in [0, 1].

    Raises:
        SchemaError: a setting is out of its range.
    """

    threshold: float = 0.05
    kept: float = 0.25

    def __post_init__(self) -> None:
        require_range("threshold", self.threshold, 0.0, math.inf)
        require_range("kept", self.kept, 0.0, 1.0)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `teacher_neg`.
        """
        shift = evidence["teacher_neg"]
        xp = array_namespace(shift)
        one = xp.ones_like(shift)
        return xp.where(xp.abs(shift) > self.threshold, self.kept * one, one)


def sd_grpo(evidence: Evidence) -> Float64[Array, " token"]:
    """SD-GRPO: credit = |A| sign(z), z the shift under the verdict that matches the outcome.

    Departures: the formula is not public; this one is the only simple one that gives the shift the
    direction. Grade: inferred (1.7). Never uniform: the shift decides the sign.

    Args:
        evidence: `z_pos` and `z_neg`.
    """
    advantage = evidence.spread()
    xp = array_namespace(advantage)
    matching = xp.where(advantage > 0, evidence["z_pos"], evidence["z_neg"])
    return xp.abs(advantage) * xp.sign(matching)


@dataclass(frozen=True)
class Cort:
    """CoRT: w = T g / sum of g, g = 1 + size tanh(shift / scale), the shift that of a rubric.

    Departures: the paper has a bounded map that is not known; this one, size and scale are ours,
    and its ramp over training is the trainer's. Grade: inferred (2.7). Uniform at size 0.

    Attributes:
        size: the most a token gains or loses before scaling, in [0, 1).
        scale: nats.

    Raises:
        SchemaError: a setting is out of its range.
    """

    size: float = 0.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_range("size", self.size, 0.0, 1 - 1e-9)
        require_range("scale", self.scale, 1e-6, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit, mean 1 over each rollout.

        Args:
            evidence: `rubric`.
        """
        shift = evidence["rubric"]
        xp = array_namespace(shift)
        return segment_normalize(1.0 + self.size * xp.tanh(shift / self.scale), evidence.length)


@dataclass(frozen=True)
class DistilledRl:
    """Distilled RL: w = rho / its geometric mean over the rollout, rho = clip(pT / p, 1/b, b).

    For responses with A > 0; others keep weight 1. Departures: the paper's text was not read, nor
    what it does where A <= 0. Grade: inferred (2.12). Uniform at bound 1. Weights lie in
    [1/b^2, b^2]; their geometric mean is 1.

    Attributes:
        bound: b >= 1.

    Raises:
        SchemaError: a setting is out of its range.
    """

    bound: float = 3.0

    def __post_init__(self) -> None:
        require_range("bound", self.bound, 1.0, math.inf)

    def __call__(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit.

        Args:
            evidence: `teacher`.
        """
        gap, length = evidence["teacher"], evidence.length
        xp = array_namespace(gap)
        limit = min(math.log(self.bound), LARGEST_LOG)
        log_ratio = clipped(gap, -limit, limit)
        weights = xp.exp(log_ratio - broadcast(segment_mean(log_ratio, length), length))
        return xp.where(evidence.spread() > 0, weights, xp.ones_like(weights))


def sc_grpo(evidence: Evidence) -> Float64[Array, " token"]:
    """SC-GRPO: w = T k / sum of k, k the divergence from the policy told a solution of its own.

    Departures: the paper has the KL over the vocabulary, of which the abstract tells neither
    direction nor scale; k = exp(z) - z - 1 estimates KL(plain || told) from the sampled token
    alone, z clipped to 20 nats, and weights are scaled to mean 1. Grade: inferred (gcpo 3.6). Never
    uniform by a setting; uniform where k is 0 all over a rollout.

    Args:
        evidence: `sibling_pos`.
    """
    return mean_one(k3(evidence["sibling_pos"]), evidence.length)


def k3(shift: Float64[Array, " token"]) -> Float64[Array, " token"]:
    """Estimate of KL(plain || told) from a sampled token: exp(z) - z - 1 >= 0, nats.

    Args:
        shift: z, nats; clipped to [-20, 20].
    """
    bounded = clipped(shift, -20.0, 20.0)
    return array_namespace(shift).expm1(bounded) - bounded


def divergence(
    student: Float[Array, "token entry"], teacher: Float[Array, "token entry"], *, alpha: float
) -> Float[Array, " token"]:
    """The objective of OPSD and SDPO over the vocabulary, nats; gradients flow through it.

    alpha 0: KL(teacher || student); 1: KL(student || teacher); between, with
    M = (1 - alpha) student + alpha teacher: (1 - alpha) KL(student || M) + alpha KL(teacher || M).

    Args:
        student: log-probabilities, every row summing to 1: the vocabulary, or the largest entries
            and one for all the rest.
        teacher: the same entries under the teacher; detach it.
        alpha: in [0, 1]; SDPO and OPSD's script: 1/2.

    Raises:
        SchemaError: alpha is out of its range.

    Source:
        methods/cscr.md 2.1 and 2.2; code.
    """
    require_range("alpha", alpha, 0.0, 1.0)
    xp = array_namespace(student)

    def kl(p: Array, q: Array) -> Array:
        return xp.sum(xp.exp(p) * (p - q), axis=-1)

    if alpha == 0:
        return kl(teacher, student)
    if alpha == 1:
        return kl(student, teacher)
    top = xp.maximum(student, teacher)
    mixed = top + xp.log((1 - alpha) * xp.exp(student - top) + alpha * xp.exp(teacher - top))
    return (1 - alpha) * kl(student, mixed) + alpha * kl(teacher, mixed)
