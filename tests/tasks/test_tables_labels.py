import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.schema import Kind
from tokensense.tasks.tables import (
    END,
    FILLERS,
    ID,
    REGIMES,
    VOCABULARY,
    Chain,
    Facts,
    Regime,
    Tag,
    answer,
    draw_chains,
    encode,
    plant_facts,
)
from tokensense.tasks.tables_examples import draw_examples
from tokensense.tasks.tables_labels import Slot, expected, follow, label, verify

# A world that can be worked out by hand: table t adds t + 1, modulo 10.
TABLE, DIGIT = np.mgrid[0:8, 0:10]
PLUS = Facts(
    result=(DIGIT + TABLE + 1) % 10,
    weak=np.zeros((8, 10), dtype=bool),
    error=np.full((8, 10), 0.1),
    misconception=(DIGIT + TABLE + 2) % 10,
    wrong=np.eye(10)[(DIGIT + TABLE + 2) % 10],
)
CHAIN = Chain(3, (1, 4), chatty=True)  # 3 + 2 = 5, 5 + 5 = 0
RIGHT = "I_0 o1 3 = 5 I_1 o4 5 = 0 ans 0 <eos>"
NEVER = -1


def labels(text, chain=CHAIN):
    return label(chain, encode(text), facts=PLUS)


def test_every_token_of_a_right_trace():
    found = labels("I_0 o1 3 = 5 well so I_1 o4 5 = 0 hence ans 0 <eos>")
    kinds = [Kind(k).name for k in found.kind]
    step = ["FORMAT", "OPERATOR", "CARRIED_DIGIT", "OPERATOR", "COMPUTED_DIGIT"]
    assert kinds == [
        *step,
        *("DISCOURSE", "DISCOURSE"),
        *step,
        "DISCOURSE",
        *("FORMAT", "FINAL_ANSWER", "FORMAT"),
    ]
    assert found.core.tolist() == [kind != "DISCOURSE" for kind in kinds]
    assert found.step.tolist() == [0] * 7 + [1] * 6 + [-1] * 3
    assert [Slot(s).name for s in found.slot] == [
        *("INDEX", "TABLE", "OPERAND", "EQUALS", "RESULT", "INDEX", "INDEX"),
        *("INDEX", "TABLE", "OPERAND", "EQUALS", "RESULT", "INDEX"),
        *("INDEX", "FINAL", "END"),
    ]
    assert not found.wrong.any()
    assert (found.first_wrong, found.reward, found.lucky, found.ended) == (NEVER, 1, False, True)


@pytest.mark.parametrize(
    ("text", "wrong", "reward"),
    [
        pytest.param(RIGHT, [], 1, id="right"),
        pytest.param("I_0 o1 3 = 6 I_1 o4 6 = 1 ans 1 <eos>", [4], 0, id="carried on"),
        pytest.param("I_0 o1 3 = 6 I_1 o4 6 = 0 ans 0 <eos>", [4, 9], 1, id="led back: luck"),
        pytest.param("I_0 o1 3 = 6 I_1 o4 5 = 0 ans 0 <eos>", [4, 7], 1, id="copy leads back"),
        pytest.param("I_0 o1 4 = 6 I_1 o4 6 = 1 ans 1 <eos>", [2], 0, id="wrong copy"),
        pytest.param("I_0 o2 3 = 6 I_1 o4 6 = 1 ans 1 <eos>", [1], 0, id="another table"),
        pytest.param("I_0 o2 3 = 5 I_1 o4 5 = 0 ans 0 <eos>", [1, 4], 1, id="and its result"),
        pytest.param("I_1 o4 3 = 8 ans 8 <eos>", [0], 0, id="a step left out"),
        pytest.param("I_0 o1 3 = 5 I_0 o1 5 = 7 I_1 o4 7 = 2 ans 2 <eos>", [5], 0, id="repeated"),
        pytest.param("I_0 o1 3 = 5 ans 5 <eos>", [5], 0, id="too early"),
        pytest.param("I_0 o1 3 = 5 ans 0 <eos>", [5, 6], 1, id="too early, guessed"),
        pytest.param("I_0 o1 3 = 5 I_1 o4 5 = 0 ans 1 <eos>", [11], 0, id="wrong answer"),
        pytest.param("I_0 o1 3 = 5 I_1 o4 5 = 1 ans 0 <eos>", [9, 11], 1, id="wrong copy, right"),
        pytest.param("I_0 o1 3 = 5 I_1 o4 5 = 0 I_1 o4 0 = 5 ans 5 <eos>", [10], 0, id="too long"),
        pytest.param("I_0 o1 3 = 5 <eos>", [5], 0, id="end too early"),
        pytest.param("<eos>", [0], 0, id="end at once"),
        # Broken: nothing after is judged, and nothing is paid.
        pytest.param("I_0 o1 3 = 5 I_2 o4 5 = 0 ans 0 <eos>", [5], 0, id="no such step"),
        pytest.param("I_0 3 o1 = 5 I_1 o4 5 = 0 ans 0 <eos>", [1], 0, id="wrong order"),
        pytest.param("I_0 o1 3 = = 5 I_1 o4 5 = 0 ans 0 <eos>", [4], 0, id="twice"),
        pytest.param("q I_0 o1 3 = 5 I_1 o4 5 = 0 ans 0 <eos>", [0], 0, id="word of the prompt"),
        pytest.param("I_0 o1 3 = 5 I_1 o4 5 = 0 ans 0 ans 0 <eos>", [12], 0, id="two answers"),
        pytest.param("5 5 5", [0], 0, id="digits"),
    ],
)
def test_wrong_decisions_and_reward(text, wrong, reward):
    found = labels(text)
    assert np.flatnonzero(found.wrong).tolist() == wrong
    assert found.first_wrong == (wrong[0] if wrong else NEVER)
    assert found.reward == reward == verify(CHAIN, encode(text), facts=PLUS)
    assert found.lucky == (reward == 1 and bool(wrong))
    assert found.ended == ("<eos>" in text)


