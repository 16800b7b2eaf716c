"""Planted tasks: what `PLANTED` offers agrees with the labels and verdicts of each task."""

import numpy as np
import pytest

from tokensense.errors import InputError, SchemaError
from tokensense.schema import Kind
from tokensense.tasks import arithmetic_labels, tables, tables_labels
from tokensense.tasks.arithmetic import Chains, solve
from tokensense.tasks.arithmetic import parse as parse_chain
from tokensense.tasks.arithmetic_traces import examples
from tokensense.tasks.planted import PLANTED, tables_task
from tokensense.tasks.tables_examples import draw_examples


@pytest.mark.parametrize("name", PLANTED)
def test_a_seed_gives_the_same_distinct_problems(name):
    first, again, other = (PLANTED[name].problems(40, seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert len({problem.question for problem in first}) == len({p.name for p in first}) == 40


def test_sizes_are_those_of_the_task():
    long = PLANTED["arithmetic"].problems(3, 0, operations=(9, 9))
    assert {len(parse_chain(problem.question).operators) for problem in long} == {9}
    short = PLANTED["tables"].problems(3, 0, lookups=2, filler_mean=0.0)
    chains = [tables.read_chain(problem.question) for problem in short]
    assert {(len(chain.tables), chain.chatty) for chain in chains} == {(2, False)}
    with pytest.raises(SchemaError, match="operations"):
        PLANTED["arithmetic"].problems(3, 0, operations=(0, 2))


def test_arithmetic_is_labelled_as_its_own_module_does():
    for example in examples(np.random.default_rng(0), count=50, chains=Chains()):
        question, words = example.chain.question, example.words
        truth = PLANTED["arithmetic"].label(question, words)
        labels = arithmetic_labels.label(words, question)
        assert truth.kinds == tuple(labels.kind)
        assert truth.steps == tuple(labels.step)
        assert (truth.wrong_token, truth.right) == (labels.wrong_token, labels.right)
        assert truth.wrong_step == labels.wrong_step


def test_tables_are_labelled_in_the_world_of_the_task():
    regime = tables.Regime(lookups=3)
    facts = tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))
    rng = np.random.default_rng(1)
    chains = tables.draw_chains(regime, count=50, generator=rng)
    seen = set()
    for example in draw_examples(facts, regime, chains=chains, generator=rng):
        words = tables.decode(example.response).split()
        question = tables.question(example.chain)
        truth = PLANTED["tables"].label(question, words)
        labels = tables_labels.label(example.chain, example.response, facts=facts)
        assert truth.kinds == tuple(labels.kind)
        assert truth.steps == tuple(labels.step)
        assert (truth.wrong_token, truth.right) == (labels.first_wrong, labels.reward == 1)
        seen.add(truth.right)
    assert seen == {True, False}
    other = [tables_task(world=1).problems(20, 0), PLANTED["tables"].problems(20, 0)]
    assert [p.question for p in other[0]] == [p.question for p in other[1]]
    assert [p.answer for p in other[0]] != [p.answer for p in other[1]]


def test_right_by_luck_is_right_with_a_wrong_token():
    question = "1 2 + 7"
    (step,) = solve(parse_chain(question))
    assert step.result == 19
    words = ["first", "1", "2", "+", "8", "=", "1", "9", ".", "answer", "1", "9", "<eos>"]
    truth = PLANTED["arithmetic"].label(question, words)
    assert truth.right
    assert (truth.wrong_token, truth.wrong_step) == (4, 0)
    assert truth.kinds[6:8] == (Kind.COMPUTED_DIGIT, Kind.COMPUTED_DIGIT)


@pytest.mark.parametrize("name", PLANTED)
def test_words_of_another_world_are_labelled_too_and_are_never_right(name):
    (problem,) = PLANTED[name].problems(1, 0)
    words = ["<unk>", "", "\ufffd", "<eos>", "1"]
    truth = PLANTED[name].label(problem.question, words)
    assert len(truth.kinds) == len(truth.steps) == len(words)
    assert not truth.right
    empty = PLANTED[name].label(problem.question, [])
    assert (empty.kinds, empty.wrong_token, empty.wrong_step, empty.right) == ((), -1, -1, False)


@pytest.mark.parametrize("name", PLANTED)
def test_a_question_of_no_planted_task_is_refused(name):
    with pytest.raises(InputError, match="What is 1"):
        PLANTED[name].label("What is 1 + 1?", ["2", "<eos>"])
