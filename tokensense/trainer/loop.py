"""The loop: sample, credit, update, judge.

Reads  a policy, a Task, a TrainConfig; a folder to keep the run in, if any.
Gives  train -> Result.
Sign   as in `loss`: credit positive, the token is made likelier.

    train(policy, task, config, *, out=None, sinks=(), stop_on_collapse=False, progress=True,
          rule=None, watch=None)

The policy that is given stays as it is, and is the reference of a KL; a copy of it is trained. All
that is random follows from (seed, step): a run that was interrupted and resumed from `out` ends in
the same bytes on the same machine as one that was not, times of the clock apart.

Ctrl-C finishes an update that has begun and drops everything else, keeps a checkpoint, and is then
raised as KeyboardInterrupt; the same call goes on from there.

Source: design section 9.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from tokensense.credit.base import Credit
from tokensense.errors import SchemaError
from tokensense.models.policy import Policy
from tokensense.trainer.batches import ORDER, Batch, collect, step_seed
from tokensense.trainer.checkpoint import (
    Identity,
    Saved,
    newest,
    restore,
    restore_teacher,
    save,
)
from tokensense.trainer.config import DISTILLED, TrainConfig
from tokensense.trainer.distillation import follow
from tokensense.trainer.evaluate import METRICS, evaluate
from tokensense.trainer.evidence import Credited, Live, credited, plan_evidence
from tokensense.trainer.health import Finding, findings, has_collapsed, repeated_share
from tokensense.trainer.interrupts import Interrupts
from tokensense.trainer.lesson import Lesson, log_probs, teach
from tokensense.trainer.problems import Task
from tokensense.trainer.sinks import JsonLines, Record, Sink, StepRollouts
from tokensense.trainer.update import update

METRICS_FILE = "metrics.jsonl"
EVALUATION_SEED = 0  # the same for all runs: they are compared on the same random numbers


class Result(NamedTuple):
    """A run that has ended.

    Attributes:
        policy: trained.
        records: of steps, evaluations and findings, in their order.
        findings: what was wrong; each sign is reported once, and once more as a collapse.
        stopped: "" for a run that did all its steps, `collapse` for one that was stopped by it.
    """

    policy: Policy
    records: list[Record]
    findings: list[Finding]
    stopped: str


def train(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    *,
    out: str | Path | None = None,
    sinks: Sequence[Sink] = (),
    stop_on_collapse: bool = False,
    progress: bool = True,
    rule: Credit | None = None,
    watch: Callable[[int, Policy], None] | None = None,
) -> Result:
    """Train a copy of a policy on the credit that a rule gives.

    Args:
        policy: to begin from; not changed.
        task: problems and grades.
        config: everything else.
        out: folder of the run: checkpoints and `metrics.jsonl`. What lies there is gone on with.
            None: nothing is kept.
        sinks: that get records and rollouts as they come.
        stop_on_collapse: end the run when it has collapsed (`health`).
        progress: show a bar of steps with rate and time left.
        rule: of one's own in place of the config's; such a run is not kept, since no checkpoint
            could say what it is of.
        watch: called with the steps done and the policy, before the first step and after each; it
            may look at the policy, and must leave it as it is.

    Raises:
        StoreError: `out` holds another run.
        SchemaError: the rule needs what is not measured in training, problems are too few, or a
            rule of one's own is to be kept in `out`.
        ConditionError: the policy cannot be told what the rule's evidence needs.
        PolicyError: a prompt does not fit.
        StatisticsError: evaluations are asked for and nothing is held out.
        KeyboardInterrupt: after Ctrl-C, when the run is in order and kept.
    """
    if rule is not None and out is not None:
        raise SchemaError(
            f"a run that is kept needs a rule of the catalogue; one's own rule came with {out}. "
            "Leave `out` away, or name the rule in the config."
        )
    credit = config.credit() if rule is None else rule
    live = plan_evidence(policy, credit, config, told=task.evidence)
    run = _begun(policy, task, config, out=out, sinks=sinks)
    bar = tqdm(total=config.steps, initial=run.step, unit="step", disable=not progress)
    with bar, Interrupts() as interrupts, _kept_on_interrupt(run, interrupts):
        _show(watch, run)
        while True:
            if _is_due(run, config):
                run.note(_evaluated(run, task, config))
            if run.step and config.checkpoint_every and run.step % config.checkpoint_every == 0:
                with interrupts.held():
                    run.keep()
            collapsed = stop_on_collapse and has_collapsed(run.records) is not None
            if collapsed or run.step >= config.steps:
                break
            clock = _Clock()
            batch = collect(run.policy, task, config, step=run.step)
            clock.lap("sampling")
            assigned = _credited(run, batch, live, rule=credit, config=config)
            lesson = _lesson(run, batch, assigned, live=live, config=config)
            clock.lap("scoring")
            with interrupts.held():
                numbers = update(
                    run.policy,
                    _paced(run, config),
                    lesson,
                    config=config,
                    seed=step_seed(config, ORDER, run.step),
                )
                if config.distillation is not None:
                    follow(run.teacher, run.policy, config.distillation.teacher_rate)
                clock.lap("updating")
                run.hand_on(batch, assigned, rule=config.rule)
                run.step += 1
                run.note(_about(run, batch, assigned) | numbers | clock.laps)
            _show(watch, run)
            bar.update()
            bar.set_postfix(reward=f"{batch.mean_reward:.3f}")
        with interrupts.held():
            run.keep()
    stopped = "collapse" if collapsed and run.step < config.steps else ""
    return Result(run.policy, run.records, _findings(run.records), stopped)


@dataclass
class _Run:
    """A run under way: everything that changes, and where it goes."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    start: Policy
    teacher: Policy
    identity: Identity
    out: Path | None
    sinks: list[Sink]
    step: int = 0
    records: list[Record] = field(default_factory=list)

    def note(self, record: Record) -> None:
        """Keep a record and what is newly wrong by it, and hand both on."""
        said = {(r["sign"], r["collapse"]) for r in self.records if r["kind"] == "finding"}
        self.records.append(record)
        new = [f for f in findings(self.records) if (f.sign, f.collapse) not in said]
        self.records += [finding.as_record() for finding in new]
        for added in self.records[-1 - len(new) :]:
            for sink in self.sinks:
                sink.record(added)

    def hand_on(self, batch: Batch, assigned: Credited, *, rule: str) -> None:
        """Give the rollouts of a step to the sinks."""
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
        if self.out is not None:
            save(
                self.out,
                self.policy,
                self.optimizer,
                step=self.step,
                records=self.records,
                identity=self.identity,
                teacher=None if self.teacher in (self.policy, self.start) else self.teacher,
            )


