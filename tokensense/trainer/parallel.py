"""One update by several processes: each feeds a share of the rollouts, all make the same step.

Reads  what each process has added up: gradients, sums of a loss.
Gives  joined, the same of all processes; require_same_run.
Sign   none: sums keep their sign.

Each token's loss is already divided by what the whole update counts, so that a plain sum over the
processes is the gradient of the whole. It is taken once an optimizer step, parameter by parameter,
in float32, outside of every forward and backward pass; a process that had nothing to feed adds 0.
The order of the sums differs from that of one process: the last bits of a gradient do, too.

All processes hold all weights and the optimizer's whole state, and stay equal to the bit: they add
the same bytes to the same bytes. Nothing here makes a model fit that does not fit one process.

Source: own work.
"""

import hashlib
from collections.abc import Mapping, Sequence

import torch

from tokensense.errors import ProcessError
from tokensense.models.processes import Processes


def joined(
    sums: Mapping[str, float], parameters: Sequence[torch.nn.Parameter], processes: Processes
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
    for parameter, count in zip(parameters, anywhere, strict=True):
        if count:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = processes.summed(own.detach().float()).to(parameter.dtype)
    return dict(zip(sums, total.tolist(), strict=True))


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
