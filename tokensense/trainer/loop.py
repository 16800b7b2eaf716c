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

Where a launcher has started several processes (`models.processes`), all of them make the same call
and share the sampling, the scoring and the passes of the update; the first one alone writes, hands
on and shows. Ctrl-C in any of them then ends all at the end of the phase under way. The rollouts
and their credit are those of one process, up to what `models.sampler` says of rounding; so are the
weights, up to the order in which gradients are summed. Same number of processes, same bytes.

Source: design section 9.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from tokensense.credit.base import Credit
from tokensense.errors import SchemaError
from tokensense.models.policy import Policy
from tokensense.models.processes import together
from tokensense.trainer.batches import ORDER, Batch, collect, step_seed
from tokensense.trainer.config import DISTILLED, TrainConfig
from tokensense.trainer.distillation import follow
from tokensense.trainer.evaluate import METRICS, evaluate
from tokensense.trainer.evidence import Credited, Live, credited, plan_evidence
from tokensense.trainer.health import Finding, has_collapsed, repeated_share
from tokensense.trainer.interrupts import Interrupts
from tokensense.trainer.lesson import Flat, Lesson, log_probs, teach
from tokensense.trainer.problems import Task
from tokensense.trainer.run import Run, begun
from tokensense.trainer.sinks import Record, Sink
from tokensense.trainer.update import update

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
            may look at the policy, and must leave it as it is. Of several processes the first one
            calls it.

    Raises:
        StoreError: `out` holds another run.
        SchemaError: the rule needs what is not measured in training, problems are too few, or a
            rule of one's own is to be kept in `out`.
        ConditionError: the policy cannot be told what the rule's evidence needs.
        PolicyError: a prompt does not fit, or checkpointing is asked for and the model has no
            layers for it.
        StatisticsError: evaluations are asked for and nothing is held out.
        ProcessError: of several processes one has ended, or they were not told the same.
        KeyboardInterrupt: after Ctrl-C, when the run is in order and kept.
    """
    if rule is not None and out is not None:
        raise SchemaError(
            f"a run that is kept needs a rule of the catalogue; one's own rule came with {out}. "
            "Leave `out` away, or name the rule in the config."
        )
    credit = config.credit() if rule is None else rule
    with together() as processes:
        live = plan_evidence(policy, credit, config, told=task.evidence, processes=processes)
        run = begun(policy, task, config, out=out, sinks=sinks, processes=processes)
        stopped = _looped(
            run,
            task,
            config,
            live=live,
            rule=credit,
            stop_on_collapse=stop_on_collapse,
            progress=progress,
            watch=watch,
        )
        processes.wait()  # until the first one has kept the run
    return Result(run.policy, run.records, _findings(run.records), stopped)


def _looped(
    run: Run,
    task: Task,
    config: TrainConfig,
    *,
    live: Live,
    rule: Credit,
    stop_on_collapse: bool,
    progress: bool,
    watch: Callable[[int, Policy], None] | None,
) -> str:
    """Do the steps that are left; gives why it stopped before them, "" if it did not."""
    shown = progress and run.processes.is_first
    bar = tqdm(total=config.steps, initial=run.step, unit="step", disable=not shown)
    with bar, Interrupts(run.processes) as interrupts, run.kept_on_interrupt(interrupts):
        _show(watch, run)
        while True:
            if _is_due(run, config):
                run.note(_evaluated(run, task, config))
            interrupts.agree()
            if run.step and config.checkpoint_every and run.step % config.checkpoint_every == 0:
                with interrupts.held():
                    run.keep()
            collapsed = stop_on_collapse and has_collapsed(run.records) is not None
            if collapsed or run.step >= config.steps:
                break
            clock = _Clock()
            batch = collect(run.policy, task, config, step=run.step, processes=run.processes)
            interrupts.agree()
            clock.lap("sampling")
            assigned = _credited(run, batch, live, rule=rule, config=config)
            lesson = _lesson(run, batch, assigned, live=live, config=config)
            interrupts.agree()
            clock.lap("scoring")
            with interrupts.held():
                numbers = update(
                    run.policy,
                    _paced(run, config),
                    lesson,
                    config=config,
                    seed=step_seed(config, ORDER, run.step),
                    processes=run.processes,
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
    return "collapse" if collapsed and run.step < config.steps else ""


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


def _is_due(run: Run, config: TrainConfig) -> bool:
    """Whether the policy has to be judged as it is now."""
    if not config.evaluate_every:
        return False
    done = {r["step"] for r in run.records if r["kind"] == "evaluation"}
    fits = run.step % config.evaluate_every == 0 or run.step == config.steps
    return fits and run.step not in done


def _evaluated(run: Run, task: Task, config: TrainConfig) -> Record:
    """How the policy does on the held-out problems now."""
    began = time.perf_counter()
    found = evaluate(
        run.policy,
        task,
        k=config.evaluation_group,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        seed=EVALUATION_SEED,
        processes=run.processes,
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


def _show(watch: Callable[[int, Policy], None] | None, run: Run) -> None:
    if watch is not None and run.processes.is_first:
        watch(run.step, run.policy)


def _credited(run: Run, batch: Batch, live: Live, *, rule: Credit, config: TrainConfig) -> Credited:
    """Credit of every token, by evidence measured on the policy as it is now."""
    first_key = run.step * config.problems * config.group
    evidence, usable = live.of(run.policy, batch, first_key=first_key)
    return credited(rule, evidence, usable)


def _lesson(
    run: Run, batch: Batch, assigned: Credited, *, live: Live, config: TrainConfig
) -> Lesson:
    """What the update reads."""
    lesson = Lesson(batch.branches, assigned.credit)
    if config.distillation is not None:
        told = live.told_branches(DISTILLED[config.rule], run.policy, batch)
        lesson = teach(
            run.teacher,
            batch.branches,
            told,
            form=config.distillation,
            config=config,
            processes=run.processes,
        )
    several, held = config.epochs * config.updates > 1, config.objective.kl != "none"

    def scored(policy: Policy) -> Flat:
        return log_probs(policy, lesson.branches, config, processes=run.processes)

    return lesson._replace(
        old=scored(run.policy) if several else None,
        reference=scored(run.start) if held else None,
    )


def _paced(run: Run, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer with the learning rate of this step."""
    share = min(1.0, (run.step + 1) / config.warmup) if config.warmup else 1.0
    for group in run.optimizer.param_groups:
        group["lr"] = config.learning_rate * share
    return run.optimizer


def _about(run: Run, batch: Batch, assigned: Credited) -> Record:
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
