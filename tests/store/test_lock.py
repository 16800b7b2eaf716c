import json
import os
import subprocess
import sys

import pytest

from tokensense.errors import LockError
from tokensense.store.lock import HOLDER, Holder, WriterLock, is_alive, read_holder, this_process


def test_the_holder_is_named_and_signs_off(tmp_path):
    lock = WriterLock(tmp_path)
    assert not lock.held
    assert lock.acquire()
    me = read_holder(tmp_path)
    assert (me.pid, me.host) == (os.getpid(), os.uname().nodename)
    assert me.start.endswith("+00:00")
    # Taken twice, given back twice.
    assert not lock.acquire()
    lock.release()
    assert lock.held
    lock.release()
    assert not lock.held
    assert read_holder(tmp_path) is None
    lock.release()


def test_another_object_of_this_process_is_told_so(tmp_path):
    first, second = WriterLock(tmp_path), WriterLock(tmp_path)
    first.acquire()
    with pytest.raises(LockError, match=r"this very process: another Archive or Study"):
        second.acquire()
    first.acquire()
    first.release(force=True)
    assert second.acquire()
    second.release()


def test_a_lock_that_an_orphan_holds_says_that_the_holder_has_ended(tmp_path):
    first, second = WriterLock(tmp_path), WriterLock(tmp_path)
    first.acquire()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    holder = this_process()._replace(pid=gone.pid)
    (tmp_path / HOLDER).write_text(json.dumps(holder._asdict()))
    with pytest.raises(LockError, match=rf"process {gone.pid} .*has ended, but a process that it"):
        second.acquire()
    (tmp_path / HOLDER).unlink()
    with pytest.raises(LockError, match="a process that has not named itself yet"):
        second.acquire()
    first.release()


@pytest.mark.parametrize("gone", ["killed on this host", "this host was started again"])
def test_a_dead_holder_on_this_host_does_not_block(tmp_path, gone):
    holder = this_process()._replace(pid=2**22 + 1)
    if gone == "this host was started again":
        holder = holder._replace(boot="another")
    (tmp_path / HOLDER).write_text(json.dumps(holder._asdict()))
    lock = WriterLock(tmp_path)
    assert lock.acquire()
    assert read_holder(tmp_path).pid == os.getpid()
    lock.release()


def test_a_container_on_the_same_kernel_counts_as_this_host(tmp_path):
    holder = this_process()._replace(host="container-of-yesterday")
    (tmp_path / HOLDER).write_text(json.dumps(holder._asdict()))
    lock = WriterLock(tmp_path)
    assert lock.acquire()
    lock.release()


def test_a_holder_on_another_host_is_not_taken_for_dead(tmp_path):
    holder = Holder(7, "node-12", "another", "tokensense probe x", "2026-01-01T00:00:00+00:00")
    (tmp_path / HOLDER).write_text(json.dumps(holder._asdict()))
    lock = WriterLock(tmp_path)
    with pytest.raises(LockError) as caught:
        lock.acquire()
    for part in (
        "process 7 on host node-12 (`tokensense probe x`) since 2026-01-01",
        "nobody can see whether that process still runs",
        f"remove {tmp_path / HOLDER}",
        "Safe between hosts: reading",
        "Not safe: two hosts writing",
    ):
        assert part in str(caught.value)
    # The refused one holds nothing, and has not written itself over the holder.
    assert read_holder(tmp_path) == holder
    assert not lock.held
    (tmp_path / HOLDER).unlink()
    assert WriterLock(tmp_path).acquire()


@pytest.mark.parametrize("content", ["", "[]", '{"pid": 1}', "{"])
def test_an_unreadable_holder_file_is_nobody(tmp_path, content):
    (tmp_path / HOLDER).write_text(content)
    assert read_holder(tmp_path) is None


def test_is_alive():
    assert is_alive(this_process())
    # 1 belongs to somebody else, unless we are root; it runs either way.
    assert is_alive(this_process()._replace(pid=1))
    assert not is_alive(this_process()._replace(pid=2**22 + 1))
