"""Evidence from what a policy is told beside a response, and from other policies.

Reads  Setting, as `all_evidence`.
Gives  TOLD, OTHERS: name -> function of a Setting, which gives arrays over its tokens; NaN where a
       response has none (no sibling, no answer, no solution).
Sign   as in `credit.evidence`.

What tiny policies are told stands in their own words: an answer as `answer 3 5`, the request for a
wrong answer as `grade bad`, a rubric as `check right wrong`, solutions and siblings as an example
before the question. They were taught none of it but the verdicts. A model of language is told the
first sentence of each probe of `probes.shown`, and RUBRIC_TEXT. The teacher of a tiny policy is
another one, its reference policy the one taught with tags that tell nothing; a model of language
has both in another checkpoint of its own, where one is given.
"""

from collections.abc import Sequence

import numpy as np

from studies.all_evidence import Found, Ids, Setting, Supply, base, logps
from tokensense.probes import bank
from tokensense.probes.proxies import head_view
from tokensense.tasks import arithmetic

RUBRIC_TEXT = (
    "A good solution reads every quantity of the problem rightly, calculates every line without an "
    "error, uses only what was given or found, and states the number asked for at the end."
)
SIBLINGS = 2  # a side, as the probe `sibling`


def told(setting: Setting, name: str, texts: Sequence[str | None]) -> Found:
    """Shift under a text behind the question, one a response; NaN where there is none."""
    render = setting.policy.render
    asked = list(zip(setting.questions, texts, strict=True))
    rendered = {pair: render(pair[0], insert=pair[1]) for pair in dict.fromkeys(asked) if pair[1]}
    contexts = [rendered.get(pair) for pair in asked]
    return {name: logps(setting.policy, setting, contexts) - setting.arrays["logp"]}


def sentence(setting: Setting, *, name: str, text: str) -> Found:
    """Shift under one sentence."""
    return told(setting, name, [text] * len(setting.questions))


def last_number(question: str) -> int:
    """Right answer of a question of the arithmetic."""
    return arithmetic.solve(arithmetic.parse(question))[-1].result


def said(number: int) -> str:
    """An answer in the words of the task."""
    return f"answer {' '.join(arithmetic.NUMBERS[number])}"


def answers(setting: Setting) -> Found:
    """The right and a wrong final answer given."""
    if not setting.tiny:
        form, known = bank.ANSWER_FRAMES["final"], setting.known
        given = [_filled(form, "answer", own.get("answer")) for own in known]
        other = [_filled(form, "answer", own.get("wrong_answer")) for own in known]
        return told(setting, "answer_pos", given) | told(setting, "answer_neg", other)
    right = [last_number(question) for question in setting.questions]
    wrong = [n + 10 if n + 10 <= arithmetic.LARGEST else n - 10 for n in right]
    found = told(setting, "answer_pos", [said(number) for number in right])
    return found | told(setting, "answer_neg", [said(number) for number in wrong])


def _filled(form: str, name: str, text: str | None) -> str | None:
    return None if text is None else form.replace(f"{{{name}}}", text)


def shown(setting: Setting, rollout: int, text: Ids) -> Ids:
    """A response of somebody else before the response."""
    if setting.tiny:
        prompt = list(setting.branches[rollout].context)
        return [*prompt, *text, *prompt]
    told = setting.policy.plain_text(text)
    return setting.policy.render(
        setting.questions[rollout], insert=bank.SIBLING_TEXT.replace("{sibling}", told)
    )


def siblings(setting: Setting) -> Found:
    """Log-mean of exp(shift) over up to two right, and two wrong, siblings."""
    found = {}
    group, reward = setting.arrays["group"], setting.arrays["reward"]
    for name, side in (("sibling_pos", 1), ("sibling_neg", 0)):
        shifts = []
        for place in range(SIBLINGS):
            contexts: list[Ids | None] = []
            for rollout, branch in enumerate(setting.branches):
                same = np.flatnonzero((group == group[rollout]) & (reward == side))
                texts = dict.fromkeys(setting.branches[i].response for i in same)
                texts.pop(branch.response, None)
                chosen = list(texts)[place : place + 1]
                contexts.append(shown(setting, rollout, list(chosen[0])) if chosen else None)
            shifts.append(logps(setting.policy, setting, contexts) - setting.arrays["logp"])
        together = np.stack(shifts)
        count = np.isfinite(together).sum(axis=0)
        total = np.logaddexp.reduce(np.where(np.isfinite(together), together, -np.inf), axis=0)
        found[name] = np.where(count > 0, total - np.log(np.maximum(count, 1)), np.nan)
    return found


