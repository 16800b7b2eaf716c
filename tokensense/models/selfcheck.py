"""Does a model do what the scorer takes for granted? Asked once a policy, before its first score.

Reads  a Policy; runs four forward passes of some twenty tokens.
Gives  hidden_rows, trie_objection, positions_follow_length, require_known_head.
Source transformers 5.24 takes an attention name without a word and then does not use it (Mamba,
       Falcon, Bloom), or not in every layer (Qwen3-Next): so calls are counted *and* numbers
       compared.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from tokensense.errors import PolicyError
from tokensense.models.attention import Trie, trie_attention, trie_attention_of
from tokensense.models.head import head_of, logits_of
from tokensense.models.plan import Branch, Row, plan_padded, plan_rows
from tokensense.models.policy import Policy

# Largest difference allowed. Rounding of the short formats hides all but gross mistakes (a router
# may even choose other experts): there the count of calls is the check.
TOLERANCE = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}


def hidden_rows(
    model: PreTrainedModel, stream: Sequence[Row]
) -> Iterator[tuple[Row, Float[Tensor, "token hidden"]]]:
    """Each row of a stream, and the hidden states (after the last norm) that predict its targets.

    Rows with segments needs `trie_attention_of` around it. No mask is given: all is causal.
    """
    device = next(model.parameters()).device
    backbone = model.base_model
    if backbone is model:  # classes whose prefix names another attribute, such as Llama 4
        backbone = model.model
    # Recurrent models have no positions to be told.
    positioned = "position_ids" in inspect.signature(backbone.forward).parameters
    carried: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    masks: dict[int, Tensor] = {}
    for row in stream:
        inputs: dict[str, Any] = {"input_ids": torch.from_numpy(row.ids).to(device)}
        if positioned:
            inputs["position_ids"] = torch.from_numpy(row.positions).to(device)
        if row.segments:
            inputs["trie"] = Trie(row.segments, row.keep, carried, masks)
        hidden: Tensor = backbone(**inputs, use_cache=False).last_hidden_state
        yield row, hidden.flatten(0, 1)[torch.from_numpy(row.rows).to(device)]


def trie_objection(policy: Policy) -> str:
    """Why contexts that begin alike cannot be fed once with this policy; "" if they can.

    They can where every layer calls the registered attention, with the window that the config says,
    and a trie of two branches gives what each branch gives alone under the model's own attention.
    """
    model, config = policy.model, policy.model.config.get_text_config()
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return "its layers attend in chunks"
    branches = _two_branches(policy)
    # 23 tokens in two rows, cut inside the first response: the second row needs what is carried.
    (stream,) = plan_rows(branches, tokens_per_row=12)
    windows: list[int | None] = []

    def counted(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:  # noqa: ANN401
        windows.append(kwargs.get("sliding_window"))
        return trie_attention(*args, **kwargs)

    try:
        with trie_attention_of(model, counted):
            together = _by_slot(hidden_rows(model, stream))
    except Exception as cause:  # whatever it is, there is a path that does without
        return f"its forward pass fails: {cause}"
    calls, expected = len(windows) / len(stream), layer_windows(config)
    if calls != config.num_hidden_layers:
        return f"{calls:g} of {config.num_hidden_layers} layers call the attention interface"
    if windows != expected * len(stream):
        return f"its layers use the windows {windows[: len(expected)]}; its config says {expected}"
    alone = torch.cat([_alone(model, branch) for branch in branches])
    error = relative_difference(together, alone)
    if not error <= TOLERANCE[policy.dtype]:
        return f"a trie of two branches is off by {error:.1e}, relative"
    return ""


def positions_follow_length(policy: Policy) -> bool:
    """Whether the longest sequence fed decides how all are told their positions (type `longrope`).

    Such branches are scored one at a time: beside others they would depend on these.
    """
    rope = getattr(policy.model.config.get_text_config(), "rope_parameters", None) or {}
    nested = [part for part in rope.values() if isinstance(part, dict)]
    return any(part.get("rope_type") == "longrope" for part in (rope, *nested))


def require_known_head(policy: Policy) -> None:
    """Check that `head_of` knows all that the model does between hidden states and logits.

    Raises:
        PolicyError: the model's own logits are others.
    """
    (branch, _) = _two_branches(policy)
    ((row,),) = plan_padded([branch], tokens_per_row=1024)
    ids = torch.from_numpy(row.ids).to(policy.device)
    own = policy.model(input_ids=ids, use_cache=False).logits[0, row.rows]
    head = head_of(policy.model)
    ours = logits_of(_alone(policy.model, branch), head, 0, head.weight.shape[0]).to(own.dtype)
    error = relative_difference(ours, own)
    if not error <= TOLERANCE[policy.dtype]:
        raise PolicyError(
            f"Scoring needs logits that are a linear map of the last hidden state, with scale and "
            f"softcap from the config; those of {type(policy.model).__name__} differ by "
            f"{error:.1e}. "
            "This model class is not supported: please report it."
        )


def relative_difference(found: Tensor, truth: Tensor) -> float:
    """Relative to the truth: largest by largest in float32, mean by mean in shorter formats."""
    difference, size = (found - truth).abs().float(), truth.abs().float()
    if truth.dtype == torch.float32:
        return float(difference.max() / size.max())
    return float(difference.mean() / size.mean())


def _alone(model: PreTrainedModel, branch: Branch) -> Tensor:
    """Hidden states that predict the response of one branch, by the model's own attention."""
    (stream,) = plan_padded([branch], tokens_per_row=1024)
    return _by_slot(hidden_rows(model, stream))


def _by_slot(found: Iterable[tuple[Row, Tensor]]) -> Tensor:
    """Hidden states in the order of the response tokens."""
    rows, hidden = zip(*found, strict=True)
    order = np.argsort(np.concatenate([row.slots for row in rows]))
    return torch.cat(hidden)[torch.from_numpy(order)]


def _two_branches(policy: Policy) -> list[Branch]:
    """Random ids: a common beginning of 7, contexts of 10 and 12, responses of 6 and 4 tokens."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(policy.head_width, (25,), generator=draw).tolist()
    common = tuple(ids[:7])
    return [
        Branch((*common, *ids[7:10]), tuple(ids[10:16])),
        Branch((*common, *ids[16:21]), tuple(ids[21:25])),
    ]


def layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """The window of each layer by the config; None where a layer sees everything."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]
