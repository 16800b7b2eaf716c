"""How much memory a training step takes, told before anything is loaded.

Reads  a model's shapes (`models.outline`: its config is enough) and a TrainConfig.
Gives  Need, training_need, kept_bytes, dry_run.
Sign   none: bytes.

What is held all along adds up: weights of the policy that is trained, of the one that the run began
from, of a teacher that follows; gradients (they stay until the next update begins) and AdamW's two
moments, all in the number format of the weights. Of the moments that follow each other the largest
counts. Bytes of one process; each has all of it.

Activations are those of a Llama-like layer, gated and with root-mean-square norms, as autograd
keeps them (counted with `saved_tensors_hooks` in the tests). Departures: a layer without a gate
keeps less; experts are counted by what a token is fed to; recurrent layers are not in it. Prompts
are not known here: a row is `tokens_per_row` or `max_new_tokens`, whichever is larger, and a prompt
that makes it longer takes more. Re-scoring for a rule's evidence suits itself to what is free
(`models.memory`) and is left out. There is no LoRA (it would need `peft`): all weights are trained.

Source: closed form of what autograd, AdamW and `models.head` keep alive; own count.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from tokensense.models.head import ROWS, TILE
from tokensense.models.memory import GIB, Widths, free_bytes, widths
from tokensense.models.outline import outline
from tokensense.models.sampler import CACHE_BYTES, MOST_ROWS
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.distillation import ENTRIES
from tokensense.trainer.parallel import BUCKET

FLOAT = 4  # bytes of float32
OVERHEAD = 2**24  # code and buffers that training brings in; fitted on a policy of 0.1 M weights


class Need(NamedTuple):
    """Bytes of a training step.

    Attributes:
        held: all along, by part.
        moments: above it, by moment of the step; one at a time.
    """

    held: Mapping[str, int]
    moments: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        return sum(self.held.values()) + max(self.moments.values())


def training_need(model: PreTrainedModel, config: TrainConfig, *, processes: int = 1) -> Need:
    """What a training step takes.

    Args:
        model: its shapes and number format count; its weights may lie on `meta`.
        config: of the run.
        processes: that do it together.
    """
    w = widths(model)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    held = {
        "weights that are trained": weights,
        "weights that the run began from": weights,
        "gradients": weights,
        "AdamW's moments": 2 * weights,
        "code and buffers": OVERHEAD,
    }
    form = config.distillation
    if form is not None:
        told = config.problems * config.group * config.max_new_tokens
        held["teacher's states"] = told * w.hidden * FLOAT
        if 0 < form.teacher_rate < 1:
            held["weights of the teacher"] = weights
        if config.epochs * config.updates > 1:
            held["teacher's head"] = w.vocabulary * w.hidden * w.size
    tokens = max(config.tokens_per_row, config.max_new_tokens)
    moments = {"sampling": _sampling(w, tokens), **_backward(model, w, config, tokens=tokens)}
    largest = max(p.numel() for p in model.parameters())
    moments["optimizer's step"] = 2 * largest * w.size
    if processes > 1:  # what is sent, and what comes
        moments["joining gradients"] = 2 * max(BUCKET, largest) * FLOAT
    return Need(held, moments)


def kept_bytes(model: PreTrainedModel, tokens: int) -> int:
    """What one layer keeps of some tokens for its backward pass, recomputed or not.

    Args:
        model: as in `training_need`.
        tokens: of the row.
    """
    w = widths(model)
    # Two norms keep their input, in float32, and what they made of it, twice; attention q, k, v
    # and its output, which is kept once more as the next product's; the inner layer gate, its
    # activation, the other branch and their product.
    normed = 2 * w.hidden
    own = 4 * w.hidden + 2 * w.queries + w.pair + 4 * w.inner
    if any(name.endswith(".q_norm") for name, _ in model.named_modules()):
        normed += w.queries + w.pair // 2
        own += w.queries + w.pair // 2
    return tokens * (own * w.size + normed * FLOAT)


def _backward(
    model: PreTrainedModel, w: Widths, config: TrainConfig, *, tokens: int
) -> dict[str, int]:
    """The moments of a backward pass, with all that it has kept."""
    layer, state = kept_bytes(model, tokens), tokens * w.hidden * w.size
    kept = w.layers * (state if config.checkpointing else layer) + 5 * state
    tied = bool(model.config.get_text_config().tie_word_embeddings)
    table = w.vocabulary * w.hidden
    tiles = min(ROWS, tokens) * min(TILE, w.vocabulary) * 3 * FLOAT
    if config.distillation is not None:
        tiles = max(tiles, 8 * FLOAT * max(ENTRIES, w.vocabulary))
    # The head's gradient is summed in float32, and handed on in the format of the weights.
    short = 0 if w.size == FLOAT else table * w.size
    head = tokens * w.hidden * FLOAT + table * FLOAT + tiles + short
    # Gradients of the inner layer's three and of the state; a tied head's waits for the table's.
    inside = tokens * (3 * w.inner + 2 * w.hidden) * w.size + (table * w.size if tied else 0)
    return {
        "backward pass of the head": kept + head,
        "backward pass of a layer": kept + inside + (layer if config.checkpointing else 0),
        "backward pass of the embeddings": (2 if tied else 1) * table * w.size + 2 * state,
    }


def _sampling(w: Widths, tokens: int) -> int:
    """Keys and values of the rows drawn together, at most, and their logits."""
    row = w.layers * w.pair * w.size * tokens
    return max(row, min(MOST_ROWS * row, CACHE_BYTES)) + 2 * MOST_ROWS * w.vocabulary * FLOAT


def dry_run(
    source: str, config: TrainConfig, *, device: str, dtype: str, processes: int = 1
) -> dict[str, Any]:
    """The need of a run and what is free, GiB, as plain values; nothing is loaded.

    Args:
        source: as in `outline`.
        config: of the run.
        device: where it would run.
        dtype: of the weights.
        processes: that do it together.

    Returns:
        held, moments (by name), peak: of one process; free: None where the device is not here.

    Raises:
        PolicyError: no config is found.
        SchemaError: `dtype` is unknown.
    """
    need = training_need(outline(source, dtype=dtype), config, processes=processes)
    place = torch.device(device)
    here = place.type == "cpu" or (place.type == "cuda" and torch.cuda.is_available())
    return {
        "held": {name: round(size / GIB, 3) for name, size in need.held.items()},
        "moments": {name: round(size / GIB, 3) for name, size in need.moments.items()},
        "peak": round(need.peak / GIB, 3),
        "free": round(free_bytes(place) / GIB, 3) if here else None,
    }
