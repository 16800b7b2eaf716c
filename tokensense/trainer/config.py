"""All that decides a training run besides the policy and the problems.

Reads  numbers and names.
Gives  TrainConfig, the Objective and the Distillation in it, read_config; the published ones: GRPO,
       DAPO, DR_GRPO, OPSD, SDPO.
Sign   none: nothing here is signed.

A config is data: frozen, checked when it is made, and plain JSON both ways, so that a checkpoint
can say what it belongs to.

Source: GRPO, arXiv:2402.03300; DAPO, arXiv:2503.14476; Dr. GRPO, arXiv:2503.20783. k1 and k3 are
       the estimators of J. Schulman's note "Approximating KL divergence" (2020). OPSD,
       arXiv:2601.18734; SDPO, arXiv:2601.20802 (methods/cscr.md 2.1, 2.2).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tokensense.checks import require_member, require_range
from tokensense.credit import CATALOGUE
from tokensense.credit.advantages import ADVANTAGES, DDOF, EPS
from tokensense.credit.base import Credit, adjusted
from tokensense.errors import InputError, SchemaError

NORMALIZERS = ("token", "sequence", "constant")
KL_FORMS = ("none", "k1", "k3")
# Rule -> evidence: what the teacher of its full-vocabulary form is told.
DISTILLED = {"opsd": "reference", "sdpo": "sibling_pos"}
# What may differ when a run is resumed: how long it goes on, how often it is kept, and memory.
FREE_ON_RESUME = ("steps", "checkpoint_every", "checkpointing")


@dataclass(frozen=True)
class Objective:
    """What one update minimizes, beside the credit of each token.

    Attributes:
        normalizer: what the sum over tokens is divided by. `token`: the tokens of the update;
            `sequence`: each response by its own length, then by the number of responses;
            `constant`: responses x `max_new_tokens`.
        clip_low: the ratio counts down to 1 - clip_low.
        clip_high: the ratio counts up to 1 + clip_high; inf: no limit.
        kl: distance to the policy that the run began from. `k1` takes (old - reference) log-ratios
            off the credit; `k3` adds exp(d) - d - 1 with d = reference - logp to the loss.
        kl_coefficient: its factor.
        kl_clamp: log-ratios count within +-this, nats; how many were cut is reported.
    """

    normalizer: str = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: str = "none"
    kl_coefficient: float = 0.0
    kl_clamp: float = 20.0

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            SchemaError: a number is out of range, a name unknown, or a KL has no coefficient.
        """
        require_member("normalizer", self.normalizer, NORMALIZERS)
        require_range("clip_low", self.clip_low, 0.0, 1.0)
        require_range("clip_high", self.clip_high, 0.0, math.inf)
        require_member("kl", self.kl, KL_FORMS)
        require_range("kl_coefficient", self.kl_coefficient, 0.0, 1e6)
        require_range("kl_clamp", self.kl_clamp, 1e-6, 80.0)
        if (self.kl != "none") != (self.kl_coefficient > 0):
            raise SchemaError(
                f"`kl` and `kl_coefficient` need each other; they are {self.kl!r} and "
                f"{self.kl_coefficient}. Give both, or neither."
            )


GRPO = Objective(normalizer="sequence")
DAPO = Objective(normalizer="token", clip_high=0.28)
DR_GRPO = Objective(normalizer="constant")


