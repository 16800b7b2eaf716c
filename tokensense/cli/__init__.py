"""The command line: each command is one call of the public face.

Heavy libraries are imported inside the commands, so that `--help` answers at once. Exit codes: 0
fine, 1 findings or a failed check, 2 wrong usage or input. With `--json` a command prints JSON on
standard output and nothing else; progress goes to standard error.
"""

from tokensense.cli import results, scoring, study, traces, training
from tokensense.cli.common import app

__all__ = ["app", "results", "scoring", "study", "traces", "training"]
