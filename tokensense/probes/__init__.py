"""Named sets of conditions, and scoring under them."""

from tokensense.probes.conditions import (
    Builder,
    neutral,
    opposed,
    outcome_tone,
    placebo,
    published,
)
from tokensense.probes.shown import answer, negative_prompt, reference, sibling

CATALOGUE: dict[str, Builder] = {
    "opposed": opposed,
    "placebo": placebo,
    "neutral": neutral,
    "published": published,
    "outcome_tone": outcome_tone,
    "answer": answer,
    "sibling": sibling,
    "reference": reference,
    "negative_prompt": negative_prompt,
}

__all__ = ["CATALOGUE"]
