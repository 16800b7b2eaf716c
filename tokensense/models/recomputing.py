"""Backward passes that make activations once more, where memory does not hold them all.

Reads  a model whose layers are transformers' `GradientCheckpointingLayer`.
Gives  recomputed, a context; require_recomputable.
Sign   none: nothing here is signed.

Inside the context a forward pass keeps what enters each layer and nothing from within it; the
backward pass runs the layer again. Loss and gradient stay what they are; a step costs one forward
pass of the layers more.

transformers' own switch is not used: it does nothing in evaluation mode, in which the trainer feeds
a model, and training mode would bring dropout. In evaluation mode nothing is drawn at random, so
that the state of random generators need not be kept either.

Source: arXiv:1604.06174; torch.utils.checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokensense.errors import PolicyError


def require_recomputable(model: PreTrainedModel) -> None:
    """Check that the model has layers that can be run again.

    Args:
        model: in question.

    Raises:
        PolicyError: it has none.
    """
    if not model.supports_gradient_checkpointing or not _layers(model):
        raise PolicyError(
            "gradient checkpointing needs a model that transformers can checkpoint, layer by "
            f"layer; {type(model).__name__} is none. Set `checkpointing` to false and lower "
            "`tokens_per_row`."
        )


@contextmanager
def recomputed(model: PreTrainedModel) -> Iterator[None]:
    """Forward and backward passes inside keep only what enters each layer.

    Args:
        model: in evaluation mode; as it was afterwards.

    Raises:
        PolicyError: its layers cannot be run again.
    """
    require_recomputable(model)
    own = [(layer, vars(layer).get("forward")) for layer in _layers(model)]
    for layer, _ in own:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )
    try:
        yield
    finally:
        for layer, forward in own:
            del layer.forward
            if forward is not None:
                layer.forward = forward


def _layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
