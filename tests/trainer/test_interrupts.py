import os
import signal
import threading

import pytest

from tokensense.trainer.interrupts import Interrupts


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_outside_of_held_an_interrupt_comes_at_once():
    done = []

    def work():
        with Interrupts():
            interrupt()
            done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_inside_of_held_it_waits_for_the_end():
    done = []

    def work():
        with Interrupts() as interrupts:
            with interrupts.held():
                interrupt()
                done.append("inside")
            done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inside"]


def test_an_error_inside_is_not_hidden_by_an_interrupt():
    def work():
        with Interrupts() as interrupts, interrupts.held():
            interrupt()
            raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        work()


def test_a_handler_of_the_user_s_own_stays():
    seen = []
    usual = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with Interrupts():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert seen == [1]


def test_a_thread_leaves_signals_alone():
    found = []

    def work():
        with Interrupts() as interrupts, interrupts.held():
            found.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
