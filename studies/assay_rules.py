"""The rules of the credit assay, each with what it reads, for the trainer.

Gives  ARMS: name -> Arm; exact_gains, continued_gains, first_error: evidence that only a planted
       task can give; refusals: rules that a policy cannot be trained with, and why.
Sign   credit positive: the update makes the sampled token likelier.

CSCR takes its threshold from the batch, the 80th percentile of s, as in shared/notes/assay.md.
`placebo_*` is CSCR, or the contrast, of a pair of letters that tells nothing. `*_tags` are the
formulas of RLSD, CEPO and GCPO on the shifts of the verdict tags, since the policies of the table
task cannot be told an answer or a request; they are analogies, not the published rules. So is
`sibling_example`: the sibling stands as an example before the question, a form never taught.

`oracle_value` has the exact change of value by each token (rule dVx of the notes), with values of
the policy's own skills, read off its probabilities in right responses at every step anew.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from tokensense.credit import CATALOGUE
from tokensense.credit.base import Credit, adjusted, by_weight
from tokensense.credit.evidence import Evidence
from tokensense.credit.optimal import Optw
from tokensense.credit.shaping import mean_one
from tokensense.errors import TokensenseError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.sampler import sample
from tokensense.models.scorer import evaluation, score
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Kind
from tokensense.tasks import tables
from tokensense.tasks.problem import Problem
from tokensense.tasks.tables_labels import Slot, expected, follow, verify
from tokensense.tasks.tables_values import Form, Skills, oracle_credit
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.evidence import plan_evidence
from tokensense.trainer.problems import Measure

FACTS = tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))
CONTINUATIONS = 4  # of every prefix, for `vine`
LONGEST = 256  # tokens of a response; a longer one is wrong
VISITS = 2  # least look-ups of each fact, behind the skills


@dataclass(frozen=True)
class Arm:
    """A rule as it is trained with.

    Attributes:
        rule: gives credit.
        signed: it may turn the sign of the advantage; the others can only weigh.
        oracle: it knows what no training knows.
        told: its evidence that the trainer does not measure.
    """

    rule: Credit
    signed: bool = False
    oracle: bool = False
    told: Mapping[str, Measure] = field(default_factory=lambda: MappingProxyType({}))


# Evidence


class _Places(NamedTuple):
    """Right responses to problems that visit every fact, and what is looked at in them.

    ids: (text, token). row, column: places of the logits, one a slot. slot, table, digit, right:
    what comes there.
    """

    ids: torch.Tensor
    row: np.ndarray
    column: np.ndarray
    slot: list[str]
    table: np.ndarray
    digit: np.ndarray
    right: np.ndarray


@cache
def _places(lookups: int, chatty: bool) -> _Places:
    """The same for every policy: chains in a fixed order until each fact came often enough."""
    rng, visits = np.random.default_rng(0), np.zeros((tables.TABLES, tables.DIGITS), np.int64)
    regime = tables.Regime(lookups=lookups, filler_mean=5.0 if chatty else 0.0)
    texts, found = [], []
    while visits.min() < VISITS:
        (chain,) = tables.draw_chains(regime, count=1, generator=rng)
        prompt, response = tables.prompt(chain), _right(chain)
        states = follow(chain, response)[:-1]
        for place, state in enumerate(states):
            if state.slot == Slot.RESULT:
                visits[state.table, state.digit] += 1
            name = state.slot.name
            if state.slot == Slot.INDEX and state.step == lookups:
                name = "ANSWER"
            right = expected(state, chain, FACTS)
            column = len(prompt) - 1 + place
            found.append((len(texts), column, name, state.table, state.digit, right))
        texts.append((*prompt, *response))
    row, column, slot, table, digit, right = zip(*found, strict=True)
    arrays = (np.array(part) for part in (row, column, table, digit, right))
    first, second, *rest = arrays
    return _Places(torch.tensor(texts), first, second, list(slot), *rest)


def _right(chain: tables.Chain) -> tuple[int, ...]:
    """The right response, two fillers after each result where there are any."""
    found, digit = list[int](), chain.start
    for step, table in enumerate(chain.tables):
        result = int(FACTS.result[table, digit])
        operand, answer = tables.FIRST_DIGIT + digit, tables.FIRST_DIGIT + result
        found += [tables.FIRST_INDEX + step, tables.FIRST_TABLE + table, operand]
        found += [tables.EQUALS, answer]
        if chain.chatty:
            found += [tables.FIRST_FILLER + (2 * step + k) % len(tables.FILLERS) for k in (0, 1)]
        digit = result
    return (*found, tables.ANSWER, tables.FIRST_DIGIT + digit, tables.END)


def own_skills(policy: Policy, *, lookups: int, chatty: bool) -> Skills:
    """How a policy answers and keeps the form: its probabilities, given that it writes no filler.

    Args:
        policy: of the table task.
        lookups: steps of the problems.
        chatty: with fillers.
    """
    places = _places(lookups, chatty)
    with evaluation(policy.model), torch.no_grad():
        logits = policy.model(input_ids=places.ids, use_cache=False).logits
        chosen = logits[torch.from_numpy(places.row), torch.from_numpy(places.column)]
        p = chosen.double().softmax(-1).numpy()
    fillers = p[:, tables.FIRST_FILLER : tables.FIRST_FILLER + len(tables.FILLERS)].sum(1)
    kept = p[np.arange(len(p)), places.right] / np.maximum(1 - fillers, 1e-12)
    slot = np.array(places.slot)
    results = slot == "RESULT"
    digits = p[results, tables.FIRST_DIGIT : tables.FIRST_DIGIT + tables.DIGITS]
    answers = np.zeros((tables.TABLES, tables.DIGITS, tables.DIGITS))
    np.add.at(answers, (places.table[results], places.digit[results]), digits)
    shares = {
        part.name: float(np.clip(kept[slot == part.name.upper()].mean(), 0, 1))
        for part in fields(Form)
    }
    return Skills(answers / answers.sum(-1, keepdims=True), Form(**shares))


def exact_gains(policy: Policy, problems: Sequence[Problem], traces: Sequence[Trace]) -> np.ndarray:
    """Exact change of value by each token, in units of the reward."""
    chains = _chains(problems)
    one = next(iter(chains.values()))
    skills = own_skills(policy, lookups=len(one.tables), chatty=one.chatty)
    return np.concatenate(
        [
            oracle_credit(chains[trace.problem], trace.ids or (), facts=FACTS, skills=skills)
            for trace in traces
        ]
    )


def continued_gains(
    policy: Policy, problems: Sequence[Problem], traces: Sequence[Trace]
) -> np.ndarray:
    """Change of value by each token's step, values by continuations, in units of the reward."""
    chains = _chains(problems)
    cuts = [_cuts(trace) for trace in traces]
    starts = [(trace, cut) for trace, own in zip(traces, cuts, strict=True) for cut in own]
    asked = [pair for pair in starts for _ in range(CONTINUATIONS)]
    drawn = sample(
        policy,
        [(*tables.prompt(chains[t.problem]), *(t.ids or ())[:cut]) for t, cut in asked],
        max_new_tokens=LONGEST,
        ends=[tables.END],
        seed=zlib.crc32(traces[0].name.encode()),
    )
    right = [
        verify(chains[t.problem], (*(t.ids or ())[:cut], *found.ids), facts=FACTS)
        for (t, cut), found in zip(asked, drawn, strict=True)
    ]
    values = np.mean(np.reshape(right, (-1, CONTINUATIONS)), axis=1)
    gains, first = [], 0
    for trace, own in zip(traces, cuts, strict=True):
        after = np.append(values[first + 1 : first + len(own)], trace.reward)
        spans = np.diff([*own, len(trace.ids or ())])
        gains.append(np.repeat(after - values[first : first + len(own)], spans))
        first += len(own)
    return np.concatenate(gains)


