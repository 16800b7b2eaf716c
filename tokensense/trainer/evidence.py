"""What a credit rule reads, measured on the rollouts that have just been sampled.

Reads  a policy and a batch; the conditions of the probes `opposed` and `placebo`.
Gives  Live, `plan_evidence`, made once a run; `Live.of` gives the Evidence of a batch; `credited`,
       its credit.
Sign   shifts: positive, the condition makes the sampled token likelier. Credit as the advantage.

The same conditions, prompts, comparability verdicts and scorer as in a probe, so that a rule reads
in training what it reads from a store. A rollout that may not be compared under a condition that
the rule reads keeps its plain advantage, and is counted. Placebo shifts are of one family, the
first by name, as in `assignment`.

Base and conditions are scored together, so that a prompt's beginning is fed once for all of them.

Source: design sections 6 and 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from tokensense.credit.base import Credit, weights_of
from tokensense.credit.delta import row_gradient
from tokensense.credit.evidence import PER_ROLLOUT, Evidence
from tokensense.errors import SchemaError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import Scores, score
from tokensense.probes import CATALOGUE
from tokensense.probes.comparability import limits
from tokensense.probes.conditions import Condition
from tokensense.probes.contexts import Problems, prompts, survey
from tokensense.probes.proxies import head_view
from tokensense.schema import NO_STEP, POSITIVE, Comparability
from tokensense.segments import broadcast, offsets
from tokensense.trainer.batches import Batch
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.problems import Measure

Token = Float64[np.ndarray, " token"]
BASE_EVIDENCE = frozenset({"logp", "entropy", "distance"})
# Probe -> what its two levels are called as evidence.
SHIFTS = {"opposed": ("z_pos", "z_neg"), "placebo": ("placebo_pos", "placebo_neg")}
# Known of a rollout without a model.
KNOWN = frozenset({"key", "group", "reward", "token_id", "step"})
# Vectors of each token, seen at the head.
AT_HEAD = frozenset({"row_gradient", "hidden_gradient"})
SHIFTED = frozenset(name for names in SHIFTS.values() for name in names)
# `ratio` only where there is one update a step: it is then 1.
SUPPLIED = BASE_EVIDENCE | KNOWN | AT_HEAD | SHIFTED | {"ratio"}


class Credited(NamedTuple):
    """Credit of a batch.

    Attributes:
        credit: of every token, in units of the advantage.
        weight: of every token, no unit; None for a rule that does not multiply.
        evidence: what the rule read, all rollouts; NaN where it may not be compared.
        not_comparable: rollouts that keep their plain advantage.
    """

    credit: Token
    weight: Token | None
    evidence: dict[str, np.ndarray]
    not_comparable: int


@dataclass(frozen=True)
class Live:
    """The evidence of one rule, to be measured batch after batch.

    Attributes:
        needs: what the rule reads.
        conditions: evidence name -> the conditions whose mean shift it is.
        told: evidence name -> the task's own measure of it.
        temperature: of scoring.
        tokens_per_row: of scoring.
    """

    needs: frozenset[str]
    conditions: dict[str, tuple[Condition, ...]]
    told: dict[str, Measure]
    temperature: float
    tokens_per_row: int

    def of(self, policy: Policy, batch: Batch, *, first_key: int) -> tuple[Evidence, np.ndarray]:
        """Measure a batch.

        Args:
            policy: scores, as it is now.
            batch: its rollouts.
            first_key: key of the first rollout; the others follow.

        Returns:
            The evidence, NaN where a rollout may not be compared, and (rollout) which may.

        Raises:
            ConditionError: a prompt cannot take a condition.
            PolicyError: a rollout does not fit with a condition.
        """
        arrays: dict[str, np.ndarray] = {"length": batch.length, "advantage": batch.advantage}
        usable = np.ones(len(batch.traces), dtype=bool)
        for name, measure in self.told.items():
            arrays[name] = measure(policy, batch.problems, batch.traces)
        asked = self.needs - set(arrays)
        if asked & KNOWN:
            known = _known(batch, first_key)
            arrays |= {name: known[name] for name in asked & KNOWN}
        if asked & (BASE_EVIDENCE | SHIFTED):
            measured, usable = self._measured(policy, batch)
            arrays |= {name: measured[name] for name in asked & set(measured)}
        if asked & AT_HEAD:
            seen = _at_head(policy, batch, self.tokens_per_row)
            arrays |= {name: seen[name] for name in asked & AT_HEAD}
        if "ratio" in asked:
            arrays["ratio"] = np.ones(int(batch.length.sum()))
        return Evidence(**arrays), usable

    def _measured(
        self, policy: Policy, batch: Batch
    ) -> tuple[dict[str, Token], Bool[np.ndarray, " rollout"]]:
        """Statistics under base and mean shifts of every token."""
        asked = [condition for group in self.conditions.values() for condition in group]
        places, branches, comparable = _branches(policy, batch, asked)
        scores = score(
            policy,
            [*batch.branches, *branches],
            temperature=self.temperature,
            tokens_per_row=self.tokens_per_row,
        )
        base, rest = scores[: len(batch.traces)], scores[len(batch.traces) :]
        found = _base_evidence(base)
        bound = offsets(batch.length).tolist()
        shift = np.full((len(asked), bound[-1]), np.nan)
        for (condition, rollout), told in zip(places, rest, strict=True):
            own = slice(bound[rollout], bound[rollout + 1])
            shift[condition, own] = told.logp - base[rollout].logp
        first = 0
        for name, group in self.conditions.items():
            found[name] = shift[first : first + len(group)].mean(axis=0)
            first += len(group)
        return found, np.asarray(comparable.all(axis=0))


def plan_evidence(
    policy: Policy,
    rule: Credit,
    config: TrainConfig,
    *,
    told: Mapping[str, Measure] = MappingProxyType({}),
) -> Live:
    """Decide, once a run, what has to be measured for a rule.

    Args:
        policy: whose tokenizer decides on the words of the conditions.
        rule: says what it needs.
        config: frames, wordings, temperature, updates a step.
        told: evidence that the task can say by itself.

    Raises:
        SchemaError: the rule needs what is not measured in training.
        ConditionError: the tokenizer leaves too few words of equal length.
    """
    own = {name: told[name] for name in sorted(rule.needs & set(told))}
    supplied = SUPPLIED | set(told)
    if unknown := sorted(rule.needs - supplied):
        raise SchemaError(
            f"a rule in training needs evidence of {sorted(supplied)}; it needs {unknown}. Take "
            "another rule."
        )
    if "ratio" in rule.needs - set(own) and config.epochs * config.updates > 1:
        raise SchemaError(
            "a rule that reads the ratio needs one update a step, where the ratio is 1; there are "
            f"{config.epochs} x {config.updates}. Set `epochs` and `updates` to 1."
        )
    conditions: dict[str, tuple[Condition, ...]] = {}
    for probe, names in SHIFTS.items():
        if not (rule.needs - set(own)) & set(names):
            continue
        made = CATALOGUE[probe](policy, frames=config.frames, wordings=config.wordings)
        family = min(condition.family for condition in made)
        chosen = [condition for condition in made if condition.family == family]
        for name, is_positive in zip(names, (True, False), strict=True):
            conditions[name] = tuple(c for c in chosen if (c.level == POSITIVE) == is_positive)
    return Live(rule.needs, conditions, own, config.temperature, config.tokens_per_row)


def credited(rule: Credit, evidence: Evidence, usable: Bool[np.ndarray, " rollout"]) -> Credited:
    """Credit of every token; rollouts that are not usable keep their advantage.

    Args:
        rule: assigns.
        evidence: of all rollouts.
        usable: which may be compared under all that the rule reads.

    Raises:
        SchemaError: evidence is missing, or not finite for a usable rollout.
    """
    arrays = evidence.given()
    length = arrays["length"]
    own = np.asarray(broadcast(usable, length))
    kept = Evidence(
        **{name: array[usable if name in PER_ROLLOUT else own] for name, array in arrays.items()}
    )
    credit = np.asarray(broadcast(arrays["advantage"], length), dtype=np.float64).copy()
    credit[own] = rule.assign(kept)
    weights = weights_of(rule, kept)
    spread = None
    if weights is not None:
        spread = np.ones(own.size)
        spread[own] = weights
    read: dict[str, Any] = {n: a for n, a in arrays.items() if n not in ("length", "advantage")}
    return Credited(credit, spread, read, int((~usable).sum()))


def _known(batch: Batch, first_key: int) -> dict[str, np.ndarray]:
    """What no model has to be asked for; step -1 where the task knows none."""
    place = {problem.name: index for index, problem in enumerate(batch.problems)}
    steps = [
        np.full(len(trace.ids or ()), NO_STEP) if trace.token_steps is None else trace.token_steps
        for trace in batch.traces
    ]
    ids = [np.array(trace.ids or (), np.int64) for trace in batch.traces]
    nothing = np.zeros(0, np.int64)
    return {
        "key": first_key + np.arange(len(batch.traces)),
        "group": np.array([place[trace.problem] for trace in batch.traces], np.int64),
        "reward": batch.reward,
        "token_id": np.concatenate([nothing, *ids]),
        "step": np.concatenate([nothing, *steps]),
    }


def _at_head(policy: Policy, batch: Batch, tokens_per_row: int) -> dict[str, np.ndarray]:
    """Proxies of each token's gradient, in a pass of their own."""
    view = head_view(policy, batch.branches, tokens_per_row=tokens_per_row)
    return {
        "row_gradient": row_gradient(view.hidden.astype(np.float64), view.logp.astype(np.float64)),
        "hidden_gradient": view.hidden_gradient.astype(np.float64),
    }


