import csv
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

from studies import assay_figure, assay_tables
from studies.assay_tables import compared, lines, summary

OTHERS = ("structural", "length", "fillers", "filler_entropy", "capped", "lucky")


def run(rule, seed, curve, *, signed=0, phase="search", collapsed=""):
    row = {"regime": "A", "base": "b", "lr": "0.0003", "phase": phase, "rule": rule}
    row |= {"seed": str(seed), "signed": str(signed), "oracle": str(signed)}
    row |= {f"accuracy_{step}": str(a) for step, a in zip((0, 20, 40), curve, strict=True)}
    row |= {f"{name}_{step}": "0.5" for name in OTHERS for step in (0, 20, 40)}
    return row | {"auc": str(np.mean(curve)), "collapsed": collapsed}


RUNS = [
    run("uniform", 0, (0.2, 0.3, 0.6)),
    run("uniform", 1, (0.2, 0.5, 0.7)),
    run("uniform", 2, (0.2, 0.4, 0.5)),
    run("delta", 0, (0.2, 0.35, 0.6)),
    run("delta", 1, (0.2, 0.53, 0.1), collapsed="31"),
    run("delta", 2, (0.2, 0.5, 0.6)),
    run("oracle_value", 1, (0.2, 0.8, 0.9), signed=1),
]


def test_the_interval_is_that_of_the_paired_t_test():
    one, other = [0.3, 0.5, 0.4, 0.2], [0.35, 0.53, 0.5, 0.35]
    found = compared(np.subtract(other, one), comparisons=1)
    truth = ttest_rel(other, one).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high))
    assert (found.joint_low, found.joint_high) == pytest.approx((truth.low, truth.high))
    # Six at once, as if each were at 1 - .05 / 6.
    truth = ttest_rel(other, one).confidence_interval(1 - 0.05 / 6)
    found = compared(np.subtract(other, one), comparisons=6)
    assert (found.joint_low, found.joint_high) == pytest.approx((truth.low, truth.high))


def test_what_can_be_detected_is_found_in_four_of_five_cases():
    rng, n, found = np.random.default_rng(0), 12, []
    size = compared(rng.normal(0, 1, 100_000), comparisons=1).spread
    assert size == pytest.approx(1, abs=0.02)
    # The detectable difference for a spread of exactly 1.
    unit = rng.normal(size=n)
    unit = (unit - unit.mean()) / unit.std(ddof=1)
    detectable = compared(unit, comparisons=1).detectable
    for _ in range(2000):
        one = compared(rng.normal(detectable, 1, n), comparisons=1)
        found.append(one.low > 0)
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)


def test_one_seed_has_no_interval():
    found = compared([0.1], comparisons=3)
    assert (found.mean, found.n) == (0.1, 1)
    assert math.isnan(found.low)


def test_rules_are_paired_by_seed_and_signed_ones_stand_apart():
    weighting, signed = lines(RUNS, signed=False), lines(RUNS, signed=True)
    assert [line["rule"] for line in weighting] == ["uniform", "delta"]
    assert [line["rule"] for line in signed] == ["uniform", "oracle_value"]
    uniform, delta = weighting
    assert delta["at_20_mean"] == pytest.approx(0.06)
    assert delta["accuracy_20"] == pytest.approx(0.46)
    assert (delta["pairs"], delta["collapsed"], delta["lost"]) == (3, 1, 1)
    assert uniform["at_20_mean"] == ""
    oracle = signed[1]
    assert (oracle["seeds"], oracle["pairs"], oracle["at_20_low"]) == (1, 1, "")
    assert oracle["at_20_mean"] == pytest.approx(0.3)  # to uniform of that seed


def test_phases_never_meet_in_a_line_and_a_figure_is_made_of_each(tmp_path, capsys):
    confirmed = [
        run(r, 100, (0.2, a, a), phase="confirm") for r, a in (("uniform", 0.4), ("delta", 0.9))
    ]
    for name, rows in (("one", RUNS), ("two", confirmed)):
        with (tmp_path / f"runs_{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    summary(tmp_path)
    with (tmp_path / "weighting.csv").open(newline="") as file:
        delta = [row for row in csv.DictReader(file) if row["rule"] == "delta"]
    assert [(row["phase"], row["seeds"]) for row in delta] == [("search", "3"), ("confirm", "1")]
    assert len(list(tmp_path.glob("curves_A_b_0.0003_*.png"))) == 2
    assert "+0.060" in capsys.readouterr().out


def test_bands_are_intervals_within_what_accuracies_can_be():
    found = assay_figure.band(np.array([[0.30, 0.98], [0.35, 1.0], [0.40, 1.0]]))
    reach = 4.302653 * 0.05 / math.sqrt(3)  # Student, 2 degrees of freedom, 97.5 %
    np.testing.assert_allclose(found[0], [0.35, 0.35 - reach, 0.35 + reach], rtol=1e-6)
    assert found[1, 2] == 1.0
    assert np.isnan(assay_figure.band(np.array([[0.5]]))[0, 1:]).all()


def test_as_many_curves_as_can_be_told_apart():
    rules = ["uniform", *(f"r{i}" for i in range(9)), "delta", "oracle_value"]
    assert assay_figure.chosen(rules) == ["oracle_value", "delta", "r0", "r1", "r2", "r3"]


def test_a_rule_looks_the_same_in_all_panels():
    shown = assay_figure.looks(["uniform", "delta", "oracle_value"])
    assert list(shown) == ["uniform", "oracle_value", "delta"]
    figure = Figure()
    curves, differences, gradients = figure.subplots(1, 3)
    own = lines(RUNS, signed=False)
    assay_figure.draw_curves(curves, RUNS, shown)
    assay_figure.draw_differences(differences, own[1:], shown)
    numbers = {"difference": "0.1", "difference_low": "0", "difference_high": "0.2"}
    assay_figure.draw_gradients(gradients, [{"rule": own[1]["rule"], **numbers}], shown)
    labels = [text.get_text() for text in differences.get_yticklabels()]
    assert labels == [f"{line['rule']} ({line['pairs']})" for line in own[1:]]
    for axes in (curves, differences, gradients):
        drawn = {line.get_color() for line in axes.lines}
        assert shown[own[1]["rule"]]["color"] in drawn


def test_a_gradient_table_of_another_regime_is_not_shown(tmp_path):
    table = [{"regime": "B", "base": "b", "steps": "0", "rule": "delta"}]
    own = lines(RUNS, signed=False)
    assay_figure.draw(tmp_path / "one.png", RUNS, own, table)  # would need its columns
    fits = [{**table[0], "regime": "A", "difference": "0.1"}]
    fits[0] |= {"difference_low": "0.0", "difference_high": "0.2"}
    assay_figure.draw(tmp_path / "two.png", RUNS, own, fits)
    assert (tmp_path / "two.png").stat().st_size > (tmp_path / "one.png").stat().st_size
    assert assay_tables.steps_of(RUNS) == [0, 20, 40]
