import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.errors import InputError, SchemaError
from tokensense.tasks.tables import (
    FILLERS,
    FIRST_DIGIT,
    FIRST_FILLER,
    FIRST_INDEX,
    FIRST_TABLE,
    ID,
    MIXTURE,
    PLACEBO_TAGS,
    REGIMES,
    TABLES,
    VOCABULARY,
    Chain,
    Regime,
    Tag,
    answer,
    as_problem,
    decode,
    draw_chains,
    encode,
    plant_facts,
    prompt,
    question,
    read_chain,
)

# Parts, not chains: the type checks of the tests draw random numbers, which strategies must not.
PARTS = st.tuples(
    st.integers(0, 9), st.lists(st.integers(0, 7), min_size=1, max_size=12), st.booleans()
)


def world(seed=0, **dials):
    return plant_facts(Regime(**dials), np.random.default_rng(seed))


def test_the_vocabulary_is_fixed():
    # Ids in a shipped tokenizer and policy: a change here makes those useless.
    digest = hashlib.sha256("\n".join(VOCABULARY).encode()).hexdigest()
    assert digest == "728358ab38803a7d9d3382ac4caa0c0431585b5839e4dd9cb332258d21f2c43f"
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 7 + 2 + 11 + 10 + 8 + 12 + 96 + 24
    assert not any(any(blank in word for blank in " \n\t") for word in VOCABULARY)


def test_runs_of_words_begin_where_they_say():
    assert [ID["9"], ID["o7"], ID["I_11"]] == [FIRST_DIGIT + 9, FIRST_TABLE + 7, FIRST_INDEX + 11]
    assert VOCABULARY[FIRST_FILLER:] == FILLERS


def test_regimes_are_those_of_the_notes():
    sizes = {name: (r.lookups, r.filler_mean) for name, r in REGIMES.items()}
    assert sizes == {"A": (8, 5.0), "B": (8, 0.0), "C": (3, 0.0), "D": (12, 5.0)}
    assert {(r.lookups, r.filler_mean) for r in MIXTURE} == {
        (lookups, mean) for lookups in (3, 6, 8, 12) for mean in (0.0, 5.0)
    }
    # Nothing but length and fillers differs.
    assert {replace(r, lookups=8, filler_mean=5.0) for r in [*REGIMES.values(), *MIXTURE]} == {
        Regime()
    }


@pytest.mark.parametrize(
    ("dials", "named"),
    [
        ({"lookups": 0}, "lookups"),
        ({"lookups": 13}, "lookups"),
        ({"filler_mean": -1.0}, "filler_mean"),
        ({"filler_mean": float("nan")}, "filler_mean"),
        ({"tag_truth": 1.5}, "tag_truth"),
        ({"redrawn_share": -0.1}, "redrawn_share"),
        ({"weak_error_low": 0.7}, "weak_error_low"),
        ({"placebo_share": 0.6, "neutral_share": 0.5}, "neutral_share"),
    ],
)
def test_dials_out_of_range_are_refused(dials, named):
    with pytest.raises(SchemaError, match=f"`{named}` needs a value in"):
        Regime(**dials)


def test_every_table_is_a_permutation():
    assert (np.sort(world().result, axis=1) == np.arange(10)).all()


def test_forty_facts_are_weak_and_taught_with_errors():
    facts = world()
    assert facts.weak.sum() == 40
    assert set(facts.error[~facts.weak].tolist()) == {0.02}
    weak = facts.error[facts.weak]
    assert ((weak >= 0.2) & (weak <= 0.6)).all()
    assert np.ptp(weak) > 0.2  # drawn one by one


def test_weak_share_and_errors_follow_the_dials():
    facts = world(weak_share=0.25, mastered_error=0.0, weak_error_low=0.3, weak_error_high=0.3)
    assert facts.weak.sum() == 20
    assert np.array_equal(facts.error, np.where(facts.weak, 0.3, 0.0))


def test_most_errors_are_one_digit_and_the_rest_uniform():
    facts = world(misconception_share=0.8)
    assert (facts.misconception != facts.result).all()
    for table, digit in np.ndindex(facts.result.shape):
        row = np.full(10, 0.2 / 8)
        row[facts.misconception[table, digit]] = 0.8
        row[facts.result[table, digit]] = 0.0
        np.testing.assert_allclose(facts.wrong[table, digit], row, atol=1e-15)


def test_misconceptions_are_any_of_the_nine_other_digits():
    facts = world()
    assert set(((facts.misconception - facts.result) % 10).ravel().tolist()) == set(range(1, 10))


def test_answers_are_right_with_the_taught_probability():
    facts = world()
    answers = facts.answers()
    np.testing.assert_allclose(answers.sum(axis=-1), 1.0, atol=1e-14)
    for table, digit in np.ndindex(facts.result.shape):
        error = facts.error[table, digit]
        row = answers[table, digit]
        assert row[facts.result[table, digit]] == pytest.approx(1 - error)
        assert row[facts.misconception[table, digit]] == pytest.approx(0.8 * error)


