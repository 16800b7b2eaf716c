"""Does following the shift's sign ruin training, and how strong may CSCR be? By seeds, to collapse.

    OMP_NUM_THREADS=1 python -m studies.ablations signs --out data/ablations
    OMP_NUM_THREADS=1 python -m studies.ablations sums --out data/ablations
    OMP_NUM_THREADS=1 python -m studies.ablations gammas --out data/ablations

`signs` (row 14 of methods/claims.md), 40 steps: SD-GRPO, whose credit is |A| with the sign of the
shift under the verdict that matches the outcome, beside arms that differ from it in one thing:

    sd_random  the same sizes, signs at random: is it the sign of the shift that ruins?
    sd_frozen  shifts of the policy that training began with: does the teacher's drift ruin?
    uniform    sign and size of the verifier

`gammas` (row 15), 300 steps: CSCR at gamma .2, .5, 1 and -.2 (up-weighting), threshold the 80th
percentile of the batch. Both on the table task, regime A, with the assay's optimizer; 10 seeds that
the assay has not used. `sums` is `signs` on the arithmetic task and the policy whose verdict tags
were always true. A run ends when it has collapsed, as `trainer.health` defines it: held-out
accuracy below a quarter of its start in five evaluations in a row, entropy below a tenth, or nine
tenths of the responses at the limit. Five evaluations take 25 steps in `signs`, so that a collapse
of accuracy within 30 could hardly be seen there: `below` is the first evaluation from which
accuracy stayed below a quarter; `sums` evaluates every other step.

SD-GRPO's formula is not public (grade: inferred). An arm scaled to uniform's gradient norm is left
out: Adam divides by it. A run is a row of `runs_*.csv`; a study that is stopped goes on.

Source: methods/cscr.md section 1.7; methods/claims.md rows 14 and 15.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from studies.assay_rules import ARMS as ASSAYED
from studies.assay_rules import LONGEST, Arm
from studies.learning_tables import printed, read
from studies.rows import written
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted
from tokensense.credit.evidence import Evidence
from tokensense.errors import TokensenseError
from tokensense.models.policy import Policy, load_policy
from tokensense.rollouts.trajectory import Trace
from tokensense.segments import offsets
from tokensense.tasks import tables
from tokensense.tasks.problem import Problem
from tokensense.trainer import health
from tokensense.trainer.batches import Batch
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.evidence import plan_evidence
from tokensense.trainer.loop import train
from tokensense.trainer.problems import Measure, Task, planted

SIGNS = ("sd_grpo", "sd_random", "sd_frozen", "uniform")
GAMMAS = {"cscr_0.2": 0.2, "cscr_1": 1.0, "cscr_0.5": 0.5, "cscr_-0.2": -0.2}
SHOWN = ("z_pos", "z_neg")
LOW = health.REWARD_SHARE
EARLY = 30  # steps within which the paper's runs collapsed


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        arms: names, the claim's own first.
        steps: of a run that does not collapse.
        every: steps between evaluations.
        held_out: problems of an evaluation, a response each.
        regime: of `tables.REGIMES`; "" for the arithmetic task.
        base: folder or name of the policy.
        lr: of Adam.
        problems: a step.
        group: responses a problem.
        seeds: of the runs; the same seed is the same stream of problems for all arms.
    """

    arms: tuple[str, ...] = SIGNS
    steps: int = 40
    every: int = 5
    held_out: int = 128
    regime: str = "A"
    base: str = "tiny:tables"
    lr: float = 3e-4
    problems: int = 8
    group: int = 4
    seeds: tuple[int, ...] = tuple(range(200, 210))

    @property
    def tag(self) -> str:
        """Names the files of its runs."""
        return f"{self.steps}" if self.regime else f"sums_{self.steps}"

    def training(self, seed: int) -> TrainConfig:
        """Settings of a run."""
        return TrainConfig(
            steps=self.steps,
            problems=self.problems,
            group=self.group,
            max_new_tokens=LONGEST,
            seed=seed,
            learning_rate=self.lr,
            evaluate_every=self.every,
            checkpoint_every=0,
        )


