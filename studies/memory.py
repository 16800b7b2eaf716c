"""Memory of this process, as Linux counts it."""

from pathlib import Path


def status(key: str) -> float:
    """A line of /proc/self/status, KiB.

    Raises:
        OSError: there is no such line.
    """
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(key):
            return float(line.split()[1])
    raise OSError(f"a line {key} is needed in /proc/self/status; run this on Linux")


def peak_gib() -> float:
    """Peak of this process's memory in GiB; `ru_maxrss` would count the parent's on Linux."""
    return status("VmHWM") / 2**20
