"""Responses drawn from a policy, many at a time; finished ones leave the batch.

Reads  a Policy and prompts as ids.
Gives  sample: ids, log-probabilities as drawn, and why each ended; sampling_objection.
Sign   logp <= 0, nats, of the distribution that was drawn from: logits divided by the temperature.
       At temperature 0 the likeliest token has probability 1 and logp 0.

Each row has a random stream of its own, made of the seed and the row's number, and spends one
number a token: the token drawn is the one at which the cumulated probabilities pass that number. So
the ids of a row do not depend on the rows beside it, on the size of a batch or on when rows are
dropped, save where the number lies within rounding of a border between two tokens: what is computed
together decides the last bits of a probability. Same call, same machine: same bytes.

Source own loop; inverse-CDF sampling. What other loops get wrong: a row that is kept past its end
       token goes on drawing (here rows are cut at their first end token, whenever they are
       dropped), and an end token that is also the padding token (here nothing is padded with ids).
"""

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor
from transformers import PreTrainedConfig

from tokensense.checks import require_range
from tokensense.errors import PolicyError
from tokensense.models.growing_cache import growing_cache
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.models.scorer import evaluation
from tokensense.models.selfcheck import (
    TOLERANCE,
    layer_windows,
    positions_follow_length,
    relative_difference,
)
from tokensense.schema import Finish

MOST_ROWS = 256
CACHE_BYTES = 2**30  # keys and values of one batch, by a count of heads and tokens
ATTENTIONS = ("sdpa", "eager")  # take a mask of four axes as it is