CONFIGS = {
    "signs": Config(),
    "sums": Config(regime="", base="tiny:truthful", every=2),
    "gammas": Config(arms=tuple(GAMMAS), steps=300, every=20),
}
TINY = Config(
    arms=("sd_random", "sd_frozen"), regime="C", steps=2, every=1, held_out=8, seeds=(0, 1)
)


def random_signs(told: Evidence) -> np.ndarray:
    """SD-GRPO's credit, each sign at random; the rollout's key is the seed."""
    size = np.abs(np.asarray(CATALOGUE["sd_grpo"].assign(told)))
    bound = offsets(told.length).tolist()
    for key, start, end in zip(told["key"].tolist(), bound[:-1], bound[1:], strict=True):
        size[start:end] *= np.random.default_rng([14, key]).choice([-1.0, 1.0], size=end - start)
    return size


def frozen_shift(teacher: Policy, name: str, config: Config) -> Measure:
    """Shift of each token under a verdict, by a policy that stays as it is."""
    rule = CATALOGUE["sd_grpo"]._replace(needs=frozenset({name}))
    live = plan_evidence(teacher, rule, config.training(0))

    def measure(policy: Policy, asked: Sequence[Problem], traces: Sequence[Trace]) -> np.ndarray:
        del policy
        batch = Batch(
            problems=list(asked),
            traces=list(traces),
            advantage=np.zeros(len(traces)),
            prompts={problem.name: tuple(teacher.render(problem.question)) for problem in asked},
            drawn=len(traces),
            mean_reward=math.nan,
            undecided=0,
            uniform_groups=0,
        )
        return np.asarray(live.of(teacher, batch, first_key=0)[0][name])

    return measure


def arms(teacher: Policy, config: Config) -> dict[str, Arm]:
    """All arms; the teacher is the policy that training begins with."""
    random = CATALOGUE["sd_grpo"]._replace(assign=random_signs, needs=frozenset({*SHOWN, "key"}))
    frozen = {name: frozen_shift(teacher, name, config) for name in SHOWN}
    return {
        "uniform": ASSAYED["uniform"],
        "sd_grpo": ASSAYED["sd_grpo"],
        "sd_random": Arm(random, signed=True),
        "sd_frozen": Arm(CATALOGUE["sd_grpo"], signed=True, told=frozen),
        **{
            name: Arm(adjusted(CATALOGUE["cscr"], gamma=gamma, quantile=0.8))
            for name, gamma in GAMMAS.items()
        },
    }


def task_of(config: Config) -> Task:
    """Problems: of a regime of the table task, or sums."""
    if not config.regime:
        return planted("arithmetic", held_out=config.held_out)
    regime = tables.REGIMES[config.regime]
    return planted(
        "tables",
        held_out=config.held_out,
        lookups=regime.lookups,
        filler_mean=regime.filler_mean,
    )


def one_run(config: Config, policy: Policy, name: str, seed: int) -> dict[str, object]:
    """Train until the end or the collapse; a row."""
    arm, task = arms(policy, config)[name], task_of(config)
    began = time.perf_counter()
    result = train(
        policy,
        task._replace(evidence={**task.evidence, **arm.told}),
        config.training(seed),
        progress=False,
        rule=arm.rule,
        stop_on_collapse=True,
    )
    steps = [record for record in result.records if record["kind"] == "step"]
    judged = [record for record in result.records if record["kind"] == "evaluation"]
    lost = health.has_collapsed(result.records)
    signs = {f.sign for f in result.findings if f.collapse}
    row: dict[str, object] = {
        **{"arm": name, "seed": seed, "regime": config.regime, "base": config.base},
        **{"lr": config.lr, "steps": config.steps, "collapsed": "" if lost is None else lost},
        **{"by": " ".join(sorted(signs)), "last_step": steps[-1]["step"]},
        **{"accuracy_start": judged[0]["accuracy"], "accuracy_end": judged[-1]["accuracy"]},
        "curve": " ".join(f"{record['accuracy']:.3f}" for record in judged),
    }
    for number in ("entropy", "capped", "repetition", "effective_tokens"):
        row |= {f"{number}_{end}": steps[at][number] for end, at in (("start", 0), ("end", -1))}
    return row | {"seconds": time.perf_counter() - began}