def _base_evidence(base: Sequence[Scores]) -> dict[str, Token]:
    """What one pass under base says of each token."""
    logp, entropy, _, squares = (
        np.concatenate([np.zeros(0), *parts]).astype(np.float64)
        for parts in zip(*base, strict=True)
    )
    # ||onehot - p||^2 = 1 - 2 p(token) + sum p^2.
    distance = np.sqrt(np.maximum(1.0 - 2.0 * np.exp(logp) + squares, 0.0))
    return {"logp": logp, "entropy": entropy, "distance": distance}


def _branches(
    policy: Policy, batch: Batch, conditions: Sequence[Condition]
) -> tuple[list[tuple[int, int]], list[Branch], Bool[np.ndarray, "condition rollout"]]:
    """(condition, rollout) and branch of all that may be compared, and which those are."""
    if not conditions:
        return [], [], np.ones((1, len(batch.traces)), dtype=bool)
    problems = _problems(batch)
    found = survey(
        problems, conditions, encoder=policy, limits=limits(policy, bos_id=policy.bos_id)
    )
    comparable = found.comparability == Comparability.OK
    places, branches = [], []
    for index, (start, end) in enumerate(problems.groups):
        asked = prompts(problems, index, conditions, encoder=policy)
        for rollout in range(start, end):
            for place, prompt in enumerate(asked):
                if comparable[place, rollout]:
                    places.append((place, rollout))
                    branches.append(Branch(prompt.ids, problems.responses[rollout]))
    return places, branches, comparable


def _problems(batch: Batch) -> Problems:
    """The batch as probes see a store. No condition here shows an answer or another response."""
    counts = [0] * len(batch.problems)
    place = {problem.name: index for index, problem in enumerate(batch.problems)}
    for trace in batch.traces:
        counts[place[trace.problem]] += 1
    edges: Int64[np.ndarray, " edge"] = np.cumsum([0, *counts])
    size = len(batch.problems)
    return Problems(
        names=[problem.name for problem in batch.problems],
        questions=[problem.question for problem in batch.problems],
        answers=[None] * size,
        wrong_answers=[None] * size,
        solutions=[None] * size,
        siblings=[{}] * size,
        bases=[batch.prompts[problem.name] for problem in batch.problems],
        groups=[(int(a), int(b)) for a, b in pairwise(edges)],
        responses=[branch.response for branch in batch.branches],
        texts=[trace.text for trace in batch.traces],
    )
