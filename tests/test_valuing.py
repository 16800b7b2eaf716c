"""Learning values of a store against gradients taken in one piece, and what reads them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import tokensense as ts
from tests.probes.tiny import tiny_policy
from tests.test_study import FIELDS, scored_study
from tokensense import valuing
from tokensense.centering import branches_of
from tokensense.cli import app
from tokensense.credit.advantages import ADVANTAGES
from tokensense.errors import StatisticsError, StoreError
from tokensense.probes.gradients import inner_products, pooled_gradients
from tokensense.segments import broadcast


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return scored_study(tmp_path_factory.mktemp("valuing"))


@pytest.mark.parametrize("at_once", [1, 8192])
def test_a_value_is_the_product_with_the_gradient_of_the_other_half(study, monkeypatch, at_once):
    monkeypatch.setattr(valuing, "AT_ONCE", at_once)
    policy = tiny_policy()
    found = ts.learning_values(study, policy, seed=3, progress=False)
    rollouts = study.archive().rollouts()
    length = rollouts["length"].values.astype(np.int64)
    problem = rollouts["problem_of"].values.astype(np.int64)
    advantage = ADVANTAGES["group_std"](rollouts["reward"].values.astype(float), problem)
    branches = branches_of(rollouts, np.arange(length.size))
    side = valuing._sides(rollouts["cluster"].values[problem], seed=3)
    assert all(len(set(side[problem == one].tolist())) == 1 for one in set(problem.tolist()))
    expected = np.full(int(length.sum()), np.nan)
    halves = []
    for half in (0, 1):
        weights = broadcast(np.where(side == half, advantage, 0.0), length)
        weights = weights / (weights != 0).sum()
        (gradient,) = pooled_gradients(policy, branches, weights[None])
        halves.append(gradient.double())
        (values,) = inner_products(policy, branches, gradient[None])
        other = np.asarray(broadcast(side != half, length))
        expected[other] = values[other]
    np.testing.assert_allclose(found["learning_value"], expected, rtol=1e-4, atol=1e-7)
    cosine = float(halves[0] @ halves[1] / (halves[0].norm() * halves[1].norm()))
    assert found.attrs["halves_cosine"] == pytest.approx(cosine, abs=1e-5)


def test_rules_and_the_token_view_read_them(study):
    found = ts.learning_values(study, tiny_policy(), progress=False)
    credit = ts.assign_credit(study, ["uniform", "vcore"])
    weight = credit["weight"].sel(rule="vcore").values
    assert np.isfinite(weight).all()
    assert np.ptp(weight) > 0
    kept = study.archive().read("/stats/learning_value")
    np.testing.assert_array_equal(kept["learning_value"], found["learning_value"])


def test_without_them_a_rule_says_who_supplies_them(tmp_path):
    with pytest.raises(StatisticsError, match=r"`tokensense.learning_values`"):
        ts.assign_credit(scored_study(tmp_path, limit=4), ["vcore"])


def test_values_from_before_an_append_are_asked_for_again(tmp_path):
    grown = scored_study(tmp_path, limit=4)
    ts.learning_values(grown, tiny_policy(), progress=False)
    more = tmp_path / "more.jsonl"
    lines = (tmp_path / "traces.jsonl").read_text("utf-8").splitlines()
    more.write_text("\n".join(lines[-4:]), "utf-8")
    grown.ingest(more, format="jsonl", policy=tiny_policy(), fields=FIELDS, append=True)
    grown.probe(tiny_policy(), ["neutral"], frames=1, progress=False)
    with pytest.raises(StatisticsError, match=r"`tokensense.learning_values`"):
        ts.assign_credit(grown, ["vcore"])
    found = ts.learning_values(grown, tiny_policy(), progress=False)
    assert found.sizes["token"] == grown.tokens().sizes["token"]
    assert np.isfinite(ts.assign_credit(grown, ["vcore"])["weight"].values).all()


def test_halves_without_contrast_and_other_policies_are_refused(study, tmp_path):
    with pytest.raises(StoreError, match="need the policy that scored"):
        ts.learning_values(study, tiny_policy(seed=5), progress=False)
    with pytest.raises(StatisticsError, match="one half has none"):
        ts.learning_values(scored_study(tmp_path, limit=1), tiny_policy(), progress=False)


def test_the_command_says_how_far_both_halves_agree(study):
    model = str(study.path.parent / "policy")
    ran = CliRunner().invoke(app, ["values", str(study.path), "--model", model, "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert set(told) == {"n_tokens", "n_problems", "halves_cosine"}
    assert -1 <= told["halves_cosine"] <= 1
