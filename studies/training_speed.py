"""Our training loop beside TRL's GRPOTrainer, phase by phase, and what each rule adds to a step.

    OMP_NUM_THREADS=1 taskset -c 0 python -m studies.training_speed --out data/training_speed
    python -m studies.training_speed --model runs/smollm2_sums --out data/training_speed/smollm2

Same policy (`tiny:tables`), same problems in the same order, regime A, 8 x 4 responses of at most
160 tokens, Adam 3e-4, one update a step, no KL, float32, one thread, one process. Both sample their
own responses and are timed by the same wrapper; they take turns, each repeat from the base policy,
its first step left out. `--model` takes a folder of `studies.teach_sums` instead: chains of sums,
4 x 4 responses of at most 112 tokens, Adam 1e-6, three repeats of two counted steps. TRL needs the
extra `peers`; where it is missing, only our own numbers are made, and that is said.

Seconds are those of the processor (one thread: on a quiet core they are those of the clock, and
others may be on the core). Phases: sampling, with prompts and grades; scoring: what a rule reads,
in TRL rewards and advantages; loss: forward and backward; step: of the optimizer; rest.

`rules.csv`: scoring as a share of the step, and in forward passes of the batch (`score` of base).

Source: own work; TRL 1.16, GRPOTrainer.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from studies.assay_rules import ARMS
from studies.credit_assay import Config as Assay
from studies.credit_assay import task_of
from studies.learning_tables import printed, short
from studies.rows import written
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import score
from tokensense.models.tiny import folder
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Finish
from tokensense.tasks.problem import Problem
from tokensense.trainer import loop, update
from tokensense.trainer.batches import PROBLEMS, collect, step_seed
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.problems import Task, planted

TABLES = "tiny:tables"
PHASES = ("sampling", "scoring", "loss", "step", "rest")
Row = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        model: name of the shipped policy of the tables, or a folder of one taught sums.
        problems: a step.
        longest: tokens of a response at most.
        rate: of Adam.
        steps: of a repeat, the first of which is not counted.
        repeats: of each side, taking turns.
        rule_steps: of each rule.
        rules: whose overhead is measured.
    """

    model: str = TABLES
    problems: int = 8
    longest: int = 160
    rate: float = 3e-4
    steps: int = 6
    repeats: int = 5
    rule_steps: int = 3
    rules: tuple[str, ...] = (
        *("uniform", "cscr_0.8", "contrast", "placebo_0.8", "delta", "optw", "high_entropy"),
        *("ar", "htpo", "random", "step", "oracle_value"),
    )

    def training(self) -> TrainConfig:
        """Settings of ours; TRL's are made to match."""
        return TrainConfig(
            steps=self.steps,
            problems=self.problems,
            group=4,
            max_new_tokens=self.longest,
            learning_rate=self.rate,
            evaluate_every=0,
            checkpoint_every=0,
        )

    def task(self) -> Task:
        """Problems of the policy."""
        if self.model == TABLES:
            return task_of(Assay(judged=((0, 1),)))
        return planted("arithmetic", held_out=1)


TAUGHT = {
    **{"problems": 4, "longest": 112, "rate": 1e-6, "steps": 3, "repeats": 3},
    **{"rules": ("uniform", "cscr_0.8"), "rule_steps": 2},
}
TINY = Config(steps=2, repeats=1, rule_steps=2, rules=("uniform", "cscr_0.8"))


# Timing


