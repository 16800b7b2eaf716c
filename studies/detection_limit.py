"""How much truth must a verdict tell before a diagnostic sees it? The ladder of tiny policies.

    OMP_NUM_THREADS=1 python -m studies.detection_limit --out data/detection_limit
    python -m studies.detection_limit --tiny --out runs/detection_limit      # a minute

Policies are trained whose verdicts tell the outcome with chance 0, .2, .4, .6, .8, 1 and change
nothing else, from seeds that no threshold has seen. Each is studied several times: fresh problems,
its own samples, opposed and placebo words, `analyze`. A diagnostic fires where its 95 % interval
lies beyond a number. Diagnostics and numbers are in `rules.json`, committed before the first policy
was trained; `named`, beside them, fires where the word for the store is truthful or mixed.

Limit: the lowest share from which on a diagnostic fires in 95 % of studies, at it and above. What
it does at share 0 is its false alarms: a diagnostic that fires there has no limit. Shares are of
the training data, not of what a policy has learned; its card says how often it does as told.

Policies that are there are not trained again, and lines of other rules (digest) are not added up:
a run that is stopped goes on, round by round over all shares. Training takes about 5 minutes a
policy on a free core, a study half a minute.

Source   `statistics.md` of the project's notes, runner-up of its three measurements.
"""

import argparse
import csv
import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

import tokensense as ts
from studies import blind_naming, build_tiny_policy
from studies.calibration_table import limits
from studies.rows import written
from tokensense.errors import TokensenseError
from tokensense.models import tiny
from tokensense.models.policy import load_policy
from tokensense.store.provenance import git_state
from tokensense.tasks.arithmetic_traces import Tags

LINES, TABLE, LIMITS = "lines.csv", "shares.csv", "limits.csv"
NAMED, TELLING = "named", {"truthful", "mixed"}
WANTED = 0.95
SEED = 70_000  # of the first study
RULES = Path(__file__).parents[1] / "data" / "detection_limit" / "rules.json"


class Rule(NamedTuple):
    """When a diagnostic fires.

    Attributes:
        name: short.
        section: Dataset of `analyze`.
        at: coordinates of the estimate in it.
        side: `above` or `below`.
        than: the number that the whole interval must lie above or below.
        of: what it is, in words.
    """

    name: str
    section: str
    at: Mapping[str, str]
    side: str
    than: float
    of: str

    def fires(self, found: Mapping[str, xr.Dataset]) -> tuple[float, bool]:
        """Estimate, and whether its interval lies beyond the number; without one it does not."""
        if self.section not in found:
            return float("nan"), False
        one = found[self.section].sel(dict(self.at))
        low, high = one["interval"].values.tolist()
        beyond = low > self.than if self.side == "above" else high < self.than
        return float(one["estimate"]), beyond


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        shares: chance that a verdict tells the outcome, a policy each.
        seeds: of training; none that a shipped or a blindly named policy has.
        studies: of each policy.
        steps: of training; none: those of a shipped policy.
        problems: on which the card's accuracies are measured.
        study: what a study is.
    """

    shares: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    seeds: tuple[int, ...] = (701, 702)
    studies: int = 10
    steps: int = build_tiny_policy.Config.steps
    problems: int = 1024
    study: blind_naming.Config = field(default_factory=lambda: blind_naming.Config(seed=SEED))


TINY = Config(
    shares=(0.0, 1.0),
    seeds=(701,),
    studies=1,
    steps=20,
    problems=16,
    study=replace(blind_naming.TINY, seed=SEED, problems=4, frames=1),
)


def rules() -> list[Rule]:
    """The committed rules."""
    return [Rule(**rule) for rule in json.loads(RULES.read_text("utf-8"))]


def digest() -> str:
    """The first 16 hex digits of the sha256 of the rules' file."""
    return hashlib.sha256(RULES.read_bytes()).hexdigest()[:16]


def policy_folder(share: float, seed: int, config: Config, *, root: Path) -> Path:
    """Folder of a policy, trained where it is not there.

    Args:
        share: of truth.
        seed: of training.
        config: steps and problems.
        root: folder of all policies.
    """
    own = build_tiny_policy.Config(
        f"truth{share:g}",
        tags=Tags(truth=share, style=0.0),
        seed=seed,
        steps=config.steps,
        problems=config.problems,
    )
    out = root / f"seed{seed}"
    if not (out / own.name / tiny.CARD).exists():
        out.mkdir(parents=True, exist_ok=True)
        build_tiny_policy.main(own, out=out)
    return out / own.name


def line(folder: Path, share: float, seed: int, number: int, config: Config) -> dict[str, object]:  # noqa: PLR0917 (what a line is named by)
    """Study a policy once and ask every diagnostic."""
    place = config.shares.index(share) * len(config.seeds) + config.seeds.index(seed)
    start = config.study.seed + 1000 * place + number
    policy = load_policy(folder)
    with tempfile.TemporaryDirectory() as scratch:
        job = blind_naming.Job("ladder", number, start)
        study = blind_naming.sampled(job, policy, config.study, path=Path(scratch) / "s.zarr")
        found = ts.analyze(study, resamples=config.study.resamples)
    row: dict[str, object] = {
        **key(share, seed, number),
        "policy": policy.digest[:16],
        "word": found["character"].attrs["word"],
        NAMED: int(found["character"].attrs["word"] in TELLING),
    }
    for rule in rules():
        estimate, fires = rule.fires(found)
        row |= {f"{rule.name}_estimate": round(estimate, 4), rule.name: int(fires)}
    commit = (git_state(Path(__file__).parent) or {}).get("commit", "none")
    return row | {"rules": digest(), "commit": commit}


