"""What a credit rule may read: flat arrays over the tokens of all rollouts, checked at the door.

Reads  what a caller has, on NumPy or PyTorch, with masked tokens in it.
Gives  Evidence; SUPPLIERS (where each array comes from and what it costs); own_tokens, what a rule
       sees of it.
Sign   shifts are log p(token | told) - log p(token), nats: positive where telling it makes the
       sampled token likelier.

Arrays over tokens are of the sampled tokens. Which of two answers, siblings or verdicts is the
right one is in the name: `_pos` shows or states what is right, `_neg` what is wrong.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device, to_device
from jaxtyping import Bool, Float, Integer, Shaped

from tokensense.errors import SchemaError
from tokensense.segments import broadcast, offsets, segment_sum

Array: TypeAlias = Any  # NumPy or PyTorch, as `segments` checks; torch is never imported


class Supplier(NamedTuple):
    """Where an array comes from.

    Attributes:
        text: the probe, or what else has to be done.
        passes: forward passes over the rollouts beside base, for one wording; None: more than a
            handful, as the text says.
    """

    text: str
    passes: int | None


_STORE = Supplier("the store's rollouts", 0)
_BASE = Supplier("the probe `base`", 0)
_OPPOSED = Supplier("the probe `opposed`", 1)
_PLACEBO = Supplier("the probe `placebo`", 1)
_ANSWER = Supplier("the probe `answer`", 1)
_SIBLING = Supplier("the probe `sibling`", 1)
_TEACHER = "another model's log-probabilities of the same tokens, given by hand"
# A store has no vectors of tokens.
_VECTORS = "which a store does not keep: `centers` shows the weights, `train` learns with them"
# Evidence beyond `length` and `advantage` -> where it comes from.
SUPPLIERS: dict[str, Supplier] = {
    "key": Supplier("the rollout's index in the store", 0),
    "group": _STORE,
    "reward": _STORE,
    "token_id": _STORE,
    "step": _STORE,
    "planted": Supplier("a planted task, which knows the tokens that decide", 0),
    "logp": _BASE,
    "entropy": _BASE,
    "distance": _BASE,
    "z_pos": _OPPOSED,
    "z_neg": _OPPOSED,
    "placebo_pos": _PLACEBO,
    "placebo_neg": _PLACEBO,
    "answer_pos": _ANSWER,
    "answer_neg": _ANSWER,
    "sibling_pos": _SIBLING,
    "sibling_neg": _SIBLING,
    "negative_prompt": Supplier("the probe `negative_prompt`", 1),
    "reference": Supplier("the probe `reference`", 1),
    "rubric": Supplier("a prompt with the grading rubric; no probe yet", 1),
    "teacher": Supplier(_TEACHER, 1),
    "teacher_pos": Supplier(f"{_TEACHER}, told that the solution is right", 1),
    "teacher_neg": Supplier(f"{_TEACHER}, told that the solution is wrong", 1),
    "drift": Supplier("a pass of the reference policy, given by hand", 1),
    "hellinger": Supplier("full distributions of a pass of the reference policy, by hand", 1),
    "ratio": Supplier("the trainer: the current policy's pass, which it makes anyway", 0),
    "learning_value": Supplier("`tokensense.learning_values`, gradients of other problems", 7),
    "row_gradient": Supplier(f"hidden states of the base pass, {_VECTORS}", 1),
    "hidden_gradient": Supplier(f"hidden states and the head, {_VECTORS}", 1),
    "right_influence": Supplier("hidden states and full distributions of the base pass", 0),
    "value_gain": Supplier("continuations of every prefix, `probes.resample`", None),
    "span_drop": Supplier("a pass a span without it, `probes.ablate`", None),
    "answer_kl": Supplier("a pass a token with it masked, as `probes.ablate` does for spans", None),
    "answer_saliency": Supplier("one pass with gradients to the embeddings; no probe yet", 3),
}
PER_ROLLOUT = frozenset({"length", "advantage", "key", "group", "reward"})
# Arrays with a vector for each token.
VECTORS = frozenset({"row_gradient", "hidden_gradient"})
NOT_FLOAT = frozenset({"length", "key", "group", "token_id", "step", "planted"})


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
        group: (rollout) equal for rollouts of one problem.
        reward: (rollout) of the verifier; 1 right, 0 wrong where a rule speaks of accuracy.
        token_id: (token) id of the sampled token.
        step: (token) index of the step that holds the token; -1 where it is in none.
        planted: (token) True where a planted task knows that the token decides the outcome.
        logp: (token) log p under base, nats.
        entropy: (token) of the next-token distribution under base, nats.
        distance: (token) ||onehot - p|| under base, no unit: the norm of the gradient of log p with
            respect to the logits.
        z_pos: (token) shift under the positive verdict, mean over its wordings, nats.
        z_neg: (token) the same under the negative verdict.
        placebo_pos: (token) shift under one word of one placebo family, mean over the same
            sentences, nats.
        placebo_neg: (token) the same under the family's other word.
        answer_pos: (token) shift where the right final answer is given, nats.
        answer_neg: (token) the same with a wrong one.
        sibling_pos: (token) log of the mean over right siblings shown of exp(shift), nats.
        sibling_neg: (token) the same over wrong ones.
        negative_prompt: (token) shift where a wrong answer is asked for, nats.
        reference: (token) shift where the reference solution is given, nats.
        rubric: (token) shift where the rubric is given, nats.
        teacher: (token) log p of another model, or of an older policy, minus log p, nats.
        teacher_pos: (token) the teacher's own shift under the positive verdict, nats.
        teacher_neg: (token) the same under the negative verdict.
        drift: (token) log p minus log p of the reference policy, nats.
        hellinger: (token) squared Hellinger distance 1 - sum of sqrt(p p_reference), in [0, 1].
        ratio: (token) p under the policy being updated over p under the one that sampled.
        learning_value: (token) <grad log p(token), G>, G the held-out gradient of expected reward.
        row_gradient: (token, dim) gradient of log p by the token's own row of the head, (1 - p) h.
        hidden_gradient: (token, dim) gradient of log p by the head's input, W[y] - sum_j p_j W[j].
        right_influence: (token) sum over the tokens of the group's right responses of
            <onehot - p, onehot' - p'> <h, h'>, h the vector that enters the head.
        value_gain: (token) expected reward after the token's step minus that before it.
        span_drop: (token) fall of log p(answer) when the token's span is masked, nats; 0 outside.
        answer_kl: (token) KL of the answer's distribution from that with the token masked, nats.
        answer_saliency: (token) |sum of gradient x embedding| of that KL under noise.
    """

    length: Integer[Array, " _rollout"]
    advantage: Float[Array, " _rollout"]
    mask: Bool[Array, " _token"] | None = None
    key: Integer[Array, " _rollout"] | None = None
    group: Integer[Array, " _rollout"] | None = None
    reward: Float[Array, " _rollout"] | None = None
    token_id: Integer[Array, " _token"] | None = None
    step: Integer[Array, " _token"] | None = None
    planted: Bool[Array, " _token"] | None = None
    logp: Float[Array, " _token"] | None = None
    entropy: Float[Array, " _token"] | None = None
    distance: Float[Array, " _token"] | None = None
    z_pos: Float[Array, " _token"] | None = None
    z_neg: Float[Array, " _token"] | None = None
    placebo_pos: Float[Array, " _token"] | None = None
    placebo_neg: Float[Array, " _token"] | None = None
    answer_pos: Float[Array, " _token"] | None = None
    answer_neg: Float[Array, " _token"] | None = None
    sibling_pos: Float[Array, " _token"] | None = None
    sibling_neg: Float[Array, " _token"] | None = None
    negative_prompt: Float[Array, " _token"] | None = None
    reference: Float[Array, " _token"] | None = None
    rubric: Float[Array, " _token"] | None = None
    teacher: Float[Array, " _token"] | None = None
    teacher_pos: Float[Array, " _token"] | None = None
    teacher_neg: Float[Array, " _token"] | None = None
    drift: Float[Array, " _token"] | None = None
    hellinger: Float[Array, " _token"] | None = None
    ratio: Float[Array, " _token"] | None = None
    learning_value: Float[Array, " _token"] | None = None
    row_gradient: Float[Array, "_token _dim"] | None = None
    hidden_gradient: Float[Array, "_token _dim"] | None = None
    right_influence: Float[Array, " _token"] | None = None
    value_gain: Float[Array, " _token"] | None = None
    span_drop: Float[Array, " _token"] | None = None
    answer_kl: Float[Array, " _token"] | None = None
    answer_saliency: Float[Array, " _token"] | None = None

    def __getitem__(self, name: str) -> Shaped[Array, "..."]:
        found = getattr(self, name)
        if found is None:
            raise SchemaError(
                f"this rule needs the evidence `{name}`; it was given {sorted(self.given())}. "
                f"To get it: {SUPPLIERS[name].text}."
            )
        return found

    def given(self) -> dict[str, Shaped[Array, "..."]]:
        """All arrays that are there, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in found.items() if array is not None}

    def spread(self) -> Float[Array, " token"]:
        """Advantage of each token's rollout."""
        return broadcast(self.advantage, self.length)

    def on_host(self) -> "Evidence":
        """The same as NumPy arrays, for rules that sort out groups one by one."""
        return Evidence(
            **{name: np.asarray(to_device(array, "cpu")) for name, array in self.given().items()}
        )

    def place(self, values: Shaped[np.ndarray, " _any"]) -> Shaped[Array, " _any"]:
        """Bring what was worked out on the host to the library and device of the evidence.

        Args:
            values: one a token, any unit.
        """
        xp = array_namespace(self.advantage)
        return xp.asarray(values, device=device(self.advantage))


