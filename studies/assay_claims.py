"""What the credit assay says of two published claims: is CSCR better, does token credit save steps?

    python -m studies.assay_claims --out data/assay

Reads  `runs_*.csv` of `studies.credit_assay`.
Gives  `claims.csv`: a line a claim, with its interval, and what has to be said beside it.
Sign   row 13: CSCR - uniform, share of right responses. Row 22: a ratio; below 1: fewer steps.

Row 13: accuracy at the last step, paired by confirmation seed, each gamma that was run; beside it
the oracle's difference, since a regime that cannot tell planted truth decides nothing.

Row 22: the steps a run takes to 90 % of uniform's mean final accuracy, linear between evaluations;
of the rules without planted truth, the best on the search seeds (area under the curve) against
uniform on the confirmation seeds, as the ratio of geometric means. A run that does not get there
counts with its last step, and is counted: too few steps for uniform, so the ratio errs upwards.
Lucky: right over a wrong step, among right responses, where the run passes the threshold.

Source: methods/claims.md rows 13 and 22.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from studies.assay_tables import BASELINE, Row, compared, groups, steps_of
from studies.learning_tables import printed
from studies.rows import written

SHARE = 0.9  # of uniform's final accuracy
Runs = Mapping[str, Mapping[int, Row]]


def by_rule(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """Runs by rule and seed."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row["rule"], {})[int(row["seed"])] = row
    return found


def differences(runs: Runs, rule: str, column: str) -> list[float]:
    """Rule minus uniform, a number a shared seed."""
    shared = sorted(set(runs[rule]) & set(runs[BASELINE]))
    return [float(runs[rule][s][column]) - float(runs[BASELINE][s][column]) for s in shared]


def passed(row: Row, threshold: float) -> tuple[float, float] | None:
    """Step at which a run reaches an accuracy, and its lucky share of right responses there."""
    steps = steps_of([row])
    accuracy, lucky = (
        [float(row[f"{name}_{step}"]) for step in steps] for name in ("accuracy", "lucky")
    )
    if accuracy[0] >= threshold:
        return float(steps[0]), lucky[0] / accuracy[0]
    for i in range(1, len(steps)):
        if accuracy[i] >= threshold:
            low, high = accuracy[i - 1 : i + 1]
            part = (threshold - low) / (high - low)
            at = steps[i - 1] + part * (steps[i] - steps[i - 1])
            return at, (lucky[i - 1] + part * (lucky[i] - lucky[i - 1])) / threshold
    return None


def better(runs: Runs) -> Iterator[dict[str, object]]:
    """Row 13, a line a gamma."""
    last = steps_of([next(iter(runs[BASELINE].values()))])[-1]
    column = f"accuracy_{last}"
    oracle = compared(differences(runs, "oracle_value", column), comparisons=1)
    for rule in sorted(name for name in runs if name.startswith("cscr_") and name[5:6].isdigit()):
        found = compared(differences(runs, rule, column), comparisons=1)
        yield {
            **{"row": 13, "rule": rule, "estimate": found.mean},
            **{"low": found.low, "high": found.high, "seeds": found.n},
            "beside": f"oracle_value - uniform {oracle.mean:+.3f} "
            f"[{oracle.low:.3f}, {oracle.high:.3f}], {oracle.n} seeds",
        }


def chosen(searched: Runs) -> str:
    """The rule without planted truth whose area under the curve is largest on the search seeds."""
    honest = {
        rule: own
        for rule, own in searched.items()
        if rule != BASELINE and next(iter(own.values()))["oracle"] == "0"
    }
    mean = {r: np.mean([float(row["auc"]) for row in own.values()]) for r, own in honest.items()}
    return max(mean, key=lambda rule: mean[rule])


def saved(searched: Runs, runs: Runs) -> dict[str, object]:
    """Row 22."""
    rule = chosen(searched)
    last = steps_of([next(iter(runs[BASELINE].values()))])[-1]
    threshold = SHARE * float(
        np.mean([float(row[f"accuracy_{last}"]) for row in runs[BASELINE].values()])
    )
    shared = sorted(set(runs[rule]) & set(runs[BASELINE]))
    at = {
        name: [passed(runs[name][seed], threshold) for seed in shared] for name in (rule, BASELINE)
    }
    steps = {n: np.array([last if p is None else p[0] for p in own]) for n, own in at.items()}
    found = compared((np.log(steps[rule]) - np.log(steps[BASELINE])).tolist(), comparisons=1)
    estimate, low, high = (math.exp(value) for value in (found.mean, found.low, found.high))
    lucky = {n: np.mean([p[1] for p in own if p is not None]) for n, own in at.items()}
    censored = {name: sum(p is None for p in own) for name, own in at.items()}
    return {
        **{"row": 22, "rule": rule, "estimate": estimate, "low": low, "high": high},
        "seeds": found.n,
        "beside": f"threshold {threshold:.3f}; steps {steps[rule].mean():.1f} against "
        f"{steps[BASELINE].mean():.1f}; not reached by {censored[rule]} and {censored[BASELINE]}; "
        f"lucky share of right responses there {lucky[rule]:.3f} and {lucky[BASELINE]:.3f}",
    }


def main(out: Path) -> None:
    """Both claims, for every regime, base and learning rate that has what they need."""
    found, lines = groups(out), []
    for key, rows in found.items():
        if key[-1] != "confirm":
            continue
        runs, about = by_rule(rows), dict(zip(("regime", "base", "lr"), key, strict=False))
        if {BASELINE, "oracle_value"} <= set(runs):
            lines += [about | line for line in better(runs)]
        if searched := by_rule(found.get((*key[:-1], "search"), [])):
            lines.append(about | saved(searched, runs))
    written(out / "claims.csv", [printed(line) for line in lines])
    for line in lines:
        print("  ".join(str(value) for value in printed(line).values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data/assay"))
    main(parser.parse_args().out)
