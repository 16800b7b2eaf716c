"""Conditions that show something of the problem: an answer, a sibling's response, a wrong request.

Reads  the sentences of `bank`; an Encoder is asked whether it reads English.
Gives  builders of conditions: answer, sibling, reference, negative_prompt.
Sign   level `pos` shows what is right or asks for it, `neg` what is wrong.

`sibling` shows another response of the same group. A rollout is never shown itself: each side has
two conditions, which show the first and the second right (wrong) response of the group, and
comparability bars a rollout from the one that shows its own text. Siblings differ in length, so
the sides of that pair are exempt from the rule of equal token count: its contrast is about two
texts, not about one word.

Source: cscr.md 5.6 (answers as positive control), 2 (OPSD: the reference solution in the prompt;
    RLCSD: a right and a wrong sibling, self excluded); gcpo_and_optimal_weights.md 1 (GCPO: "wrong
    answer" is the best negative prompt). Departures: at most two siblings a side, where RLCSD
    averages up to four; `negative_prompt` has a twin that asks for a right answer, so that the
    request itself can be told from the word.
"""

from tokensense.probes import bank
from tokensense.probes.conditions import Condition, Count
from tokensense.probes.wordings import filled, first_frames, require_english
from tokensense.rollouts.trajectory import Encoder
from tokensense.schema import NEGATIVE, NO_LEVEL, POSITIVE

SIBLING = "sibling"
PLACES = ("1", "2")  # of the group's right, or wrong, responses


def answer(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """The right final answer given, or a wrong one: the control that should carry answer signal.

    Args:
        encoder: asked whether it reads English; token counts are checked for each problem.
        frames: sentences, 1 to 6.
        families: not used.
        wordings: not used.

    Returns:
        Conditions frame by frame, `pos` (right answer) before `neg`.

    Raises:
        ConditionError: more frames than there are, or the policy does not read English.
    """
    del families, wordings
    require_english(encoder, "answer")
    return tuple(
        Condition(
            f"answer_given_{frame}_{level}",
            filled(text, {"answer": placeholder}),
            "answer",
            level,
            frame,
            "given",
        )
        for frame, text in first_frames(bank.ANSWER_FRAMES, frames).items()
        for level, placeholder in ((POSITIVE, "{answer}"), (NEGATIVE, "{wrong_answer}"))
    )


def sibling(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """A right response of the same group shown, or a wrong one; never the rollout's own.

    Args:
        encoder: asked whether it reads English.
        frames: not used: there is one sentence.
        families: not used.
        wordings: not used.

    Returns:
        Four conditions: the first right and wrong response of the group, then the second ones.
        Not applicable where the group has none.

    Raises:
        ConditionError: the policy does not read English.
    """
    del frames, families, wordings
    require_english(encoder, "sibling")
    return tuple(
        Condition(
            f"sibling_{place}_{level}",
            filled(bank.SIBLING_TEXT, {"sibling": f"{{{side}_{place}}}"}),
            SIBLING,
            level,
            place,
            "shown",
        )
        for place in PLACES
        for level, side in ((POSITIVE, "right"), (NEGATIVE, "wrong"))
    )


def reference(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """The problem's reference solution shown: the privileged context of self-distillation (OPSD).

    Args:
        encoder: asked whether it reads English.
        frames: not used: there is one sentence.
        families: not used.
        wordings: not used.

    Returns:
        One condition, of level `none`; not applicable where no solution is known.

    Raises:
        ConditionError: the policy does not read English.
    """
    del frames, families, wordings
    require_english(encoder, "reference")
    return (
        Condition("reference", bank.REFERENCE_TEXT, "reference", NO_LEVEL, "shown", "solution"),
    )


def negative_prompt(
    encoder: Encoder, *, frames: Count = None, families: Count = None, wordings: int = 1
) -> tuple[Condition, ...]:
    """The problem with the request to answer it wrongly, beside one to answer it rightly.

    Args:
        encoder: asked whether it reads English.
        frames: sentences, 1 to 6.
        families: not used.
        wordings: not used.

    Returns:
        Conditions frame by frame, `pos` (a right answer is asked for) before `neg`.

    Raises:
        ConditionError: more frames than there are, or the policy does not read English.
    """
    del families, wordings
    require_english(encoder, "negative_prompt")
    return tuple(
        Condition(
            f"negative_prompt_{frame}_{level}",
            filled(text, {"word": word}),
            "negative_prompt",
            level,
            frame,
            "asked",
        )
        for frame, text in first_frames(bank.REQUEST_FRAMES, frames).items()
        for level, word in ((POSITIVE, "right"), (NEGATIVE, "wrong"))
    )
