"""Independent pieces of work in threads side by side, their results as they come.

Reads  tasks, and a function that yields results for one of them.
Gives  side_by_side.

Why not leave the cores to torch: a trie makes many small calls, and the threads inside a call wait
for each other at its end. Beside another busy process that waiting made two threads four times
slower than one; threads that each have a stream of their own do not wait.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import NamedTuple, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


_NOTHING = object()


class _End(NamedTuple):
    """The last word of a task: what it failed of, None if it did not."""

    failure: BaseException | None


def side_by_side(
    tasks: Sequence[Task], work: Callable[[Task], Iterator[Result]], *, workers: int
) -> Iterator[Result]:
    """Results of `work` on every task; those of one task in order, tasks in between each other.

    Each worker gets an equal share of torch's threads; the caller's number is put back at the end,
    also after an error. An error stops the other workers at their next result and is raised here.

    Args:
        tasks: taken in order.
        work: yields the results of one task. Runs in inference mode.
        workers: threads; with 1 the caller does the work.

    Yields:
        Results as they come.

    Raises:
        BaseException: whatever `work` raised, the first of it.
    """
    if workers <= 1:
        for task in tasks:
            yield from _in_inference_mode(work(task))
        return
    results: SimpleQueue[Result | _End] = SimpleQueue()
    stop = Event()

    def run(task: Task) -> None:
        failure = None
        try:
            with torch.inference_mode():
                for result in work(task):
                    results.put(result)
                    if stop.is_set():
                        break
        except BaseException as error:
            failure = error
        results.put(_End(failure))

    threads = torch.get_num_threads()
    # With OpenMP the number of threads belongs to the thread that sets it.
    share = (max(1, threads // workers),)
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=share)
    try:
        for task in tasks:
            pool.submit(run, task)
        left = len(tasks)
        while left:
            result = results.get()
            if not isinstance(result, _End):
                yield result
            elif result.failure is not None:
                raise result.failure
            else:
                left -= 1
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)


def _in_inference_mode(results: Iterator[Result]) -> Iterator[Result]:
    """The same results; the mode ends before the caller goes on."""
    while True:
        with torch.inference_mode():
            result = next(results, _NOTHING)
        if result is _NOTHING:
            return
        yield result  # type: ignore[misc]
