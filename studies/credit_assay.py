"""Learning curves of credit rules where training can tell them apart: the table task, our trainer.

    OMP_NUM_THREADS=1 python -m studies.credit_assay --regime A --rules uniform,oracle_value \
        --seeds search --out data/assay --work runs/assay

Each run: 8 problems x 4 responses a step, 40 steps, Adam (.9, .99), no clip, no KL, one update a
step. The same seed is the same stream of problems, whatever the rule: runs are paired by seed.
Primary: accuracy at step 20 and area under the curve 0-40, on fixed problems that are never trained
on; all of them are asked at steps 0, 20 and 40, the first 512 at steps 10 and 30, as in the notes.
Beside it structural errors, length, fillers and their entropy, and whether the run collapsed.

A run is a row of `runs_*.csv` when it is done; runs that have a row are not made again, so that a
study that was stopped goes on, and several may fill one folder. Rules were found on the search
seeds; what is claimed comes from the confirmation seeds alone.

    --rules all       every rule of `assay_rules`, `vine` (4 times as slow as others) among them
    --seeds confirm   or search, or numbers: 0,1,2
    --lr 6e-4         the other learning rate of the notes
    --base FOLDER     another policy of the task (studies.build_tiny_policy tables --seed 11)

Tables and figure of what is there are made at the end, and by `studies.assay_tables` at any time.

Source: notes/assay.md, sections 1, 3 and 7.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from studies import assay_tables
from studies.assay_rules import ARMS, LONGEST, refusals
from studies.learning_rules import Batch, drawn_batch
from studies.learning_tables import printed, read
from studies.rows import written
from tokensense.errors import SchemaError, TokensenseError
from tokensense.models.policy import Policy, load_policy
from tokensense.schema import Kind
from tokensense.tasks import tables
from tokensense.trainer import health, problems
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.loop import Result, train

JUDGED_SEED = 0  # all policies answer with the same random numbers


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        regime: of `tables.REGIMES`.
        base: folder or name of the policy.
        lr: of Adam.
        steps: of training.
        problems: a step.
        group: responses a problem.
        judged: steps after which the policy is judged, with how many problems.
        primary: the step whose accuracy decides, beside the area under the curve.
        search: seeds that rules are looked for on.
        confirm: seeds that claims rest on; none of the others.
    """

    regime: str = "A"
    base: str = "tiny:tables"
    lr: float = 3e-4
    steps: int = 40
    problems: int = 8
    group: int = 4
    judged: tuple[tuple[int, int], ...] = ((0, 2048), (10, 512), (20, 2048), (30, 512), (40, 2048))
    primary: int = 20
    search: tuple[int, ...] = (0, 1, 2)
    confirm: tuple[int, ...] = tuple(range(100, 120))

    @property
    def tag(self) -> str:
        """Names the file of its runs."""
        base = self.base.replace("tiny:", "").strip("/").replace("/", "-")
        return f"{self.regime}_{base}_{self.lr:g}"

    def training(self, seed: int) -> TrainConfig:
        """Settings of a run."""
        return TrainConfig(
            steps=self.steps,
            problems=self.problems,
            group=self.group,
            max_new_tokens=LONGEST,
            seed=seed,
            learning_rate=self.lr,
            evaluate_every=0,
            checkpoint_every=0,
        )


TINY = Config(regime="C", steps=4, problems=4, judged=((0, 32), (2, 16), (4, 32)), primary=2)


class Judged(NamedTuple):
    """A policy on fixed problems; shares of responses, but for the last four.

    accuracy. lucky: right over a wrong step. structural: the first wrong token is no computed
    digit. computed: it is one. capped: did not end. length: tokens. fillers: a response.
    filler_entropy: of the words that fillers are, nats. problems: asked.
    """

    accuracy: float
    lucky: float
    structural: float
    computed: float
    capped: float
    length: float
    fillers: float
    filler_entropy: float
    problems: int


