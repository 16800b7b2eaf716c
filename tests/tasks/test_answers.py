import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import psutil
import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

import tokensense.tasks.answers as answers
from tokensense.errors import InputError, MissingExtraError, SchemaError, TokensenseError
from tokensense.tasks.answers import AnswerChecker, Verdict

TOWER = r"\boxed{9^{9^{9^{9}}}}"
OTHER = r"\frac{\pi}{7}"
PAIRS = [
    (r"so \boxed{\frac{1}{2}}", "0.5"),
    ("A: 1,234", "1234"),
    (r"\boxed{\frac{1}{2^{98}}}", r"\frac{1}{2^{99}}"),
    (r"\boxed{2\pi}", r"\pi"),
    (r"\boxed{3} or \boxed{4", "4"),
    ("no idea", "4"),
    ("", "4"),
]
VERDICTS = ["right", "right", "wrong", "wrong", "undecided", "undecided", "undecided"]


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def checker():
    with AnswerChecker(workers=2) as one:
        yield one


@pytest.fixture(scope="module")
def patient():
    """One worker and all the time in the world."""
    with AnswerChecker(time_limit=60.0) as one:
        yield one


def only_worker(patient):
    patient.check("A: x", "y")
    (worker,) = patient._crew.live
    return worker


def work_of(pid):
    return psutil.Process(pid).cpu_times().user


def test_verdicts_and_their_reasons(checker):
    found = [checker.check(*pair) for pair in PAIRS]
    assert [verdict.status for verdict in found] == VERDICTS
    assert found[0].reason == "boxed: same number"
    assert found[1].reason == "stated: same number"
    assert found[4].reason == "unterminated box"
    assert checker.check("A: 4", " ") == ("undecided", "no reference answer")
    long = checker.check("A: " + "1" * 4001, "1")
    assert long == ("undecided", "answer longer than 4000 characters")


def test_reward_is_one_zero_or_nan():
    assert Verdict("right", "").reward == 1.0
    assert Verdict("wrong", "").reward == 0.0
    assert Verdict("undecided", "").reward != Verdict("undecided", "").reward


def test_the_same_from_any_thread_and_in_any_order(checker):
    expected = [checker.check(*pair) for pair in PAIRS]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(checker.check, *PAIRS[k % len(PAIRS)]) for k in range(70)]
        found = [job.result() for job in jobs]
    assert found == [expected[k % len(PAIRS)] for k in range(70)]
    assert len(checker._crew.live) <= checker.workers == 2


def test_check_many_keeps_the_order_and_shows_progress_if_asked(checker, capsys):
    assert [v.status for v in checker.check_many(PAIRS * 3)] == VERDICTS * 3
    assert capsys.readouterr().err == ""
    checker.check_many(PAIRS, progress=True)
    assert "7/7" in capsys.readouterr().err


def test_a_tower_of_powers_costs_the_time_limit_and_leaves_no_process():
    before = children()
    with AnswerChecker(time_limit=0.5) as checker:
        checker.check("A: x", "y")
        started = time.process_time(), time.monotonic()
        verdict = checker.check(TOWER, OTHER)
        assert verdict == ("undecided", "slower than 0.5 s")
        assert time.process_time() - started[0] < 0.5  # we waited, we did not compute
        # Twenty-fold is the wall limit, far beyond a busy machine; alone it takes 0.5 s.
        assert time.monotonic() - started[1] < 11.0
        assert children() == before
        nested = "(" * 300 + "1" + ")" * 300
        assert checker.check(rf"\boxed{{{nested}}}", OTHER).status == "undecided"
        assert checker.check("A: x", "x").status == "right"  # and goes on with a new worker
    assert children() == before


def test_a_memory_bomb_is_undecided_and_the_next_check_is_not():
    with AnswerChecker(time_limit=60.0, memory_limit=64) as checker:
        found = checker.check(r"\boxed{2^{2^{29}}}", OTHER)
        assert found == ("undecided", "more memory than 64 MiB")
        assert checker.check(r"\boxed{\frac{2}{4}}", r"\frac{1}{2}").status == "right"


def test_an_idle_worker_that_was_killed_is_replaced(patient):
    pid = only_worker(patient).process.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert patient.check("A: x", "x") == ("right", "stated: same text")
    assert pid not in children()


def test_one_death_in_the_middle_changes_nothing(patient):
    slow = r"\boxed{100000!}"  # about a second of work
    first = only_worker(patient).process.pid
    idle = work_of(first)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(patient.check, slow, OTHER)
        wait_until(lambda: work_of(first) > idle + 0.1)
        os.kill(first, signal.SIGKILL)
        assert job.result() == ("wrong", "boxed: another value")
    assert first not in children()


