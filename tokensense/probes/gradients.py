"""Token gradients against pooled ones: exact inner products without a gradient for each token.

Reads  a Policy, branches (context ids, response ids), weights of all response tokens.
Gives  pooled_gradients: sum_t w_t grad log p(y_t) for several weightings, by backward passes;
       inner_products: <grad log p(y_t), d> for all t, by one forward-mode pass a direction;
       own_products: both for a weighting and its own gradient, with the identity checked.
Sign   positive: a small step along the direction makes the sampled token likelier.

All parameters count, tied ones once, and the embedding of the padding token where it was read
(torch does not train that row). The path is the plain padded one, attention eager or SDPA held to
its MATH form: other kernels have no forward mode, and a custom op has one that is silently 0.
So a policy is checked before its first use (sum_t w_t <grad log p_t, g> must be ||g||^2 for
g = sum_t w_t grad log p_t) and central differences take the place of the forward mode where it
fails; their step moves log p by .01 to .02 nats on average, the window in which SmolLM2's were
right to 1 % (notes/engineering.md section 2).

Cost   in units of a forward pass: a weighting 2.5 beside one forward for all, a direction 3.5 (2
       by differences). A refinement of DelTA is two weightings and one direction.
Source own; methods/delta.md section 2.4, "exact full-parameter DelTA".
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.func import functional_call

from tokensense.checks import require_member
from tokensense.errors import PolicyError, SchemaError, StatisticsError
from tokensense.models.plan import Branch, Row, plan_padded
from tokensense.models.policy import Policy
from tokensense.models.scorer import require_scorable
from tokensense.probes.tangents import (
    LogProbs,
    difference,
    fitting_step,
    forward_mode,
    plain,
    squared_norm,
    unflat,
)

TOKENS_PER_ROW = 2048
METHODS = ("auto", "jvp", "difference")
OBJECTION = "jvp"  # in Policy.objections
# Relative; float32 held to 1e-6 in measurements. The second is a share of sum |w_t product_t|, for
# weightings that nearly cancel.
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 0.1, "bfloat16": 0.2}
ROUNDING = 1e-6


class Products(NamedTuple):
    """A pooled gradient and what each token has to do with it.

    gradient: sum_t w_t grad log p(y_t). products: <grad log p(y_t), gradient>, so that
    w_t products_t / ||gradient||^2 is the token's share of the squared norm.
    """

    gradient: Float[Tensor, " parameter"]
    products: Float64[np.ndarray, " token"]


def pooled_gradients(
    policy: Policy,
    branches: Sequence[Branch],
    weights: Float[np.ndarray, "pool token"],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
) -> Float[Tensor, "pool parameter"]:
    """sum_t w_t grad log p(y_t) of each weighting, in nats per unit of the parameters.

    Args:
        policy: in evaluation mode for the time of the call.
        branches: contexts and responses.
        weights: of the response tokens of all branches, back to back; any sign.
        tokens_per_row: most padded tokens in one pass; decides memory and the last bits.

    Returns:
        One flat gradient a weighting: all parameters in the order of `named_parameters`.

    Raises:
        SchemaError: `weights` are not one finite number a response token.
        PolicyError: a branch cannot be scored by the policy.
    """
    _require_weights(weights, branches)
    require_scorable(policy, branches)
    model = LogProbs(policy)
    leaves = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    size = sum(p.numel() for p in leaves.values())
    pooled = torch.zeros((len(weights), size), dtype=_dtype(policy), device=policy.device)
    with plain(policy), torch.enable_grad():
        for row in _rows(branches, tokens_per_row):
            given = torch.from_numpy(weights[:, row.slots]).to(policy.device)
            counted = [pool for pool in range(len(weights)) if bool(given[pool].any())]
            if not counted:
                continue
            logp = functional_call(model, leaves, (row,), tie_weights=True)
            for pool in counted:
                found = torch.autograd.grad(
                    logp,
                    list(leaves.values()),
                    given[pool].to(logp.dtype),
                    retain_graph=pool != counted[-1],
                    materialize_grads=True,
                    allow_unused=True,
                )
                pooled[pool] += torch.cat([part.flatten() for part in found])
    return pooled


def inner_products(
    policy: Policy,
    branches: Sequence[Branch],
    directions: Float[Tensor, "pool parameter"],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
    method: str = "auto",
) -> Float64[np.ndarray, "pool token"]:
    """<grad log p(y_t), direction> of every response token, nats per unit of the direction.

    Args:
        policy: as in `pooled_gradients`.
        branches: as there.
        directions: flat, as `pooled_gradients` gives them.
        tokens_per_row: as there.
        method: `jvp` is exact, `difference` good to about 1 %; `auto` takes the first where the
            policy passes the check, which is made once.

    Raises:
        SchemaError: `method` is not known, or a direction has not one number a parameter.
        PolicyError: `jvp` was asked for and the policy has no right forward mode, or a branch
            cannot be scored by it.
    """
    require_scorable(policy, branches)
    model = LogProbs(policy)
    values = {name: p.detach() for name, p in model.named_parameters()}
    size = sum(p.numel() for p in values.values())
    if directions.ndim != 2 or directions.shape[1] != size:
        raise SchemaError(
            f"`directions` need one number for each of the {size} parameters of {policy.name}; "
            f"their shape is {tuple(directions.shape)}. Take them from `pooled_gradients`."
        )
    exact = resolved_method(policy, method) == "jvp"
    found = np.empty((len(directions), sum(len(b.response) for b in branches)))
    plan = _rows(branches, tokens_per_row)
    with plain(policy), torch.no_grad():
        for pool, direction in enumerate(directions):
            tangent = unflat(direction, values)
            step = 0.0 if exact or not plan else fitting_step(model, values, tangent, plan[0])
            for row in plan:
                if exact:
                    part = forward_mode(model, values, tangent, row)
                else:
                    part = difference(model, values, tangent, row, step=step)
                found[pool, row.slots] = part.double().cpu().numpy()
    return found


def own_products(
    policy: Policy,
    branches: Sequence[Branch],
    weights: Float[np.ndarray, "pool token"],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
    method: str = "auto",
) -> list[Products]:
    """Pooled gradients, and the inner product of every token's gradient with each of them.

    Arguments as in `pooled_gradients` and `inner_products`.

    Raises:
        SchemaError: `weights` are not one finite number a response token, or `method` is unknown.
        PolicyError: `jvp` was asked for and the policy has no right forward mode.
        StatisticsError: sum_t w_t product_t is not ||gradient||^2, although the method is exact.
    """
    pooled = pooled_gradients(policy, branches, weights, tokens_per_row=tokens_per_row)
    products = inner_products(
        policy, branches, pooled, tokens_per_row=tokens_per_row, method=method
    )
    if resolved_method(policy, method) == "jvp":
        for own_weights, own, gradient in zip(weights, products, pooled, strict=True):
            _require_identity(policy, own_weights, own, gradient)
    return [Products(*pair) for pair in zip(pooled, products, strict=True)]


def center_products(
    policy: Policy,
    branches: Sequence[Branch],
    positive: Float[np.ndarray, " token"],
    negative: Float[np.ndarray, " token"],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
) -> tuple[Float64[np.ndarray, " token"], float, float]:
    """DelTA's two centers of exact gradients as every token sees them.

    Args:
        policy: as in `pooled_gradients`.
        branches: as there.
        positive: weights of the tokens in mu+; each summing to 1 by custom.
        negative: weights in mu-.
        tokens_per_row: as there.

    Returns:
        <grad log p(y_t), mu+ - mu->, ||mu+||^2 and ||mu-||^2.

    Raises:
        SchemaError: weights are not one finite number a response token.
        PolicyError: a branch cannot be scored by the policy.
        StatisticsError: sum_t (w+ - w-)_t product_t is not ||mu+ - mu-||^2.
    """
    sides = np.stack([positive, negative])
    means = pooled_gradients(policy, branches, sides, tokens_per_row=tokens_per_row)
    apart = means[:1] - means[1:]
    products = inner_products(policy, branches, apart, tokens_per_row=tokens_per_row)
    _require_identity(policy, sides[0] - sides[1], products[0], apart[0])
    return products[0], squared_norm(means[0]), squared_norm(means[1])


def identity_error(
    weights: Float[np.ndarray, " token"], products: Float64[np.ndarray, " token"], squared: float
) -> float:
    """How far sum_t w_t product_t is from ||g||^2, relative to it, rounding allowed for.

    Args:
        weights: of the pooled gradient g.
        products: <grad log p_t, g>.
        squared: ||g||^2.

    Example:
        >>> identity_error(np.array([1.0, -1.0]), np.array([3.0, 1.0]), 2.0)
        0.0
        >>> identity_error(np.array([1.0]), np.array([0.0]), 2.0)
        1.0
    """
    parts = weights * products
    off = abs(float(parts.sum()) - squared) - ROUNDING * float(np.abs(parts).sum())
    return max(0.0, off) / squared if squared > 0 else float(off > 0)


def resolved_method(policy: Policy, method: str) -> str:
    """What `method` comes to with this policy: `jvp` or `difference`.

    Args:
        policy: checked once, on two short responses of random ids.
        method: one of METHODS.

    Raises:
        SchemaError: `method` is none of these.
        PolicyError: `jvp` was asked for and the policy has no right forward mode.
    """
    require_member("method", method, METHODS)
    if method == "difference":
        return method
    if OBJECTION not in policy.objections:
        policy.objections[OBJECTION] = _objection(policy)
    objection = policy.objections[OBJECTION]
    if objection and method == "jvp":
        raise PolicyError(
            f"Method 'jvp' needs a right forward mode in every layer; with {policy.name} "
            f"{objection}. Use method='difference', good to about 1 %."
        )
    return "difference" if objection else "jvp"


def _objection(policy: Policy) -> str:
    """Why the forward mode cannot be used; "" where it can."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(policy.head_width, (24,), generator=draw).tolist()
    branches = [
        Branch(tuple(ids[:4]), tuple(ids[4:12])),
        Branch(tuple(ids[12:15]), tuple(ids[15:])),
    ]
    weights = np.where(np.arange(17) % 3 == 0, -1.0, 1.0)[None]
    pooled = pooled_gradients(policy, branches, weights)
    model = LogProbs(policy)
    values = {name: p.detach() for name, p in model.named_parameters()}
    products = np.empty(17)
    try:
        with plain(policy), torch.no_grad():
            for row in _rows(branches, TOKENS_PER_ROW):
                part = forward_mode(model, values, unflat(pooled[0], values), row)
                products[row.slots] = part.double().cpu().numpy()
    except (NotImplementedError, RuntimeError) as cause:
        return f"the forward mode fails: {str(cause).splitlines()[0]}"
    off = identity_error(weights[0], products, squared_norm(pooled[0]))
    return f"the forward mode is off by {off:.1e}" if off > TOLERANCE[policy.dtype] else ""