class Sampled(NamedTuple):
    """One response. ids: the sampled end token included. logps: nats, one a token."""

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: Finish


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    ends: Collection[int],
    temperature: float = 1.0,
    seed: int = 0,
    batch: int | None = None,
    progress: Callable[[int], object] | None = None,
    processes: Processes = ALONE,
) -> list[Sampled]:
    """Draw one response a prompt, in the order of the prompts.

    Args:
        policy: samples in evaluation mode; one without `sampling_objection`.
        prompts: ids, of any lengths; equal prompts are read once a batch.
        max_new_tokens: most tokens of a response, end token included.
        ends: ids that end a response.
        temperature: logits are divided by it; 0 takes the likeliest token and ignores the seed.
        seed: with a prompt's place, of that prompt's random stream.
        batch: rows drawn together; None for what `CACHE_BYTES` holds, `MOST_ROWS` at most.
        progress: called with the number of responses finished since the last call.
        processes: that draw a share each; all of them get all responses.

    Returns:
        Finish is STOP after an end token, else LENGTH.

    Raises:
        SchemaError: a number is out of range.
        PolicyError: a prompt is empty, has ids outside the policy's head, or does not fit its
            context with `max_new_tokens`; the message names the prompt's place.
        ProcessError: another process has ended.
    """
    require_range("max_new_tokens", max_new_tokens, 1, 2**31)
    require_range("temperature", temperature, 0.0, sys.float_info.max)
    require_range("seed", seed, 0, 2**63)
    require_range("batch", 1 if batch is None else batch, 1, 2**31)
    _require_prompts(policy, prompts, room=max_new_tokens)
    # Prompts of like length make little padding; equal ones lie together.
    order = sorted(range(len(prompts)), key=lambda place: (len(prompts[place]), *prompts[place]))
    widest = max(map(len, prompts), default=0) + max_new_tokens
    size = batch or _rows_at_once(policy, tokens=widest)
    first, last = (len(order) * (processes.rank + end) // processes.size for end in (0, 1))
    order = order[first:last]
    found: dict[int, Sampled] = {}
    with evaluation(policy.model), torch.inference_mode():
        for start in range(0, len(order), size):
            some = order[start : start + size]
            draws = np.stack([_stream(seed, place).random(max_new_tokens) for place in some])
            rows = _sampled(
                _Reader(policy, [prompts[place] for place in some]),
                torch.from_numpy(draws).to(policy.device),
                ends=torch.tensor(sorted(ends), dtype=torch.long, device=policy.device),
                temperature=temperature,
                progress=progress,
            )
            found |= zip(some, rows, strict=True)
    if processes.size > 1:
        found = _of_all(found, processes, shape=(len(prompts), max_new_tokens))
    return [found[place] for place in range(len(prompts))]


def _of_all(
    found: dict[int, Sampled], processes: Processes, *, shape: tuple[int, int]
) -> dict[int, Sampled]:
    """The responses of all processes by their places, from those of each."""
    ids = torch.zeros(shape, dtype=torch.long)
    logps = torch.zeros(shape)
    ends = torch.zeros((shape[0], 2), dtype=torch.long)  # length, finish
    for place, (own, probabilities, finish) in found.items():
        ids[place, : len(own)] = torch.tensor(own)
        logps[place, : len(own)] = torch.tensor(probabilities)
        ends[place] = torch.tensor([len(own), finish])
    parts = (processes.summed(part).tolist() for part in (ids, logps, ends))
    return {
        place: Sampled(tuple(i[:length]), tuple(p[:length]), Finish(finish))
        for place, (i, p, (length, finish)) in enumerate(zip(*parts, strict=True))
    }


def _stream(seed: int, place: int) -> np.random.Generator:
    """Random numbers of one row; a spawned key, so that no other use of the seed shares them."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(place,)))


class _Reader:
    """A model part-way through a batch of texts: what it has read, and where padding lies."""

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.device = policy.model, policy.device
        self.dtype = getattr(torch, policy.dtype)
        self.prompts = [tuple(prompt) for prompt in prompts]
        self.cache = growing_cache()
        parameters = inspect.signature(self.model.forward).parameters
        # transformers renamed it; the old name warns.
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.mask = torch.empty(0)
        self.position = torch.empty(0)

    def begin(self) -> Float[Tensor, "row token"]:
        """Logits after the prompts. Equal prompts are read once."""
        distinct = list(dict.fromkeys(self.prompts))
        width = max(map(len, distinct))
        padding = torch.tensor([[width - len(prompt)] for prompt in distinct], device=self.device)
        ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in distinct])
        column = torch.arange(width, device=self.device)
        # A number instead of -inf: a padding token that sees nothing would be NaN.
        hidden = torch.finfo(self.dtype).min
        causal = (column > column[:, None]) | (column < padding[:, :, None])
        mask = torch.zeros(causal.shape, dtype=self.dtype, device=self.device)
        logits = self._logits(
            ids.to(self.device),
            mask.masked_fill_(causal, hidden)[:, None],
            (column - padding).clamp_(min=0),
        )
        self.mask = mask[:, None, -1:].contiguous()
        self.position = width - padding
        if len(distinct) == len(self.prompts):
            return logits
        place = {prompt: row for row, prompt in enumerate(distinct)}
        rows = torch.tensor([place[prompt] for prompt in self.prompts], device=self.device)
        self.keep(rows)
        return logits[rows]

    def read(self, tokens: Int64[Tensor, " row"]) -> Float[Tensor, "row token"]:
        """Logits after one more token a row."""
        self.mask = torch.nn.functional.pad(self.mask, (0, 1))
        logits = self._logits(tokens[:, None], self.mask, self.position)
        self.position = self.position + 1
        return logits

    def keep(self, rows: Int64[Tensor, " kept"]) -> None:
        """Go on with these rows alone, in this order; a row may come several times."""
        self.cache.batch_select_indices(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    def _logits(self, ids: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        found = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_name: self.cache},
        )
        logits: Tensor = found.logits[:, -1]
        return logits


def _sampled(
    reader: _Reader,
    draws: Float64[Tensor, "row step"],
    *,
    ends: Int64[Tensor, " end"],
    temperature: float,
    progress: Callable[[int], object] | None,
) -> list[Sampled]:
    """Responses of one batch, in its order."""
    rows, most = draws.shape
    ids = torch.zeros((rows, most), dtype=torch.long, device=draws.device)
    logps = torch.zeros((rows, most), device=draws.device)
    length = torch.full((rows,), most, device=draws.device)
    stopped = torch.zeros(rows, dtype=torch.bool, device=draws.device)
    live = torch.arange(rows, device=draws.device)  # rows of the batch that the reader still has
    logits = reader.begin()
    for step in range(most):
        token, logp = _drawn(logits, draws[live, step], temperature)
        ids[live, step], logps[live, step] = token, logp
        ending = live[torch.isin(token, ends) & ~stopped[live]]
        length[ending], stopped[ending] = step + 1, True
        if progress is not None and len(ending):
            progress(len(ending))
        kept = _kept(~stopped[live])
        if len(kept) == 0 or step + 1 == most:
            break
        if len(kept) < len(live):
            reader.keep(kept)
            live, token = live[kept], token[kept]
        logits = reader.read(token)
    if progress is not None:
        progress(rows - int(stopped.sum()))
    parts = zip(ids.tolist(), logps.tolist(), length.tolist(), stopped.tolist(), strict=True)
    return [
        Sampled(tuple(i[:n]), tuple(p[:n]), Finish.STOP if stop else Finish.LENGTH)
        for i, p, n, stop in parts
    ]


def _kept(going: Bool[Tensor, " row"]) -> Int64[Tensor, " kept"]:
    """Rows that go on; the last ones take the places of those that end, so that few move."""
    left = int(going.sum())
    kept = torch.arange(left, device=going.device)
    kept[~going[:left]] = left + going[left:].nonzero()[:, 0]
    return kept


def _drawn(
    logits: Float[Tensor, "row token"], draws: Float64[Tensor, " row"], temperature: float
) -> tuple[Int64[Tensor, " row"], Float32[Tensor, " row"]]:
    """The token drawn in each row, and its log-probability."""
    if temperature == 0:
        return logits.argmax(-1), torch.zeros(len(logits), device=logits.device)
    logp = (logits.float() / temperature).log_softmax(-1)
    # Sums of many small numbers: in float32 the tail of a large vocabulary would be off.
    passed = logp.double().exp().cumsum(-1)
    # The first token at which the sum exceeds the number, so never one of probability 0.
    token = torch.searchsorted(passed, draws[:, None] * passed[:, -1:], right=True)
    token = token.clamp_(max=logits.shape[-1] - 1)
    return token[:, 0], logp.gather(1, token)[:, 0]


def sampling_objection(policy: Policy) -> str:
    """Why `sample` cannot draw from this policy; "" if it can. Asked once a policy.

    It can where all layers attend to everything before them, through an attention that takes our
    mask, and cached logits of two prompts of unequal length, one of them dropped on the way, are
    those of a whole pass without cache.
    """
    if "sampler" not in policy.objections:
        with evaluation(policy.model), torch.inference_mode():
            policy.objections["sampler"] = _objection(policy)
    return policy.objections["sampler"]


def _objection(policy: Policy) -> str:
    config = policy.model.config.get_text_config()
    attention = config._attn_implementation
    if attention not in ATTENTIONS:
        return f"its attention is {attention!r}, not one of {ATTENTIONS}"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or any(layer_windows(config)):
        return "not all of its layers attend to everything before them"
    if positions_follow_length(policy):
        return "positions follow the longest sequence fed"
    draw = torch.Generator().manual_seed(0)
    texts = torch.randint(policy.head_width, (2, 12), generator=draw).tolist()
    short, long = tuple(texts[0][:6]), tuple(texts[1])
    try:
        found = _cached_logits(policy, short, long)
        truth = [
            policy.model(
                input_ids=torch.tensor([ids], device=policy.device), use_cache=False
            ).logits[0, -1]
            for ids in (short, long[:9], (*short, 5), long[:10], long[:11])
        ]
        error = relative_difference(torch.stack(found), torch.stack(truth))
    except Exception as cause:  # whatever it is, there is a way that does without
        return f"its forward pass fails: {cause}"
    return "" if error <= TOLERANCE[policy.dtype] else f"cached logits are off by {error:.1e}"


def _cached_logits(
    policy: Policy, short: tuple[int, ...], long: tuple[int, ...]
) -> list[Float[Tensor, " token"]]:
    """After two prompts, after a token more each, and after another of the second alone."""
    reader = _Reader(policy, [short, long[:9]])
    found = [*reader.begin(), *reader.read(torch.tensor([5, long[9]], device=policy.device))]
    reader.keep(torch.tensor([1], device=policy.device))
    return [*found, *reader.read(torch.tensor([long[10]], device=policy.device))]


def _rows_at_once(policy: Policy, *, tokens: int) -> int:
    """Rows of so many tokens whose keys and values fit into `CACHE_BYTES`."""
    config: PreTrainedConfig = policy.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = getattr(torch, policy.dtype).itemsize
    row = int(2 * config.num_hidden_layers * heads * width * size * tokens)
    return max(1, min(MOST_ROWS, CACHE_BYTES // row))


def _require_prompts(policy: Policy, prompts: Sequence[Sequence[int]], *, room: int) -> None:
    """Check every prompt before the first forward pass."""
    longest, width = policy.context_length - room, policy.head_width
    for place, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= longest:
            raise PolicyError(
                f"prompts of 1 to {longest} tokens are needed, the context of {policy.name} less "
                f"{room} new tokens; prompt {place} has {len(prompt)}. Lower `max_new_tokens` or "
                "leave the prompt out."
            )
        if not 0 <= min(prompt) <= max(prompt) < width:
            raise PolicyError(
                f"ids in [0, {width}), the head of {policy.name}, are needed; prompt {place} has "
                f"{min(prompt)} to {max(prompt)}. Check that prompts and policy belong together."
            )