def _cuts(trace: Trace) -> list[int]:
    """Where a step begins, and what follows the last."""
    steps = np.array(trace.token_steps or (), dtype=np.int64)
    return [0, *(1 + np.flatnonzero(np.diff(steps))).tolist()]


def first_error(policy: Policy, problems: Sequence[Problem], traces: Sequence[Trace]) -> np.ndarray:
    """+1 at computed digits before the first wrong token, -1 at that token, 0 elsewhere."""
    del policy, problems
    found = []
    for trace in traces:
        kinds = np.array(trace.kinds or (), dtype=np.int64)
        place = np.arange(kinds.size)
        wrong = kinds.size if trace.wrong_token < 0 else trace.wrong_token
        own = ((kinds == Kind.COMPUTED_DIGIT) & (place < wrong)).astype(np.float64)
        own[place == wrong] = -1.0
        found.append(own)
    return np.concatenate(found)


def sibling_shift(shown: float) -> Measure:
    """Shift of each token behind an example: the first other response of the group with a reward.

    0 for a rollout whose group lacks another right response or another wrong one.
    """

    def measure(policy: Policy, problems: Sequence[Problem], traces: Sequence[Trace]) -> np.ndarray:
        prompts = {name: tables.prompt(chain) for name, chain in _chains(problems).items()}
        branches = [Branch(prompts[trace.problem], trace.ids or ()) for trace in traces]
        places, told = [], []
        for place, trace in enumerate(traces):
            others = [t for t in traces if t.problem == trace.problem and t.ids != trace.ids]
            examples = [t.ids or () for t in others if t.reward == shown]
            if {0.0, 1.0} <= {other.reward for other in others}:
                own = prompts[trace.problem]
                places.append(place)
                told.append(Branch((*own, *examples[0], *own), trace.ids or ()))
        scores = score(policy, [*branches, *told])
        found = [np.zeros(len(branch.response)) for branch in branches]
        for place, with_it in zip(places, scores[len(branches) :], strict=True):
            found[place] = (with_it.logp - scores[place].logp).astype(np.float64)
        return np.concatenate(found)

    return measure


