"""How much memory scoring takes above the weights, how much is free, and how much to do at once.

Reads  a policy's config; cgroup and /proc on CPU, the driver on CUDA.
Gives  Room, Widths, widths, peak_bytes, free_bytes, room_for, with_less_room.
Source closed form of what a forward pass in inference mode keeps alive: one layer, and the keys and
       values that are carried from row to row. Halving on failure as accelerate's
       `find_executable_batch_size`.

How many streams are scored side by side decides no byte of a score; how many tokens a row has
decides the last bits. So where memory runs out, streams go first.

On CPU the kernel kills a process that takes too much, often without an error that could be caught:
there the closed form has to be right. With memory to spare more than that is taken: see `heap`. It
is for attention with keys and values; recurrent models
(Mamba) and a window's mask on path `padded` are not in it.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from tokensense.errors import PolicyError
from tokensense.models.attention import BLOCK
from tokensense.models.head import ROWS, TILE
from tokensense.models.heap import SLACK, steady_heap
from tokensense.models.policy import Policy
from tokensense.models.scorer import TOKENS_PER_ROW

# On CUDA rows want to be longer, as each launches some thousand kernels; not measured.
FASTEST_ELSEWHERE = 16384
SMALLEST = 128  # tokens a row; below, the matrix products are too small to be worth it
SHARE = 0.8  # of free memory; the closed form is good to 30 %
# Small objects; what a thread has for itself; oneDNN's copies of weights in short formats. Measured
# on CPU, where of fourteen settings of three models the closed form is off by 30 % at most.
OVERHEAD, OVERHEAD_OF_THREAD, OVERHEAD_OF_SHORT = 2**20, 4 * 2**20, 8 * 2**20
GIB = 2**30
MEMORY = Path("/sys/fs/cgroup")
PROC = Path("/proc")
Result = TypeVar("Result")


class Room(NamedTuple):
    """How much is computed at once.

    tokens_per_row: tokens in one forward pass. streams: forward passes side by side.
    """

    tokens_per_row: int
    streams: int


class Widths(NamedTuple):
    """Numbers a token: residual stream, inner layer, queries, keys and values together."""

    hidden: int
    inner: int
    queries: int
    pair: int
    heads: int
    layers: int
    vocabulary: int
    size: int


def peak_bytes(policy: Policy, room: Room, *, longest: int, path: str, carries: bool = True) -> int:
    """Memory above the weights at the worst moment of scoring.

    Args:
        policy: its config and number format count, its weights do not.
        room: see `Room`.
        longest: fed tokens of the longest branch.
        path: `trie`, `padded` or `alone`; see `scorer.resolved_path`.
        carries: whether streams have more than one row.
    """
    w = widths(policy.model)
    tokens = room.tokens_per_row if path == "trie" else max(room.tokens_per_row, longest)
    if path == "alone":
        tokens = longest
    carried = scores = 0
    # Alive all along: the embeddings, and of the row before its hidden states and the scored ones.
    # In a layer: its input, the residual and what the norm made of it.
    attention = 5 * w.hidden + 3 * w.queries + w.pair
    if path == "trie":
        carried = longest * w.pair if carries else 0
        scores = _attending(policy, w) * BLOCK * longest + longest * w.pair * w.size
        scores += carried and (tokens * w.pair + carried) * w.size  # joined in front of the row's
    forward = 6 * w.hidden + 3 * w.inner
    layer = max(tokens * w.size * attention + scores, tokens * w.size * forward)
    if w.size < 4:  # norms compute in float32
        layer = max(layer, tokens * (5 * w.hidden * w.size + 3 * w.hidden * 4))
    rows, tile = min(ROWS, tokens), min(TILE, w.vocabulary)
    # Logits and their exponentials; in short formats the logits as they come, too.
    tiles = 8 if w.size == 4 else 8 + w.size
    head = 2 * tokens * w.hidden * w.size + rows * tile * tiles
    stream = w.layers * carried * w.size + max(layer, head)
    stream += OVERHEAD_OF_THREAD if room.streams > 1 else 0
    return OVERHEAD + room.streams * stream + (OVERHEAD_OF_SHORT if w.size < 4 else 0)


def _attending(policy: Policy, w: Widths) -> int:
    """Bytes a query of a block and key of its path."""
    config = policy.model.config.get_text_config()
    softcap = getattr(config, "attn_logit_softcapping", None)
    if policy.device.type == "cpu" and not softcap and config.model_type != "gpt_oss":
        # The table of masks of the fused kernel while it is made: lags, flags, numbers.
        return (8 + 2 + w.size) * 5 // 4
    # The scores, the weights, and one of both of the block before; in short formats a copy too.
    return w.heads * (12 if w.size == 4 else 16)


def queries_width(policy: Policy) -> int:
    """Numbers of a token's queries, all heads of a layer."""
    return widths(policy.model).queries


