"""What a credit rule is: evidence in, credit per token out, on NumPy and PyTorch alike.

Reads  Evidence: flat arrays over the tokens of all rollouts; never a model, never a store.
Gives  Credit, a rule and what is known of it; by_weight, a rule made of a weight function;
       weights_of, settings_of, adjusted: a rule's weights, its settings, and the same rule under
       other settings.
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
from jaxtyping import Bool, Float, Float64, Integer, Shaped

from tokensense.errors import SchemaError
from tokensense.segments import broadcast, offsets, segment_sum

Array: TypeAlias = Any  # NumPy or PyTorch, as `segments` checks; torch is never imported
Form = Literal["multiplies", "adds", "replaces", "clips"]
Budget = Literal["rollout", "batch", "sign", "bounded", "free"]

BUDGETS: dict[Budget, str] = {
    "rollout": "weights have mean 1 over the tokens of every rollout: the sum of credit is kept",
    "batch": "weights have mean 1 over all tokens of the batch; a rollout may gain or lose",
    "sign": "the sum of positive credit over the batch is kept, and that of negative credit",
    "bounded": "every weight lies between stated bounds; sums are not kept",
    "free": "nothing is kept",
}
# Evidence beyond `length` and `advantage` -> where it comes from.
SUPPLIERS: dict[str, str] = {
    "key": "the rollout's index in the store",
    "logp": "the probe `base`",
    "entropy": "the probe `base`",
    "distance": "the probe `base`",
    "z_pos": "the probe `opposed`",
    "z_neg": "the probe `opposed`",
    "placebo_pos": "the probe `placebo`",
    "placebo_neg": "the probe `placebo`",
}
PER_ROLLOUT = frozenset({"length", "advantage", "key"})


@dataclass(frozen=True)
class Evidence:
    """The arrays that a rule may read; `evidence[name]` asks for one and says who supplies it.

    All arrays are of one library and on one device, except `length`, which may lie on the host.

    Attributes:
        length: (rollout) tokens, masked ones among them; 0 allowed.
        advantage: (rollout) of the response as a whole; positive: better than its group. One a
            rollout: an advantage of single tokens is what a rule gives, not what it reads.
        mask: (token) True where the policy wrote the token itself; None: it wrote all.
        key: (rollout) a number >= 0 that names the rollout, for rules that draw at random: they
            give a rollout the same weights wherever it stands.
        logp: (token) log p under base, nats.
        entropy: (token) of the next-token distribution under base, nats.
        distance: (token) ||onehot - p|| under base, no unit: the norm of the gradient of log p with
            respect to the logits.
        z_pos: (token) shift under the positive verdict, mean over its wordings, nats.
        z_neg: (token) the same under the negative verdict.
        placebo_pos: (token) shift under one word of one placebo family, mean over the same
            sentences, nats.
        placebo_neg: (token) the same under the family's other word.
    """

    length: Integer[Array, " _rollout"]
    advantage: Float[Array, " _rollout"]
    mask: Bool[Array, " _token"] | None = None
    key: Integer[Array, " _rollout"] | None = None
    logp: Float[Array, " _token"] | None = None
    entropy: Float[Array, " _token"] | None = None
    distance: Float[Array, " _token"] | None = None
    z_pos: Float[Array, " _token"] | None = None
    z_neg: Float[Array, " _token"] | None = None
    placebo_pos: Float[Array, " _token"] | None = None
    placebo_neg: Float[Array, " _token"] | None = None

    def __getitem__(self, name: str) -> Shaped[Array, " _any"]:
        found = getattr(self, name)
        if found is None:
            raise SchemaError(
                f"this rule needs the evidence `{name}`; it was given {sorted(self.given())}. "
                f"To get it: {SUPPLIERS[name]}."
            )
        return found

    def given(self) -> dict[str, Shaped[Array, " _any"]]:
        """All arrays that are there, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in found.items() if array is not None}


Weigh: TypeAlias = Callable[[Evidence], Array]