class _Clock:
    """Seconds of each phase of a step."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """End a phase; `seconds` is all of them."""
        now = time.perf_counter()
        self.laps |= {f"seconds_{phase}": now - self._last, "seconds": now - self._began}
        self._last = now


def _begun(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    *,
    out: str | Path | None,
    sinks: Sequence[Sink],
) -> _Run:
    """A new run, or the one that lies in `out`, as its last checkpoint has it."""
    identity = Identity(policy.digest, task.name, config)
    folder, saved = None if out is None else Path(out), None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        saved = newest(folder, identity, device=str(policy.device), dtype=policy.dtype)
    trained = saved.policy if saved else _copy(policy)
    optimizer = torch.optim.AdamW(
        trained.model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta_1, config.beta_2),
        weight_decay=config.weight_decay,
    )
    teacher = _teacher(policy, trained, saved, config)
    run = _Run(trained, optimizer, policy, teacher, identity, folder, list(sinks))
    if saved:
        restore(optimizer, saved)
        run.step, run.records = saved.step, saved.records
    if folder is not None:
        run.sinks.append(JsonLines(folder / METRICS_FILE, kept=len(run.records)))
    return run


def _teacher(start: Policy, trained: Policy, saved: Saved | None, config: TrainConfig) -> Policy:
    """The policy that a distillation learns from; without one, and where it stays, the first."""
    rate = 0.0 if config.distillation is None else config.distillation.teacher_rate
    if rate in {0.0, 1.0}:
        return trained if rate else start
    teacher = _copy(start)
    if saved:
        restore_teacher(teacher, saved)
    return teacher


def _copy(policy: Policy) -> Policy:
    """A policy of its own weights, so that the one given, and its digest, stay as they are."""
    return Policy(
        copy.deepcopy(policy.model),
        policy.tokenizer,
        name=policy.name,
        wordings=policy.wordings,
    )


def _is_due(run: _Run, config: TrainConfig) -> bool:
    """Whether the policy has to be judged as it is now."""
    if not config.evaluate_every:
        return False
    done = {r["step"] for r in run.records if r["kind"] == "evaluation"}
    fits = run.step % config.evaluate_every == 0 or run.step == config.steps
    return fits and run.step not in done


def _evaluated(run: _Run, task: Task, config: TrainConfig) -> Record:
    """How the policy does on the held-out problems now."""
    began = time.perf_counter()
    found = evaluate(
        run.policy,
        task,
        k=config.evaluation_group,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        seed=EVALUATION_SEED,
    )
    accuracy = found["mean"]
    return {
        "kind": "evaluation",
        "step": run.step,
        "accuracy": float(accuracy.mean()),
        "accuracy_error": float(accuracy.std(ddof=1) / np.sqrt(len(accuracy))),
        **{name: float(found[name].mean()) for name in METRICS if name != "mean"},
        "undecided": found.undecided,
        "problems": len(found.names),
        "seconds": time.perf_counter() - began,
    }


def _show(watch: Callable[[int, Policy], None] | None, run: _Run) -> None:
    if watch is not None:
        watch(run.step, run.policy)


def _credited(
    run: _Run, batch: Batch, live: Live, *, rule: Credit, config: TrainConfig
) -> Credited:
    """Credit of every token, by evidence measured on the policy as it is now."""
    first_key = run.step * config.problems * config.group
    evidence, usable = live.of(run.policy, batch, first_key=first_key)
    return credited(rule, evidence, usable)


def _lesson(
    run: _Run, batch: Batch, assigned: Credited, *, live: Live, config: TrainConfig
) -> Lesson:
    """What the update reads."""
    lesson = Lesson(batch.branches, assigned.credit)
    if config.distillation is not None:
        told = live.told_branches(DISTILLED[config.rule], run.policy, batch)
        lesson = teach(run.teacher, batch.branches, told, form=config.distillation, config=config)
    several, held = config.epochs * config.updates > 1, config.objective.kl != "none"
    return lesson._replace(
        old=log_probs(run.policy, lesson.branches, config) if several else None,
        reference=log_probs(run.start, lesson.branches, config) if held else None,
    )


def _paced(run: _Run, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer with the learning rate of this step."""
    share = min(1.0, (run.step + 1) / config.warmup) if config.warmup else 1.0
    for group in run.optimizer.param_groups:
        group["lr"] = config.learning_rate * share
    return run.optimizer


