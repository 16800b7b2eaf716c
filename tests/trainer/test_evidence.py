from dataclasses import replace

import numpy as np
import pytest
import torch

import tokensense as ts
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Evidence, by_weight
from tokensense.errors import ConditionError, SchemaError
from tokensense.freezing import freeze
from tokensense.gathering import gather
from tokensense.models.scorer import score
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.segments import broadcast
from tokensense.stats.sample import read_sample
from tokensense.trainer.batches import collect
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.evidence import AT_HEAD, SHIFTED, SHIFTS, SUPPLIED, credited, plan_evidence
from tokensense.trainer.problems import planted

# Not `otb`: before the first uncertain token it divides sums of distances that are all rounding.
# A store has no proxies of gradients and no ratio.
STORED = SUPPLIED - AT_HEAD - {"ratio"}
# These are told in sentences, or show another text; shipped policies read neither.
SHOWN = SHIFTED - {"z_pos", "z_neg", "placebo_pos", "placebo_neg"}
RULES = sorted(
    name for name, rule in CATALOGUE.items() if rule.needs <= STORED - SHOWN and name != "otb"
)
GROUPS = 6


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


@pytest.fixture(scope="module")
def shown(reader):
    """Rollouts with all that can be shown; answers as the policy's words, a full stop apart."""
    sizes = TrainConfig(problems=GROUPS, group=4, max_new_tokens=64)
    found = collect(reader, planted("arithmetic", held_out=8), sizes, step=1)
    told = [
        replace(problem, answer=f"{number} 2 =", solution="4 + 3 is 7 .")
        for number, problem in enumerate(found.problems)
    ]
    return replace(found, problems=told)


@pytest.fixture(scope="module")
def gathered(reader, shown, tmp_path_factory):
    """The same evidence from a store, by its own probes."""
    made = ts.Study(tmp_path_factory.mktemp("store") / "s.zarr")
    node = assemble(Imported(shown.problems, shown.traces), reader)
    freeze(made.archive(), node.assign_attrs(sampled_by_digest=reader.digest), append=False)
    made.probe(reader, sorted({*SHIFTS} - {"placebo"}), frames=2)
    tokens = made.tokens()
    rollouts = made.archive().rollouts()
    return gather(tokens, read_sample(tokens), rollouts=rollouts, needed=frozenset(SHOWN))


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_what_is_shown_in_training_is_what_probes_show(reader, shown, gathered, name):
    rule = CATALOGUE["uniform"]._replace(needs=frozenset({name}))
    live = plan_evidence(reader, rule, TrainConfig(frames=2))
    evidence, usable = live.of(reader, shown, first_key=0)
    np.testing.assert_array_equal(usable, gathered.usable[name])
    inside = np.asarray(broadcast(usable, shown.length))
    found, truth = evidence[name][inside], gathered.arrays[name][inside]
    np.testing.assert_allclose(found, truth, atol=1e-4)
    assert inside.sum() > 100
    assert np.abs(found).mean() > 0.01


def test_siblings_are_those_of_the_batch_and_never_oneself(reader, shown):
    live = plan_evidence(reader, CATALOGUE["sibling"], TrainConfig())
    evidence, usable = live.of(reader, shown, first_key=0)
    some = []
    texts = np.array([trace.text for trace in shown.traces])
    for group, own in zip(np.split(shown.reward, GROUPS), np.split(texts, GROUPS), strict=True):
        sides = [list(dict.fromkeys(own[group == side]))[:2] for side in (1, 0)]
        # A place counts where both its sides are there and neither is the response itself.
        places = list(zip(*sides, strict=False))
        some += [any(text not in place for place in places) for text in own]
    assert usable.tolist() == some
    assert set(some) == {True, False}
    inside = np.asarray(broadcast(usable, shown.length))
    np.testing.assert_array_equal(np.isfinite(evidence.sibling_pos), inside)


def test_only_what_the_rule_reads_is_scored(reader, shown, monkeypatch):
    asked = []

    def counted(policy, branches, **settings):
        asked.append(len(branches))
        return score(policy, branches, **settings)

    monkeypatch.setattr("tokensense.trainer.evidence.score", counted)
    for rule, conditions in (("rlsd", 1), ("cepo", 2), ("gcpo", 1)):
        live = plan_evidence(reader, CATALOGUE[rule], TrainConfig())
        _, usable = live.of(reader, shown, first_key=0)
        assert asked.pop() == len(shown.traces) + conditions * usable.sum()


def test_a_policy_that_knows_tags_alone_is_refused_what_is_told_in_english(policy, config):
    with pytest.raises(ConditionError, match="`sibling` needs a policy that reads English"):
        plan_evidence(policy, CATALOGUE["sibling"], config)


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
