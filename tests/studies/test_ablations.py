import csv

import numpy as np
import pytest

from studies import ablations as study
from studies.learning_rules import drawn_batch, evidence
from tokensense.credit.evidence import Evidence
from tokensense.models.policy import load_policy
from tokensense.rollouts.trajectory import Trace
from tokensense.tasks import tables
from tokensense.tasks.problem import Problem

EVIDENCE = Evidence(
    length=np.array([300, 200]),
    advantage=np.array([1.5, -2.0]),
    key=np.array([7, 8]),
    z_pos=np.linspace(-1.0, 1.0, 500),
    z_neg=np.linspace(3.0, 1.0, 500),
)


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny:tables")


def test_frozen_shifts_are_those_of_the_start_while_nothing_has_been_learned(policy):
    chains = tables.draw_chains(
        tables.Regime(lookups=3, filler_mean=1.0), count=4, generator=np.random.default_rng(0)
    )
    batch = drawn_batch(policy, chains, group=2, seed=0)
    told = evidence(policy, batch, key=0)
    problems = [Problem(f"p{i}", tables.question(chain), None) for i, chain in enumerate(chains)]
    traces = [
        Trace(f"p{i // 2}", str(i), "", ids=branch.response)
        for i, branch in enumerate(batch.branches)
    ]
    for name in study.SHOWN:
        found = study.frozen_shift(policy, name, study.Config())(None, problems, traces)
        assert np.abs(found).mean() > 0.01
        np.testing.assert_allclose(found, told[name], atol=1e-4)


def test_random_signs_keep_sizes_and_belong_to_the_rollout(policy):
    arms = study.arms(policy, study.Config())
    told, signed = (arms[name].rule.assign(EVIDENCE) for name in ("sd_grpo", "sd_random"))
    np.testing.assert_array_equal(np.abs(signed), np.abs(told))
    assert 100 < (signed[:300] > 0).sum() < 200  # 150, standard deviation 9
    # A rollout's signs follow its key, wherever it stands.
    alone = Evidence(
        length=np.array([200]),
        advantage=np.array([-2.0]),
        key=np.array([8]),
        z_pos=EVIDENCE.z_pos[300:],
        z_neg=EVIDENCE.z_neg[300:],
    )
    np.testing.assert_array_equal(arms["sd_random"].rule.assign(alone), signed[300:])
    assert not np.array_equal(signed[:200], signed[300:])


def line(arm, seed, collapsed, end):
    return {"arm": arm, "seed": str(seed), "steps": "40", "collapsed": collapsed} | {
        "accuracy_start": "0.2",
        "accuracy_end": str(end),
        "curve": f"0.2 0.3 {end} {end}",
    }


def test_collapses_are_counted_early_and_ever_and_set_against_random_signs():
    config = study.Config(arms=("sd_grpo", "sd_random"))
    rows = [line("sd_grpo", seed, "25" if seed < 9 else "35", 0.0) for seed in range(10)]
    rows += [
        line("sd_random", seed, "30" if seed < 1 else "", 0.1 + 0.01 * seed) for seed in range(10)
    ]
    rows.append({**line("sd_random", 0, "1", 0.0), "steps": "300"})  # of another part
    told, control = study.collapses(rows, config)
    assert (told["runs"], told["early"], told["ever"]) == (10, 9, 10)
    assert (control["runs"], control["early"], control["ever"]) == (10, 1, 1)
    # Clopper and Pearson of 10 in 10: the lower end solves p^10 = .025.
    assert told["ever_low"] == pytest.approx(0.025**0.1)
    assert control["accuracy_least"] == 0.1
    assert control["accuracy_end"] == pytest.approx(0.145)
    assert told["difference"] == pytest.approx(0.8)
    # Newcombe's interval, from Wilson's of 9 and 1 in 10.
    assert (told["difference_low"], told["difference_high"]) == newcombe(9, 1, 10)
    assert control["difference"] == ""
    # Below .05 at steps 10 and 15, the last two of the curve.
    assert (told["below"], told["below_early"], control["below"]) == (10, 10, 0)
    dipped = {"curve": "0.2 0.04 0.2 0.04 0.04 0.04 0.04 0.04"}
    assert study.below(dipped, 5) == 15
    assert study.below(dipped, 20) == 60


def newcombe(first, second, n):
    def wilson(count):
        z, p = 1.959964, count / n
        middle, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
        return (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)

    p, q = first / n, second / n
    (low, high), (other_low, other_high) = wilson(first), wilson(second)
    below = ((p - low) ** 2 + (other_high - q) ** 2) ** 0.5
    above = ((high - p) ** 2 + (q - other_low) ** 2) ** 0.5
    return pytest.approx((p - q - below, p - q + above), abs=1e-6)


def test_runs_add_up_and_are_not_made_twice(tmp_path, monkeypatch, capsys):
    config = study.TINY
    study.main(config, out=tmp_path)
    path = tmp_path / f"runs_{config.steps}.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"]) for row in rows] == [
        (arm, str(seed)) for seed in config.seeds for arm in config.arms
    ]
    assert all(0 <= float(row["accuracy_end"]) <= 1 for row in rows)
    before = path.read_bytes()
    monkeypatch.setattr(study, "train", None)  # would fail if a run were made
    study.main(config, out=tmp_path)
    assert path.read_bytes() == before
    assert "sd_random" in capsys.readouterr().out