def test_answers_take_other_skills():
    facts = world()
    right = np.random.default_rng(1).uniform(size=(8, 10))
    answers = facts.answers(right)
    found = np.take_along_axis(answers, facts.result[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found, right)
    np.testing.assert_allclose(answers.sum(axis=-1), 1.0)


@pytest.mark.parametrize(
    "right", [np.full((8, 10), 1.1), np.full((8, 10), np.nan), np.ones((8, 9))]
)
def test_skills_that_are_no_probabilities_are_refused(right):
    with pytest.raises(SchemaError, match="`right` needs one probability"):
        world().answers(right)


def test_regimes_of_one_seed_share_the_world():
    worlds = [plant_facts(regime, np.random.default_rng(3)) for regime in REGIMES.values()]
    for name in ("result", "weak", "error", "misconception", "wrong"):
        assert all(np.array_equal(getattr(worlds[0], name), getattr(w, name)) for w in worlds)
    assert not np.array_equal(worlds[0].result, world(seed=4).result)


def test_chains_are_uniform_and_repeat_with_the_seed():
    chains = draw_chains(REGIMES["A"], count=2000, generator=np.random.default_rng(5))
    assert chains == draw_chains(REGIMES["A"], count=2000, generator=np.random.default_rng(5))
    assert chains != draw_chains(REGIMES["A"], count=2000, generator=np.random.default_rng(6))
    assert {(len(chain.tables), chain.chatty) for chain in chains} == {(8, True)}
    starts = np.bincount([chain.start for chain in chains])
    tables = np.bincount([table for chain in chains for table in chain.tables])
    # Five standard deviations of binomial counts.
    assert (abs(starts - 200) < 5 * (2000 * 0.1 * 0.9) ** 0.5).all()
    assert (abs(tables - 2000) < 5 * (16000 * 0.125 * 0.875) ** 0.5).all()


def test_distinct_chains_are_distinct_up_to_the_last_one():
    regime = Regime(lookups=1, filler_mean=0.0)
    chains = draw_chains(regime, count=80, generator=np.random.default_rng(0), distinct=True)
    assert len(set(chains)) == 80
    with pytest.raises(SchemaError, match=r"`count` needs a value in \[0, 80\]; it is 81"):
        draw_chains(regime, count=81, generator=np.random.default_rng(0), distinct=True)
    repeated = draw_chains(regime, count=81, generator=np.random.default_rng(0))
    assert len(repeated) == 81


def test_the_answer_is_the_last_of_the_look_ups():
    facts = world()
    assert answer(Chain(3, (1,), False), facts) == facts.result[1, 3]
    assert (
        answer(Chain(3, (1, 5, 1), False), facts)
        == (facts.result[1, facts.result[5, facts.result[1, 3]]])
    )


def test_a_prompt_is_the_question_with_a_tag_of_one_token():
    chain = Chain(7, (0, 4, 2), chatty=False)
    assert question(chain) == "q 7 F0 P0_o0 P1_o4 P2_o2"
    assert decode(prompt(chain)) == "q 7 F0 P0_o0 P1_o4 P2_o2 ?"
    assert decode(prompt(chain, Tag.RIGHT)) == "q 7 F0 P0_o0 P1_o4 P2_o2 R ?"
    assert decode(prompt(chain, Tag.WRONG)) == "q 7 F0 P0_o0 P1_o4 P2_o2 W ?"
    assert decode(prompt(chain, Tag.NEUTRAL)) == "q 7 F0 P0_o0 P1_o4 P2_o2 N ?"
    assert tuple("ABDELMYZ") == PLACEBO_TAGS
    assert {len(prompt(chain, tag)) for tag in Tag} == {7, 8}


@given(PARTS)
def test_a_question_is_read_back(parts):
    start, tables, chatty = parts
    chain = Chain(start, tuple(tables), chatty)
    assert read_chain(question(chain)) == chain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "q 3 F2",
        "q 3 F1 P0_o1",
        "q 3 F2 P0_o1 ?",
        "q 3 F2 P0_o1 N",
        "q 3 F2 P1_o1",
        "q 3 F2 P0_o8",
        "q 10 F2 P0_o1",
        "q ٣ F2 P0_o1",
        "q 3 F2 P0_o01",
        "q 3 F2 P0_o",
        "q 3 F2 " + " ".join(f"P{j}_o1" for j in range(13)),
    ],
)
def test_what_is_no_question_is_refused(text):
    with pytest.raises(InputError, match="a question such as"):
        read_chain(text)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    with pytest.raises(InputError):
        read_chain(text)


@pytest.mark.parametrize(
    ("start", "tables"), [(10, (1,)), (-1, (1,)), (0, ()), (0, (8,)), (0, (-1,)), (0, (0,) * 13)]
)
def test_chains_without_words_are_refused(start, tables):
    with pytest.raises(SchemaError, match="needs a value in"):
        Chain(start, tables, False)


def test_a_problem_names_its_chain_and_answer():
    facts, chain = world(), Chain(3, (1, 5), True)
    problem = as_problem(chain, facts)
    assert problem.question == "q 3 F2 P0_o1 P1_o5"
    assert problem.answer == str(facts.result[5, facts.result[1, 3]])
    assert (problem.name, problem.source) == ("tables-3-15-F2", "tables")
    assert as_problem(replace(chain, chatty=False), facts).name == "tables-3-15-F0"


def test_words_are_ids_and_back():
    assert encode("I_0 o1 3 = 7 <eos>") == (
        FIRST_INDEX,
        FIRST_TABLE + 1,
        FIRST_DIGIT + 3,
        ID["="],
        FIRST_DIGIT + 7,
        ID["<eos>"],
    )
    assert decode(range(len(VOCABULARY))) == " ".join(VOCABULARY)
    assert decode([-1, len(VOCABULARY)]) == f"<-1> <{len(VOCABULARY)}>"
    with pytest.raises(InputError, match=r"\['foo', 'bar'\] came"):
        encode("I_0 foo = bar")


def test_there_are_as_many_tables_as_words_for_them():
    assert world().result.shape == (TABLES, 10)