def _about(run: _Run, batch: Batch, assigned: Credited) -> Record:
    """What is known of a step besides its update; `step` counts the updates that are done."""
    moved = np.abs(assigned.credit[assigned.credit != 0])
    drawn = [trace.logps for trace in batch.traces]
    known = [p for logps in drawn for p in logps or ()] if None not in drawn else []
    return {
        "kind": "step",
        "step": run.step,
        "reward": batch.mean_reward,
        "entropy": -float(np.mean(known)) if known else math.nan,
        "length": float(batch.length.mean()) if batch.traces else math.nan,
        "capped": batch.capped,
        "repetition": _mean([repeated_share(trace.ids or ()) for trace in batch.traces]),
        "effective_tokens": float(moved.sum() ** 2 / (moved**2).sum() / moved.size)
        if moved.size
        else math.nan,
        "rollouts": len(batch.traces),
        "tokens": int(batch.length.sum()),
        "drawn": batch.drawn,
        "undecided": batch.undecided,
        "uniform_groups": batch.uniform_groups,
        "not_comparable": assigned.not_comparable,
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _findings(records: Sequence[Record]) -> list[Finding]:
    kept = (record for record in records if record["kind"] == "finding")
    return [Finding(**{name: record[name] for name in Finding._fields}) for record in kept]


@contextmanager
def _kept_on_interrupt(run: _Run, interrupts: Interrupts) -> Iterator[None]:
    """Keep a checkpoint before an interrupt leaves the run."""
    try:
        yield
    except KeyboardInterrupt:
        with interrupts.held():
            run.keep()
        raise
