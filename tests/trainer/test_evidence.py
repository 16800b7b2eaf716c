from dataclasses import replace

import numpy as np
import pytest

import tokensense as ts
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Evidence, by_weight
from tokensense.errors import SchemaError
from tokensense.freezing import freeze
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.trainer.batches import collect
from tokensense.trainer.evidence import SUPPLIED, credited, plan_evidence

# Not `otb`: before the first uncertain token it divides sums of distances that are all rounding.
RULES = sorted(name for name, rule in CATALOGUE.items() if rule.needs <= SUPPLIED and name != "otb")


@pytest.fixture(scope="module")
def batch(policy, task, config):
    batches = (collect(policy, task, config, step=step) for step in range(9))
    return next(b for b in batches if not b.uniform_groups)


@pytest.fixture(scope="module")
def stored(policy, batch, tmp_path_factory):
    """Credit of the same rollouts from a store, by its own probes."""
    made = ts.Study(tmp_path_factory.mktemp("store") / "s.zarr")
    node = assemble(Imported(batch.problems, batch.traces), policy)
    freeze(made.archive(), node.assign_attrs(sampled_by_digest=policy.digest), append=False)
    made.probe(policy, ["opposed", "placebo"], frames=1)
    return ts.assign_credit(made, RULES)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_trained_on_is_what_a_store_s_probes_give(policy, batch, stored, config, rule):
    config = replace(config, rule=rule)
    live = plan_evidence(policy, config.credit(), config)
    found = credited(config.credit(), *live.of(policy, batch, first_key=0))
    truth = stored.sel(rule=rule)
    assert found.not_comparable == 0
    np.testing.assert_allclose(found.credit, truth["credit"].values, atol=1e-4)
    weight = np.full(found.credit.size, np.nan) if found.weight is None else found.weight
    np.testing.assert_allclose(weight, truth["weight"].values, atol=1e-4)


def test_nothing_is_scored_for_a_rule_that_reads_nothing(policy, batch, config):
    live = plan_evidence(policy, CATALOGUE["uniform"], config)
    evidence, usable = live.of(policy, batch, first_key=0)
    assert set(evidence.given()) == {"length", "advantage"}
    assert usable.all()


def test_keys_go_on_from_step_to_step(policy, batch, config):
    live = plan_evidence(policy, CATALOGUE["cscr_shuffled"], config)
    evidence, _ = live.of(policy, batch, first_key=40)
    assert evidence.key.tolist() == list(range(40, 48))


def test_a_rollout_that_may_not_be_compared_keeps_its_advantage():
    rule = by_weight(
        lambda evidence: evidence["z_pos"],
        needs=frozenset({"z_pos"}),
        source="",
        budget="free",
        grade="own",
    )
    evidence = Evidence(
        length=np.array([2, 1]),
        advantage=np.array([1.0, -2.0]),
        z_pos=np.array([np.nan, np.nan, 3.0]),
    )
    found = credited(rule, evidence, np.array([False, True]))
    assert found.credit.tolist() == [1.0, 1.0, -6.0]
    assert found.weight.tolist() == [1.0, 1.0, 3.0]
    assert found.not_comparable == 1


def test_evidence_that_training_does_not_measure_is_refused(policy, config):
    rule = CATALOGUE["uniform"]._replace(needs=frozenset({"learning_value"}))
    with pytest.raises(SchemaError, match=r"it needs \['learning_value'\]"):
        plan_evidence(policy, rule, config)
