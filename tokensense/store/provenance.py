"""By whom and with what a store was made, and what may not change within one store.

Reads  installed versions, git, the platform, the command line; headers of probes.
Gives  `stamp()`, which says nothing about time and place and goes into attribute `provenance`;
       `.work/history.jsonl`, one line an event with time, host and process. Comparisons of
       stores leave both out: all other attributes are equal however often a run was interrupted.

Source: own work.
"""

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokensense.store.layout import attribute_differences

PACKAGES = ("tokensense", "torch", "transformers", "tokenizers", "numpy", "xarray", "zarr")
# One store, one scoring policy: shifts between two models are not shifts.
IDENTITY = ("policy_digest", "tokenizer_digest", "template_digest")
HISTORY = "history.jsonl"


def stamp() -> dict[str, Any]:
    """Package versions, git commit, python, platform, command; equal in equal surroundings."""
    return {
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "git": git_state(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": shlex.join(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that holds `folder`, and whether tracked files below it were changed.

    Returns:
        None outside a checkout, or where git does not track `folder` (an installed package inside
        somebody's repository is not that repository's code).
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not _git(folder, "ls-files", "--", "."):
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def identity_differences(stored: Mapping[str, Any], offered: Mapping[str, Any]) -> list[str]:
    """Digests of policy, tokenizer and chat template that both name and that differ."""
    both = [name for name in IDENTITY if name in stored and name in offered]
    return attribute_differences(
        {name: stored[name] for name in both}, {name: offered[name] for name in both}
    )


def environment_differences(stored: Mapping[str, Any], offered: Mapping[str, Any]) -> list[str]:
    """What two stamps differ in that can change the last bits of a score: versions of packages."""
    return attribute_differences(
        {"python": stored["python"], **stored["packages"]},
        {"python": offered["python"], **offered["packages"]},
    )


def log(work: Path, event: str, *, node: str = "", **details: object) -> None:
    """Append one line to the history: time, host, process, event."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "event": event,
        "node": node,
        **details,
    }
    path = work / HISTORY
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json.dumps(line) + "\n")


def history(work: Path) -> list[dict[str, Any]]:
    """Events in order; a line that a kill cut off is left out."""
    path = work / HISTORY
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
