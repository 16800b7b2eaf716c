"""The processes of one run on one machine: who is who, and waiting for each other.

Reads  the environment of `torchrun` or `accelerate launch --multi_gpu`, or the process group that
       `accelerate.debug_launcher` (or a training script) has made.
Gives  together, Processes, own_device.

Nothing here takes part in a forward pass. A gloo group of its own, on CUDA too, carries lists from
process 0 to the others, sums over all of them, and barriers between them. The system closes the
connections of a process that dies, and one that fails says so on the group's board: waiting for it
ends at once. Waiting for one that hangs ends after `PATIENCE`.

`accelerate launch` without `--multi_gpu` starts one process on a machine without GPUs, however many
were asked for, and says nothing. It leaves a mark, though: MASTER_PORT, set where more than one was
asked for, and no WORLD_SIZE.

Source: torch.distributed; accelerate 1.x (`prepare_simple_launcher_cmd_env`).
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from tokensense.errors import ProcessError

# From the first process's arrival to the last's: they load the same model.
ARRIVAL = timedelta(minutes=30)
# For another's share of the work; a process that has died is noticed at once.
PATIENCE = timedelta(days=1)
POLL = 0.2  # seconds, at most; the first looks follow each other at a tenth of a millisecond
FAILED = "failed"


def _nothing() -> None:
    """What is done while waiting, unless told otherwise."""


class Processes(NamedTuple):
    """The processes of a run, seen from one of them; by itself, a run of one process.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
        group: carries the messages; None for one process.
    """

    rank: int = 0
    size: int = 1
    group: "dist.ProcessGroup | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this one holds the store's lock, starts, assembles and shows progress."""
        return self.rank == 0

    def from_first(self, numbers: Sequence[int]) -> list[int]:
        """The numbers (or flags) that process 0 gives, in every process; the others give as many.

        Raises:
            ProcessError: process 0 has ended.
        """
        held = torch.tensor(numbers, dtype=torch.int64)
        if self.group is not None:
            self._see_through(
                dist.broadcast(held, group_src=0, group=self.group, async_op=True), _nothing
            )
        return [int(number) for number in held.tolist()]

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the processes, entry by entry, the same bytes in each of them.

        Where every entry is 0 in all processes but one, the sum is that entry to the bit: so what
        was done in shares is put together.

        Args:
            values: of one shape and dtype in all processes; not changed.

        Returns:
            On the device of `values`; of one process, `values` itself.

        Raises:
            ProcessError: one of them has ended without coming here, or hangs.
        """
        if self.group is None:
            return values
        held = values.detach().to("cpu", copy=True)
        self._see_through(dist.all_reduce(held, group=self.group, async_op=True), _nothing)
        return held.to(values.device)

    def wait(self, meanwhile: Callable[[], None] = _nothing) -> None:
        """Return when every process has come here.

        Args:
            meanwhile: called again and again, soon about five times a second.

        Raises:
            ProcessError: one of them has ended without coming here, or hangs.
        """
        if self.group is not None:
            self._see_through(dist.barrier(self.group, async_op=True), meanwhile)

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Process 0 does what is inside, then the others do."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def _see_through(self, message: "dist.Work", meanwhile: Callable[[], None]) -> None:
        """Wait until a message has got through, or can no longer."""
        assert self.group is not None
        board = self.group.get_group_store()
        began = time.monotonic()
        try:
            while not message.is_completed():
                if board.check([FAILED]):
                    raise RuntimeError(f"number {board.get(FAILED).decode()} failed")
                meanwhile()
                time.sleep(min(POLL, 1e-4 + (time.monotonic() - began) / 10))
            message.wait()
        except RuntimeError as cause:
            raise ProcessError(
                f"a run of {self.size} processes needs all of them to its end; as number "
                f"{self.rank} sees it, another one has ended or does not answer ({cause}). Look "
                "for its own message. What has been written is kept: run the same command again."
            ) from cause


ALONE = Processes()


@contextmanager
def together(*, arrival: timedelta = ARRIVAL) -> Iterator[Processes]:
    """The processes that a launcher has started; one process where there was none.

    Every process of the run enters this. Leaving it, also by an error, tells the others.

    Args:
        arrival: how long to wait until all have come.

    Raises:
        ProcessError: fewer came than were asked for, or they are on several machines.
    """
    count = _asked()
    if count == 1:
        yield ALONE
        return
    try:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=arrival)
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as cause:
        raise ProcessError(
            f"a run of {count} processes (WORLD_SIZE) needs all of them, each with RANK, "
            f"MASTER_ADDR and MASTER_PORT; they did not come within {arrival}: {cause} "
            "Start them with `torchrun --standalone --nproc_per_node N`, or unset WORLD_SIZE."
        ) from cause
    try:
        yield Processes(dist.get_rank(), count, group)
    except ProcessError:  # another one failed, and has said so
        raise
    except BaseException:
        # Its connections close when the process ends, which in a notebook may be never.
        with suppress(RuntimeError):
            group.get_group_store().set(FAILED, str(dist.get_rank()))
        raise
    finally:
        # The default group stays: it is the launcher's, and torch makes it once a process.
        dist.destroy_process_group(group)


def own_device(device: str) -> str:
    """`cuda` as this process's own GPU, `cuda:<LOCAL_RANK>`; any other device as it is."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device


def _asked() -> int:
    """How many processes the launcher was asked for."""
    world = os.environ.get("WORLD_SIZE")
    local = os.environ.get("LOCAL_WORLD_SIZE", world)
    if local != world:
        raise ProcessError(
            f"the processes of a run need to be on one machine; of {world} there are {local} here. "
            "Give each machine a store, or a run, of its own."
        )
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    if world is None and {"MASTER_PORT", "ACCELERATE_MIXED_PRECISION"} <= set(os.environ):
        raise ProcessError(
            "`accelerate launch` was asked for more than one process, and started one. On CPU give "
            "it --multi_gpu as well (yes, on CPU), or use `torchrun --standalone --nproc_per_node "
            "N`. If one is what you want: --num_processes 1, and no MASTER_PORT in the environment."
        )
    return int(world or 1)