def test_two_deaths_in_the_middle_are_undecided(patient, monkeypatch):
    first = only_worker(patient).process.pid
    before = children() - {first}
    ask, asked = answers._Worker.ask, []

    def noted(worker, request):
        asked.append((worker.process.pid, work_of(worker.process.pid)))
        return ask(worker, request)

    monkeypatch.setattr(answers._Worker, "ask", noted)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(patient.check, TOWER, OTHER)
        for deaths in (0, 1):
            wait_until(lambda n=deaths: len(asked) > n)
            pid, idle = asked[-1]
            wait_until(lambda p=pid, i=idle: work_of(p) > i + 0.2)
            os.kill(pid, signal.SIGKILL)
        assert job.result() == ("undecided", "the worker ended with code -9")
    assert children() == before
    assert patient.check("A: x", "x").status == "right"


def test_a_worker_that_falls_silent_is_given_up(patient):
    worker = only_worker(patient)
    worker.wall_limit = 0.5
    os.kill(worker.process.pid, signal.SIGSTOP)
    assert patient.check("A: x", "x") == ("undecided", "the worker fell silent")
    assert worker.process.pid not in children()


def test_close_ends_a_check_that_runs_in_another_thread():
    before = children()
    checker = AnswerChecker(time_limit=60.0)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(checker.check, TOWER, OTHER)
        wait_until(lambda: children() - before)
        time.sleep(0.2)
        checker.close()
        with pytest.raises(TokensenseError, match=r"closed|before it was ready"):
            job.result(timeout=30)
    assert children() == before
    checker.close()
    with pytest.raises(InputError, match=r"open AnswerChecker is needed; this one is closed"):
        checker.check("A: 1", "1")


def test_a_checker_that_is_forgotten_ends_its_workers():
    before = children()
    checker = AnswerChecker()
    checker.check("A: x", "y")
    assert children() - before
    del checker
    assert children() == before


SCRIPT = """
import sys
from tokensense.tasks.answers import AnswerChecker
checker = AnswerChecker(time_limit=2.0)
checker.check("A: x", "y")
print(*[worker.process.pid for worker in checker._crew.live], flush=True)
if sys.argv[1] == "busy":
    checker.check(r"\\boxed{9^{9^{9^{9}}}}", r"\\frac{\\pi}{7}")
sys.stdin.read()  # until the test has the worker in hand
"""


def gone(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("way", ["exits", "idle", "busy"])
def test_no_worker_outlives_its_interpreter(way):
    command = [sys.executable, "-c", SCRIPT, way]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:
        worker = psutil.Process(int(run.stdout.readline()))
        if way == "busy":  # its input ends unnoticed: the worker's own timer must end it
            spent = worker.cpu_times().user
            wait_until(lambda: worker.cpu_times().user > spent + 0.1)
        if way == "exits":
            run.stdin.close()
        else:
            run.kill()
        assert run.wait() == (0 if way == "exits" else -signal.SIGKILL)
        wait_until(lambda: gone(worker))


def test_a_forked_copy_is_refused_and_ends_nobody(checker):
    checker.check("A: x", "y")
    live = {worker.process.pid for worker in checker._crew.live}
    owner, checker._crew.owner = checker._crew.owner, -1  # what a forked copy sees
    try:
        with pytest.raises(InputError, match=r"made in process -1. Make one in each process"):
            checker.check("A: 1", "1")
        checker._crew.dismiss()
    finally:
        checker._crew.owner = owner
    assert live <= children()
    assert checker.check("A: 1", "1").status == "right"


def test_an_interrupted_check_does_not_leave_its_reply_to_the_next(patient, monkeypatch):
    only_worker(patient)

    def interrupted(self, seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(answers._Worker, "_line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            patient.check("A: x", "y")
    assert patient.check("A: x", "x") == ("right", "stated: same text")


def test_a_worker_that_cannot_start_is_an_error_that_says_how_to_see_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        AnswerChecker() as checker,
        pytest.raises(TokensenseError, match=r"ended with code 1 before it was ready. To see why"),
    ):
        checker.check("A: x", "y")


def test_limits_are_checked():
    with pytest.raises(SchemaError, match="`workers` needs a value in"):
        AnswerChecker(workers=0)
    with pytest.raises(SchemaError, match="`time_limit` needs a value in"):
        AnswerChecker(time_limit=float("nan"))
    with pytest.raises(SchemaError, match=r"`memory_limit` needs a value in \[16"):
        AnswerChecker(memory_limit=8)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(answers, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtraError, match=r"tokensense\[math\]"):
        AnswerChecker()


def test_version_names_what_decided(checker):
    assert checker.version.startswith(f"math-verify {metadata.version('math-verify')}, ")
    assert checker.version.endswith("answer rules 1")
