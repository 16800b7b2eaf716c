"""What a trace must satisfy before it is frozen: each refusal names the rollout or the problem.

Reads  parts of a trace, and a phrase that says whose they are.
Gives  one check a part.

Source: own rules; the reasons are in the issue threads that `trajectory` names.
"""

from collections.abc import Sequence, Sized

from tokensense.errors import InputError
from tokensense.schema import NO_STEP, NO_TOKEN

LARGEST_ID = 2**31 - 1


def require_unicode(text: str, what: str) -> None:
    """Lone surrogates come in through JSON escapes and can be neither stored nor encoded.

    Raises:
        InputError: there is one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise InputError(
            f"{what} needs to be valid Unicode; it has a lone surrogate at character "
            f"{cause.start}. Repair or remove that character."
        ) from cause


def require_ids(ids: Sequence[int], what: str) -> None:
    """Refuse what int32 would wrap around: a wrapped id is another token, silently.

    Raises:
        InputError: an id is negative or too large.
    """
    for place, token in enumerate(ids):
        if not 0 <= token <= LARGEST_ID:
            raise InputError(
                f"{what} needs token ids of 0 to {LARGEST_ID}; token {place} has id {token}. "
                "Ids come from the sampler as they are, never from arrays of a narrower type."
            )


def require_steps(
    steps: Sequence[tuple[int, int]], wrong_step: int, *, size: int, what: str
) -> None:
    """Steps lie in the text of `size` characters, in order; the wrong one is one of them.

    Raises:
        InputError: they do not, or it is not.
    """
    last = 0
    for place, (start, end) in enumerate(steps):
        if not last <= start <= end <= size:
            raise InputError(
                f"{what} needs steps in order within its {size} characters; step "
                f"{place} is [{start}, {end}) after character {last}. Give [start, end) of each "
                "step in the text."
            )
        last = end
    if wrong_step < NO_STEP or (steps and wrong_step >= len(steps)):
        raise InputError(
            f"{what} needs a wrong step of -1 to {len(steps) - 1}; it has "
            f"{wrong_step}. Count steps from 0; -1 means none or not known."
        )


def require_one_a_token(name: str, given: Sized | None, *, count: int, what: str) -> None:
    """What a sampler or a generator says of tokens is said of each of them, and of no other.

    Raises:
        InputError: there are more or fewer entries than tokens.
    """
    if given is not None and len(given) != count:
        raise InputError(
            f"{what} needs one entry a token in `{name}`; it has {len(given)} for {count} tokens. "
            "Give them with the ids that they belong to, or leave them out."
        )


def require_wrong_token(wrong_token: int, *, count: int, what: str) -> None:
    """The wrong token is one of `count`, or -1.

    Raises:
        InputError: it is not.
    """
    if wrong_token != NO_TOKEN and not 0 <= wrong_token < count:
        raise InputError(
            f"{what} needs a wrong token of -1 to {count - 1}; it has {wrong_token}. Count "
            "tokens from 0; -1 means none or not known."
        )
