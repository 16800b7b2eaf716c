import threading

import pytest
import torch

from tokensense.models.workers import side_by_side


def count_up(task):
    for i in range(3):
        yield task, i


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_result_comes_once_and_those_of_a_task_in_order(workers):
    found = list(side_by_side([10, 20, 30, 40], count_up, workers=workers))
    assert sorted(found) == [(task, i) for task in (10, 20, 30, 40) for i in range(3)]
    for task in (10, 20, 30, 40):
        assert [i for t, i in found if t == task] == [0, 1, 2]


def test_workers_share_the_threads_and_give_them_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        meet = threading.Barrier(2, timeout=20)

        def work(task):
            meet.wait()  # both are at work at the same time
            yield torch.get_num_threads(), torch.is_inference_mode_enabled()

        assert list(side_by_side("ab", work, workers=2)) == [(2, True), (2, True)]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2])
def test_work_runs_in_inference_mode_and_its_caller_does_not(workers):
    def work(task):
        for _ in range(2):
            yield torch.is_inference_mode_enabled()

    for inside in side_by_side("ab", work, workers=workers):
        assert inside
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_stops_the_others_and_is_raised(workers):
    started = []

    def work(task):
        started.append(task)
        if task == 1:
            raise ZeroDivisionError("task 1")
        for i in range(200):
            yield i
            threading.Event().wait(0.002)

    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError, match="task 1"):
        list(side_by_side(range(50), work, workers=workers))
    assert len(started) < 10
    assert torch.get_num_threads() == before
    assert not [t for t in threading.enumerate() if "ThreadPool" in t.name]


def test_leaving_early_leaves_no_thread_behind():
    results = side_by_side(range(50), count_up, workers=2)
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if "ThreadPool" in t.name]
