"""Does the contrast of right and wrong siblings fade when a group nearly agrees? Row 21 of claims.

    OMP_NUM_THREADS=1 python -m studies.group_mix --out data/group_mix

Of each problem seven right and seven wrong responses of the policy's own, all different. Groups of
8 have 1 to 7 right ones, always the first of each kind; the first wrong and the first right
response are scored in all of them, with every other member of the group shown as an example before
the question, one at a time (a form that tiny policies were never taught). So the same tokens are
compared, and only who else is in the group changes.

    contrast  mean over tokens of |log-mean-exp of the shifts under right siblings - that under
              wrong ones|, nats; a response is never shown itself, so that a right one has a
              contrast from 2 of 8 on, a wrong one up to 6 of 8
    gcpo      mean |shift under the request for a wrong answer|: it knows no group

The measure: contrast of the wrong response at 1 of 8 and of the right one at 7 of 8, over that of
both at 4 of 8; mean over problems, intervals by resampling problems. Beside it the signed means,
and the measure with one sibling a side, the mean over all pairs that the group has: there a change
of size by averaging over more or fewer siblings is out.

`contrasts_<policy>.csv` is a problem, response and group a row; a policy that has one is not asked
again.

Source: methods/claims.md row 21; methods/gcpo_and_optimal_weights.md section 1.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from studies.learning_tables import printed, read
from studies.rows import written
from studies.sibling_route import SUMS
from tokensense.errors import TokensenseError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import score
from tokensense.rollouts.generate import responses
from tokensense.rollouts.trajectory import Trace
from tokensense.stats.pairs import log_means
from tokensense.stats.resampling import Resampling, intervals, resample
from tokensense.tasks.problem import Problem
from tokensense.trainer.problems import planted

SIZE = 8
KEPT = SIZE - 1  # of each kind
ENDS, MIDDLE = {"wrong": 1, "right": 7}, 4
NUMBERS = ("contrast", "pairwise", "gcpo")


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        policies: tiny ones.
        problems: asked; those with too few right or wrong responses are left out.
        draws: responses to each.
        most: problems that are used.
        seed: of problems and responses.
        resamples: of problems.
    """

    policies: tuple[str, ...] = ("tiny:mixed", "tiny:truthful", "tiny:style")
    problems: int = 200
    draws: int = 48
    most: int = 100
    seed: int = 21
    resamples: int = 10_000


TINY = Config(policies=("tiny:mixed",), problems=8, draws=32, most=4, resamples=200)


def sides_of(traces: Sequence[Trace]) -> dict[str, list[Trace]] | None:
    """The first different right and wrong responses, KEPT of each; None where there are fewer."""
    found = {
        side: list({t.ids: t for t in traces if t.reward == reward}.values())[:KEPT]
        for side, reward in (("right", 1.0), ("wrong", 0.0))
    }
    return found if min(map(len, found.values())) == KEPT else None


def shifts(
    policy: Policy, problem: Problem, own: Trace, shown: Sequence[Trace]
) -> tuple[Float64[np.ndarray, "sibling token"], Float64[np.ndarray, " token"]]:
    """Shifts of a response behind each sibling, and under the request for a wrong answer, nats."""
    base, ids = policy.render(problem.question), own.ids or ()
    contexts = [
        base,
        policy.render(problem.question, insert=SUMS.wrong_request),
        *([*base, *(sibling.ids or ()), *base] for sibling in shown),
    ]
    found = score(policy, [Branch(tuple(context), ids) for context in contexts])
    logp = np.stack([row.logp for row in found]).astype(np.float64)
    return logp[2:] - logp[0], logp[1] - logp[0]


def contrast(
    right: Float64[np.ndarray, "sibling token"], wrong: Float64[np.ndarray, "sibling token"]
) -> dict[str, float]:
    """Mean over tokens of |right - wrong|: of log-means, and pair by pair; and the signed mean."""
    both = [log_means(part, np.ones(part.shape, dtype=bool)) for part in (right, wrong)]
    return {
        "contrast": float(np.abs(both[0] - both[1]).mean()),
        "pairwise": float(np.abs(right[:, None] - wrong[None]).mean()),
        "signed": float((both[0] - both[1]).mean()),
    }


