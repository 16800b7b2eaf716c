import csv
import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from studies import assay_claims as study

COLUMNS = ("regime", "base", "lr", "phase", "rule", "oracle", "seed", "auc")


def run(rule, seed, curve, *, phase="confirm", oracle=0):
    row = dict(
        zip(COLUMNS, ("A", "b", "0.0003", phase, rule, str(oracle), str(seed)), strict=False)
    )
    for step, accuracy in zip((0, 20, 40), curve, strict=True):
        row |= {f"accuracy_{step}": str(accuracy), f"lucky_{step}": str(accuracy / 10)}
    return row | {"auc": str(np.mean(curve))}


UNIFORM = [(0.2, 0.3, 0.5), (0.2, 0.3, 0.6), (0.2, 0.3, 0.4)]  # mean .5: threshold .45
CONTRAST = [(0.2, 0.45, 0.6), (0.2, 0.7, 0.9), (0.2, 0.2, 0.2)]
CSCR = [(0.2, 0.3, 0.45), (0.2, 0.3, 0.62), (0.2, 0.3, 0.4)]


def runs():
    rows = [run("oracle_value", seed, (0.2, 0.8, 0.9), oracle=1) for seed in range(3)]
    for rule, curves in (("uniform", UNIFORM), ("contrast", CONTRAST), ("cscr_0.8", CSCR)):
        rows += [run(rule, seed, curve) for seed, curve in enumerate(curves)]
    rows.append(run("cscr_-1", 0, (0.2, 0.2, 0.2)))  # weighs up: another claim
    return rows


def test_steps_to_an_accuracy_are_linear_between_evaluations():
    assert study.passed(run("r", 0, UNIFORM[0]), 0.45) == pytest.approx((35.0, 0.1))
    assert study.passed(run("r", 0, CONTRAST[0]), 0.45)[0] == pytest.approx(20.0)
    assert study.passed(run("r", 0, UNIFORM[2]), 0.45) is None
    assert study.passed(run("r", 0, (0.5, 0.5, 0.5)), 0.45)[0] == 0.0


def test_cscr_is_set_against_uniform_seed_by_seed():
    (line,) = study.better(study.by_rule(runs()))
    own, base = ([curve[-1] for curve in curves] for curves in (CSCR, UNIFORM))
    truth = ttest_rel(own, base).confidence_interval(0.95)
    assert line["estimate"] == pytest.approx(-0.01)
    assert (line["low"], line["high"]) == pytest.approx((truth.low, truth.high))
    assert line["seeds"] == 3
    assert "+0.400" in line["beside"]


def test_the_rule_is_chosen_on_search_seeds_and_judged_on_others():
    searched = [
        run("contrast", 9, (0.2, 0.4, 0.5), phase="search"),
        run("cscr_0.8", 9, (0.2, 0.3, 0.5), phase="search"),
        run("oracle_value", 9, (0.2, 0.9, 0.9), phase="search", oracle=1),
        run("uniform", 9, (0.9, 0.9, 0.9), phase="search"),
    ]
    line = study.saved(study.by_rule(searched), study.by_rule(runs()))
    assert line["rule"] == "contrast"
    # Uniform 35, 30 and never; contrast 20, 10 and never.
    ratios = [math.log(20 / 35), math.log(10 / 30), 0.0]
    assert line["estimate"] == pytest.approx(math.exp(np.mean(ratios)))
    assert line["low"] < line["estimate"] < line["high"]
    assert "not reached by 1 and 1" in line["beside"]


def test_claims_of_what_is_there(tmp_path, capsys):
    rows = [*runs(), run("contrast", 9, (0.2, 0.4, 0.5), phase="search")]
    with (tmp_path / "runs_A_b.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    study.main(tmp_path)
    with (tmp_path / "claims.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["row"], row["rule"]) for row in found] == [("13", "cscr_0.8"), ("22", "contrast")]
    assert "threshold 0.450" in capsys.readouterr().out
