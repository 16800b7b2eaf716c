"""Log-probabilities that a policy gives to fixed responses after given contexts.

Reads  a Policy and branches (context ids, response ids).
Gives  score, read_rows, scoring_settings, Scores.
Sign   logp <= 0, entropy >= 0, nats; a response of n tokens gives n values, the first one included.
Source checked against `tests/reference/scorer.py`: one sequence at a time, softmax in float64.

What is computed together decides the last bits of a score: same settings and branches, same bytes;
others, within 1e-4 nats in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from transformers import PreTrainedModel

from tokensense.checks import require_member, require_range
from tokensense.errors import PolicyError
from tokensense.models.attention import BLOCK, trie_attention, trie_attention_of
from tokensense.models.compiled import can_compile, compiled_layers, left_alone
from tokensense.models.head import ROWS, TILE, head_of, log_statistics
from tokensense.models.plan import STREAM, Branch, Row, plan_padded, plan_rows
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.models.selfcheck import (
    hidden_rows,
    positions_follow_length,
    require_known_head,
    trie_objection,
)
from tokensense.models.workers import side_by_side

# Measured on SmolLM2-135M in float32: 512 to 2048 equally fast, and memory grows with it.
TOKENS_PER_ROW = 1024
# What a core does in bfloat16, about: decides when fused code pays, nothing else.
FLOPS_PER_CORE = 3e11


class Scores(NamedTuple):
    """Statistics of each response token of one branch; (token,) each, never NaN.

    logp: log-probability of the token, nats. entropy: of the distribution it comes from, nats.
    p_max: largest probability in it. p_square_sum: sum of its squared probabilities.
    """

    logp: Float32[np.ndarray, " token"]
    entropy: Float32[np.ndarray, " token"]
    p_max: Float32[np.ndarray, " token"]
    p_square_sum: Float32[np.ndarray, " token"]


def score(
    policy: Policy,
    branches: Sequence[Branch],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
    temperature: float = 1.0,
    path: str = "auto",
    compiled: bool = False,
    streams: int | None = None,
    progress: Callable[[int], None] | None = None,
    processes: Processes = ALONE,
) -> list[Scores]:
    """Statistics of every response token, in the order of `branches`.

    Args:
        policy: scored in evaluation mode; training mode is put back afterwards.
        branches: contexts and responses as ids. An empty response gives empty arrays.
        tokens_per_row: tokens in one forward pass. On path `padded` a longer branch goes alone.
        temperature: logits are divided by it.
        path: `trie` feeds what contexts have in common once, `padded` feeds every branch whole,
            `alone` one at a time; `auto` takes the trie where the policy passes the self-check.
        compiled: run fused code: the trie on a CPU, after up to a minute; see `worth_compiling`.
        streams: how many are scored side by side on CPU, at most; None for as many as torch has
            threads. Decides memory and time, and no byte.
        progress: called with the number of response tokens done since the last call.
        processes: that score a share of the streams each; all of them get all scores, the bytes of
            one process.

    Raises:
        PolicyError: a context is empty, a branch is longer than the policy's context, an id is
            outside its head, or the policy cannot take the path asked for; or fused code was asked
            for on another path.
        SchemaError: `temperature`, `tokens_per_row` or `path` is outside what is allowed.
    """
    require_range("temperature", temperature, 1e-6, 1e6)
    head = head_of(policy.model)
    length = [len(branch.response) for branch in branches]
    flat = np.zeros((len(Scores._fields), sum(length)), dtype=np.float32)
    rows = read_rows(
        policy,
        branches,
        lambda hidden, targets: torch.stack(
            log_statistics(hidden, targets, head, temperature=temperature, fused=compiled)
        ),
        tokens_per_row=tokens_per_row,
        path=path,
        compiled=compiled,
        streams=streams,
        processes=processes,
    )
    for slots, statistics in rows:
        flat[:, slots] = statistics.numpy()
        if progress is not None:
            progress(len(slots))
    flat = processes.summed(torch.from_numpy(flat)).numpy()
    ends = np.cumsum(length)
    return [Scores(*flat[:, e - n : e]) for e, n in zip(ends, length, strict=True)]


def read_rows(
    policy: Policy,
    branches: Sequence[Branch],
    read: Callable[[Tensor, Tensor], Tensor],
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
    path: str = "auto",
    compiled: bool = False,
    streams: int | None = None,
    processes: Processes = ALONE,
) -> Iterator[tuple[Int64[np.ndarray, " row"], Tensor]]:
    """What `read` makes of the hidden states before every response token, row by row.

    For whatever `score` does not keep: the states themselves (`lambda hidden, targets: hidden`), or
    the likeliest tokens (`distribution.top_log_probs`). Nothing is held but the row at hand.

    Args:
        policy: scored in evaluation mode, as in `score`.
        branches: contexts and responses as ids.
        read: (row, hidden) states after the final norm and (row,) targets -> one tensor. It runs in
            inference mode, in several threads at once.
        tokens_per_row: as in `score`, as are the settings that follow.
        path: trie, padded, alone or auto.
        compiled: run fused code.
        streams: how many are scored side by side on CPU.
        processes: of which this one gets the rows of its own share.

    Yields:
        Places of the row's tokens in the flat order of all responses, and the tensor on the CPU.

    Raises:
        PolicyError: as `score`.
        SchemaError: as `score`.
    """
    require_range("tokens_per_row", float(tokens_per_row), 1.0, 2.0**40)
    require_scorable(policy, branches)
    chosen = resolved_path(policy, path)
    if compiled:
        _require_compilable(policy, chosen)
    if chosen == "trie":
        plan = plan_rows(branches, tokens_per_row=tokens_per_row)
    else:
        plan = plan_padded(branches, tokens_per_row=tokens_per_row if chosen == "padded" else 1)
    plan = plan[processes.rank :: processes.size]

    def answers(stream: Sequence[Row]) -> Iterator[tuple[np.ndarray, Tensor]]:
        for row, hidden in hidden_rows(policy.model, stream):
            targets = torch.from_numpy(row.targets).to(policy.device)
            yield row.slots, read(hidden, targets).cpu()

    with evaluation(policy.model), _attention(policy, chosen, compiled=compiled):
        yield from side_by_side(
            plan,
            answers,
            workers=1 if chosen == "alone" else _workers(policy, len(plan), most=streams),
        )


def scoring_settings(
    policy: Policy,
    *,
    tokens_per_row: int = TOKENS_PER_ROW,
    temperature: float = 1.0,
    path: str = "auto",
    compiled: bool = False,
) -> dict[str, str | int | float]:
    """All that decides the bytes of a score besides policy and branches; for provenance.

    Arguments as in `score`. Threads are left out: they take whole streams, so that their number
    decides nothing.
    """
    return {
        "path": resolved_path(policy, path),
        "tokens_per_row": tokens_per_row,
        "rows_per_stream": STREAM,
        "attention_block": BLOCK,
        "temperature": temperature,
        "head_rows": ROWS,
        "head_tile": TILE,
        "dtype": policy.dtype,
        "device": policy.device.type,
        "torch": torch.__version__,
        **({"compiled": 1} if compiled else {}),  # stores from before are plain code
    }


def resolved_path(policy: Policy, path: str) -> str:
    """What `path` comes to with this policy, by a self-check made once: `trie`, `padded`, `alone`.

    `alone` is one branch at a time, for models whose positions follow the longest sequence fed.

    Raises:
        PolicyError: `trie` was asked for and the policy cannot take it; or its head is unknown.
        SchemaError: `path` is none of these, nor `auto`.
    """
    require_member("path", path, ("auto", "trie", "padded", "alone"))
    if "trie" not in policy.objections:
        with evaluation(policy.model), torch.inference_mode():
            require_known_head(policy)
            policy.objections["trie"] = trie_objection(policy)
    objection, other = policy.objections["trie"], "alone" if path == "alone" else "padded"
    if positions_follow_length(policy):
        objection, other = "positions follow the longest sequence fed", "alone"
    if path == "trie" and objection:
        raise PolicyError(
            f"Path 'trie' needs a model whose attention can be given segments; with {policy.name} "
            f"{objection}. Score with path='padded'."
        )
    return other if objection or path in ("padded", "alone") else "trie"


def worth_compiling(policy: Policy, tokens: int, path: str) -> bool:
    """Whether fused code pays: more than two minutes of bfloat16 on a CPU, and it can be made.

    In float32 the matrix products take so much longer that it gained 1 to 3 % in measurements, less
    than the compiling costs; in bfloat16 it gained 30 to 45 % (`studies.scoring_speed`).

    Args:
        policy: scores.
        tokens: response tokens to score, all conditions together.
        path: as `resolved_path` gives it.
    """
    if path != "trie" or policy.device.type != "cpu" or policy.dtype != "bfloat16":
        return False
    size = sum(parameter.numel() for parameter in policy.model.parameters())
    seconds = 2 * size * tokens / (FLOPS_PER_CORE * torch.get_num_threads())
    return seconds > 120 and can_compile()


@contextmanager
def _attention(policy: Policy, path: str, *, compiled: bool) -> Iterator[None]:
    """The model's layers as a path needs them."""
    if path != "trie":
        yield
    elif not compiled:
        with trie_attention_of(policy.model):
            yield
    else:
        attention = trie_attention_of(policy.model, left_alone(trie_attention))
        with attention, compiled_layers(policy.model):
            yield


