"""The prompts of a store's problems under conditions, and which rollouts may be compared.

Reads  the `/rollouts` node, a policy's tokenizer, conditions.
Gives  Problems (the node, taken apart); `prompts` of one problem, rendered when asked for and never
       kept; Survey: verdicts, inserted tokens and sizes of a whole probe, without a model.

Source: own work. Ids are joined, never strings (EleutherAI/lm-evaluation-harness#1053).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Int8, Int32, Int64

from tokensense.errors import ConditionError, PolicyError, StoreError
from tokensense.probes.answers import wrong_answer
from tokensense.probes.comparability import UNSCORED, Limits, Prompt, Response, verdicts
from tokensense.probes.conditions import BASE_CONDITION, Condition, insert_text
from tokensense.rollouts.table import response_texts, text_of
from tokensense.rollouts.trajectory import Encoder
from tokensense.schema import NO_TEXT
from tokensense.segments import offsets

Ids = tuple[int, ...]


class Problems(NamedTuple):
    """The problems of a store that have rollouts, in the order of their rollouts.

    Attributes:
        names: problem ids in the source.
        questions: as given.
        answers: the reference answers, None where none is known.
        wrong_answers: see `answers.wrong_answer`; None where there is none.
        solutions: reference solutions, None where none is known.
        siblings: the first two right and wrong responses of each problem, as {right_1} ... stand
            for them in a text; what is not there is left out.
        bases: ids of the base prompts.
        groups: the rollouts [start, end) of each problem.
        responses: token ids of every rollout of the store.
        texts: text of every rollout of the store, without the special tokens that end it: shown
            to a policy, they would end the turn that shows it.
    """

    names: list[str]
    questions: list[str]
    answers: list[str | None]
    wrong_answers: list[str | None]
    solutions: list[str | None]
    siblings: list[dict[str, str]]
    bases: list[Ids]
    groups: list[tuple[int, int]]
    responses: list[Ids]
    texts: list[str]


class Survey(NamedTuple):
    """A probe before it is scored.

    Attributes:
        comparability: values of `schema.Comparability`.
        inserted: prompt tokens beyond the base prompt's; 0 where not applicable.
        scored: tokens that will be scored for each rollout, all conditions together.
        longest: tokens that the policy is fed of the longest branch of each rollout, prompt
            included; 0 where nothing is scored.
    """

    comparability: Int8[np.ndarray, "condition rollout"]
    inserted: Int32[np.ndarray, "condition rollout"]
    scored: Int64[np.ndarray, " rollout"]
    longest: Int64[np.ndarray, " rollout"]


def read_problems(rollouts: xr.Dataset, encoder: Encoder) -> Problems:
    """Take the `/rollouts` node apart.

    Args:
        rollouts: the node.
        encoder: the policy that will score.

    Returns:
        Its problems; those without a rollout are left out.

    Raises:
        StoreError: ids or prompts of the store are not this policy's: another tokenizer or another
            chat template made them.
    """
    stored = rollouts.attrs.get("tokenizer_digest")
    if stored != encoder.tokenizer_digest:
        raise StoreError(
            f"a policy with the store's tokenizer is needed; the store's ids are by "
            f"{rollouts.attrs.get('tokenizer')!r} (digest {str(stored)[:12]}), "
            f"`{encoder.name}` has digest {encoder.tokenizer_digest[:12]}. Import the traces again "
            "with this policy, or score with the other."
        )
    names, questions, answers = (
        text_of(rollouts, name) for name in ("problem_name", "question", "answer")
    )
    known = np.asarray(rollouts["answer"]) != NO_TEXT
    # Stores from before it came do not have it.
    has = "solution" in rollouts
    solutions = text_of(rollouts, "solution") if has else questions
    solved = np.asarray(rollouts["solution"]) != NO_TEXT if has else np.zeros(len(questions), bool)
    responses = _split(rollouts, "token_id", "length")
    texts = [
        _spoken(raw, ids, encoder)
        for raw, ids in zip(response_texts(rollouts), responses, strict=True)
    ]
    reward = np.asarray(rollouts["reward"])
    found = Problems([], [], [], [], [], [], [], [], responses, texts)
    prompts = _split(rollouts, "prompt_id", "prompt_length")
    for problem, start, end in _groups(np.asarray(rollouts["problem_of"])):
        if prompts[problem] != tuple(encoder.render(questions[problem])):
            raise StoreError(
                f"the store's base prompts need to be those that `{encoder.name}` renders; they "
                f"differ for problem {names[problem]!r}. Its chat template has changed: import the "
                "traces again, or load the policy that they were imported with."
            )
        answer = answers[problem] if known[problem] and answers[problem].strip() else None
        wrong, siblings = of_group(answer, texts[start:end], reward[start:end], encoder=encoder)
        found.names.append(names[problem])
        found.questions.append(questions[problem])
        found.answers.append(answer)
        found.wrong_answers.append(wrong)
        found.solutions.append(solutions[problem] if solved[problem] else None)
        found.siblings.append(siblings)
        found.bases.append(prompts[problem])
        found.groups.append((start, end))
    return found


def of_group(
    answer: str | None,
    texts: Sequence[str],
    reward: Float[np.ndarray, " rollout"],
    *,
    encoder: Encoder,
) -> tuple[str | None, dict[str, str]]:
    """What the responses to one problem give to be shown: a wrong answer, and siblings.

    Args:
        answer: the reference answer, None where none is known.
        texts: of the responses.
        reward: of each; 1 right, 0 wrong, all else is not shown.
        encoder: counts tokens.

    Returns:
        `wrong_answers` and `siblings` of `Problems`, of this problem.
    """
    sides = {
        side: [text for text, own in zip(texts, reward, strict=True) if own == wanted]
        for side, wanted in (("right", 1), ("wrong", 0))
    }
    other = None if answer is None else wrong_answer(answer, sides["wrong"], encoder=encoder)
    return other, {**_numbered("right", sides["right"]), **_numbered("wrong", sides["wrong"])}


def prompts(
    problems: Problems, index: int, conditions: Sequence[Condition], *, encoder: Encoder
) -> list[Prompt]:
    """Prompts of one problem.

    Args:
        problems: see `read_problems`.
        index: which of them.
        conditions: of a probe, or the base.
        encoder: renders.

    Returns:
        One a condition, in their order; without ids where the condition needs what is not known.

    Raises:
        ConditionError: the policy's template cannot take the text; problem and condition are named.
    """
    found = []
    known = {
        "question": problems.questions[index],
        "answer": problems.answers[index],
        "wrong_answer": problems.wrong_answers[index],
        "solution": problems.solutions[index],
        **problems.siblings[index],
    }
    for condition in conditions:
        text = insert_text(condition, known)
        if condition == BASE_CONDITION:
            ids: Iterable[int] = problems.bases[index]
        elif text is None or not text.strip():
            ids = ()
        else:
            try:
                ids = encoder.render(
                    problems.questions[index], insert=text, placement=condition.placement
                )
            except PolicyError as cause:
                raise ConditionError(
                    f"condition `{condition.name}` needs a prompt for problem "
                    f"{problems.names[index]!r}; the policy refuses: {cause}"
                ) from cause
        found.append(Prompt(condition, text or "", tuple(ids)))
    return found


def survey(
    problems: Problems, conditions: Sequence[Condition], *, encoder: Encoder, limits: Limits
) -> Survey:
    """Compare every prompt of a probe with its base; nothing is scored.

    Args:
        problems: see `read_problems`.
        conditions: of one probe: pairs are found among them.
        encoder: renders.
        limits: see `comparability.limits`.

    Raises:
        ConditionError: see `prompts`.
    """
    shape = (len(conditions), len(problems.responses))
    comparability, inserted = np.zeros(shape, np.int8), np.zeros(shape, np.int32)
    lengths = np.array([len(ids) for ids in problems.responses], np.int64)
    prompt_lengths = np.zeros(shape, np.int64)
    for index, (start, end) in enumerate(problems.groups):
        base = problems.bases[index]
        asked = prompts(problems, index, conditions, encoder=encoder)
        group = [Response(problems.texts[i], int(lengths[i])) for i in range(start, end)]
        comparability[:, start:end] = verdicts(base, asked, group, limits=limits)
        added = [len(prompt.ids) - len(base) if prompt.ids else 0 for prompt in asked]
        inserted[:, start:end] = np.array(added, np.int32)[:, None]
        prompt_lengths[:, start:end] = len(base) + inserted[:, start:end]
    scorable = ~np.isin(comparability, UNSCORED) & (lengths > 0)
    longest = np.where(scorable, prompt_lengths + lengths - 1, 0).max(axis=0)
    return Survey(comparability, inserted, scorable.sum(axis=0) * lengths, longest)


def _spoken(raw: bytes, ids: Ids, encoder: Encoder) -> str:
    """Text of a response, its bytes less those of the special tokens at the end."""
    for token in reversed(ids):
        if encoder.plain_text([token]):
            break
        raw = raw[: len(raw) - len(encoder.token_bytes(token))]
    return raw.decode("utf-8", "replace")


def _numbered(side: str, texts: Sequence[str]) -> dict[str, str]:
    """The first two different texts: right_1, right_2."""
    different = [text for text in dict.fromkeys(texts) if text.strip()]
    return {f"{side}_{number}": text for number, text in enumerate(different[:2], start=1)}


def _split(rollouts: xr.Dataset, ids: str, lengths: str) -> list[Ids]:
    """A flat array of ids, one tuple a row of its lengths."""
    bound = offsets(np.asarray(rollouts[lengths])).tolist()
    flat = np.asarray(rollouts[ids]).tolist()
    return [tuple(flat[a:b]) for a, b in pairwise(bound)]


def _groups(problem_of: np.ndarray) -> list[tuple[int, int, int]]:
    """(problem, first rollout, end) of each run of rollouts of one problem."""
    edges = np.flatnonzero(np.diff(problem_of)) + 1
    bounds = [0, *edges.tolist(), len(problem_of)]
    return [(int(problem_of[a]), a, b) for a, b in pairwise(bounds) if b > a]
