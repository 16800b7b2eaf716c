"""Checks final answers with math-verify, walled off: right, wrong or undecided, each with a reason.

Reads  a response and its reference answer.
Gives  `Verdict`: right, wrong, or undecided; a limit, a crash or a text that nobody can read is
       undecided, never wrong.
Needs  the extra `math`, and POSIX (Linux enforces the memory limit, macOS does not).

A model may write a tower of powers, and sympy will try to evaluate it. So comparisons run in worker
processes, one at a time each, with limits of processor time, wall time and address space that the
kernel enforces (`verification.serve`). The time limit counts processor time: a busy machine makes a
check slower, not undecided. A worker that dies is replaced; a death that is not the fault of the
time limit is tried once more in a fresh worker, so a verdict depends on the two texts alone,
whatever was checked before and from whatever thread.

Workers are plain subprocesses that talk JSON over pipes: nothing is forked from a process with
threads, nothing is pickled, and the caller's `__main__` is not run again.

Source: own design; the traps are public (Math-Verify's signal time limits fail off the main thread
and give False; open-r1#420, verifiers#831 and #1096: false time-outs under load).
"""

import json
import math
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from tqdm import tqdm

from tokensense.checks import require_extra, require_range
from tokensense.errors import InputError, TokensenseError
from tokensense.tasks.extraction import final_answer

Status = Literal["right", "wrong", "undecided"]

RULES_VERSION = 1
LONGEST_ANSWER = 4000
LEAST_MEMORY = 16.0
START_SECONDS = 120.0
# Wall time per second of processor time before a worker is given up: for workers that are stopped,
# or a machine that is loaded beyond all measure.
WALL_FACTOR = 20.0
OUT_OF_MEMORY = "memory"
REWARDS = {"right": 1.0, "wrong": 0.0, "undecided": math.nan}


class Verdict(NamedTuple):
    """What the checker says about one response.

    Attributes:
        status: `undecided` is neither: no answer, cut off, too slow, or not readable.
        reason: in words; for right and wrong it begins with the rule that found the answer.
    """

    status: Status
    reason: str

    @property
    def reward(self) -> float:
        """1 right, 0 wrong, NaN undecided."""
        return REWARDS[self.status]


