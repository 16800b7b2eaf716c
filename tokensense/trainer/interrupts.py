"""Ctrl-C at a moment at which a run may stop.

Reads  SIGINT.
Gives  Interrupts: outside of `held` an interrupt drops what is under way, inside it waits for the
       end of it. Of several processes, which must all stop at the same place, none is torn out of
       anything: an interrupt of any of them waits until all come to `agree`.
Sign   none: nothing here is signed.

What is dropped has changed nothing: sampling and scoring leave weights and history as they were. A
process that handles SIGINT in its own way, or a thread, keeps its way.

Source: own work.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from tokensense.models.processes import ALONE, Processes


class Interrupts:
    """A context in which Ctrl-C never tears an update apart.

    Args:
        processes: that stop together.
    """

    def __init__(self, processes: Processes = ALONE) -> None:
        self._processes = processes
        self._held = False
        self._asked = False
        self._installed = False

    def __enter__(self) -> "Interrupts":
        """Take SIGINT over, where it has its usual meaning."""
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        """Give SIGINT back."""
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is inside is finished first.

        Raises:
            KeyboardInterrupt: at the end, if there was an interrupt inside.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._asked and self._processes.size == 1:
            self._asked = False
            raise KeyboardInterrupt

    def agree(self) -> None:
        """The place at which several processes stop, if any of them was interrupted; else nothing.

        Raises:
            KeyboardInterrupt: in all of them.
            ProcessError: another process has ended.
        """
        if self._processes.size > 1 and self._processes.summed(torch.tensor(self._asked).int()):
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._held and self._processes.size == 1:
            raise KeyboardInterrupt
        self._asked = True