def judged(policy: Policy, chains: list[tables.Chain]) -> Judged:
    """One response to each problem."""
    return described(drawn_batch(policy, chains, group=1, seed=JUDGED_SEED))


def described(batch: Batch) -> Judged:
    """What can be said of responses."""
    wrong_kind = [
        Kind(int(labels.kind[labels.first_wrong])) if labels.first_wrong >= 0 else None
        for labels in batch.labels
    ]
    computed = float(np.mean([kind == Kind.COMPUTED_DIGIT for kind in wrong_kind]))
    ids = np.concatenate([branch.response for branch in batch.branches])
    fillers = ids - tables.FIRST_FILLER
    words = np.bincount(fillers[(fillers >= 0) & (fillers < len(tables.FILLERS))])
    share = words[words > 0] / max(words.sum(), 1)
    return Judged(
        accuracy=float(batch.reward.mean()),
        lucky=float(np.mean([labels.lucky for labels in batch.labels])),
        structural=float(np.mean([kind is not None for kind in wrong_kind])) - computed,
        computed=computed,
        capped=float(np.mean([not labels.ended for labels in batch.labels])),
        length=float(batch.length.mean()),
        fillers=float(words.sum()) / len(batch.labels),
        filler_entropy=float(-(share * np.log(share)).sum()),
        problems=len(batch.labels),
    )


def task_of(config: Config) -> problems.Task:
    """The problems of a regime; as many are held out as are asked at most."""
    regime = tables.REGIMES[config.regime]
    most = max(count for _, count in config.judged)
    sizes = {"lookups": regime.lookups, "filler_mean": regime.filler_mean}
    return problems.planted("tables", held_out=most, **sizes)


class Setting(NamedTuple):
    """What all runs of a config share: where they begin, and how good that is."""

    config: Config
    policy: Policy
    task: problems.Task
    chains: list[tables.Chain]
    start: Judged


def setting(config: Config, *, work: Path) -> Setting:
    """Load the policy and judge it, once a folder."""
    policy, task = load_policy(config.base), task_of(config)
    chains = [tables.read_chain(problem.question) for problem in task.held_out]
    count = dict(config.judged)[0]
    path = work / f"start_{config.regime}_{count}_{policy.digest[:12]}.json"
    if not path.exists():
        path.write_text(json.dumps(judged(policy, chains[:count])._asdict()), "utf-8")
    return Setting(config, policy, task, chains, Judged(**json.loads(path.read_text("utf-8"))))


def learned(setting: Setting, rule: str, seed: int) -> dict[str, object]:
    """One run, as a row."""
    config, arm = setting.config, ARMS[rule]
    found, seconds = {0: setting.start}, 0.0
    asked = dict(config.judged)

    def watch(step: int, policy: Policy) -> None:
        nonlocal seconds
        if step in asked and step:
            began = time.perf_counter()
            found[step] = judged(policy, setting.chains[: asked[step]])
            seconds += time.perf_counter() - began

    result = train(
        setting.policy,
        setting.task._replace(evidence={**setting.task.evidence, **arm.told}),
        config.training(seed),
        progress=False,
        rule=arm.rule,
        watch=watch,
    )
    steps = sorted(found)
    accuracy = [found[step].accuracy for step in steps]
    row: dict[str, object] = {
        **{"regime": config.regime, "base": config.base, "digest": setting.policy.digest[:12]},
        **{"lr": config.lr, "rule": rule, "signed": int(arm.signed), "oracle": int(arm.oracle)},
        **{"seed": seed, "phase": phase(config, seed), "steps": config.steps},
        **{f"accuracy_{step}": found[step].accuracy for step in steps},
        "auc": float(np.trapezoid(accuracy, steps)) / config.steps,
    }
    for name in Judged._fields[1:-1]:
        row |= {f"{name}_{step}": getattr(found[step], name) for step in steps}
    return row | _of_training(result, judging=seconds)


