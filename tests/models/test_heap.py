import os
import subprocess
import sys

import pytest

from tokensense.models.heap import LARGE, steady_heap

CODE = """
import ctypes
from tokensense.models.heap import LARGE, steady_heap

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd".split()]
class Rest(ctypes.Structure):
    _fields_ = [("info", Info), ("rest", ctypes.c_size_t * 16)]
libc.mallinfo2.restype = Rest

def mapped(size):
    before = libc.mallinfo2().info.hblks
    block = libc.malloc(size)
    count = libc.mallinfo2().info.hblks - before
    libc.free(block)
    return count

if STEADY:
    assert steady_heap()
# Once a block was freed, glibc by default takes others of its size from the heap.
mapped(8 * LARGE)
print(mapped(4 * LARGE), mapped(LARGE // 2))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize(("steady", "expected"), [(True, "1 0"), (False, "0 0")])
def test_large_blocks_are_mapped_again_each_time(steady, expected):
    ran = subprocess.run(
        [sys.executable, "-c", CODE.replace("STEADY", str(steady))],
        capture_output=True, text=True, check=True,
        env={k: v for k, v in os.environ.items() if k != "MALLOC_MMAP_THRESHOLD_"},
    )  # fmt: skip
    assert ran.stdout.strip() == expected


def test_the_users_own_threshold_stands(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(4 * LARGE))
    monkeypatch.setattr("tokensense.models.heap.ctypes", None)
    assert steady_heap()