def _require_compilable(policy: Policy, path: str) -> None:
    """Check that fused code can be had."""
    if path != "trie" or policy.device.type != "cpu" or not can_compile():
        raise PolicyError(
            "Fused code needs the trie path, a CPU and a C++ compiler (g++, or $CXX); "
            f"{policy.name} is scored by path {path!r} on {policy.device}. Leave `compiled` out; a "
            "store whose base was scored by fused code needs the compiler again, or a new store."
        )


def _workers(policy: Policy, streams: int, *, most: int | None) -> int:
    """Streams scored side by side: as many as torch has threads; a GPU does one after the other."""
    threads = torch.get_num_threads()
    return min(streams, threads, most or threads) if policy.device.type == "cpu" else 1


@contextmanager
def evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode (no dropout); modules that were in training mode are put back."""
    training = [module for module in model.modules() if module.training]
    model.eval()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in training:
            module.training = True


def require_scorable(policy: Policy, branches: Sequence[Branch]) -> None:
    """Check every branch before the first forward pass.

    Args:
        policy: scores.
        branches: contexts and responses.

    Raises:
        PolicyError: a context is empty, a branch is too long, or an id is outside the head.
    """
    width = policy.head_width
    for number, branch in enumerate(branches):
        length = len(branch.context) + len(branch.response)
        if not branch.context:
            raise PolicyError(
                f"A branch needs a context token before its response; branch {number} has none. "
                "Begin its context with the beginning-of-text token or the prompt."
            )
        if length > policy.context_length:
            raise PolicyError(
                f"A branch needs at most {policy.context_length} tokens for {policy.name}; branch "
                f"{number} has {len(branch.context)} of context and {len(branch.response)} of "
                "response. "
                "Leave it out or choose a policy with a longer context."
            )
        for part, ids in (("context", branch.context), ("response", branch.response)):
            if ids and not 0 <= min(ids) <= max(ids) < width:
                place = next(i for i, token in enumerate(ids) if not 0 <= token < width)
                raise PolicyError(
                    f"Ids need to lie in [0, {width}), the head of {policy.name}; branch {number}, "
                    f"{part} "
                    f"token {place} is {ids[place]}. Check that ids and policy belong together."
                )
