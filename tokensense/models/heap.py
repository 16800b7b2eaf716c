"""Give freed tensors back to the system at once, where memory on CPU is scarce.

Reads  nothing.
Gives  steady_heap.

By default glibc keeps blocks of up to 32 MiB in its heap once they were freed, which is a tenth
faster than fresh pages each time, and lets holes grow between them: the same scoring run of a 135M
model peaked at 44 to 139 MiB above the weights. With blocks mapped and given back it is 36 to 38,
which is what is alive.

Source: mallopt(3), M_MMAP_THRESHOLD.
"""

import ctypes
import os
from contextlib import suppress

M_MMAP_THRESHOLD = -3
LARGE = 2**18
# How many times what is alive the heap may come to hold without this.
SLACK = 4.0


def steady_heap() -> bool:
    """Map large blocks, from now on and in the whole process; gives whether glibc does.

    Where MALLOC_MMAP_THRESHOLD_ is set, that stands.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return True
    with suppress(OSError, AttributeError):
        return bool(ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, LARGE) == 1)
    return False
