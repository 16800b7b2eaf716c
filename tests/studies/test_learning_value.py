import csv
from dataclasses import replace

import numpy as np
import pytest

from studies import learning_tables
from studies import learning_value as study
from studies.learning_rules import (
    KINDS,
    NAMES,
    credit_table,
    drawn_batch,
    evidence,
    measured_skills,
)
from tokensense.models.policy import load_policy
from tokensense.segments import segment_sum
from tokensense.tasks import tables
from tokensense.tasks.tables_values import prefix_values

SMALL = replace(study.TINY, batches=2, shared=1, problems=4, reference=16, check=2)


@pytest.fixture(scope="module")
def batch():
    chains = tables.draw_chains(
        tables.REGIMES["B"], count=6, generator=np.random.default_rng(0), distinct=True
    )
    return drawn_batch(load_policy("tiny:tables"), chains, group=8, seed=1)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_skills_are_those_of_the_policy(batch):
    skills = measured_skills(batch)
    start = [
        prefix_values(chain, (), facts=study_facts(), skills=skills)[0] for chain in batch.chains
    ]
    # The policy's accuracy on these problems, by their values and by their rewards.
    assert np.mean(start) == pytest.approx(batch.reward.mean(), abs=0.1)
    credit = batch.oracle(skills)
    ended = np.array([labels.ended for labels in batch.labels])
    sums = segment_sum(credit, batch.length)
    np.testing.assert_allclose(sums[ended], (batch.reward - start)[ended], atol=1e-9)


def study_facts():
    return tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))


def test_every_rule_gives_its_credit(batch):
    told = evidence(load_policy("tiny:tables"), batch, key=5)
    skills = measured_skills(batch)
    credit = dict(zip(NAMES, credit_table(told, batch.oracle(skills)), strict=True))
    assert len(credit) == len(NAMES)
    np.testing.assert_array_equal(credit["cscr_0"], credit["uniform"])
    kinds = batch.kinds()
    assert set(np.unique(kinds)) <= set(range(len(KINDS)))
    planted = credit["oracle_mask"] != 0
    assert (np.isin(kinds, [0, 1]) | ~planted).all()
    for name in ("cscr_0.8", "placebo_0.8", "contrast", "surprisal", "random"):
        sums = segment_sum(credit[name], batch.length)
        np.testing.assert_allclose(sums, batch.advantage * batch.length, atol=1e-9)
        assert not np.array_equal(credit[name], credit["uniform"])
    assert not np.array_equal(credit["cscr_0.8"], credit["placebo_0.8"])


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    study.main(SMALL, out=whole, work=whole, real_steps=True)
    measured, calls = study.measured, list[int]()

    def stops(*args, number, **more):
        calls.append(number)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(*args, number=number, **more)

    monkeypatch.setattr(study, "measured", stops)
    with pytest.raises(KeyboardInterrupt):
        study.main(SMALL, out=parts, work=parts)
    study.main(SMALL, out=parts, work=parts)
    assert calls == [0, 1, 1]
    for name in ("table.csv", "shares.csv", "pairs.csv"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()

    rows = {row["rule"]: row for row in table(whole / "table.csv")}
    assert list(rows) == list(NAMES)
    assert float(rows["cscr_0"]["difference"]) == 0.0
    for pair in table(whole / "pairs.csv"):
        gap = float(rows[pair["rule"]]["cosine"]) - float(rows[pair["control"]]["cosine"])
        assert float(pair["difference"]) == pytest.approx(gap, abs=2e-4)
    by_kind = table(whole / "shares.csv")
    assert len(by_kind) == len(NAMES) * len(KINDS)
    norm = sum(float(row["norm"]) for row in by_kind if row["rule"] == "delta")
    assert norm == pytest.approx(1.0, abs=1e-3)
    (steps,) = whole.glob("steps_*.csv")
    assert len(table(steps)) == 2 * len(study.ETAS)
    assert "reliability" in capsys.readouterr().out


def test_pairs_over_all_bases_count_every_batch_alike():
    rng = np.random.default_rng(0)
    values = {base: rng.normal(size=(size, len(NAMES))) for base, size in (("a", 9), ("b", 5))}
    found = list(learning_tables.pairs({("A", "0"): values}, resamples=200))
    for line in found:
        own = values.get(str(line["base"]), np.concatenate(list(values.values())))
        columns = [NAMES.index(str(line[name])) for name in ("rule", "control")]
        expected = own[:, columns[0]].mean() - own[:, columns[1]].mean()
        assert line["difference"] == pytest.approx(expected, abs=1e-3)
        assert line["batches"] == len(own)
    assert [line["batches"] for line in found[:3]] == [9, 5, 14]


def test_more_batches_leave_the_others_as_they_were():
    few, many = (study.problems(replace(study.TINY, batches=n)) for n in (2, 5))
    assert few.held_out == many.held_out
    assert few.batches == many.batches[:2]
    every = [*many.held_out, *many.check, *(c for own in many.batches for c in own)]
    assert len(set(every)) == len(every)


def test_reinforcement_moves_the_policy():
    before, after = study.trained(SMALL), study.trained(replace(SMALL, steps=1, problems=8))
    assert before.digest == load_policy("tiny:tables").digest
    moved = [
        float((p - q).detach().abs().max())
        for p, q in zip(before.model.parameters(), after.model.parameters(), strict=True)
    ]
    # Adam's first step is the learning rate, whatever the gradient.
    assert max(moved) == pytest.approx(3e-4, rel=0.01)
