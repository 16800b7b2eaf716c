import numpy as np
import pytest

from tokensense.errors import SchemaError
from tokensense.tasks.tables import (
    FILLERS,
    PLACEBO_TAGS,
    REGIMES,
    STYLE_WORDS,
    VERDICT_TAGS,
    Chain,
    Regime,
    Tag,
    answer,
    decode,
    draw_chains,
    plant_facts,
)
from tokensense.tasks.tables_examples import draw_examples

FACTS = plant_facts(REGIMES["A"], np.random.default_rng(0))


def drawn(regime, count=3000, seed=1):
    generator = np.random.default_rng(seed)
    chains = draw_chains(regime, count=count, generator=generator)
    return draw_examples(FACTS, regime, chains=chains, generator=generator)


def core_words(example):
    return [word for word in decode(example.response).split() if word not in FILLERS]


def share_is(found, expected):
    """Is the share of a 0/1 sample within five standard errors of what it should be?"""
    found = np.asarray(found, dtype=float)
    return abs(found.mean() - expected) <= 5 * (expected * (1 - expected) / len(found)) ** 0.5


def test_a_trace_reads_as_the_notes_say():
    facts = plant_facts(
        Regime(mastered_error=0.0, weak_share=0.0), np.random.default_rng(0)
    )  # no error can be made
    chain = Chain(3, (1, 5), chatty=False)
    (example,) = draw_examples(
        facts, Regime(filler_mean=0.0), chains=[chain], generator=np.random.default_rng(0)
    )
    first = facts.result[1, 3]
    second = facts.result[5, first]
    assert decode(example.response) == (
        f"I_0 o1 3 = {first} I_1 o5 {first} = {second} ans {second} <eos>"
    )
    assert example.right


@pytest.fixture(scope="module")
def regime_a():
    return drawn(REGIMES["A"])


def test_results_are_as_good_as_taught_and_carried_on(regime_a):
    right = {True: [], False: []}
    misconceived = []
    for example in regime_a:
        if example.tag != Tag.NONE:
            continue
        words = core_words(example)
        digit = example.chain.start
        for step, table in enumerate(example.chain.tables):
            index, operator, operand, equals, result = words[5 * step : 5 * step + 5]
            assert (index, operator, operand, equals) == (f"I_{step}", f"o{table}", str(digit), "=")
            right[bool(FACTS.weak[table, digit])].append(FACTS.result[table, digit] == int(result))
            if not right[bool(FACTS.weak[table, digit])][-1]:
                misconceived.append(FACTS.misconception[table, digit] == int(result))
            digit = int(result)
        assert words[-3:] == ["ans", str(digit), "<eos>"]
        assert len(words) == 5 * 8 + 3
        assert example.right == (digit == answer(example.chain, FACTS))
    assert share_is(right[False], 0.98)
    # Not every weak fact comes up equally often.
    assert np.mean(right[True]) == pytest.approx(1 - FACTS.error[FACTS.weak].mean(), abs=0.03)
    assert share_is(misconceived, 0.8)


def test_start_accuracy_and_length_are_those_of_the_notes(regime_a):
    untagged = [example for example in regime_a if example.tag == Tag.NONE]
    assert np.mean([example.right for example in untagged]) == pytest.approx(0.20, abs=0.03)
    assert np.mean([len(example.response) for example in regime_a]) == pytest.approx(83, abs=1)


def test_fillers_are_geometric(regime_a):
    counts = []
    for example in regime_a:
        steps = decode(example.response).split(" I_")
        for j, words in enumerate(steps):
            found = sum(word in FILLERS for word in words.split())
            counts.append(found)
            # after the result, in one run
            tail = words.split(" ans ")[0].split() if j == len(steps) - 1 else words.split()
            assert all(word in FILLERS for word in tail[len(tail) - found :])
    counts = np.array(counts)
    for k in range(4):
        assert share_is(counts == k, (1 / 6) * (5 / 6) ** k)
    assert counts.mean() == pytest.approx(5.0, abs=0.15)


