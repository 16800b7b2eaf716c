"""What a credit rule is: evidence in, credit per token out, on NumPy and PyTorch alike.

Reads  Evidence: flat arrays over the tokens of all rollouts; never a model, never a store.
Gives  Credit, a rule and what is known of it; by_weight, a rule made of a weight function; Direct,
       credit that is no weight times the advantage; weights_of, settings_of, adjusted: a rule's
       weights, its settings, and the same rule under other settings.
Sign   credit has the unit of the advantage; positive: the update makes the sampled token likelier.

A rule sees the tokens that the policy wrote itself, and no others: masked ones (tool output) are
taken out before it is asked and get weight and credit 0 afterwards, so that no rule has to think of
them. What it sees is detached, finite and float64; credit comes back in the dtype of the advantage.

A setting of a rule is a field of its weight function, which is then a frozen dataclass; a weight
function without settings is a plain function.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from array_api_compat import array_namespace, device
from jaxtyping import Bool, Float, Float64

from tokensense.credit.evidence import Evidence, own_tokens, plain
from tokensense.errors import SchemaError
from tokensense.segments import broadcast

Array: TypeAlias = Any  # NumPy or PyTorch, as `segments` checks; torch is never imported
Form = Literal["multiplies", "adds", "replaces", "clips"]
Budget = Literal["rollout", "batch", "sign", "bounded", "free"]
Grade = Literal["certain", "code", "second-hand", "inferred", "own"]

BUDGETS: dict[Budget, str] = {
    "rollout": "weights have mean 1 over the tokens of every rollout: the sum of credit is kept",
    "batch": "weights have mean 1 over all tokens of the batch; a rollout may gain or lose",
    "sign": "the sum of positive credit over the batch is kept, and that of negative credit",
    "bounded": "every weight lies between stated bounds; sums are not kept",
    "free": "nothing is kept",
}
GRADES: dict[Grade, str] = {
    "certain": "the paper itself, or its abstract, says so",
    "code": "read in the authors' or a trainer's code",
    "second-hand": "as third parties tell it, who read the paper or ported the code",
    "inferred": "a reconstruction: part of the formula or its constants is a guess of ours",
    "own": "no paper: a control, a baseline or a design of ours",
}
DAGGER = "†"  # behind the name of a reconstruction, wherever it is shown

Weigh: TypeAlias = Callable[[Evidence], Array]


class Credit(NamedTuple):
    """A credit rule.

    Attributes:
        assign: evidence -> credit of every token, in units of the advantage; no gradient flows.
        needs: evidence that it reads beyond `length` and `advantage`: names of `SUPPLIERS`.
        form: what it does to the advantage: multiplies | adds | replaces | clips.
        source: citation.
        budget: what is preserved: one of `BUDGETS`.
        grade: how well its formula is known: one of `GRADES`.
        keeps_sign: no token's credit has the sign opposite to the advantage of its rollout.
        signal_without_contrast: it gives credit where all rewards of a group are equal.
    """

    assign: Callable[[Evidence], Array]
    needs: frozenset[str]
    form: Form
    source: str
    budget: Budget
    grade: Grade
    keeps_sign: bool = True
    signal_without_contrast: bool = False


@dataclass(frozen=True)
class Weighted:
    """Credit = weight x advantage of the rollout.

    Attributes:
        weigh: evidence without masked tokens -> weight of every token, no unit, >= 0.
    """

    weigh: Weigh

    def weights(self, evidence: Evidence) -> Float64[Array, " token"]:
        """Weight of every token, no unit; 0 where it is masked.

        Args:
            evidence: at least what the rule needs.

        Raises:
            SchemaError: evidence is missing, not finite, or not of the rollouts of `length`.
        """
        return _with_masked(self.weigh(own_tokens(evidence)), evidence.mask)

    def __call__(self, evidence: Evidence) -> Float[Array, " token"]:
        """Credit of every token, in units and dtype of the advantage. As `weights`.

        Raises:
            SchemaError: evidence is missing, not finite, or not of the rollouts of `length`.
        """
        credit = self.weights(evidence) * broadcast(plain(evidence.advantage), evidence.length)
        return _in_dtype(credit, evidence.advantage)


@dataclass(frozen=True)
class Direct:
    """Credit that is no weight times the advantage.

    Attributes:
        give: evidence without masked tokens -> credit of every token, in units of the advantage.
    """

    give: Weigh

    def __call__(self, evidence: Evidence) -> Float[Array, " token"]:
        """Credit of every token, in units and dtype of the advantage; 0 where it is masked.

        Args:
            evidence: at least what the rule needs.

        Raises:
            SchemaError: evidence is missing, not finite, or not of the rollouts of `length`.
        """
        credit = _with_masked(self.give(own_tokens(evidence)), evidence.mask)
        return _in_dtype(credit, evidence.advantage)


def by_weight(
    weigh: Weigh, *, needs: frozenset[str], source: str, budget: Budget, grade: Grade
) -> Credit:
    """Make a rule of a weight function; its weights can be had by themselves, for store and figure.

    Args:
        weigh: as in `Weighted`.
        needs: as in `Credit`.
        source: as in `Credit`.
        budget: as in `Credit`.
        grade: as in `Credit`.
    """
    return Credit(Weighted(weigh), needs, "multiplies", source, budget, grade)


def weights_of(rule: Credit, evidence: Evidence) -> Float64[Array, " token"] | None:
    """Weight of every token, no unit; None for a rule that does not multiply.

    Args:
        rule: any.
        evidence: at least what the rule needs.

    Raises:
        SchemaError: evidence is missing, not finite, or not of the rollouts of `length`.
    """
    return rule.assign.weights(evidence) if isinstance(rule.assign, Weighted) else None


def settings_of(rule: Credit) -> dict[str, Any]:
    """Settings of a rule: name -> value, plain numbers or None.

    Args:
        rule: any.
    """
    holder = _holder(rule)
    if not is_dataclass(holder):
        return {}
    return {field.name: getattr(holder, field.name) for field in fields(holder)}


def adjusted(rule: Credit, **settings: int | float | None) -> Credit:
    """The same rule under other settings.

    Args:
        rule: any.
        **settings: those that change.

    Raises:
        SchemaError: the rule has no such setting, or a value is out of its range.

    Example:
        >>> from tokensense.credit import CATALOGUE
        >>> settings_of(adjusted(CATALOGUE["cscr"], gamma=0.5))["gamma"]
        0.5
    """
    holder, known = _holder(rule), settings_of(rule)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise SchemaError(
            f"a setting of this rule needs to be one of {sorted(known)}; it has no {unknown}. "
            "Leave it out, or adjust another rule."
        )
    changed = replace(holder, **settings) if known else holder
    kind = type(rule.assign)
    return rule._replace(assign=kind(changed) if kind in (Weighted, Direct) else changed)


def _holder(rule: Credit) -> Any:  # noqa: ANN401 (a function or a frozen dataclass)
    if isinstance(rule.assign, Weighted):
        return rule.assign.weigh
    return rule.assign.give if isinstance(rule.assign, Direct) else rule.assign


def _with_masked(
    values: Float64[Array, " own"], mask: Bool[Array, " token"] | None
) -> Float64[Array, " token"]:
    """Put 0 where the policy did not write the token."""
    if mask is None:
        return values
    xp = array_namespace(values)
    spread = xp.zeros(mask.shape[0], dtype=xp.float64, device=device(values))
    spread[mask] = values
    return spread


def _in_dtype(
    credit: Float64[Array, " token"], advantage: Float[Array, " rollout"]
) -> Float[Array, " token"]:
    return array_namespace(credit).astype(credit, advantage.dtype, copy=False)