@dataclass
class Meter:
    """Processor seconds of every call, by phase, and of every step."""

    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    rows: list[Row] = field(default_factory=list)
    tokens: int = 0
    last: float = 0.0

    def begin(self) -> None:
        """Start the first step."""
        self.last = time.process_time()

    def end_step(self) -> None:
        """Lay down what was spent since the last call."""
        now = time.process_time()
        whole, spent = now - self.last, dict(self.spent)
        known = {phase: spent.get(phase, 0.0) for phase in PHASES[:-1]}
        # Nested calls are counted where they are, not in what calls them.
        known["scoring"] -= spent.get("within scoring", 0.0)
        known["loss"] -= spent.get("within loss", 0.0)
        row = known | {"rest": whole - sum(known.values()), "whole": whole, "tokens": self.tokens}
        self.rows.append(row)
        self.spent.clear()
        self.tokens, self.last = 0, time.process_time()

    @contextmanager
    def timing(self, owner: object, name: str, *phases: str) -> Iterator[None]:
        """Count the time of a function, wherever it is called, to some phases."""
        original = getattr(owner, name)

        @wraps(original)
        def timed(*given: Any, **named: Any) -> Any:  # noqa: ANN401 (passes everything on)
            began = time.process_time()
            try:
                return original(*given, **named)
            finally:
                for phase in phases:
                    self.spent[phase] += time.process_time() - began

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, original)

    @contextmanager
    def timing_optimizers(self) -> Iterator[None]:
        """Count the time of every optimizer step."""
        began = [0.0]

        def before(*_: object) -> None:
            began[0] = time.process_time()

        def after(*_: object) -> None:
            self.spent["step"] += time.process_time() - began[0]

        hooks = [
            optimizers.register_optimizer_step_pre_hook(before),
            optimizers.register_optimizer_step_post_hook(after),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


# The two sides


def ours(policy: Policy, task: Task, config: TrainConfig, *, rule: str = "uniform") -> list[Row]:
    """Rows of the steps of one run of ours."""
    meter, arm = Meter(), ARMS[rule]

    def grade(found: Sequence[Trace], asked: Sequence[Problem], encoder: Any) -> list[Trace]:  # noqa: ANN401
        meter.tokens += sum(len(trace.ids or ()) for trace in found)
        return task.grade(found, asked, encoder)

    def watch(step: int, _: Policy) -> None:
        if step:
            meter.end_step()
        else:
            meter.begin()

    told = {**task.evidence, **arm.told}
    with ExitStack() as stack:
        stack.enter_context(meter.timing(loop, "collect", "sampling"))
        stack.enter_context(meter.timing(loop, "_credited", "scoring"))
        stack.enter_context(meter.timing(update, "accumulate", "loss"))
        stack.enter_context(meter.timing_optimizers())
        loop.train(
            policy,
            task._replace(grade=grade, evidence=told),
            config,
            rule=arm.rule,
            watch=watch,
            progress=False,
        )
    return meter.rows


def theirs(policy: Policy, path: Path, task: Task, config: TrainConfig) -> list[Row]:
    """Rows of the steps of one run of TRL's GRPOTrainer on the same problems.

    Args:
        policy: reads responses for their grade.
        path: folder of its weights.
        task: of both sides.
        config: TRL's settings are made to match.
    """
    from datasets import Dataset  # type: ignore[import-not-found,unused-ignore]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found,unused-ignore]

    meter, end = Meter(), policy.tokenizer.eos_token_id
    problems = [
        problem
        for step in range(config.steps)
        for problem in task.draw(config.problems, step_seed(config, PROBLEMS, step, 0))
    ]
    named = {problem.question: problem for problem in problems}

    def reward(prompts: Any, completion_ids: Any, **_: Any) -> list[float]:  # noqa: ANN401
        meter.tokens += sum(len(ids) for ids in completion_ids)
        asked = [named[prompt[-1]["content"]] for prompt in prompts]
        traces = [
            Trace(problem.name, str(place), "", ids=tuple(ids), finish=_finish(ids, end))
            for place, (problem, ids) in enumerate(zip(asked, completion_ids, strict=True))
        ]
        return [t.reward for t in task.grade(traces, list(named.values()), policy)]

    class Marks(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
            meter.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
            meter.end_step()

    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(path),
            reward_funcs=reward,
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": p.question}]} for p in problems]
            ),
            callbacks=[Marks()],
            args=_arguments(config, scratch),
        )
        within = trainer.__class__
        timed = {
            "_generate": ("sampling", "within scoring"),
            "_generate_and_score_completions": ("scoring",),
            "_prepare_inputs": ("within loss",),
            "training_step": ("loss",),
        }
        for name, phases in timed.items():
            stack.enter_context(meter.timing(within, name, *phases))
        stack.enter_context(meter.timing_optimizers())
        trainer.train()
    return meter.rows


def _finish(ids: Sequence[int], end: int) -> Finish:
    return Finish.STOP if ids and ids[-1] == end else Finish.LENGTH


