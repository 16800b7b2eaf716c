"""What a credit rule reads, measured on the rollouts that have just been sampled.

Reads  a policy and a batch; the conditions of the probes in SHIFTS.
Gives  Live, `plan_evidence`, made once a run; `Live.of` gives the Evidence of a batch,
       `Live.told_branches` what a teacher reads; `credited`, its credit.
Sign   shifts: positive, the condition makes the sampled token likelier. Credit as the advantage.

The same conditions, prompts, comparability verdicts and scorer as in a probe, so that a rule reads
in training what it reads from a store. A rollout that may not be compared under a condition that
the rule reads keeps its plain advantage, and is counted. Placebo shifts are of one family, the
first by name, and those under siblings log-means of exp, as in `gathering`. Siblings and wrong
answers are those of the batch, so that they follow the policy as it learns.

Base and conditions are scored together, so that a prompt's beginning is fed once for all of them.

Source: design sections 6 and 8.
"""

from collections import Counter
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
from tokensense.models.processes import ALONE, Processes
from tokensense.models.scorer import Scores, score
from tokensense.probes import CATALOGUE
from tokensense.probes.comparability import limits
from tokensense.probes.conditions import Condition
from tokensense.probes.contexts import Problems, of_group, prompts, survey
from tokensense.probes.proxies import head_view
from tokensense.rollouts.trajectory import Encoder
from tokensense.schema import NEGATIVE, NO_LEVEL, NO_STEP, POSITIVE, Comparability
from tokensense.segments import broadcast, offsets
from tokensense.stats.pairs import log_means
from tokensense.trainer.batches import Batch
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.problems import Measure

