"""What a span of a response does for the tokens behind it: they are scored again without it.

Reads  a Policy, responses, spans of their tokens.
Gives  ablate: by how much the log-probability of later tokens falls.
Sign   drop = log p(later | with the span) - log p(later | without it), nats, summed over the tokens
       asked for; positive: the span made them likelier.

The span's ids are taken out, or one filler id stands in each of their places. A filler keeps the
positions of what follows, but a row of padding is nothing that a policy ever read (cscr.md 2.9);
both are offered, none is preferred.

Cost: one forward pass over the later tokens a span; what comes before is shared.

Source: span drop of "Beyond Uniform Credit" (cscr.md 2.9), OAR-P (2.8: every token a span).
    Departure: their answer-score loop leaves the first answer token out, and counts padding behind
    the end; here exactly the tokens asked for are scored.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from tokensense.errors import SchemaError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import score


class Span(NamedTuple):
    """Tokens to take out of a response, and the later ones that are scored.

    Attributes:
        rollout: place of the response.
        start: first token taken out.
        end: one behind the last.
        answer_start: first token that is scored, at `end` or behind it.
        answer_end: one behind the last.
    """

    rollout: int
    start: int
    end: int
    answer_start: int
    answer_end: int


def ablate(
    policy: Policy,
    rollouts: Sequence[Branch],
    spans: Sequence[Span],
    *,
    filler: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Float64[np.ndarray, " span"]:
    """Drop of each span.

    Args:
        policy: scores.
        rollouts: prompts and responses as ids.
        spans: in any order.
        filler: id that stands in the place of each token taken out; None takes them out.
        progress: called with the tokens scored since the last call.

    Returns:
        Drops, nats.

    Raises:
        SchemaError: a span or its answer lies outside the response, or the answer begins in it.
        PolicyError: see `scorer.score`.
    """
    branches = []
    for place, span in enumerate(spans):
        context, response = rollouts[span.rollout]
        if not 0 <= span.start <= span.end <= span.answer_start <= span.answer_end <= len(response):
            raise SchemaError(
                f"a span needs 0 <= start <= end <= answer_start <= answer_end <= "
                f"{len(response)}, its response's length; span {place} is {tuple(span)}."
            )
        before, inside = response[: span.start], response[span.start : span.end]
        left = () if filler is None else (filler,) * len(inside)
        between = response[span.end : span.answer_start]
        answer = tuple(response[span.answer_start : span.answer_end])
        for kept in (inside, left):
            branches.append(Branch((*context, *before, *kept, *between), answer))
    sums = [
        scores.logp.sum(dtype=np.float64) for scores in score(policy, branches, progress=progress)
    ]
    found: np.ndarray = np.array(sums[::2]) - np.array(sums[1::2])
    return found