class _EndedError(Exception):
    """A worker ended, or was given up, before it replied."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Worker:
    """One worker process: a request in, a reply out, strictly in turn."""

    def __init__(self, memory_limit: int, time_limit: float) -> None:
        self.wall_limit = WALL_FACTOR * time_limit + 1.0
        limits = (memory_limit * 2**20, float(time_limit), self.wall_limit)
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, os.environ.get("PYTHONPATH", "")]
        code = f"from tokensense.tasks.verification import serve; serve(*{limits!r})"
        self.using = threading.RLock()  # held while the pipes are read or written
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,  # Ctrl-C is for the caller; workers end when their input does
        )

    def wait_until_ready(self) -> None:
        """Wait for the first line.

        Raises:
            TokensenseError: the process ended or stayed silent.
        """
        try:
            with self.using:
                self._line(START_SECONDS)
        except _EndedError as ended:
            raise TokensenseError(
                f"a worker for answer checks is needed; it ended with code {ended.code} before it "
                "was ready. To see why: python -c 'import tokensense.tasks.verification'."
            ) from ended

    def ask(self, request: dict[str, str]) -> Verdict:
        """Send a request and wait for the reply.

        Raises:
            _EndedError: the worker died, or was silent beyond the wall limit and has been killed.
        """
        line = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        with self.using:
            try:
                # LONGEST_ANSWER keeps this below a pipe's buffer: a stopped worker blocks nobody.
                self._send(line)
                reply = json.loads(self._line(self.wall_limit))
            except (OSError, ValueError):  # it died while idle, or was ended meanwhile
                raise _EndedError(self.process.wait()) from None
        return Verdict(reply["status"], reply["reason"])

    def _send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        while line:
            line = line[self.process.stdin.write(line) or 0 :]

    def _line(self, seconds: float) -> bytes:
        """The next line of the process; `_EndedError` at its end, or after `seconds`."""
        pipe = self.process.stdout
        assert pipe is not None
        deadline = time.monotonic() + seconds
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    self.process.kill()
                    self.process.wait()
                    raise _EndedError(-signal.SIGALRM)
                part = os.read(pipe.fileno(), 65536)
                if not part:
                    raise _EndedError(self.process.wait())
                received += part
        return received

    def end(self) -> None:
        """Kill the process, collect it, close the pipes; harmless if it is gone."""
        self.process.kill()
        self.process.wait()
        # A thread that waits for the reply sees the end of the pipe, and then lets go of it.
        with self.using:
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()


class _Crew:
    """The live workers of one checker; it holds no reference to the checker, which can be freed."""

    def __init__(self, memory_limit: int, time_limit: float) -> None:
        self.memory_limit = memory_limit
        self.time_limit = time_limit
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.live: set[_Worker] = set()
        self.closed = False

    def answer(
        self, worker: _Worker | None, request: dict[str, str]
    ) -> tuple[_Worker | None, Verdict]:
        """Put a request to a worker, twice if need be.

        Returns:
            The worker if it may be used again, and the verdict.
        """
        verdict = Verdict("undecided", "")
        for _ in range(2):
            fresh = worker is None
            worker = worker or self.hire()
            try:
                verdict = worker.ask(request)
            except _EndedError as ended:
                self.discard(worker)
                worker = None
                if ended.code == -signal.SIGPROF:
                    return None, Verdict("undecided", f"slower than {self.time_limit:g} s")
                if ended.code == -signal.SIGALRM:
                    return None, Verdict("undecided", "the worker fell silent")
                verdict = Verdict("undecided", f"the worker ended with code {ended.code}")
            except BaseException:
                # Interrupted: the reply to this request may still come, and would be taken for
                # the reply to the next one.
                self.discard(worker)
                raise
            else:
                if verdict.reason != OUT_OF_MEMORY:
                    return worker, verdict
                # What was checked before may have filled the worker: a fresh one tells.
                self.discard(worker)
                worker = None
                if fresh:
                    break
        if verdict.reason == OUT_OF_MEMORY:
            verdict = Verdict("undecided", f"more memory than {self.memory_limit} MiB")
        return None, verdict

    def hire(self) -> _Worker:
        """A new worker, ready for requests."""
        with self.lock:
            self.require_open()
            worker = _Worker(self.memory_limit, self.time_limit)
            self.live.add(worker)
        try:
            worker.wait_until_ready()
        except BaseException:
            self.discard(worker)
            raise
        return worker

    def require_open(self) -> None:
        """Refuse work after `close`, and in a forked copy of the process: it shares the pipes.

        Raises:
            InputError: one of the two.
        """
        if os.getpid() != self.owner:
            raise InputError(
                f"an AnswerChecker made in this process ({os.getpid()}) is needed; this one was "
                f"made in process {self.owner}. Make one in each process."
            )
        if self.closed:
            raise InputError("an open AnswerChecker is needed; this one is closed. Make another.")

    def discard(self, worker: _Worker | None) -> None:
        """End one worker."""
        if worker is not None:
            with self.lock:
                self.live.discard(worker)
            worker.end()

    def dismiss(self) -> None:
        """End all workers, for good. In a forked copy of the owner this does nothing."""
        if os.getpid() != self.owner:
            return
        with self.lock:
            self.closed = True
            workers = list(self.live)
            self.live.clear()
        for worker in workers:
            worker.end()


class AnswerChecker:
    r"""Checks answers in worker processes; a context manager, usable from any number of threads.

    Workers start with the first check that needs one (about half a second each) and end with
    `close`, with the `with` block, or with the interpreter.

    Args:
        workers: checks that run at the same time.
        time_limit: seconds of processor time for one check; then it is undecided.
        memory_limit: MiB of address space for a worker beyond what it has when idle; a check that
            needs more is undecided.

    Raises:
        MissingExtraError: math-verify is not installed.
        SchemaError: a limit lies outside its range.

    >>> with AnswerChecker() as checker:
    ...     checker.check("So it is \\boxed{0.5}.", "1/2")
    Verdict(status='right', reason='boxed: same number')
    """

    def __init__(
        self, *, workers: int = 1, time_limit: float = 5.0, memory_limit: int = 1024
    ) -> None:
        require_range("workers", float(workers), 1.0, 1024.0)
        require_range("time_limit", time_limit, 0.01, 86400.0)
        require_range("memory_limit", float(memory_limit), LEAST_MEMORY, 2.0**30)
        if find_spec("math_verify") is None:
            require_extra("math_verify", "math")
        self.workers = workers
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self._crew = _Crew(memory_limit, time_limit)
        self._free: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._free.put(None)
        self._finalizer = weakref.finalize(self, self._crew.dismiss)

    @property
    def version(self) -> str:
        """What decided: store it with the rewards."""
        packages = ("math-verify", "latex2sympy2_extended", "sympy")
        found = [f"{name} {metadata.version(name)}" for name in packages]
        return ", ".join([*found, f"answer rules {RULES_VERSION}"])

    def check(self, response: str, answer: str) -> Verdict:
        """Check the final answer of a response.

        Args:
            response: the whole response; `extraction.final_answer` says where the answer is sought.
            answer: the reference answer, LaTeX or plain.

        Returns:
            The verdict; the same whatever was checked before, and from any thread.

        Raises:
            InputError: the checker is closed, or was made in another process.
            TokensenseError: no worker can be started.
        """
        self._crew.require_open()
        found = final_answer(response)
        if found.rule == "none":
            return Verdict("undecided", found.why)
        if not answer.strip():
            return Verdict("undecided", "no reference answer")
        if len(found.text) > LONGEST_ANSWER or len(answer) > LONGEST_ANSWER:
            return Verdict("undecided", f"answer longer than {LONGEST_ANSWER} characters")
        request = {"rule": found.rule, "answer": found.text, "reference": answer}
        worker = self._free.get()
        keep = None
        try:
            keep, verdict = self._crew.answer(worker, request)
        finally:
            self._free.put(keep)
        if verdict.status == "undecided":
            return verdict
        return Verdict(verdict.status, f"{found.rule}: {verdict.reason}")

    def check_many(
        self, pairs: Sequence[tuple[str, str]], *, progress: bool = False
    ) -> list[Verdict]:
        """Check (response, answer) pairs, as many at a time as there are workers.

        Args:
            pairs: response and reference answer each.
            progress: show a bar with rate and time left.

        Returns:
            Verdicts in the order of the pairs.

        Raises:
            InputError: see `check`.
            TokensenseError: see `check`.
        """
        executor = ThreadPoolExecutor(max_workers=self.workers)
        try:
            jobs = [executor.submit(self.check, response, answer) for response, answer in pairs]
            bar = tqdm(jobs, desc="answers", unit="check", disable=not progress)
            return [job.result() for job in bar]
        finally:
            executor.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End all workers; checks that wait in other threads raise. Closing twice is harmless."""
        self._finalizer()

    def __enter__(self) -> "AnswerChecker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