def _of_training(result: Result, *, judging: float) -> dict[str, object]:
    """What the trainer's records say of a run; seconds of all its steps."""
    steps = [record for record in result.records if record["kind"] == "step"]
    collapsed = health.has_collapsed(result.records)
    names = ("sampling", "scoring", "updating")
    return {
        "collapsed": "" if collapsed is None else collapsed,
        "findings": " ".join(sorted({finding.sign for finding in result.findings})),
        "updates": sum(int(record["updates"]) for record in steps),
        "not_comparable": sum(record["not_comparable"] for record in steps),
        "effective_tokens": float(np.nanmean([record["effective_tokens"] for record in steps])),
        **{f"seconds_{name}": sum(r[f"seconds_{name}"] for r in steps) for name in names},
        "seconds_judging": judging,
    }


def phase(config: Config, seed: int) -> str:
    """What a seed is for."""
    if seed in config.confirm:
        return "confirm"
    return "search" if seed in config.search else "other"


def done(path: Path) -> set[tuple[str, int]]:
    """Rules and seeds that have a row."""
    rows = read(path) if path.exists() else []
    return {(row["rule"], int(row["seed"])) for row in rows}


def run(
    config: Config, rules: Sequence[str], seeds: Sequence[int], *, out: Path, work: Path
) -> None:
    """Make the runs that have no row yet, seed after seed, so that rules can be compared early."""
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    shared, path = setting(config, work=work), out / f"runs_{config.tag}.csv"
    if refused := refusals(shared.policy, config.training(0)):
        written(out / "not_run.csv", refused)
    asked = [(rule, seed) for seed in seeds for rule in rules]
    for number, (rule, seed) in enumerate(asked, start=1):
        if (rule, seed) in done(path):
            continue
        began = time.perf_counter()
        row = learned(shared, rule, seed)
        written(path, [printed(row)], add=True)
        curve = " ".join(f"{float(str(row[f'accuracy_{step}'])):.3f}" for step, _ in config.judged)
        print(
            f"{number}/{len(asked)}  {config.tag}  {rule:<20} seed {seed:>3}  {curve}  "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )


def asked_rules(text: str) -> list[str]:
    """Rules by name.

    Raises:
        SchemaError: one is not known.
    """
    names = list(ARMS) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in ARMS]:
        raise SchemaError(f"rules of {sorted(ARMS)} are needed; {unknown} came. Take others.")
    return names


def asked_seeds(text: str, config: Config) -> list[int]:
    """Seeds by what they are for, or by number."""
    named = {"search": config.search, "confirm": config.confirm}
    return list(named[text]) if text in named else [int(part) for part in text.split(",")]


def main(given: argparse.Namespace) -> None:
    """Runs, then tables and figure of all that is there."""
    torch.set_num_threads(1)
    config = replace(TINY if given.tiny else Config(), base=given.base, lr=given.lr)
    config = config if given.tiny else replace(config, regime=given.regime)
    rules = ["uniform", "oracle_value"] if given.tiny else asked_rules(given.rules)
    seeds = [0, 1] if given.tiny else asked_seeds(given.seeds, config)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"config_{config.tag}.json").write_text(
        json.dumps(asdict(config), indent=1) + "\n", "utf-8"
    )
    run(config, rules, seeds, out=given.out, work=given.work)
    assay_tables.summary(given.out, gradients=given.gradients)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--regime", choices=tuple(tables.REGIMES), default="A")
    parser.add_argument("--base", default=Config.base, help="policy of the table task")
    parser.add_argument("--lr", type=float, default=Config.lr)
    parser.add_argument("--rules", default="all", help="names, divided by commas; all")
    parser.add_argument("--seeds", default="search", help="search, confirm, or numbers")
    parser.add_argument("--out", type=Path, default=Path("data/assay"))
    parser.add_argument("--work", type=Path, default=Path("runs/assay"))
    parser.add_argument("--gradients", type=Path, default=Path("data/learning_value"))
    parser.add_argument("--tiny", action="store_true", help="regime C, 4 steps: seconds")
    try:
        main(parser.parse_args())
    except TokensenseError as error:
        sys.exit(f"credit_assay: {error}")
