"""Small batches of the table task with all that credit rules read, and the rules that are ranked.

Reads  a policy of the table task, problems, a seed.
Gives  Batch (responses, truth, exact values), `evidence`, RULES: name -> credit of every token.
Sign   credit positive: the update makes the sampled token likelier.

CSCR takes its threshold from the batch, the 80th percentile of s, as in shared/notes/assay.md: the
shipped .05 nats is a quantile of another model. `placebo` is CSCR computed from a pair of letters
that tells nothing, in place of the verdicts. `oracle_value` is the exact change of value by each
token (rule dVx of the notes), with values of the policy's own measured skills.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tokensense.credit import CATALOGUE
from tokensense.credit.advantages import group_std
from tokensense.credit.base import Credit, adjusted
from tokensense.credit.delta import row_gradient
from tokensense.credit.evidence import Evidence
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.sampler import sample
from tokensense.models.scorer import score
from tokensense.probes.proxies import head_view
from tokensense.schema import Kind
from tokensense.segments import broadcast, segment_normalize
from tokensense.tasks import tables
from tokensense.tasks.tables_labels import Labels, Slot, expected, follow, label
from tokensense.tasks.tables_values import Form, Skills, oracle_credit

FACTS = tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))
LONGEST = 256  # tokens of a response; a longer one is wrong
MOST_SURPRISAL = 8.0  # nats
TOLD = {
    "z_pos": tables.Tag.RIGHT,
    "z_neg": tables.Tag.WRONG,
    "placebo_pos": tables.Tag.A,
    "placebo_neg": tables.Tag.B,
}
FIRST_WRONG = "first_wrong"  # a kind of its own here
KINDS = (
    *(FIRST_WRONG, "computed_digit", "carried_digit", "final_answer", "operator", "format"),
    *("discourse", "other"),
)


@dataclass(frozen=True, eq=False)
class Batch:
    """Responses to some problems, groups side by side.

    Attributes:
        chains: the problem of each rollout.
        branches: prompt and response of each.
        labels: what the generator knows about each.
        group: number of each rollout's problem.
    """

    chains: list[tables.Chain]
    branches: list[Branch]
    labels: list[Labels]
    group: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """Tokens of each response."""
        return np.array([len(branch.response) for branch in self.branches])

    @property
    def reward(self) -> np.ndarray:
        """1 right, 0 wrong."""
        return np.array([found.reward for found in self.labels], dtype=np.float64)

    @property
    def advantage(self) -> np.ndarray:
        """Of each response: group mean and deviation."""
        return group_std(self.reward, self.group)

    def kinds(self) -> np.ndarray:
        """Place in KINDS of each token; the first wrong decision is a kind of its own."""
        place = {getattr(Kind, name.upper()): k for k, name in enumerate(KINDS[1:], start=1)}
        found = []
        for labels in self.labels:
            own = np.array([place.get(Kind(int(kind)), len(KINDS) - 1) for kind in labels.kind])
            if labels.first_wrong >= 0:
                own[labels.first_wrong] = 0
            found.append(own)
        return np.concatenate(found)

    def oracle(self, skills: Skills) -> np.ndarray:
        """Exact change of value by each token, in units of the reward."""
        return np.concatenate(
            [
                oracle_credit(chain, branch.response, facts=FACTS, skills=skills)
                for chain, branch in zip(self.chains, self.branches, strict=True)
            ]
        )


def drawn_batch(
    policy: Policy, problems: Sequence[tables.Chain], *, group: int, seed: int
) -> Batch:
    """Sample a group of responses to each problem."""
    chains = [chain for chain in problems for _ in range(group)]
    prompts = [tables.prompt(chain) for chain in chains]
    drawn = sample(policy, prompts, max_new_tokens=LONGEST, ends=[tables.END], seed=seed)
    branches = [Branch(prompt, row.ids) for prompt, row in zip(prompts, drawn, strict=True)]
    labels = [
        label(chain, branch.response, facts=FACTS)
        for chain, branch in zip(chains, branches, strict=True)
    ]
    return Batch(chains, branches, labels, np.repeat(np.arange(len(problems)), group))


def measured_skills(batch: Batch) -> Skills:
    """How the policy answers and keeps the form, counted on many responses.

    A look-up starts from the taught distribution, as if it had been seen ten times.
    """
    answers = 10.0 * FACTS.answers()
    slots = [Slot.INDEX, Slot.TABLE, Slot.OPERAND, Slot.EQUALS, Slot.FINAL, Slot.END]
    right = {name: [1.0, 1.0] for name in (*(slot.name for slot in slots), "ANSWER")}
    for chain, branch, labels in zip(batch.chains, batch.branches, batch.labels, strict=True):
        states = follow(chain, branch.response)
        for state, token, core in zip(states, branch.response, labels.core, strict=False):
            digit = token - tables.FIRST_DIGIT
            if state.slot == Slot.RESULT and 0 <= digit < tables.DIGITS:
                answers[state.table, state.digit, digit] += 1
            elif core and state.slot in slots:
                name = state.slot.name
                if state.slot == Slot.INDEX and state.step >= len(chain.tables):
                    name = "ANSWER"
                right[name][0] += token == expected(state, chain, FACTS)
                right[name][1] += 1
    shares = {name.lower(): hits / seen for name, (hits, seen) in right.items()}
    form = Form(**{field.name: shares[field.name] for field in fields(Form)})
    return Skills(answers / answers.sum(-1, keepdims=True), form)


def energies(policy: Policy, batch: Batch) -> np.ndarray:
    """||onehot - p||^2 of every token: its part in the noise of the uniform gradient, at logits."""
    base = score(policy, batch.branches)
    logp, squares = (
        np.concatenate([getattr(row, name) for row in base]).astype(np.float64)
        for name in ("logp", "p_square_sum")
    )
    return np.maximum(1 - 2 * np.exp(logp) + squares, 0.0)


def evidence(policy: Policy, batch: Batch, *, key: int) -> Evidence:
    """All that RULES read; `key` numbers the batch, for rules that draw at random."""
    base = score(policy, batch.branches)
    logp, entropy, squares = (
        np.concatenate([getattr(row, name) for row in base]).astype(np.float64)
        for name in ("logp", "entropy", "p_square_sum")
    )
    shifts = {}
    for name, tag in TOLD.items():
        told = [
            Branch(tables.prompt(chain, tag), branch.response)
            for chain, branch in zip(batch.chains, batch.branches, strict=True)
        ]
        shifts[name] = np.concatenate([row.logp for row in score(policy, told)]) - logp
    view = head_view(policy, batch.branches)
    kinds = batch.kinds()
    right = broadcast(batch.reward, batch.length) == 1
    rollouts = batch.length.size
    return Evidence(
        length=batch.length,
        advantage=batch.advantage,
        key=key * rollouts + np.arange(rollouts),
        group=batch.group,
        reward=batch.reward,
        logp=logp,
        entropy=entropy,
        distance=np.sqrt(np.maximum(1 - 2 * np.exp(logp) + squares, 0.0)),
        row_gradient=row_gradient(view.hidden.astype(np.float64), view.logp.astype(np.float64)),
        hidden_gradient=view.hidden_gradient.astype(np.float64),
        planted=np.where(right, kinds == KINDS.index("computed_digit"), kinds == 0),
        **shifts,
    )


def _ruled(rule: Credit) -> Callable[[Evidence], np.ndarray]:
    return lambda told: np.asarray(rule.assign(told))


def _cscr(gamma: float, name: str = "cscr") -> Callable[[Evidence], np.ndarray]:
    return _ruled(adjusted(CATALOGUE[name], gamma=gamma, threshold=0.05, quantile=0.8))


def _placebo(gamma: float) -> Callable[[Evidence], np.ndarray]:
    rule = _cscr(gamma)
    return lambda told: rule(replace(told, z_pos=told.placebo_pos, z_neg=told.placebo_neg))


def _score(score_of: Callable[[Evidence], np.ndarray]) -> Callable[[Evidence], np.ndarray]:
    """Weights in proportion to a score, mean 1 over each rollout."""
    return lambda told: segment_normalize(score_of(told), told.length) * told.spread()


RULES: dict[str, Callable[[Evidence], np.ndarray]] = {
    "uniform": _ruled(CATALOGUE["uniform"]),
    "cscr_0": _cscr(0.0),
    "cscr_0.2": _cscr(0.2),
    "cscr_0.8": _cscr(0.8),
    "cscr_0.8_at_.05": _ruled(adjusted(CATALOGUE["cscr"], gamma=0.8)),
    "placebo_0.2": _placebo(0.2),
    "placebo_0.8": _placebo(0.8),
    "cscr_surprisal_0.2": _cscr(0.2, "cscr_surprisal"),
    "cscr_surprisal_0.8": _cscr(0.8, "cscr_surprisal"),
    "contrast": _score(lambda told: np.abs(told["z_pos"] - told["z_neg"])),
    "delta": _ruled(CATALOGUE["delta"]),
    "delta_hidden": _ruled(CATALOGUE["delta_hidden"]),
    "random": _ruled(CATALOGUE["random"]),
    "surprisal": _score(lambda told: np.minimum(-told["logp"], MOST_SURPRISAL)),
    "high_entropy": _ruled(CATALOGUE["high_entropy"]),
    "ar": _ruled(CATALOGUE["ar"]),
    "optw": _ruled(CATALOGUE["optw"]),
    "oracle_mask": _ruled(CATALOGUE["oracle"]),
}
ORACLE = "oracle_value"  # has no rule: its credit comes with the batch
NAMES = (*RULES, ORACLE)


def credit_table(told: Evidence, oracle: np.ndarray) -> np.ndarray:
    """Credit of every token by every rule, [rule, token], in the order of NAMES."""
    return np.stack([*(rule(told) for rule in RULES.values()), oracle])
