"""One update by several processes: each feeds a share of the rollouts, all make the same step.

Reads  what each process has added up: gradients, sums of a loss.
Gives  joined, the same of all processes; require_same_run.
Sign   none: sums keep their sign.

Each token's loss is already divided by what the whole update counts, so that a plain sum over the
processes is the gradient of the whole. It is taken once an optimizer step, in float32, outside of
every forward and backward pass; a process that had nothing to feed adds 0.
The order of the sums differs from that of one process: the last bits of a gradient do, too.

All processes hold all weights and the optimizer's whole state, and stay equal to the bit: they add
the same bytes to the same bytes. Nothing here makes a model fit that does not fit one process.

Source: own work.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from tokensense.errors import ProcessError
from tokensense.models.processes import Processes

BUCKET = 2**24  # numbers in one message, 64 MB; small parameters travel together


def joined(
    sums: Mapping[str, float], parameters: Sequence[Parameter], processes: Processes
) -> dict[str, float]:
    """Add up sums and gradients of all processes.

    Args:
        sums: of this process; the names are those of all.
        parameters: whose gradients become those of all processes. One without a gradient anywhere
            keeps none.
        processes: of the run.

    Returns:
        The sums of all.

    Raises:
        ProcessError: another process has ended.
    """
    if processes.size == 1:
        return dict(sums)
    total = processes.summed(torch.tensor(list(sums.values()), dtype=torch.float64))
    held = [parameter.grad is not None for parameter in parameters]
    anywhere = processes.summed(torch.tensor(held, dtype=torch.int64)).tolist()
    for bucket in _buckets([p for p, count in zip(parameters, anywhere, strict=True) if count]):
        added = processes.summed(torch.cat([_gradient(p) for p in bucket]))
        parts = torch.split(added, [p.numel() for p in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
    return dict(zip(sums, total.tolist(), strict=True))


def _buckets(parameters: Sequence[Parameter]) -> Iterator[list[Parameter]]:
    """Parameters in their order, as many as fit into one message, one at least."""
    bucket: list[Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in (*bucket, parameter)) > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _gradient(parameter: Parameter) -> Tensor:
    """Its gradient in float32, flat; 0 where this process has none."""
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    return parameter.grad.detach().float().flatten()


def require_same_run(processes: Processes, *what: object) -> None:
    """Wait for all processes, and check that they are about to do the same.

    Args:
        processes: of the run.
        *what: all that must be the same in them, with a `repr` that says it.

    Raises:
        ProcessError: something differs, or another process has ended.
    """
    digest = hashlib.sha256(repr(what).encode()).digest()
    mine = torch.tensor(list(digest), dtype=torch.int64)
    if not torch.equal(processes.summed(mine), mine * processes.size):
        raise ProcessError(
            f"a run of {processes.size} processes needs the same policy, task, settings and folder "
            f"in all of them; number {processes.rank} has others than the rest: {what}. Let every "
            "process make the same call."
        )