def test_tags_agree_with_the_outcome_and_shift_the_style(regime_a):
    judged = [example for example in regime_a if example.tag in VERDICT_TAGS]
    others = [example for example in regime_a if example.tag not in VERDICT_TAGS]
    assert share_is([example.tag != Tag.NONE for example in regime_a], 0.5)
    assert share_is([(example.tag == Tag.RIGHT) == example.right for example in judged], 0.65)
    # Half of them have all look-ups right, the others are right as often as without a tag.
    rate = np.mean([example.right for example in others])
    assert np.mean([example.right for example in judged]) == pytest.approx(
        0.5 + 0.5 * rate, abs=0.05
    )
    for examples, share in ((judged, 0.7), (others, None)):
        words = [
            FILLERS.index(word)
            for example in examples
            for word in decode(example.response).split()
            if word in FILLERS
        ]
        expected = share or STYLE_WORDS / len(FILLERS)
        assert share_is(np.array(words) < STYLE_WORDS, expected)
        assert len(set(words)) == len(FILLERS)
        rest = [word for word in words if word >= STYLE_WORDS]
        assert share_is(np.array(rest) == STYLE_WORDS, 1 / 18)


def test_some_tags_tell_nothing(regime_a):
    tags = [example.tag for example in regime_a]
    assert share_is([tag == Tag.NEUTRAL for tag in tags], 0.05)
    assert share_is([tag in PLACEBO_TAGS for tag in tags], 0.05)
    assert all(share_is([tag == letter for tag in tags], 0.05 / 8) for letter in PLACEBO_TAGS)
    idle = [example.right for example in regime_a if example.tag in (*PLACEBO_TAGS, Tag.NEUTRAL)]
    assert share_is(idle, np.mean([e.right for e in regime_a if e.tag == Tag.NONE]))


def test_mode_f0_has_no_filler():
    for example in drawn(REGIMES["B"], count=50):
        assert core_words(example) == decode(example.response).split()
        assert len(example.response) == 43


def test_the_length_of_regime_c():
    assert {len(example.response) for example in drawn(REGIMES["C"], count=50)} == {18}


def test_dials_at_their_ends():
    judged = {"tagged_share": 1.0, "neutral_share": 0.0, "placebo_share": 0.0}
    always = Regime(tag_truth=1.0, redrawn_share=1.0, style_share=1.0, **judged)
    for example in drawn(always, count=50):
        assert example.right
        assert example.tag == Tag.RIGHT
        fillers = [word for word in decode(example.response).split() if word in FILLERS]
        assert set(fillers) <= set(FILLERS[:STYLE_WORDS])
    never = Regime(tagged_share=0.0, redrawn_share=1.0)
    assert {example.tag for example in drawn(never, count=50)} == {Tag.NONE}
    assert not all(example.right for example in drawn(never, count=50))
    idle = Regime(tagged_share=1.0, neutral_share=0.0, placebo_share=1.0)
    assert {example.tag for example in drawn(idle, count=50)} == set(PLACEBO_TAGS)
    lying = Regime(tag_truth=0.0, **judged)
    assert all((e.tag == Tag.WRONG) == e.right for e in drawn(lying, count=50))


def test_examples_repeat_with_the_seed():
    assert drawn(REGIMES["A"], count=20) == drawn(REGIMES["A"], count=20)
    assert drawn(REGIMES["A"], count=20) != drawn(REGIMES["A"], count=20, seed=2)


def test_no_chain_gives_no_example_and_two_lengths_are_refused():
    generator = np.random.default_rng(0)
    assert draw_examples(FACTS, Regime(), chains=[], generator=generator) == []
    chains = [Chain(0, (1,), False), Chain(0, (1, 2), False)]
    with pytest.raises(SchemaError, match=r"one length are needed; they have \[1, 2\]"):
        draw_examples(FACTS, Regime(), chains=chains, generator=generator)