@pytest.mark.parametrize("cut", range(13))
def test_a_response_that_was_cut_off_earns_nothing(cut):
    found = label(CHAIN, encode(RIGHT)[:cut], facts=PLUS)
    assert (found.reward, found.ended, found.first_wrong) == (0, False, NEVER)
    assert len(found.kind) == cut


def test_fillers_anywhere_change_nothing():
    words = RIGHT.split()
    text = " ".join(f"{filler} {word}" for filler, word in zip(FILLERS, words, strict=False))
    found, plain = labels(text), labels(RIGHT)
    assert found.core.tolist() == [False, True] * 13
    for name in ("kind", "slot", "wrong"):
        assert getattr(found, name)[1::2].tolist() == getattr(plain, name).tolist()
    assert set(found.kind[::2].tolist()) == {Kind.DISCOURSE}
    assert (found.reward, found.first_wrong) == (1, NEVER)
    assert found.step[:3].tolist() == [-1, 0, 0]


def test_what_follows_the_end_is_not_read():
    found, plain = labels(f"{RIGHT} I_0 3 well <eos>"), labels(RIGHT)
    n = len(RIGHT.split())
    for name in ("kind", "slot", "core", "wrong", "step"):
        assert getattr(found, name)[:n].tolist() == getattr(plain, name).tolist()
    assert set(found.kind[n:].tolist()) == {Kind.OTHER}
    assert not found.core[n:].any()
    assert found.step[n:].tolist() == [-1] * 4
    assert found.reward == 1


def test_kinds_after_a_break_follow_from_the_token_before():
    found = labels("I_0 = = 5 5 ans 3 well P0_o1 o2 I_11 <pad>")
    assert [Kind(k).name for k in found.kind] == [
        *("FORMAT", "OPERATOR", "OPERATOR", "COMPUTED_DIGIT", "CARRIED_DIGIT", "FORMAT"),
        *("FINAL_ANSWER", "DISCOURSE", "OTHER", "OPERATOR", "FORMAT", "OTHER"),
    ]
    assert found.step.tolist() == [0] + [-1] * 11
    assert np.flatnonzero(found.wrong).tolist() == [1]


def test_a_step_left_out_goes_on_from_there():
    chain = Chain(3, (1, 4, 2), chatty=False)
    found = labels("I_0 o1 3 = 5 I_2 o2 5 = 8 ans 8 <eos>", chain)
    assert np.flatnonzero(found.wrong).tolist() == [5]
    assert found.step.tolist() == [0] * 5 + [2] * 5 + [-1] * 3


def test_an_empty_response_is_labelled():
    found = label(CHAIN, (), facts=PLUS)
    assert [len(found.kind), found.first_wrong, found.reward, found.ended] == [0, NEVER, 0, False]
    assert len(follow(CHAIN, ())) == 1