def own_tokens(evidence: Evidence) -> Evidence:
    """What a rule sees: masked tokens taken out, detached, floats as float64, all finite.

    Args:
        evidence: as a caller has it.

    Raises:
        SchemaError: an array is not of the rollouts of `length`, or not finite on the policy's own
            tokens.
    """
    arrays = {name: plain(array) for name, array in evidence.given().items()}
    _require_sizes(arrays)
    mask = arrays.pop("mask", None)
    if mask is not None:
        xp = array_namespace(mask)
        own = xp.nonzero(mask)[0]
        arrays = {
            name: array if name in PER_ROLLOUT else xp.take(array, own, axis=0)
            for name, array in arrays.items()
        }
        arrays["length"] = segment_sum(mask, arrays["length"])
    for name, array in arrays.items():
        _require_finite(name, array)
    return Evidence(**arrays)


def plain(array: Array) -> Array:
    """Without gradient; floats as float64.

    Args:
        array: any.
    """
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
        if array.ndim != 1 + (name in VECTORS) or array.shape[0] != sizes[dim]:
            raise SchemaError(
                f"evidence `{name}` needs one entry a {dim}, {sizes[dim]} by `length`; its shape "
                f"is {tuple(array.shape)}. Take all evidence from the same rollouts."
            )


def _require_finite(name: str, array: Array) -> None:
    """Check the numbers on the policy's own tokens."""
    xp = array_namespace(array)
    if name in NOT_FLOAT:
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
