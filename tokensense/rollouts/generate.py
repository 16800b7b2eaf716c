"""Sampling of responses, exact ids kept.

Reads  a policy (model and tokenizer) and problems.
Gives  `responses`: one Trace a response, in the order of the problems, groups together, by our own
       sampler where the policy allows it; `generate`: the same by the plain `generate` of
       transformers, for all other policies.

Tokens are drawn from the model's whole distribution at the given temperature: the sampling habits
that a checkpoint brings along (top-k, top-p, penalties, bad words) are set aside, since scores of
tokens drawn from another distribution would not be on-policy. A sampled end token is part of the
response's ids, never of its text. Batches are padded on the left; padding is masked and positions
are counted without it, and responses are cut by their end token, never by comparison with padding.

With `generate` a seed gives the same ids on the same machine with the same batch size, for random
numbers are drawn a batch at a time and rows of a batch share them; another batch size gives other
samples, and no log-probability is kept. The state of torch's generators is left as it was. For
`responses` see `models.sampler`.

Source: transformers' `generate`; traps: trl#6357, #7039 (end token equal to padding), trl#6800
(left padding without positions).
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedModel

from tokensense.checks import require_range
from tokensense.errors import PolicyError
from tokensense.models.policy import Policy
from tokensense.models.processes import ALONE, Processes
from tokensense.models.sampler import sample, sampling_objection
from tokensense.rollouts.trajectory import Encoder, Trace
from tokensense.schema import Finish
from tokensense.tasks.problem import Problem

Continued = Callable[..., torch.Tensor]  # what `model.generate` is, for a type checker


@runtime_checkable
class Sampler(Encoder, Protocol):
    """An Encoder with its model and tokenizer; `models.policy.Policy` satisfies it."""

    @property
    def model(self) -> PreTrainedModel:
        """The causal language model that samples."""
        ...

    @property
    def tokenizer(self) -> Any:  # noqa: ANN401 (transformers has no type for what is needed here)
        """Its tokenizer; only `eos_token_id` is read."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the model takes ids."""
        ...


class _Row(NamedTuple):
    """One response to sample: its problem, its place in the group, its prompt."""

    problem: Problem
    place: int
    prompt: list[int]


def responses(
    policy: Policy,
    problems: Sequence[Problem],
    *,
    group: int = 1,
    max_new_tokens: int = 512,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = False,
    processes: Processes = ALONE,
) -> list[Trace]:
    """Sample `group` responses to each problem.

    Args as for `generate`; batches are as large as memory for keys and values allows. `processes`
    draw a share each and get all traces; where `generate` draws, each draws all of them.

    Returns:
        Traces as `generate` yields them, with `logps` where our own sampler drew them.

    Raises:
        SchemaError: a number is out of range.
        PolicyError: as for `generate`.
        ProcessError: another process has ended.
    """
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    if sampling_objection(policy):
        return list(generate(policy, problems, group=group, progress=progress, **settings))
    require_range("group", group, 1, math.inf)
    rows = _rows(policy, problems, group, room=max_new_tokens)
    ends = _end_ids(policy)
    with tqdm(total=len(rows), unit="response", disable=not progress) as bar:
        prompts = [row.prompt for row in rows]
        drawn = sample(
            policy, prompts, ends=ends, progress=bar.update, processes=processes, **settings
        )
    return [
        replace(_trace(policy, row, list(found.ids), ends), logps=found.logps)
        for row, found in zip(rows, drawn, strict=True)
    ]


def generate(
    policy: Sampler,
    problems: Sequence[Problem],
    *,
    group: int = 1,
    max_new_tokens: int = 512,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 16,
    progress: bool = False,
) -> Iterator[Trace]:
    """Sample `group` responses to each problem.

    Args:
        policy: samples; its name becomes the traces' generator.
        problems: in the order in which their traces come out.
        group: responses a problem.
        max_new_tokens: most tokens of a response, end token included.
        temperature: logits are divided by it; 0 takes the likeliest token and ignores the seed.
        seed: same seed, same batch size and same machine give the same ids.
        batch: rows sampled together.
        progress: show a bar of responses with rate and time left.

    Yields:
        Traces with exact ids, named `<problem>/<place in the group>`, without reward. `text` is
        what the ids before a sampled end token decode to, U+FFFD where that is not UTF-8; `finish`
        is STOP after an end token, else LENGTH.

    Raises:
        SchemaError: a number is out of range.
        PolicyError: a prompt with `max_new_tokens` is longer than the policy's context, or is
            empty; the message names the problem.
    """
    for name, count in (("group", group), ("max_new_tokens", max_new_tokens), ("batch", batch)):
        require_range(name, float(count), 1.0, math.inf)
    require_range("temperature", temperature, 0.0, sys.float_info.max)
    rows = _rows(policy, problems, group, room=max_new_tokens)
    ends = _end_ids(policy)
    habits = _habits(max_new_tokens, temperature, ends)
    with tqdm(total=len(rows), unit="response", disable=not progress) as bar:
        for number, start in enumerate(range(0, len(rows), batch)):
            some = rows[start : start + batch]
            found = _sampled(policy, [row.prompt for row in some], habits, seed=(seed, number))
            for row, ids in zip(some, found, strict=True):
                yield _trace(policy, row, _until_end(ids, ends), ends)
            bar.update(len(some))