Token = Float64[np.ndarray, " token"]
BASE_EVIDENCE = frozenset({"logp", "entropy", "distance"})
# Probe -> evidence -> the level whose shift it is. "": no rule reads it, but its pair needs it.
SHIFTS = {
    "opposed": {"z_pos": POSITIVE, "z_neg": NEGATIVE},
    "placebo": {"placebo_pos": POSITIVE, "placebo_neg": NEGATIVE},
    "answer": {"answer_pos": POSITIVE, "answer_neg": NEGATIVE},
    "negative_prompt": {"": POSITIVE, "negative_prompt": NEGATIVE},
    "sibling": {"sibling_pos": POSITIVE, "sibling_neg": NEGATIVE},
    "reference": {"reference": NO_LEVEL},
}
SIBLINGS = frozenset(SHIFTS["sibling"])
# Known of a rollout without a model.
KNOWN = frozenset({"key", "group", "reward", "token_id", "step"})
# Vectors of each token, seen at the head.
AT_HEAD = frozenset({"row_gradient", "hidden_gradient"})
SHIFTED = frozenset(name for names in SHIFTS.values() for name in names) - {""}
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
        processes: that score a share each; what is seen at the head, and what the task says, each
            of them finds for itself.
    """

    needs: frozenset[str]
    conditions: dict[str, tuple[Condition, ...]]
    told: dict[str, Measure]
    temperature: float
    tokens_per_row: int
    processes: Processes = ALONE

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

    def told_branches(self, name: str, policy: Policy, batch: Batch) -> dict[int, Branch]:
        """What a teacher reads: rollout -> the first condition that it may be told, and it.

        Args:
            name: evidence that a condition of is told.
            policy: its tokenizer makes the prompts.
            batch: whose rollouts; those that may not be told are not in the answer.

        Raises:
            SchemaError: no condition has the name: the task says that evidence by itself.
            ConditionError: a prompt cannot take a condition.
        """
        if name not in self.conditions:
            raise SchemaError(
                f"a distillation needs a condition to tell its teacher; `{name}` is measured by "
                f"the task itself, and conditions are {sorted(self.conditions)}. Leave the task's "
                "own measure away."
            )
        asked = self.conditions[name]
        places, branches, _ = _branches(policy, batch, asked, read=[True] * len(asked))
        found: dict[int, Branch] = {}
        for (_, rollout), branch in zip(places, branches, strict=True):
            found.setdefault(rollout, branch)
        return found

    def _measured(
        self, policy: Policy, batch: Batch
    ) -> tuple[dict[str, Token], Bool[np.ndarray, " rollout"]]:
        """Statistics under base and mean shifts of every token."""
        asked = [condition for group in self.conditions.values() for condition in group]
        read = [name in self.needs for name, group in self.conditions.items() for _ in group]
        places, branches, comparable = _branches(policy, batch, asked, read=read)
        scores = score(
            policy,
            [*batch.branches, *branches],
            temperature=self.temperature,
            tokens_per_row=self.tokens_per_row,
            processes=self.processes,
        )
        base, rest = scores[: len(batch.traces)], scores[len(batch.traces) :]
        bound = offsets(batch.length).tolist()
        shift = np.full((len(asked), bound[-1]), np.nan)
        for (condition, rollout), told in zip(places, rest, strict=True):
            own = slice(bound[rollout], bound[rollout + 1])
            shift[condition, own] = told.logp - base[rollout].logp
        means, usable = self._means(shift, comparable, batch.length)
        return _base_evidence(base) | means, usable

    def _means(
        self,
        shift: Float64[np.ndarray, "condition token"],
        comparable: Bool[np.ndarray, "condition rollout"],
        length: Int64[np.ndarray, " rollout"],
    ) -> tuple[dict[str, Token], Bool[np.ndarray, " rollout"]]:
        """Shifts by their names, and the rollouts that may be compared under all of them."""
        sizes = np.array([len(group) for group in self.conditions.values()], np.int64)
        rows = dict(zip(self.conditions, pairwise(offsets(sizes).tolist()), strict=True))
        plain = [slice(*ends) for name, ends in rows.items() if name not in SIBLINGS]
        usable = np.logical_and.reduce(
            [np.ones(length.size, dtype=bool), *(comparable[own].all(axis=0) for own in plain)]
        )
        shown = [comparable[slice(*rows[name])] for name in sorted(SIBLINGS & set(rows))]
        pairs = np.logical_and.reduce(shown) if shown else np.ones((1, length.size), dtype=bool)
        inside = np.stack([np.asarray(broadcast(pair, length)) for pair in pairs])
        own = {name: shift[slice(*ends)] for name, ends in rows.items() if name in self.needs}
        found = {
            name: log_means(part, inside) if name in SIBLINGS else part.mean(axis=0)
            for name, part in own.items()
        }
        return found, np.asarray(usable & pairs.any(axis=0))


def plan_evidence(
    policy: Policy,
    rule: Credit,
    config: TrainConfig,
    *,
    told: Mapping[str, Measure] = MappingProxyType({}),
    processes: Processes = ALONE,
) -> Live:
    """Decide, once a run, what has to be measured for a rule.

    Args:
        policy: whose tokenizer decides on the words of the conditions.
        rule: says what it needs.
        config: frames, wordings, temperature, updates a step.
        told: evidence that the task can say by itself.
        processes: that share the scoring.

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
    for probe, levels in SHIFTS.items():
        if not (rule.needs - set(own)) & set(levels):
            continue
        made = CATALOGUE[probe](policy, frames=config.frames, wordings=config.wordings)
        family = min(condition.family for condition in made)
        chosen = [condition for condition in made if condition.family == family]
        for name, level in levels.items():
            conditions[name] = tuple(c for c in chosen if c.level == level)
    return Live(rule.needs, conditions, own, config.temperature, config.tokens_per_row, processes)


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
    policy: Policy, batch: Batch, conditions: Sequence[Condition], *, read: Sequence[bool]
) -> tuple[list[tuple[int, int]], list[Branch], Bool[np.ndarray, "condition rollout"]]:
    """(condition, rollout) and branch of all that is read and may be, and what may be compared."""
    if not conditions:
        return [], [], np.ones((0, len(batch.traces)), dtype=bool)
    problems = _problems(batch, policy)
    found = survey(
        problems, conditions, encoder=policy, limits=limits(policy, bos_id=policy.bos_id)
    )
    comparable = found.comparability == Comparability.OK
    places, branches = [], []
    for index, (start, end) in enumerate(problems.groups):
        asked = prompts(problems, index, conditions, encoder=policy)
        for rollout in range(start, end):
            for place, prompt in enumerate(asked):
                if read[place] and comparable[place, rollout]:
                    places.append((place, rollout))
                    branches.append(Branch(prompt.ids, problems.responses[rollout]))
    return places, branches, comparable


def _problems(batch: Batch, encoder: Encoder) -> Problems:
    """The batch as probes see a store."""
    counts = Counter(trace.problem for trace in batch.traces)
    sizes = np.array([counts[problem.name] for problem in batch.problems], np.int64)
    groups = [(int(a), int(b)) for a, b in pairwise(offsets(sizes))]
    texts = [trace.text for trace in batch.traces]
    found = Problems(
        names=[problem.name for problem in batch.problems],
        questions=[problem.question for problem in batch.problems],
        answers=[p.answer if (p.answer or "").strip() else None for p in batch.problems],
        wrong_answers=[],
        solutions=[problem.solution for problem in batch.problems],
        siblings=[],
        bases=[batch.prompts[problem.name] for problem in batch.problems],
        groups=groups,
        responses=[branch.response for branch in batch.branches],
        texts=texts,
    )
    for answer, (start, end) in zip(found.answers, groups, strict=True):
        wrong, siblings = of_group(
            answer, texts[start:end], batch.reward[start:end], encoder=encoder
        )
        found.wrong_answers.append(wrong)
        found.siblings.append(siblings)
    return found