def free_bytes(device: torch.device) -> int:
    """Memory that may still be taken on a device.

    On CPU the smallest of what the system and each cgroup above this process (v1 or v2) leave; the
    page cache that a cgroup can drop counts as free.

    Raises:
        PolicyError: the system does not say what is free.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) + _cached(device)
    return min([_available(PROC), *_cgroups(PROC, MEMORY)])


def room_for(
    policy: Policy,
    *,
    longest: int,
    path: str,
    tokens_per_row: int | None = None,
    processes: int = 1,
) -> Room:
    """How much to compute at once in `SHARE` of the memory that is free now.

    Args:
        policy: see `peak_bytes`.
        longest: see `peak_bytes`.
        path: see `peak_bytes`.
        tokens_per_row: where it is fixed already: only the number of streams is chosen then.
        processes: that share the memory of a CPU; each GPU has its own.

    Returns:
        The fastest row that fits, halved at most to `SMALLEST`, with a stream for each thread; only
        then fewer streams. Where memory is scarce it stays what the closed form says, see `heap`.

    Raises:
        PolicyError: the longest branch does not fit in the smallest row.
    """
    on_cpu = policy.device.type == "cpu"
    free = free_bytes(policy.device) // (processes if on_cpu else 1)
    most = torch.get_num_threads() if on_cpu and path != "alone" else 1
    fastest = fastest_row(policy)
    fixed = tokens_per_row is not None
    room = Room(tokens_per_row or fastest, most)
    for room in _rooms(tokens_per_row or fastest, most, halve=not fixed):
        need = peak_bytes(policy, room, longest=longest, path=path)
        if on_cpu and SLACK * need > SHARE * free:
            steady_heap()
        if need <= SHARE * free:
            return room
    said = (
        f"scoring with {policy.name} takes about {need / GIB:.2f} GiB above its weights, as its "
        f"longest branch has {longest} tokens, even with one row of {room.tokens_per_row} at a "
        f"time; {free / GIB:.2f} GiB are free"
    )
    if not fixed:
        raise PolicyError(f"more memory is needed: {said}. Leave long rollouts out, or get more.")
    if need > free:  # another start had more; what it fixed stands, and may yet do
        warnings.warn(f"{said}. Where memory runs out, rows are halved.", stacklevel=2)
    return room


def fastest_row(policy: Policy) -> int:
    """Tokens in one forward pass at which a policy is fastest, where memory allows.

    On a CPU in 16 bits twice those of float32, which take the same memory: on SmolLM2-135M, short
    answers, probe and few-shot went 8, 13 and 9 % faster than at half of it; twice, no faster.
    """
    if policy.device.type != "cpu":
        return FASTEST_ELSEWHERE
    return TOKENS_PER_ROW if policy.dtype == "float32" else 2 * TOKENS_PER_ROW


def with_less_room(
    work: Callable[[Room], Result],
    room: Room,
    *,
    policy: Policy,
    longest: int,
    path: str,
    name: str,
) -> tuple[Result, Room]:
    """Do `work`, again with less room each time that memory runs out.

    Args:
        work: called with the room that it may take; starts anew each time.
        room: to begin with.
        policy: see `peak_bytes`.
        longest: see `peak_bytes`.
        path: see `peak_bytes`.
        name: of the longest branch, for the message.

    Returns:
        What `work` returns, and the room that it did it in.

    Raises:
        PolicyError: memory runs out with one stream of the smallest rows, too.
    """
    while True:
        try:
            return work(room), room
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Out of `except` first: the error's traceback keeps the tensors of the attempt alive.
        _let_go(policy.device)
        less = _less(room, longest=longest, path=path)
        if less is None:
            need = peak_bytes(policy, room, longest=longest, path=path) / GIB
            raise PolicyError(
                f"{name} has {longest} tokens with its context, and memory runs out on it even in "
                f"rows of {room.tokens_per_row}: about {need:.2f} GiB are needed above the weights "
                f"of {policy.name}, {free_bytes(policy.device) / GIB:.2f} GiB are free. Leave it "
                "out, or use more memory."
            )
        warnings.warn(
            f"memory ran out with {room.streams} x {room.tokens_per_row} tokens at a time; going "
            f"on with {less.streams} x {less.tokens_per_row}.",
            stacklevel=2,
        )
        room = less


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch's CPU allocator has no class of its own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _rooms(tokens: int, streams: int, *, halve: bool) -> Iterator[Room]:
    """Rooms from large to small, the best first."""
    while streams:
        size = tokens
        while True:
            yield Room(size, streams)
            if not halve or size // 2 < SMALLEST:
                break
            size //= 2
        streams //= 2


def _less(room: Room, *, longest: int, path: str) -> Room | None:
    """The next smaller room; None where nothing can be made smaller."""
    if room.streams > 1:
        return room._replace(streams=room.streams // 2)
    half = room.tokens_per_row // 2
    # Branches side by side are whole: the longest takes what it takes.
    whole = {"trie": 0, "padded": longest, "alone": room.tokens_per_row}[path]
    if half < SMALLEST or room.tokens_per_row <= whole:
        return None
    return room._replace(tokens_per_row=half)


def _let_go(device: torch.device) -> None:
    """Give back what a failed attempt has left; its error and its frames hold each other."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _cached(device: torch.device) -> int:
    """What torch holds of a GPU's memory and does not use."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def widths(model: PreTrainedModel) -> Widths:
    """Sizes from the config, by the names that transformers has for them.

    Args:
        model: with a head; its weights do not count and may lie on `meta`.
    """
    config = model.config.get_text_config()
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    hidden = int(config.hidden_size)
    heads = int(_first(config, "num_attention_heads", default=0))
    groups = int(_first(config, "num_key_value_heads", default=heads))
    width = int(_first(config, "qk_head_dim", "head_dim", default=hidden // max(heads, 1)))
    value = int(_first(config, "v_head_dim", default=width))
    inner = int(_first(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden))
    # A token is fed to some of the experts, each with a copy of it.
    if experts := int(_first(config, "num_experts_per_tok", default=0)):
        inner = experts * (int(_first(config, "moe_intermediate_size", default=inner)) + hidden)
        inner += int(_first(config, "shared_expert_intermediate_size", default=0))
    return Widths(
        hidden=hidden,
        inner=inner,
        queries=heads * width,
        pair=groups * (width + value),
        heads=heads,
        layers=int(config.num_hidden_layers),
        vocabulary=int(head.weight.shape[0]),
        size=head.weight.dtype.itemsize,
    )


def _first(config: Any, *names: str, default: int) -> int:  # noqa: ANN401 (any config class)
    """The first of some fields of a config that is set."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value), default)


def _available(proc: Path) -> int:
    """What the system can give without swapping, bytes."""
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise PolicyError(f"free memory is needed; {proc / 'meminfo'} does not say MemAvailable.")


def _cgroups(proc: Path, mounted: Path) -> Iterator[int]:
    """What each cgroup above this process leaves, bytes; none where there is no limit."""
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "":
            root, names = mounted, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = mounted / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path can be the host's, which is not there: its root then counts.
        folder = root / own.lstrip("/")
        for place in (folder, *folder.parents):
            if (place / names[0]).is_file() and (place / names[1]).is_file():
                yield from _left(place, *names)
            if place == root:
                break


def _left(folder: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    """What one cgroup leaves, bytes; nothing where it has no limit."""
    most = (folder / limit).read_text().strip()
    if most == "max":
        return
    held = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    used = int((folder / usage).read_text()) - int(held.get(cache, 0))
    yield max(0, int(most) - used)