@pytest.mark.parametrize("name", ["A", "C"])
def test_labels_agree_with_how_taught_traces_were_drawn(name):
    regime = REGIMES[name]
    generator = np.random.default_rng(0)
    facts = plant_facts(regime, generator)
    chains = draw_chains(regime, count=40, generator=generator)
    lucky = 0
    for example in draw_examples(facts, regime, chains=chains, generator=generator):
        found = label(example.chain, example.response, facts=facts)
        assert found.reward == example.right
        assert set(found.slot[found.wrong].tolist()) <= {Slot.RESULT}
        assert (found.kind == Kind.COMPUTED_DIGIT).sum() == regime.lookups
        assert (found.kind == Kind.CARRIED_DIGIT).sum() == regime.lookups
        assert found.core.sum() == 5 * regime.lookups + 3
        if not found.wrong.any():
            assert found.reward == 1
        lucky += found.lucky
        # The result digits themselves, looked up again.
        results = [t for t, k in zip(example.response, found.kind, strict=True) if k == 2]
        before = [example.chain.start, *(r - ID["0"] for r in results)]
        wrong = [
            facts.result[table, digit] != result - ID["0"]
            for table, digit, result in zip(example.chain.tables, before, results, strict=False)
        ]
        assert found.wrong[found.kind == Kind.COMPUTED_DIGIT].tolist() == wrong
    assert name == "C" or lucky > 0


# Any ids, and traces that are nearly right, which uniform ids never are.
IDS = st.integers(0, len(VOCABULARY) - 1)
ANY = st.lists(st.one_of(IDS, st.integers(-(2**40), 2**40)), max_size=40)
CORE = st.sampled_from(encode("I_0 I_1 o1 o4 3 5 0 = ans <eos> well"))
EDITS = st.lists(st.tuples(st.integers(0, 12), st.booleans(), CORE), max_size=5)


RIGHT_IDS = encode(RIGHT)  # not in the strategy: the type checks draw random numbers


def edited(edits):
    tokens = list(RIGHT_IDS)
    for place, replaces, token in edits:
        tokens[place : place + replaces] = [token]
    return tokens


@given(st.one_of(ANY, st.lists(CORE, max_size=30), EDITS.map(edited)))
def test_any_sequence_is_labelled(tokens):
    found = label(CHAIN, tokens, facts=PLUS)
    n = len(tokens)
    assert {len(array) for array in found[:5]} == {n}
    assert found.ended == (END in tokens)
    stop = tokens.index(END) + 1 if END in tokens else n
    is_filler = [0 <= token - ID[FILLERS[0]] < len(FILLERS) for token in tokens]
    assert found.core.tolist() == [i < stop and not is_filler[i] for i in range(n)]
    assert not (found.wrong & ~found.core).any()
    core = [token for token, is_core in zip(tokens, found.core, strict=True) if is_core]
    right = list(encode(RIGHT))
    # The first wrong decision is the first deviation from the one right response.
    if found.first_wrong == NEVER:
        assert core == right[: len(core)]
    else:
        number = int(found.core[: found.first_wrong].sum())
        assert core[:number] == right[:number]
        assert core[number : number + 1] != right[number : number + 1]
    if found.reward:
        assert core[-3:] == right[-3:]
    assert found.lucky == (found.reward == 1 and core != right)


def test_what_is_expected_at_the_end_is_nothing():
    states = follow(CHAIN, encode(RIGHT))
    assert expected(states[-1], CHAIN, PLUS) == -1
    assert expected(follow(CHAIN, encode("ans ans"))[-1], CHAIN, PLUS) == -1
    assert [expected(state, CHAIN, PLUS) for state in states[:-1]] == list(encode(RIGHT))


def test_labels_hold_for_traces_that_a_tag_introduced():
    # The tag belongs to the prompt, so it never reaches the labels.
    regime = Regime(tagged_share=1.0)
    generator = np.random.default_rng(2)
    facts = plant_facts(regime, generator)
    chains = draw_chains(regime, count=20, generator=generator)
    for example in draw_examples(facts, regime, chains=chains, generator=generator):
        assert example.tag != Tag.NONE
        reward = verify(example.chain, example.response, facts=facts)
        last = example.response[-2] - ID["0"]
        assert reward == example.right == (last == answer(example.chain, facts))
