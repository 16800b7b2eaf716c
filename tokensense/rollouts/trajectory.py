"""Responses as they came, and the one Dataset that freezes them.

Reads  `Imported` (problems and traces) and an `Encoder` (what is needed of a policy's tokenizer).
Gives  the `/rollouts` node as `schema.ROLLOUTS` says: flat token arrays, `length` beside them.
Source own work; ids are the truth and text is for show, as the pitfalls of re-tokenized traces ask.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

from tokensense.schema import NO_STEP, Finish, Label
from tokensense.tasks.problem import Problem


class Encoder(Protocol):
    """What tokens and prompts need of a policy; `models.policy.Policy` satisfies it.

    Ids are those of the policy. No method adds a special token, save `render`, whose chat template
    does.
    """

    @property
    def name(self) -> str:
        """Name of the policy, as shown to people."""
        ...

    @property
    def tokenizer_digest(self) -> str:
        """Digest of the tokenizer: equal digests, equal ids."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens that prompt and response may have together."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, no special tokens added."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token stands for; a special token's bytes are its text."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` and the characters [start, end) that each stands for."""
        ...

    def render(self, question: str, *, insert: str = "", placement: str = "user_end") -> list[int]:
        """Prompt ids up to and including the generation prompt; an empty `insert` is the base."""
        ...


@dataclass(frozen=True)
class Trace:
    """One response as it came, before it has tokens.

    Attributes:
        problem: `Problem.name` of the problem that it answers.
        name: id of the rollout in its source.
        text: the response; may be empty.
        ids: the sampler's own ids where the source has them, else None.
        reward: 1 right, 0 wrong, NaN undecided or unknown.
        generator: name of the model that wrote it.
        finish: why it ended.
        label: what is known about wrong steps.
        wrong_step: index of the first wrong step, -1 if none or not known.
        steps: characters [start, end) of each step in `text`, in order and without overlap.
    """

    problem: str
    name: str
    text: str
    ids: tuple[int, ...] | None = None
    reward: float = math.nan
    generator: str = ""
    finish: Finish = Finish.UNKNOWN
    label: Label = Label.UNLABELED
    wrong_step: int = NO_STEP
    steps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Imported:
    """What a reader made of a file.

    Attributes:
        problems: in the order of the file.
        traces: in the order of the file.
        set_aside: reason -> how many traces were left out for it.
        refused: one message a line that could not be read: "file:line: what was needed, what came".
    """

    problems: list[Problem]
    traces: list[Trace]
    set_aside: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
