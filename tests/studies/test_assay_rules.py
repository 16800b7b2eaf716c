from dataclasses import replace

import numpy as np
import pytest
import torch

from studies import assay_rules as study
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Evidence, adjusted
from tokensense.models.policy import load_policy
from tokensense.segments import segment_sum
from tokensense.tasks import tables
from tokensense.tasks.tables_values import prefix_values
from tokensense.trainer.batches import collect
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.evidence import SUPPLIED
from tokensense.trainer.problems import planted


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny:tables")


@pytest.fixture(scope="module")
def batch(policy):
    task = planted("tables", held_out=1, lookups=3, filler_mean=5.0)
    config = TrainConfig(problems=12, group=8, max_new_tokens=96)
    return collect(policy, task, config, step=0)


def chains(batch):
    named = {problem.name: tables.read_chain(problem.question) for problem in batch.problems}
    return [named[trace.problem] for trace in batch.traces]


def test_skills_read_off_the_policy_predict_its_accuracy(policy, batch):
    skills = study.own_skills(policy, lookups=3, chatty=True)
    start = [prefix_values(c, (), facts=study.FACTS, skills=skills)[0] for c in chains(batch)]
    # 96 responses: a standard error of about .05.
    assert np.mean(start) == pytest.approx(batch.reward.mean(), abs=0.15)
    assert np.std(start) > 0.05  # problems differ
    right = np.take_along_axis(skills.answers, study.FACTS.result[..., None], -1)[..., 0]
    weak = study.FACTS.weak
    assert right[~weak].mean() > 0.95
    # Taught with errors of 20 to 60 %, each fact its own.
    assert np.corrcoef(right[weak], 1 - study.FACTS.error[weak])[0, 1] > 0.9


def test_exact_gains_add_up_to_what_the_response_was_worth(policy, batch):
    gains = study.exact_gains(policy, batch.problems, batch.traces)
    skills = study.own_skills(policy, lookups=3, chatty=True)
    start = [prefix_values(c, (), facts=study.FACTS, skills=skills)[0] for c in chains(batch)]
    ended = np.array([trace.ids[-1] == tables.END for trace in batch.traces])
    found = segment_sum(gains, batch.length)[ended]
    np.testing.assert_allclose(found, (batch.reward - start)[ended], atol=1e-9)


def test_gains_by_continuations_are_of_whole_steps_and_add_up(policy, batch):
    problems, traces = batch.problems[:4], batch.traces[:32]
    gains = study.continued_gains(policy, problems, traces)
    first = 0
    for trace in traces:
        own = gains[first : first + len(trace.ids)]
        steps = np.array(trace.token_steps)
        starts = np.flatnonzero(np.diff(steps, prepend=-9))
        same = np.split(own, starts[1:])
        assert all((part == part[0]).all() for part in same)
        # Values are shares of four continuations, and the last is the reward.
        start = trace.reward - sum(part[0] for part in same)
        assert start in (0.0, 0.25, 0.5, 0.75, 1.0)
        first += len(own)
    exact = study.exact_gains(policy, problems, traces)
    bounds = [np.diff(np.array(t.token_steps), prepend=-9) != 0 for t in traces]
    step = np.cumsum(np.concatenate(bounds)) - 1
    of_steps = np.bincount(step, exact)
    estimated = np.array([gains[step == s][0] for s in range(step.max() + 1)])
    assert np.corrcoef(of_steps, estimated)[0, 1] > 0.5


def test_steps_up_to_the_first_error_are_rewarded_and_it_is_punished(batch):
    found = study.first_error(None, batch.problems, batch.traces)
    first = 0
    for trace in batch.traces:
        own = found[first : first + len(trace.ids)]
        assert (own == -1).sum() == (trace.wrong_token >= 0)
        if trace.wrong_token >= 0:
            assert own[trace.wrong_token] == -1
            assert not own[trace.wrong_token + 1 :].any()
        elif trace.reward == 1:
            assert own.sum() == 3  # look-ups
        first += len(own)