def key(share: float, seed: int, number: int) -> dict[str, object]:
    """Names of a line."""
    return {"share": share, "seed": seed, "number": number}


def shares_table(rows: Sequence[Mapping[str, str]]) -> list[dict[str, object]]:
    """How often each diagnostic fires at each share, with 99 % Clopper-Pearson limits."""
    table: list[dict[str, object]] = []
    for name in (NAMED, *(rule.name for rule in rules())):
        for share in sorted({float(row["share"]) for row in rows}):
            own = [row for row in rows if float(row["share"]) == share]
            fired = sum(int(row[name]) for row in own)
            low, high = limits(fired, len(own))
            estimates = [float(row[f"{name}_estimate"]) for row in own if f"{name}_estimate" in row]
            table.append(
                {
                    "diagnostic": name,
                    "share": share,
                    "policies": len({row["policy"] for row in own}),
                    "studies": len(own),
                    "fired": fired / len(own),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "mean_estimate": round(float(np.mean(estimates)), 4) if estimates else "",
                }
            )
    return table


def limits_table(table: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """For each diagnostic the lowest share from which on it fires often enough."""
    found: list[dict[str, object]] = []
    for name in dict.fromkeys(row["diagnostic"] for row in table):
        own = sorted(
            (float(str(row["share"])), float(str(row["fired"])))
            for row in table
            if row["diagnostic"] == name
        )
        limit: float | str = "none"
        for share, fired in reversed(own):
            if fired < WANTED:
                break
            limit = share
        alarms = dict(own).get(0.0, float("nan"))
        said = "fires without truth" if limit == 0.0 else limit
        found.append({"diagnostic": name, "limit": said, "false_alarms": alarms})
    return found


def page(
    table: Sequence[Mapping[str, object]],
    lowest: Sequence[Mapping[str, object]],
    *,
    planned: int,
) -> str:
    """Both tables in plain words, and how much of the ladder they stand on.

    Args:
        table: of `shares_table`.
        lowest: of `limits_table`.
        planned: studies of the whole ladder.
    """
    of = {rule.name: rule.of for rule in rules()} | {NAMED: "the word is truthful or mixed"}
    counts = {row["share"]: row["studies"] for row in table}
    done = sum(int(str(count)) for count in counts.values())
    lines = [
        "# How much truth must a verdict tell before a diagnostic sees it?",
        "",
        "Share of studies in which each fires, by the share of training examples whose tag told",
        "the outcome. In brackets exact 99 % limits. Thresholds were committed before any policy",
        f"was trained (`rules.json`). {done} of {planned} studies are done"
        + (": a part of the ladder, from which no limit is read." if done < planned else "."),
        "",
        "| diagnostic | "
        + " | ".join(f"truth {share:g}, n {n}" for share, n in counts.items())
        + " |",
        "|---" * (1 + len(counts)) + "|",
    ]
    for name, meaning in of.items():
        own = [row for row in table if row["diagnostic"] == name]
        cells = [f"{row['fired']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in own]
        lines.append(f"| {name}: {meaning.replace('|', '')} | " + " | ".join(cells) + " |")
    if done >= planned:
        lines += [
            "",
            "Lowest share from which on it fires in 95 % of the studies at each share:",
            "",
        ]
        lines += [f"* {row['diagnostic']}: {row['limit']}" for row in lowest]
    lines += [
        "",
        "What would change a limit: more studies and training seeds a share (two were planned); a",
        "share of truth is one of the training data, not of what a policy has learned.",
        "",
    ]
    return "\n".join(lines)


def known(out: Path) -> list[dict[str, str]]:
    """Lines by these rules; of a study that two runs made, one."""
    if not (out / LINES).exists():
        return []
    with (out / LINES).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["rules"] == digest()]
    return list({(row["share"], row["seed"], row["number"]): row for row in rows}.values())


def main(
    config: Config,
    *,
    out: Path,
    policies: Path | None = None,
    only: Sequence[float] | None = None,
) -> None:
    """Train what is not trained, study what is not studied, add up; resumes.

    Args:
        config: the whole ladder.
        out: folder of lines and tables.
        policies: folder of policies; below `out` by default.
        only: shares of this run, all by default: several runs add to one ladder.
    """
    out.mkdir(parents=True, exist_ok=True)
    done = {(row["share"], row["seed"], row["number"]) for row in known(out)}
    for seed, number, share in product(config.seeds, range(config.studies), only or config.shares):
        if tuple(str(value) for value in key(share, seed, number).values()) in done:
            continue
        folder = policy_folder(share, seed, config, root=policies or out / "policies")
        found = line(folder, share, seed, number, config)
        written(out / LINES, [found], add=True)
        print(f"share {share:g}, seed {seed}, {number}: {found['word']}", flush=True)
    table = shares_table(known(out))
    found_limits = limits_table(table)
    written(out / TABLE, table)
    written(out / LIMITS, found_limits)
    planned = len(config.shares) * len(config.seeds) * config.studies
    (out / "page.md").write_text(page(table, found_limits, planned=planned), "utf-8")
    for row in found_limits:
        print("  ".join(f"{value!s:>20}" for value in row.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/detection_limit"))
    parser.add_argument("--policies", type=Path, help="folder of policies; below --out by default")
    parser.add_argument("--shares", type=float, nargs="+", help="of this run; all by default")
    parser.add_argument("--tiny", action="store_true", help="two policies of 20 steps")
    given = parser.parse_args()
    try:
        main(
            TINY if given.tiny else Config(),
            out=given.out,
            policies=given.policies,
            only=given.shares,
        )
    except TokensenseError as error:
        sys.exit(f"detection_limit: {error}")