def _arguments(config: TrainConfig, scratch: str) -> Any:  # noqa: ANN401 (TRL's)
    """TRL's settings that are ours, and no work that training does not need."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=scratch,
        per_device_train_batch_size=config.problems * config.group,
        num_generations=config.group,
        max_completion_length=config.max_new_tokens,
        max_steps=config.steps,
        shuffle_dataset=False,
        loss_type="dapo",
        beta=0.0,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=config.beta_1,
        adam_beta2=config.beta_2,
        weight_decay=0.0,
        max_grad_norm=0.0,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=0,
    )


# Results


def beside(config: Config, *, out: Path) -> None:
    """Both sides, taking turns."""
    policy, task, settings = load_policy(config.model), config.task(), config.training()
    path = folder(config.model) if config.model == TABLES else Path(config.model)
    sides: dict[str, Callable[[], list[Row]]] = {"ours": lambda: ours(policy, task, settings)}
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed here (extra `peers`): our own numbers alone")
    else:
        sides["trl"] = lambda: theirs(policy, path, task, settings)
    rows: list[Row] = []
    for repeat in range(config.repeats):
        for who, run in sides.items():
            found = run()[1:]
            rows += [{"who": who, "repeat": repeat, "step": s, **r} for s, r in enumerate(found, 1)]
            print(
                f"{who:<5} repeat {repeat + 1}/{config.repeats}  {found[-1]['whole']:.2f} s a step"
            )
    written(out / "steps.csv", [printed(row) for row in rows])
    table = summary(rows)
    written(out / "table.csv", table)
    for line in table:
        print("  ".join(f"{name} {value}" for name, value in line.items()))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of each phase: median over steps and range of the repeats' medians, and TRL / ours.

    Args:
        rows: one a step.
    """
    found: list[Row] = []
    for phase in (*PHASES, "whole", "whole_per_1000_tokens"):
        line: Row = {"phase": phase}
        medians = {}
        for who in dict.fromkeys(row["who"] for row in rows):
            own = [row for row in rows if row["who"] == who]
            repeats = sorted({row["repeat"] for row in own})
            each = [_median([r for r in own if r["repeat"] == n], phase) for n in repeats]
            medians[who] = _median(own, phase)
            line |= {who: short(medians[who]), f"{who}_low": short(min(each))}
            line |= {f"{who}_high": short(max(each)), f"{who}_steps": len(own)}
        if "trl" in medians and medians["ours"] > 0:
            line["ratio"] = short(medians["trl"] / medians["ours"])
        found.append(line)
    columns = dict.fromkeys(name for line in found for name in line)
    return [{name: line.get(name, "") for name in columns} for line in found]


def _median(rows: Sequence[Row], phase: str) -> float:
    if phase == "whole_per_1000_tokens":
        return statistics.median(1000 * row["whole"] / row["tokens"] for row in rows)
    return statistics.median(row[phase] for row in rows)


def overheads(config: Config, *, out: Path) -> None:
    """Scoring of each rule as share of its step, and in forward passes; rules take turns."""
    policy, task = load_policy(config.model), config.task()
    settings = replace(config, steps=config.rule_steps).training()
    branches = collect(policy, task, settings, step=0).branches
    rows: dict[str, list[Row]] = defaultdict(list)
    passes = []
    for _ in range(config.repeats):
        for rule in config.rules:
            began = time.process_time()
            score(policy, branches)
            passes.append(time.process_time() - began)
            rows[rule] += ours(policy, task, settings, rule=rule)[1:]
    forward = statistics.median(passes)
    table = []
    for rule, own in rows.items():
        scoring, whole = (statistics.median(r[name] for r in own) for name in ("scoring", "whole"))
        shares = [row["scoring"] / row["whole"] for row in own]
        table.append(
            {
                "rule": rule,
                "scoring": short(scoring),
                "whole": short(whole),
                "share": short(statistics.median(shares)),
                "share_low": short(min(shares)),
                "share_high": short(max(shares)),
                "forwards": short(scoring / forward),
                "steps": len(own),
            }
        )
        print("  ".join(f"{name} {value}" for name, value in table[-1].items()))
    written(out / "rules.csv", table)


def main(config: Config, *, out: Path) -> None:
    """Both tables."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    beside(config, out=out)
    overheads(config, out=out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/training_speed"))
    parser.add_argument("--model", default=TABLES, help="or a folder of studies.teach_sums")
    parser.add_argument("--tiny", action="store_true", help="2 steps: seconds")
    given = parser.parse_args()
    taught = Config() if given.model == TABLES else Config(model=given.model, **TAUGHT)
    main(TINY if given.tiny else taught, out=given.out)
