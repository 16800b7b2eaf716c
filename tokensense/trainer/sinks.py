"""Where a run's numbers and rollouts go, as it makes them.

Reads  records (plain JSON values) and the rollouts of a step with their credit.
Gives  Sink, what anyone who wants them must be able to do; JsonLines, the file of records;
       StepRollouts, from which `rollouts.trajectory.assemble` makes the node `/rollouts`.
Sign   credit as the advantage.

The trainer knows no store and no tracker: a sink does. Rollouts come as problems and traces, in the
words of `schema`; arrays over their tokens lie in the order of the traces.

Source: own work.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tokensense.rollouts.trajectory import Trace
from tokensense.tasks.problem import Problem

Record = dict[str, Any]


class StepRollouts(NamedTuple):
    """The rollouts of one step and what they were credited with.

    Attributes:
        step: number of the step, from 0.
        problems: whose names no other step has.
        traces: groups together, with ids, rewards and labels where known.
        rule: that gave the credit.
        advantage: (rollout), no unit.
        credit: (token), in units of the advantage.
        weight: (token), no unit; None for a rule that does not multiply.
        evidence: what the rule read, by name; (token), `key` (rollout).
    """

    step: int
    problems: Sequence[Problem]
    traces: Sequence[Trace]
    rule: str
    advantage: np.ndarray
    credit: np.ndarray
    weight: np.ndarray | None
    evidence: Mapping[str, np.ndarray]


@runtime_checkable
class Sink(Protocol):
    """Takes what a run makes. An error in it ends the run; the step stays done."""

    def record(self, record: Record) -> None:
        """Take the numbers of a step, an evaluation or a finding.

        Args:
            record: plain JSON values; `kind` says which of the three, `step` the number.
        """
        ...

    def rollouts(self, rollouts: StepRollouts) -> None:
        """Take the rollouts of a step, after its update and before its record.

        Args:
            rollouts: see StepRollouts.
        """
        ...


class JsonLines:
    """A file of records, one a line, flushed as they come.

    Args:
        path: of the file; its folder must be there.
        kept: records that stay; what lies behind them is of a run that was cut off, and is dropped.
    """

    def __init__(self, path: Path, *, kept: int) -> None:
        self.path = path
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        aside = path.with_suffix(".partial")
        aside.write_text("".join(lines[:kept]), "utf-8")
        aside.replace(path)

    def record(self, record: Record) -> None:
        """Write one line; NaN and infinity, which JSON lacks, as null.

        Args:
            record: plain values.
        """
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(record), sort_keys=True) + "\n")

    def rollouts(self, rollouts: StepRollouts) -> None:
        """Nothing: the file holds numbers only.

        Args:
            rollouts: not used.
        """
        del rollouts


def plain(record: Record) -> Record:
    """A record with null for what is no number.

    Args:
        record: plain values.
    """
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