def rows_of(
    policy: Policy, problem: Problem, sides: dict[str, list[Trace]]
) -> list[dict[str, object]]:
    """A row for each scored response and each group that has siblings of both kinds for it."""
    found: list[dict[str, object]] = []
    for side, other in (("wrong", "right"), ("right", "wrong")):
        own, same = sides[side][0], sides[side][1:]
        moved, requested = shifts(policy, problem, own, [*same, *sides[other]])
        of_same, of_other = moved[: len(same)], moved[len(same) :]
        for right in range(1, SIZE):
            members = {"right": right, "wrong": SIZE - right}
            if members[side] == 1:
                continue
            told = {side: of_same[: members[side] - 1], other: of_other[: members[other]]}
            found.append(
                {
                    **{"problem": problem.name, "scored": side, "right": right},
                    **{"tokens": len(own.ids or ()), **contrast(told["right"], told["wrong"])},
                    "gcpo": float(np.abs(requested).mean()),
                }
            )
    return found


def table(rows: Sequence[dict[str, str]], config: Config) -> list[dict[str, object]]:
    """Ratios of each number, ends over middle; then means by response and group, with intervals."""
    cells = {(row["problem"], row["scored"], int(row["right"])): row for row in rows}
    names = list(dict.fromkeys(row["problem"] for row in rows))
    plan = Resampling(len(names), config.resamples)
    found: list[dict[str, object]] = []
    for number in NUMBERS:
        sums = np.array(
            [
                [
                    sum(float(cells[name, side, at][number]) for side, at in places.items()) / 2
                    for places in (ENDS, dict.fromkeys(ENDS, MIDDLE))
                ]
                for name in names
            ]
        )
        found.append(
            {"what": "ratio", "scored": "both", "right": "1 and 7 over 4"}
            | _estimated(number, sums, plan)
        )
    for number in (*NUMBERS, "signed"):
        for side, right in dict.fromkeys((side, right) for _, side, right in cells):
            values = np.array([[float(cells[name, side, right][number]), 1.0] for name in names])
            found.append(
                {"what": "mean", "scored": side, "right": right} | _estimated(number, values, plan)
            )
    return found


def _estimated(
    number: str, sums: Float64[np.ndarray, "problem 2"], plan: Resampling
) -> dict[str, object]:
    """Total of the first column over that of the second, 95 %."""
    present = np.ones((len(sums), 1), dtype=bool)
    totals = resample(sums, lambda t: t[..., :1] / t[..., 1:], plan=plan, present=present)
    own = intervals(totals)
    ends = (own.estimate, own.low, own.high)
    values = dict(zip(("estimate", "low", "high"), (float(end[0]) for end in ends), strict=True))
    return {"number": number, **values, "problems": len(sums)}


def measured(config: Config, name: str, path: Path) -> None:
    """Make the rows of a policy."""
    policy, task = (
        load_policy(name),
        planted("arithmetic", held_out=config.problems, held_out_seed=config.seed),
    )
    found = responses(
        policy,
        task.held_out,
        group=config.draws,
        max_new_tokens=96,
        seed=config.seed,
        progress=False,
    )
    traces = task.grade(found, task.held_out, policy)
    rows, used = [], 0
    for place, problem in enumerate(task.held_out):
        sides = sides_of(traces[place * config.draws : (place + 1) * config.draws])
        if sides is not None and used < config.most:
            rows += rows_of(policy, problem, sides)
            used += 1
    if rows:
        written(path, [printed(row) for row in rows])
    print(
        f"{name}  {used} of {config.problems} problems have {KEPT} right and {KEPT} wrong",
        flush=True,
    )


def main(config: Config, *, out: Path) -> None:
    """Rows of each policy that has none yet; then the table of all."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, object]] = []
    for name in config.policies:
        path = out / f"contrasts_{name.removeprefix('tiny:')}.csv"
        if not path.exists():
            measured(config, name, path)
        if path.exists():
            lines += [{"policy": name, **line} for line in table(read(path), config)]
    if lines:
        written(out / "table.csv", [printed(line) for line in lines])
    for line in lines:
        print("  ".join(str(value) for value in printed(line).values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/group_mix"))
    parser.add_argument("--tiny", action="store_true", help="one policy, few problems: seconds")
    given = parser.parse_args()
    try:
        main(TINY if given.tiny else Config(), out=given.out)
    except TokensenseError as error:
        sys.exit(f"group_mix: {error}")