def _chains(problems: Sequence[Problem]) -> dict[str, tables.Chain]:
    return {problem.name: tables.read_chain(problem.question) for problem in problems}


# Rules


def _own(weigh: object, *needs: str) -> Credit:
    """A rule of weights that the catalogue does not have."""
    return by_weight(
        weigh,  # type: ignore[arg-type]  # evidence -> weights, as the caller writes it
        needs=frozenset(needs),
        source="own control",
        budget="rollout",
        grade="own",
    )


def _renamed(rule: Credit, **names: str) -> Credit:
    """A rule that reads other evidence in the place of its own: read=instead."""

    def assign(told: Evidence) -> np.ndarray:
        return np.asarray(rule.assign(replace(told, **{a: told[b] for a, b in names.items()})))

    needs = (rule.needs - set(names)) | set(names.values())
    return rule._replace(assign=assign, needs=needs)


def _cscr(gamma: float, name: str = "cscr") -> Credit:
    return adjusted(CATALOGUE[name], gamma=gamma, quantile=0.8)


def _placebo(rule: Credit) -> Credit:
    return _renamed(rule, z_pos="placebo_pos", z_neg="placebo_neg")


def _contrast(told: Evidence) -> np.ndarray:
    return np.asarray(mean_one(np.abs(told["z_pos"] - told["z_neg"]), told.length))


def _optimal(told: Evidence) -> np.ndarray:
    """OPTW near |change of value|."""
    return Optw().balanced(mean_one(np.abs(told["value_gain"]), told.length), told)


CONTRAST = _own(_contrast, "z_pos", "z_neg")
EXACT: Mapping[str, Measure] = MappingProxyType({"value_gain": exact_gains})
ARMS: dict[str, Arm] = {
    "uniform": Arm(CATALOGUE["uniform"]),
    "step": Arm(CATALOGUE["step"]),
    "random": Arm(CATALOGUE["random"]),
    "oracle_mask": Arm(CATALOGUE["oracle"], oracle=True),
    "oracle_value": Arm(CATALOGUE["vine"], signed=True, oracle=True, told=EXACT),
    "oracle_step": Arm(
        CATALOGUE["vine"], signed=True, oracle=True, told={"value_gain": first_error}
    ),
    "cscr_0.2": Arm(_cscr(0.2)),
    "cscr_0.8": Arm(_cscr(0.8)),
    "cscr_-1": Arm(_cscr(-1.0)),
    "placebo_0.2": Arm(_placebo(_cscr(0.2))),
    "placebo_0.8": Arm(_placebo(_cscr(0.8))),
    "placebo_-1": Arm(_placebo(_cscr(-1.0))),
    "cscr_surprisal_0.8": Arm(_cscr(0.8, "cscr_surprisal")),
    "cscr_shuffled_0.8": Arm(_cscr(0.8, "cscr_shuffled")),
    "contrast": Arm(CONTRAST),
    "placebo_contrast": Arm(_placebo(CONTRAST)),
    "rlsd_tags": Arm(_renamed(CATALOGUE["rlsd"], answer_pos="z_pos")),
    "cepo_tags": Arm(_renamed(CATALOGUE["cepo"], answer_pos="z_pos", answer_neg="z_neg")),
    "gcpo_tags": Arm(_renamed(CATALOGUE["gcpo"], negative_prompt="z_neg")),
    "sibling_example": Arm(
        CATALOGUE["sibling"],
        told={"sibling_pos": sibling_shift(1.0), "sibling_neg": sibling_shift(0.0)},
    ),
    "sd_grpo": Arm(CATALOGUE["sd_grpo"], signed=True),
    "delta": Arm(CATALOGUE["delta"]),
    "optw": Arm(CATALOGUE["optw"]),
    "optw_value": Arm(_own(_optimal, "distance", "value_gain"), oracle=True, told=EXACT),
    "high_entropy": Arm(CATALOGUE["high_entropy"]),
    "ar": Arm(CATALOGUE["ar"]),
    "htpo": Arm(CATALOGUE["htpo"]),
    "vine": Arm(CATALOGUE["vine"], signed=True, told={"value_gain": continued_gains}),
}
ASKED_BUT_TOLD_NOTHING = ("rlsd", "cepo", "gcpo", "sibling")


def refusals(policy: Policy, config: TrainConfig) -> list[dict[str, object]]:
    """Published rules that the policy cannot be trained with, one row each, and why.

    Args:
        policy: would have to be told what they need.
        config: of the runs.
    """
    found: list[dict[str, object]] = []
    for name in ASKED_BUT_TOLD_NOTHING:
        try:
            plan_evidence(policy, CATALOGUE[name], config)
        except TokensenseError as error:
            found.append({"rule": name, "needs": " ".join(sorted(CATALOGUE[name].needs)),
                          "reason": str(error)})  # fmt: skip
    return found