class Credit(NamedTuple):
    """A credit rule.

    Attributes:
        assign: evidence -> credit of every token, in units of the advantage; no gradient flows.
        needs: evidence that it reads beyond `length` and `advantage`: names of `SUPPLIERS`.
        form: what it does to the advantage: multiplies | adds | replaces | clips.
        source: citation and evidence grade.
        budget: what is preserved: one of `BUDGETS`.
    """

    assign: Callable[[Evidence], Array]
    needs: frozenset[str]
    form: Form
    source: str
    budget: Budget


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
        own = own_tokens(evidence)
        weights = self.weigh(own)
        if evidence.mask is None:
            return weights
        xp = array_namespace(weights)
        spread = xp.zeros(evidence.mask.shape[0], dtype=xp.float64, device=device(weights))
        spread[evidence.mask] = weights
        return spread

    def __call__(self, evidence: Evidence) -> Float[Array, " token"]:
        """Credit of every token, in units and dtype of the advantage. As `weights`.

        Raises:
            SchemaError: evidence is missing, not finite, or not of the rollouts of `length`.
        """
        weights = self.weights(evidence)
        advantage = _plain(evidence.advantage)
        credit = weights * broadcast(advantage, evidence.length)
        xp = array_namespace(credit)
        return xp.astype(credit, evidence.advantage.dtype, copy=False)


def by_weight(weigh: Weigh, *, needs: frozenset[str], source: str, budget: Budget) -> Credit:
    """Make a rule of a weight function; its weights can be had by themselves, for store and figure.

    Args:
        weigh: as in `Weighted`.
        needs: as in `Credit`.
        source: as in `Credit`.
        budget: as in `Credit`.
    """
    return Credit(Weighted(weigh), needs, "multiplies", source, budget)


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
    weighted = isinstance(rule.assign, Weighted)
    return rule._replace(assign=Weighted(changed) if weighted else changed)


def own_tokens(evidence: Evidence) -> Evidence:
    """What a rule sees: masked tokens taken out, detached, floats as float64, all finite.

    Args:
        evidence: as a caller has it.

    Raises:
        SchemaError: an array is not of the rollouts of `length`, or not finite on the policy's own
            tokens.
    """
    arrays = {name: _plain(array) for name, array in evidence.given().items()}
    _require_sizes(arrays)
    mask = arrays.pop("mask", None)
    if mask is not None:
        xp = array_namespace(mask)
        own = xp.nonzero(mask)[0]
        arrays = {
            name: array if name in PER_ROLLOUT else xp.take(array, own)
            for name, array in arrays.items()
        }
        arrays["length"] = segment_sum(mask, arrays["length"])
    for name, array in arrays.items():
        _require_finite(name, array)
    return Evidence(**arrays)


def _holder(rule: Credit) -> Any:  # noqa: ANN401 (a function or a frozen dataclass)
    return rule.assign.weigh if isinstance(rule.assign, Weighted) else rule.assign


def _plain(array: Array) -> Array:
    """Without gradient; floats as float64."""
    detached = array.detach() if hasattr(array, "detach") else array
    xp = array_namespace(detached)
    if xp.isdtype(detached.dtype, "real floating"):
        return xp.astype(detached, xp.float64, copy=False)
    return detached


def _require_sizes(arrays: dict[str, Array]) -> None:
    """Check that every array has an entry for each rollout, or for each token, of `length`."""
    sizes = {"rollout": arrays["length"].shape[0], "token": int(offsets(arrays["length"])[-1])}
    for name, array in arrays.items():
        dim = "rollout" if name in PER_ROLLOUT else "token"
        if tuple(array.shape) != (sizes[dim],):
            raise SchemaError(
                f"evidence `{name}` needs one entry a {dim}, {sizes[dim]} by `length`; its shape "
                f"is {tuple(array.shape)}. Take all evidence from the same rollouts."
            )


def _require_finite(name: str, array: Array) -> None:
    """Check the numbers on the policy's own tokens."""
    xp = array_namespace(array)
    if name in ("length", "key"):
        return
    if not xp.isdtype(array.dtype, "real floating"):
        raise SchemaError(
            f"evidence `{name}` needs floating-point numbers; it has dtype {array.dtype}. Convert "
            "it, so that credit is not cut to whole numbers."
        )
    if not bool(xp.all(xp.isfinite(array))):
        count = int(xp.sum(xp.astype(~xp.isfinite(array), xp.int64)))
        raise SchemaError(
            f"evidence `{name}` needs finite numbers; {count} of {array.shape[0]} are not. "
            "Leave out the rollouts that were not scored, or not decided, and count them."
        )
