from dataclasses import replace

import numpy as np
import pytest
import torch

import tokensense as ts
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Evidence, by_weight
from tokensense.errors import SchemaError
from tokensense.freezing import freeze
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.trainer.batches import collect
from tokensense.trainer.evidence import AT_HEAD, SUPPLIED, credited, plan_evidence

# Not `otb`: before the first uncertain token it divides sums of distances that are all rounding.
# A store has no proxies of gradients and no ratio.
STORED = SUPPLIED - AT_HEAD - {"ratio"}
RULES = sorted(name for name, rule in CATALOGUE.items() if rule.needs <= STORED and name != "otb")


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


def test_proxies_at_the_head_are_gradients_by_its_rows_and_its_input(policy, batch, config):
    live = plan_evidence(policy, CATALOGUE["delta"], config)
    found, _ = live.of(policy, batch, first_key=0)
    hidden = plan_evidence(policy, CATALOGUE["delta_hidden"], config)
    inputs, _ = hidden.of(policy, batch, first_key=0)
    # Plainly, for the first token of the first response.
    prompt, response = batch.branches[0]
    with torch.no_grad():
        h = policy.model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
    h.requires_grad_()
    own = policy.model.lm_head.weight[response[0]].detach().clone().requires_grad_()
    logits = policy.model.lm_head.weight.detach() @ h
    logits[response[0]] = own @ h
    logits.log_softmax(-1)[response[0]].backward()
    np.testing.assert_allclose(found.row_gradient[0], own.grad, atol=1e-5)
    np.testing.assert_allclose(inputs.hidden_gradient[0], h.grad, atol=1e-5)


def test_the_ratio_is_1_with_one_update_and_refused_with_several(policy, batch, config):
    live = plan_evidence(policy, CATALOGUE["htpo"], config)
    evidence, _ = live.of(policy, batch, first_key=0)
    np.testing.assert_array_equal(evidence.ratio, 1.0)
    with pytest.raises(SchemaError, match=r"one update a step, .* there are 2 x 1"):
        plan_evidence(policy, CATALOGUE["htpo"], replace(config, epochs=2))


def test_what_the_task_can_say_is_taken_from_it(policy, batch, config):
    def measure(asked, problems, traces):
        assert asked is policy
        assert [problem.name for problem in problems] == [p.name for p in batch.problems]
        return np.arange(sum(len(trace.ids) for trace in traces), dtype=np.float64)

    for rule, name in (("vine", "value_gain"), ("high_entropy", "entropy")):
        live = plan_evidence(policy, CATALOGUE[rule], config, told={name: measure})
        evidence, usable = live.of(policy, batch, first_key=0)
        assert evidence[name].tolist() == list(range(batch.length.sum()))
        assert usable.all()


def test_evidence_that_training_does_not_measure_is_refused(policy, config):
    rule = CATALOGUE["uniform"]._replace(needs=frozenset({"learning_value"}))
    with pytest.raises(SchemaError, match=r"it needs \['learning_value'\]"):
        plan_evidence(policy, rule, config)
