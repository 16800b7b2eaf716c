"""A run under way: everything that changes in it, and where it goes.

Reads  a policy, a config, the folder in which the run may lie already.
Gives  Run, begun, own_copy.
Sign   none: nothing here is signed.

Of several processes each has all of the run; the first one alone writes and hands on.

Source: own work.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tokensense.models.policy import Policy
from tokensense.models.processes import Processes
from tokensense.models.recomputing import require_recomputable
from tokensense.trainer.batches import Batch
from tokensense.trainer.checkpoint import Identity, Saved, newest, restore, restore_teacher, save
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.evidence import Credited
from tokensense.trainer.health import findings
from tokensense.trainer.interrupts import Interrupts
from tokensense.trainer.parallel import require_same_run
from tokensense.trainer.problems import Task
from tokensense.trainer.sinks import JsonLines, Record, Sink, StepRollouts

METRICS_FILE = "metrics.jsonl"


@dataclass
class Run:
    """A run under way: everything that changes, and where it goes.

    Attributes:
        policy: that is trained.
        optimizer: over its parameters.
        start: the policy that the run began from.
        teacher: of a distillation.
        identity: what the run is of.
        out: where it is kept, if it is.
        sinks: that get what it makes; none in processes after the first.
        processes: that do it together.
        step: steps that are done.
        records: of them, of evaluations and findings.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    start: Policy
    teacher: Policy
    identity: Identity
    out: Path | None
    sinks: list[Sink]
    processes: Processes
    step: int = 0
    records: list[Record] = field(default_factory=list)

    def note(self, record: Record) -> None:
        """Keep a record and what is newly wrong by it, and hand both on.

        Args:
            record: plain values.
        """
        said = {(r["sign"], r["collapse"]) for r in self.records if r["kind"] == "finding"}
        self.records.append(record)
        new = [f for f in findings(self.records) if (f.sign, f.collapse) not in said]
        self.records += [finding.as_record() for finding in new]
        for added in self.records[-1 - len(new) :]:
            for sink in self.sinks:
                sink.record(added)

    def hand_on(self, batch: Batch, assigned: Credited, *, rule: str) -> None:
        """Give the rollouts of a step to the sinks.

        Args:
            batch: of the step.
            assigned: credit of its tokens.
            rule: that gave it.
        """
        rollouts = StepRollouts(
            self.step,
            batch.problems,
            batch.traces,
            rule,
            batch.advantage,
            assigned.credit,
            assigned.weight,
            assigned.evidence,
        )
        for sink in self.sinks:
            sink.rollouts(rollouts)

    def keep(self) -> None:
        """Write a checkpoint, where there is a folder for it."""
        if self.out is not None and self.processes.is_first:
            save(
                self.out,
                self.policy,
                self.optimizer,
                step=self.step,
                records=self.records,
                identity=self.identity,
                teacher=None if self.teacher in (self.policy, self.start) else self.teacher,
            )

    @contextmanager
    def kept_on_interrupt(self, interrupts: Interrupts) -> Iterator[None]:
        """Keep a checkpoint before an interrupt leaves the run.

        Args:
            interrupts: that must not come between.
        """
        try:
            yield
        except KeyboardInterrupt:
            with interrupts.held():
                self.keep()
            raise


def begun(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    *,
    out: str | Path | None,
    sinks: Sequence[Sink],
    processes: Processes,
) -> Run:
    """A new run, or the one that lies in `out`, as its last checkpoint has it.

    Args:
        policy: to begin from.
        task: of the run.
        config: of the run.
        out: folder of the run, if it is kept.
        sinks: that get what it makes.
        processes: that do it together; here they wait for each other.

    Raises:
        StoreError: `out` holds another run.
        PolicyError: checkpointing is asked for, and the model has no layers for it.
        ProcessError: the processes were not told the same, or one has ended.
    """
    if config.checkpointing:
        require_recomputable(policy.model)
    identity = Identity(policy.digest, task.name, config)
    folder, saved = None if out is None else Path(out), None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        saved = newest(folder, identity, device=str(policy.device), dtype=policy.dtype)
    trained = saved.policy if saved else own_copy(policy)
    optimizer = torch.optim.AdamW(
        trained.model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta_1, config.beta_2),
        weight_decay=config.weight_decay,
    )
    teacher = _teacher(policy, trained, saved, config)
    heard = list(sinks) if processes.is_first else []
    run = Run(trained, optimizer, policy, teacher, identity, folder, heard, processes)
    if saved:
        restore(optimizer, saved)
        run.step, run.records = saved.step, saved.records
    # Once all have read it, the first one may write.
    require_same_run(processes, identity, folder, run.step)
    if folder is not None and processes.is_first:
        run.sinks.append(JsonLines(folder / METRICS_FILE, kept=len(run.records)))
    return run


def _teacher(start: Policy, trained: Policy, saved: Saved | None, config: TrainConfig) -> Policy:
    """The policy that a distillation learns from; without one, and where it stays, the first."""
    rate = 0.0 if config.distillation is None else config.distillation.teacher_rate
    if rate in {0.0, 1.0}:
        return trained if rate else start
    teacher = own_copy(start)
    if saved:
        restore_teacher(teacher, saved)
    return teacher


def own_copy(policy: Policy) -> Policy:
    """A policy of its own weights, so that the one given, and its digest, stay as they are."""
    return Policy(
        copy.deepcopy(policy.model),
        policy.tokenizer,
        name=policy.name,
        wordings=policy.wordings,
    )