def _rows(policy: Sampler, problems: Sequence[Problem], group: int, *, room: int) -> list[_Row]:
    """Rows to sample, groups together; a response cut short by the context would go unnoticed."""
    rows = []
    for problem in problems:
        prompt = policy.render(problem.question)
        if not prompt or len(prompt) + room > policy.context_length:
            raise PolicyError(
                f"problem {problem.name!r} needs a prompt of 1 to {policy.context_length - room} "
                f"tokens, the context of {policy.name} less {room} new tokens; it has "
                f"{len(prompt)}. Lower `max_new_tokens` or leave the problem out."
            )
        rows += [_Row(problem, place, prompt) for place in range(group)]
    return rows


def _end_ids(policy: Sampler) -> frozenset[int]:
    """Tokens that end a response, by the tokenizer or by either configuration of the model."""
    model = policy.model
    named = (model.generation_config.eos_token_id, model.config.eos_token_id)
    entries = (*named, policy.tokenizer.eos_token_id)
    return frozenset(token for entry in entries for token in _listed(entry))


def _habits(max_new_tokens: int, temperature: float, ends: frozenset[int]) -> GenerationConfig:
    """Settings that sample from the whole distribution and stop at every end token."""
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
    return GenerationConfig(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        do_sample=temperature > 0,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,  # any id will do: padding is masked, and responses are cut by end tokens
        **sampling,
    )


def _listed(tokens: int | list[int] | None) -> list[int]:
    """End tokens come as one id, as a list, or not at all."""
    if tokens is None:
        return []
    return [tokens] if isinstance(tokens, int) else list(tokens)


def _sampled(
    policy: Sampler,
    prompts: Sequence[list[int]],
    habits: GenerationConfig,
    *,
    seed: tuple[int, int],
) -> list[list[int]]:
    """New ids of each prompt, all of one length: padding may follow an end token."""
    width = max(map(len, prompts))
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    device, continued = policy.device, cast("Continued", policy.model.generate)
    with _as_evaluated(policy.model, habits), _seeded(seed, device), torch.inference_mode():
        found = continued(input_ids=ids.to(device), attention_mask=mask.to(device))
    return [list(map(int, row)) for row in found[:, width:].tolist()]


def _until_end(ids: list[int], ends: frozenset[int]) -> list[int]:
    """Ids up to the first end token and with it."""
    stop = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: stop + 1]


@contextmanager
def _as_evaluated(model: PreTrainedModel, habits: GenerationConfig) -> Iterator[None]:
    """Without dropout, and with `habits` alone: `generate` fills every gap from the model's own."""
    training, own = model.training, model.generation_config
    model.train(mode=False)
    model.generation_config = habits
    try:
        yield
    finally:
        model.train(training)
        model.generation_config = own


@contextmanager
def _seeded(seed: tuple[int, int], device: torch.device) -> Iterator[None]:
    """Fresh random numbers for one batch; torch's own generators are put back afterwards."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
        yield


def _trace(policy: Sampler, row: _Row, ids: list[int], ends: frozenset[int]) -> Trace:
    """The response as a Trace."""
    stopped = bool(ids) and ids[-1] in ends
    spoken = ids[:-1] if stopped else ids
    text = b"".join(policy.token_bytes(token) for token in spoken).decode("utf-8", "replace")
    return Trace(
        problem=row.problem.name,
        name=f"{row.problem.name}/{row.place}",
        text=text,
        ids=tuple(ids),
        generator=policy.name,
        finish=Finish.STOP if stopped else Finish.LENGTH,
    )