@dataclass(frozen=True)
class Distillation:
    """Divergence over the vocabulary from the policy that is told more, in the place of the credit.

    What the teacher is told is what the rule reads: the reference solution (`opsd`), or a right
    response of the group (`sdpo`). Departures: `trainer.distillation`.

    Attributes:
        alpha: 0: KL(teacher || student), 1: KL(student || teacher), between: see
            `self_distillation.divergence`.
        top: so many of the student's likeliest entries are told apart, all others are one; 0: all.
        teacher_rate: share of the way to the policy that the teacher's weights go after each step.
            0: the policy that the run began from; 1: the policy as it is.
    """

    alpha: float = 0.5
    top: int = 0
    teacher_rate: float = 0.0

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            SchemaError: a number is out of range.
        """
        require_range("alpha", self.alpha, 0.0, 1.0)
        require_range("top", self.top, 0, 2**31)
        require_range("teacher_rate", self.teacher_rate, 0.0, 1.0)


OPSD = Distillation()
SDPO = Distillation(top=100, teacher_rate=0.05)


@dataclass(frozen=True)
class TrainConfig:
    """A run. Defaults are regime A of notes/assay.md, save for the task's own sizes.

    Attributes:
        steps: of sampling and updating.
        problems: a step.
        group: responses to each problem.
        max_new_tokens: most tokens of a response, end token included.
        temperature: of sampling, of scoring and of the loss alike.
        seed: of problems, samples and the order of updates.
        rule: of `credit.CATALOGUE`.
        settings: of the rule, that differ from its own.
        frames: sentences that the verdict and the placebo are told in, for rules that read shifts.
        wordings: verdict words, likewise.
        advantage: of `credit.advantages.ADVANTAGES`.
        eps: of `group_std`.
        ddof: of `group_std`.
        objective: loss.
        distillation: what rules `opsd` and `sdpo` minimize over the vocabulary; None: their signal
            at the sampled token is the credit.
        epochs: passes over the samples of a step.
        updates: optimizer steps a pass; each takes its share of the responses.
        extra_rounds: dynamic sampling: so many times more problems are drawn for a step, until
            there are `problems` whose responses differ in reward; 0: no group is left out.
        overlong: the last tokens before `max_new_tokens` over which the reward falls linearly by
            up to 1; 0: none.
        learning_rate: of AdamW.
        warmup: steps over which the learning rate rises to it, linearly.
        beta_1: of AdamW, for the mean.
        beta_2: of AdamW, for the squares.
        weight_decay: of AdamW.
        max_norm: gradients longer than this are shortened to it; inf: none is.
        tokens_per_row: tokens (padding included) in one forward and backward pass; decides memory
            and time, and the result up to rounding.
        checkpointing: gradient checkpointing: an update keeps only what enters each layer, and
            makes the rest once more in the backward pass (`models.recomputing`).
        evaluate_every: steps between evaluations; 0: none. The first is before the first step.
        evaluation_group: responses to each held-out problem.
        checkpoint_every: steps between checkpoints; 0: the last one only.
    """

    steps: int = 40
    problems: int = 8
    group: int = 4
    max_new_tokens: int = 160
    temperature: float = 1.0
    seed: int = 0
    rule: str = "uniform"
    settings: Mapping[str, Any] = field(default_factory=dict)
    frames: int = 1
    wordings: int = 1
    advantage: str = "group_std"
    eps: float = EPS
    ddof: int = DDOF
    objective: Objective = field(default_factory=Objective)
    distillation: Distillation | None = None
    epochs: int = 1
    updates: int = 1
    extra_rounds: int = 0
    overlong: int = 0
    learning_rate: float = 3e-4
    warmup: int = 0
    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0
    max_norm: float = math.inf
    tokens_per_row: int = 2048
    checkpointing: bool = False
    evaluate_every: int = 10
    evaluation_group: int = 1
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            SchemaError: a number is out of range, or a name unknown.
        """
        for name in ("problems", "frames", "wordings", "epochs", "updates", "evaluation_group"):
            require_range(name, getattr(self, name), 1, 2**31)
        for name in ("steps", "extra_rounds", "warmup", "evaluate_every", "checkpoint_every"):
            require_range(name, getattr(self, name), 0, 2**31)
        # A group of one has no advantage.
        require_range("group", self.group, 2, 2**31)
        require_range("updates", self.updates, 1, self.problems * self.group)
        require_range("max_new_tokens", self.max_new_tokens, 1, 2**31)
        require_range("overlong", self.overlong, 0, self.max_new_tokens)
        require_range("tokens_per_row", self.tokens_per_row, 1, 2**31)
        require_range("seed", self.seed, 0, 2**62)
        require_range("temperature", self.temperature, 1e-6, 1e6)
        require_range("learning_rate", self.learning_rate, 0.0, 1e3)
        require_range("beta_1", self.beta_1, 0.0, 1.0 - 1e-12)
        require_range("beta_2", self.beta_2, 0.0, 1.0 - 1e-12)
        require_range("weight_decay", self.weight_decay, 0.0, 1e3)
        require_range("max_norm", self.max_norm, 1e-12, math.inf)
        require_range("eps", self.eps, 0.0, 1e3)
        require_range("ddof", self.ddof, 0, 1)
        require_member("advantage", self.advantage, ADVANTAGES)
        require_member("rule", self.rule, CATALOGUE)
        adjusted(CATALOGUE[self.rule], **self.settings)
        if self.distillation is not None:
            require_member("rule of a distillation", self.rule, DISTILLED)

    def credit(self) -> Credit:
        """The rule under its settings."""
        return adjusted(CATALOGUE[self.rule], **self.settings)

    def as_json(self) -> dict[str, Any]:
        """Plain values; infinity, which JSON lacks, as text."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "TrainConfig":
        """Inverse of `as_json`.

        Raises:
            SchemaError: a field is unknown or its value not allowed.
        """
        _require_fields(cls, found)
        values = {name: _parsed(value) for name, value in found.items()}
        for name, inner in (("objective", Objective), ("distillation", Distillation)):
            if values.get(name) is not None:
                _require_fields(inner, found[name])
                values[name] = inner(**{n: _parsed(value) for n, value in found[name].items()})
        return cls(**values)

    def differences(self, other: "TrainConfig") -> list[str]:
        """Fields that forbid one run to go on as the other, as `name: this -> other`."""
        mine, theirs = self.as_json(), other.as_json()
        return [
            f"{name}: {mine[name]} -> {theirs[name]}"
            for name in mine
            if name not in FREE_ON_RESUME and mine[name] != theirs[name]
        ]


def read_config(path: Path) -> TrainConfig:
    """The settings of a JSON file, as `TrainConfig.as_json` has them; what it lacks is default.

    Args:
        path: of the file.

    Raises:
        InputError: it cannot be read, or holds no JSON object.
        SchemaError: a field is unknown or its value not allowed.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as cause:
        raise InputError(
            f"a JSON file of settings is needed; {path} cannot be read: {cause}. Write it as "
            "`TrainConfig.as_json` has it."
        ) from cause
    if not isinstance(found, dict):
        raise InputError(
            f"a JSON object of settings is needed; {path} holds {type(found).__name__}. Write it "
            "as `TrainConfig.as_json` has it."
        )
    return TrainConfig.from_json(found)


def _plain(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return "inf" if value == math.inf else value


def _parsed(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    return math.inf if value == "inf" else value


def _require_fields(cls: type, found: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(cls)]
    if unknown := sorted(set(found) - set(known)):
        raise SchemaError(
            f"a {cls.__name__} needs fields of {known}; {unknown} came. Leave them out."
        )