def _rows(branches: Sequence[Branch], tokens_per_row: int) -> list[Row]:
    """Padded rows, the largest first."""
    return [row for (row,) in plan_padded(branches, tokens_per_row=tokens_per_row)]


def _dtype(policy: Policy) -> torch.dtype:
    """Of pooled gradients: that of the parameters, at least float32."""
    return torch.float64 if policy.dtype == "float64" else torch.float32


def _require_identity(
    policy: Policy,
    weights: Float[np.ndarray, " token"],
    products: Float64[np.ndarray, " token"],
    gradient: Tensor,
) -> None:
    """Check sum_t w_t product_t against ||gradient||^2; differences need not pass."""
    if policy.objections.get(OBJECTION):
        return
    off = identity_error(weights, products, squared_norm(gradient))
    if off > TOLERANCE[policy.dtype]:
        raise StatisticsError(
            f"sum_t w_t <grad log p_t, g> needs to be ||g||^2; under {policy.name} it is off by "
            f"{off:.1e}, relative. A layer has a wrong forward mode: use method='difference', and "
            "report the model class."
        )


def _require_weights(weights: Float[np.ndarray, "pool token"], branches: Sequence[Branch]) -> None:
    """Check the weights against them."""
    tokens = sum(len(branch.response) for branch in branches)
    if weights.ndim != 2 or weights.shape[1] != tokens or not np.isfinite(weights).all():
        raise SchemaError(
            f"`weights` need a finite number for each of the {tokens} response tokens, one row a "
            f"weighting; their shape is {weights.shape}, all finite: "
            f"{bool(np.isfinite(weights).all())}. Take them from the same rollouts."
        )