def test_a_sibling_stands_as_an_example_before_the_question(policy, batch):
    problems, traces = batch.problems, batch.traces
    found = {side: study.sibling_shift(side)(policy, problems, traces) for side in (1.0, 0.0)}
    bound = np.concatenate([[0], np.cumsum(batch.length)])
    alone = 0
    for place, trace in enumerate(traces):
        others = [t for t in traces if t.problem == trace.problem and t.ids != trace.ids]
        own = slice(bound[place], bound[place + 1])
        if {t.reward for t in others} != {0.0, 1.0}:
            alone += 1
            assert not found[1.0][own].any()
            assert not found[0.0][own].any()
        elif place % 7 == 0:  # plainly, for some
            prompt = batch.prompts[trace.problem]
            for side in (1.0, 0.0):
                first = next(t for t in others if t.reward == side)
                told = plain(policy, (*prompt, *first.ids, *prompt), trace.ids)
                shift = told - plain(policy, prompt, trace.ids)
                np.testing.assert_allclose(found[side][own], shift, atol=1e-4)
    assert 0 < alone < len(traces)


def plain(policy, prompt, response):
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return logp.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()


EVIDENCE = Evidence(
    length=np.array([2, 3]),
    advantage=np.array([1.0, -2.0]),
    z_pos=np.array([1.0, 0.0, 0.5, 0.0, 2.0]),
    z_neg=np.array([0.0, 3.0, 0.5, 1.0, 0.0]),
    placebo_pos=np.array([0.0, 0.1, 0.4, 0.3, 0.0]),
    placebo_neg=np.array([0.2, 0.0, 0.0, 0.0, 0.9]),
    distance=np.array([0.1, 0.9, 0.5, 0.5, 0.9]),
    value_gain=np.array([0.0, 0.0, 0.1, -0.4, 0.1]),
)


def test_the_contrast_weighs_in_proportion_to_what_the_verdicts_disagree_on():
    # |z+ - z-| is 1 3 | 0 1 2: over means 2 and 1.
    found = study.ARMS["contrast"].rule.assign(EVIDENCE)
    assert found.tolist() == pytest.approx([0.5, 1.5, 0.0, -2.0, -4.0])


def test_placebo_arms_read_the_placebo_pair_alone():
    for name, gamma in (("placebo_0.8", 0.8), ("placebo_-1", -1.0)):
        rule = study.ARMS[name].rule
        assert rule.needs == {"placebo_pos", "placebo_neg"}
        swapped = replace(EVIDENCE, z_pos=EVIDENCE.placebo_pos, z_neg=EVIDENCE.placebo_neg)
        cscr = adjusted(CATALOGUE["cscr"], gamma=gamma, quantile=0.8)
        np.testing.assert_array_equal(rule.assign(EVIDENCE), cscr.assign(swapped))
        assert not np.array_equal(rule.assign(EVIDENCE), cscr.assign(EVIDENCE))


def test_optimal_weights_on_values_prefer_tokens_that_changed_them():
    found = study.ARMS["optw_value"].rule.assign(EVIDENCE)
    assert found[:2].sum() == pytest.approx(2.0)  # as much as uniform gives
    assert found[2:].sum() == pytest.approx(-6.0)
    assert found.argmin() == 3


def test_arms_say_what_they_may_do():
    for name, arm in study.ARMS.items():
        assert arm.rule.needs <= SUPPLIED | {"planted", *arm.told}, name
        assert arm.signed == (name in ("oracle_value", "oracle_step", "sd_grpo", "vine"))
        if arm.rule.needs <= set(EVIDENCE.given()) and not arm.signed:
            credit = arm.rule.assign(EVIDENCE)
            assert (credit[:2] >= 0).all(), name
            assert (credit[2:] <= 0).all(), name


def test_rules_that_the_policy_cannot_be_told_what_they_need_for_are_said(policy):
    rows = study.refusals(policy, TrainConfig())
    assert [row["rule"] for row in rows] == ["rlsd", "cepo", "gcpo", "sibling"]
    assert all(len(str(row["reason"])) > 20 for row in rows)