def reference(setting: Setting) -> Found:
    """The right solution shown; to a tiny policy in fixed words."""
    if not setting.tiny:
        form = bank.REFERENCE_TEXT
        texts = [_filled(form, "solution", known.get("solution")) for known in setting.known]
        return told(setting, "reference", texts)
    contexts: list[Ids | None] = []
    for rollout, question in enumerate(setting.questions):
        words = []
        for step in arithmetic.solve(arithmetic.parse(question)):
            numbers = (
                " ".join(arithmetic.NUMBERS[n]) for n in (step.left, step.right, step.result)
            )
            left, right, result = numbers
            words.append(f"then {left} {step.operator} {right} = {result} ;")
        text = f"{' '.join(words)} {said(last_number(question))} {arithmetic.END}"
        contexts.append(shown(setting, rollout, setting.policy.encode(text)))
    return {"reference": logps(setting.policy, setting, contexts) - setting.arrays["logp"]}


def teacher(setting: Setting) -> Found:
    """Another policy's log p against ours."""
    told = base(setting, policy=setting.others["teacher"])["again"]
    return {"teacher": told - setting.arrays["logp"]}


def teacher_verdicts(setting: Setting) -> Found:
    """The teacher's own shifts under verdicts."""
    policy = setting.others["teacher"]
    plain = base(setting, policy=policy)["again"]
    own = bank.BANKS[setting.policy.wordings]
    frame = next(iter(own.frames.values()))
    found = {}
    # Both have the same tokens: contexts are those of the own policy.
    for side, word in zip(("pos", "neg"), own.verdicts[0], strict=True):
        render = setting.policy.render
        contexts: list[Ids | None] = [
            render(question, insert=frame.replace("{word}", word)) for question in setting.questions
        ]
        found[f"teacher_{side}"] = logps(policy, setting, contexts) - plain
    return found


def drift(setting: Setting) -> Found:
    """Against the reference policy: log p, and whole distributions, a response at a time."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for branch in setting.branches:
        ours, theirs = (
            head_view(policy, [branch], residual=True)
            for policy in (setting.policy, setting.others["reference"])
        )
        # The residual is onehot - p.
        first, second = (-view.residual for view in (ours, theirs))
        for p in (first, second):
            p[np.arange(len(p)), list(branch.response)] += 1
        both = np.sqrt(np.maximum(first, 0) * np.maximum(second, 0))
        overlap = both.sum(axis=1, dtype=np.float64)
        found.append((ours.logp.astype(np.float64) - theirs.logp, np.clip(1 - overlap, 0.0, 1.0)))
    change, distance = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return {"drift": change, "hellinger": distance}


def requests(setting: Setting) -> Found:
    """A wrong answer asked for."""
    text = "grade bad" if setting.tiny else bank.REQUEST_FRAMES["give"].replace("{word}", "wrong")
    return sentence(setting, name="negative_prompt", text=text)


def rubric(setting: Setting) -> Found:
    """What a good solution is."""
    text = "check right wrong" if setting.tiny else RUBRIC_TEXT
    return sentence(setting, name="rubric", text=text)


TOLD: dict[str, Supply] = {
    "answer": answers,
    "sibling": siblings,
    "negative_prompt": requests,
    "reference": reference,
}
RUBRIC: dict[str, Supply] = {"rubric": rubric}
OTHERS: dict[str, Supply] = {
    "teacher": teacher,
    "teacher_verdicts": teacher_verdicts,
    "drift": drift,
}