def below(row: Mapping[str, str], every: int) -> int | None:
    """Step of the first evaluation from which accuracy stayed below a quarter of its start."""
    curve = [float(value) for value in row["curve"].split()]
    high = [place for place, value in enumerate(curve) if value >= LOW * curve[0]]
    return None if high[-1] == len(curve) - 1 else every * (high[-1] + 1)


def collapses(rows: Sequence[dict[str, str]], config: Config) -> Iterator[dict[str, object]]:
    """Runs that collapsed, early and at all, a line an arm; exact 95 % intervals.

    The difference is the early rate minus that of `sd_random`, with Newcombe's interval.
    """
    found = {
        name: [row for row in rows if row["arm"] == name and int(row["steps"]) == config.steps]
        for name in config.arms
    }
    control = found.get("sd_random", [])
    for name, own in found.items():
        if not own:
            continue
        line: dict[str, object] = {"arm": name, "steps": config.steps, "runs": len(own)}
        for when, count in (("early", _early(own)), ("ever", len(_lost(own)))):
            low, high = proportion_confint(count, len(own), method="beta")
            line |= {when: count, f"{when}_low": low, f"{when}_high": high}
        fell = [step for row in own if (step := below(row, config.every)) is not None]
        line |= {"below": len(fell), "below_early": sum(step <= EARLY for step in fell)}
        ends = [float(row["accuracy_end"]) for row in own]
        line |= {"accuracy_start": float(own[0]["accuracy_start"])}
        line |= {"accuracy_end": np.mean(ends), "accuracy_least": min(ends)}
        line |= dict.fromkeys(("difference", "difference_low", "difference_high"), "")
        if name != "sd_random" and control:
            line |= _against(own, control)
        yield line


def _against(own: Sequence[dict[str, str]], control: Sequence[dict[str, str]]) -> dict[str, object]:
    """Early rate minus that of the control."""
    early, other, n, m = _early(own), _early(control), len(own), len(control)
    low, high = confint_proportions_2indep(early, n, other, m, method="newcomb", compare="diff")
    return {"difference": early / n - other / m, "difference_low": low, "difference_high": high}


def _lost(rows: Sequence[dict[str, str]]) -> list[int]:
    """Steps at which runs collapsed."""
    return [int(row["collapsed"]) for row in rows if row["collapsed"] != ""]


def _early(rows: Sequence[dict[str, str]]) -> int:
    return sum(step <= EARLY for step in _lost(rows))


def main(config: Config, *, out: Path) -> None:
    """Runs that have no row yet, seed after seed; then the table."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    policy, path = load_policy(config.base), out / f"runs_{config.tag}.csv"
    asked = [(name, seed) for seed in config.seeds for name in config.arms]
    for number, (name, seed) in enumerate(asked, start=1):
        done = {(row["arm"], int(row["seed"])) for row in (read(path) if path.exists() else [])}
        if (name, seed) in done:
            continue
        row = one_run(config, policy, name, seed)
        written(path, [printed(row)], add=True)
        fate = f"collapsed at {row['collapsed']} by {row['by']}" if row["by"] else "stands"
        print(
            f"{number}/{len(asked)}  {name:<10} seed {seed}  {row['curve']}  {fate}  "
            f"{float(str(row['seconds'])):.0f} s",
            flush=True,
        )
    table = [printed(line) for line in collapses(read(path), config)]
    written(out / f"table_{config.tag}.csv", table)
    for line in table:
        print("  ".join(f"{key} {value}" for key, value in line.items() if value != ""))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=tuple(CONFIGS), nargs="?", default="signs")
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--tiny", action="store_true", help="regime C, 2 steps: seconds")
    given = parser.parse_args()
    try:
        main(TINY if given.tiny else CONFIGS[given.part], out=given.out)
    except TokensenseError as error:
        sys.exit(f"ablations: {error}")
