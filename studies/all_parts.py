"""Stores with all evidence that can be had for them, for `studies.all_rules`.

Reads  a tiny policy by its name, or a store of imported solutions with its policy.
Gives  Config; Part: responses, evidence by name, what is missing and why, what each array cost.

Evidence of a store's probes is read by `gathering`; the rest comes from `studies.all_told` and
`studies.all_evidence`, each supplier's arrays in a file with the seconds that they took. Where a
store knows no steps, lines are the steps.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

import tokensense as ts
from studies import all_evidence, all_told
from studies.all_evidence import Setting, Supply
from tokensense.credit.advantages import group_std
from tokensense.credit.evidence import SUPPLIERS
from tokensense.errors import StatisticsError, TokensenseError
from tokensense.gathering import gather
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.probes.contexts import Problems, read_problems
from tokensense.segments import broadcast
from tokensense.stats.sample import read_sample

GSM8K = "gsm8k"
TEACHERS = {"truthful": "tiny:mixed", "style": "tiny:truthful", "mixed": "tiny:truthful"}
# What may be in a store -> an evidence to ask for, and the probe that supplies it.
STORED = {
    "opposed": ("z_pos", "z_neg"),
    "placebo": ("placebo_pos", "placebo_neg"),
    "answer": ("answer_pos", "answer_neg"),
    "sibling": ("sibling_pos", "sibling_neg"),
    "negative_prompt": ("negative_prompt",),
    "reference": ("reference",),
    "planted": ("planted",),
}
NO_OTHER = "needs another policy with this tokenizer: --other"
WHY_NOT = {
    **dict.fromkeys(("teacher", "teacher_pos", "teacher_neg", "drift", "hellinger"), NO_OTHER),
}


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        problems: of a tiny part.
        group: responses a problem.
        frames: first words of the tags.
        headed: problems of a model of language for which its head is read (a pass each for the
            proxies of DelTA and the influences of NTHR).
        told: problems of a model of language for which it is told what the store's probes did not
            tell it: a pass a text.
        costly: problems for which costly evidence is gathered.
        resamples: of problems.
        seed: of problems and samples.
    """

    problems: int = 125
    group: int = 8
    frames: int = 3
    headed: int = 200
    told: int = 10
    costly: int = 10
    resamples: int = 2_000
    seed: int = 0


TINY = Config(problems=8, group=4, frames=1, costly=2, resamples=200)


class Part(NamedTuple):
    """A store with all evidence that could be had.

    tokens: of the store, in the order of its rollouts. evidence: name -> array. missing: name ->
    why. cost: name -> seconds of a response token, passes.
    """

    name: str
    setting: Setting
    tokens: xr.Dataset
    evidence: dict[str, np.ndarray]
    missing: dict[str, str]
    cost: dict[str, tuple[float, float]]


def tiny_study(name: str, config: Config, *, work: Path) -> tuple[ts.Study, Policy]:
    """The policy's own responses, told verdicts and placebos."""
    policy = load_policy(f"tiny:{name}")
    study = ts.Study(work / f"{name}_{config.problems}.zarr")
    sizes = {"group": config.group, "max_new_tokens": 96, "seed": config.seed}
    study.generate(policy, config.problems, task="arithmetic", progress=False, **sizes)
    asked = ("opposed", "placebo")
    study.probe(policy, asked, frames=config.frames, families=3, progress=False)
    return study, policy


def read_part(
    name: str,
    study: ts.Study,
    policy: Policy,
    *,
    solutions: Mapping[str, str] | None = None,
    other: Policy | None = None,
) -> Part:
    """What the store has.

    Args:
        name: of the part.
        study: its store.
        policy: that scored it.
        solutions: by question, where the store is of a time before it had them.
        other: another checkpoint with this tokenizer, as teacher and as reference policy.
    """
    rollouts, tokens = study.archive().rollouts(), study.tokens()
    sample = read_sample(tokens)
    tokens = tokens.isel(token=sample.order)
    sample = read_sample(tokens)
    found: dict[str, np.ndarray] = {}
    missing = dict(WHY_NOT)
    for probe, names in STORED.items():
        try:
            got = gather(tokens, sample, rollouts=rollouts, needed=frozenset(names))
        except StatisticsError as error:
            missing |= dict.fromkeys(names, str(error))
            continue
        arrays = got.arrays
        for each in names:
            usable = got.usable.get(each)
            if each in arrays and usable is not None:
                inside = broadcast(usable, arrays["length"])
                arrays[each] = np.where(inside, arrays[each], np.nan)
        found |= arrays
        missing |= {each: f"not in this store: {probe}" for each in names if each not in arrays}
    read = read_problems(rollouts, policy)
    owner = [i for i, (start, end) in enumerate(read.groups) for _ in range(start, end)]
    decided = np.isfinite(found["reward"])
    advantage = np.full(decided.size, np.nan)
    advantage[decided] = group_std(found["reward"][decided], found["group"][decided])
    found |= {"advantage": advantage, "kind": sample.kind}
    if (found["step"] < 0).all():
        found["step"] = lines(policy, read.responses)
    branches = [Branch(read.bases[o], r) for o, r in zip(owner, read.responses, strict=True)]
    others = {} if other is None else {"teacher": other, "reference": other}
    if name in TEACHERS:
        others = {"teacher": load_policy(TEACHERS[name]), "reference": load_policy("tiny:placebo")}
    questions = [read.questions[o] for o in owner]
    theirs = [known_of(read, o, solutions or {}) for o in range(len(read.questions))]
    known = [theirs[o] for o in owner]
    setting = Setting(policy, others, branches, questions, known, found, name in TEACHERS)
    kept = {k: v for k, v in found.items() if k in SUPPLIERS or k in ("length", "advantage")}
    return Part(name, setting, tokens, kept, missing, {})


def lines(policy: Policy, responses: list[tuple[int, ...]]) -> np.ndarray:
    """Index of the line that holds each token, as its step; a token with a line break ends one."""
    steps = []
    for response in responses:
        breaks = np.array([b"\n" in policy.token_bytes(i) for i in response], dtype=np.int64)
        steps.append(np.cumsum(breaks) - breaks)
    return np.concatenate(steps)


def known_of(read: Problems, problem: int, solutions: Mapping[str, str]) -> dict[str, str]:
    """What can be shown of a problem."""
    found = {
        "answer": read.answers[problem],
        "wrong_answer": read.wrong_answers[problem],
        "solution": read.solutions[problem] or solutions.get(read.questions[problem]),
    }
    return {name: text for name, text in found.items() if text is not None}


def first_problems(setting: Setting, count: int) -> np.ndarray:
    """Rollouts of the first problems in which right and wrong responses meet."""
    group, advantage = setting.arrays["group"], setting.arrays["advantage"]
    mixed = dict.fromkeys(group[np.abs(np.nan_to_num(advantage)) > 0].tolist())
    return np.flatnonzero(np.isin(group, list(mixed)[:count]))


def supplied(part: Part, config: Config, *, work: Path) -> Part:
    """The same with all evidence that is gathered by hand."""
    setting, every = part.setting, np.arange(part.setting.length.size)
    few = first_problems(setting, config.costly)
    headed = every if setting.tiny else first_problems(setting, config.headed)
    more: Mapping[str, Supply]
    plan: dict[str, tuple[Supply, np.ndarray]] = {
        name: (supply, headed) for name, supply in all_evidence.CHEAP.items()
    }
    if setting.tiny:
        more = all_told.TOLD | all_told.RUBRIC | all_told.OTHERS | all_evidence.LEARNED
        plan |= {name: (supply, every) for name, supply in more.items()}
        plan |= {name: (supply, few) for name, supply in all_evidence.COSTLY.items()}
    else:
        part.evidence["ratio"] = np.ones(int(setting.length.sum()))
        told = first_problems(setting, config.told)
        untold = (n for n in all_told.TOLD if any(e not in part.evidence for e in STORED[n]))
        plan |= {name: (all_told.TOLD[name], told) for name in untold}
        more = all_told.RUBRIC | (all_told.OTHERS if setting.others else {})
        plan |= {name: (supply, told) for name, supply in more.items()}
        costly = all_evidence.LEARNED | all_evidence.COSTLY
        asked = ("learning_value", "span_drop", "answer_kl", "answer_saliency")
        plan |= {name: (costly[name], few) for name in asked}
        part.missing["value_gain"] = "continuations of a model of language: hours; see the text"
    once = _kept("pass", all_evidence.base, setting.part(few), work=work)
    second = once["seconds"] / setting.part(few).length.sum()
    for name, (supply, rollouts) in plan.items():
        own = setting if rollouts is every else setting.part(rollouts)
        try:
            got = _kept(name, supply, own, work=work)
        except TokensenseError as error:
            part.missing.update(dict.fromkeys(_names_of(name), str(error)))
            continue
        seconds = float(got.pop("seconds")) / own.length.sum()
        for each, values in got.items():
            part.evidence[each] = _placed(values, setting, rollouts)
            part.cost[each] = (seconds / len(got), seconds / second / len(got))
            part.missing.pop(each, None)
    return part


def _kept(name: str, supply: Supply, setting: Setting, *, work: Path) -> dict[str, np.ndarray]:
    """Arrays of one supplier and its seconds, from a file where they are there."""
    path = work / f"{name}_{setting.length.size}.npz"
    if not path.exists():
        start = time.process_time()
        found = supply(setting)
        seconds = time.process_time() - start
        half = path.with_suffix(".part.npz")
        np.savez(half, seconds=np.array(seconds), **found)
        half.replace(path)
        print(f"{path.stem}  {seconds:.1f} s", flush=True)
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _names_of(supplier: str) -> tuple[str, ...]:
    """Evidence that a supplier would have given."""
    return {
        "gradients": ("row_gradient", "hidden_gradient"),
        "drift": ("drift", "hellinger"),
        "teacher_verdicts": ("teacher_pos", "teacher_neg"),
    }.get(supplier, STORED.get(supplier, (supplier,)))


def _placed(values: np.ndarray, setting: Setting, rollouts: np.ndarray) -> np.ndarray:
    """Values of some rollouts among those of all, NaN elsewhere."""
    if rollouts.size == setting.length.size:
        return values
    found = np.full((int(setting.length.sum()), *values.shape[1:]), np.nan)
    inside = broadcast(np.isin(np.arange(setting.length.size), rollouts), setting.length)
    found[inside] = values
    return found
