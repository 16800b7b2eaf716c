import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokensense.errors import InputError, SchemaError
from tokensense.tasks.arithmetic import (
    DIGITS,
    VOCABULARY,
    Chain,
    Chains,
    Step,
    draw_chain,
    parse,
    problems,
    solve,
    uniforms,
)
from tokensense.tasks.problem import Merged, merge

EXAMPLE = Chain((12, 7, 3, 2), ("+", "*", "-"))  # 12 + 7 * 3 - 2


SKILLS = [(0.35, 0.35, 0.3), (1.0, 0.0, 0.0), (0.0, 1.0, 5.0), (1.0, 1.0, 0.0)]


@st.composite
def settings_of_chains(draw):
    """Arguments of `Chains`: any permitted sizes."""
    low = draw(st.integers(1, 60))
    term, factor = draw(st.integers(1, 40)), draw(st.integers(2, 9))
    return {
        "operations": (low, draw(st.integers(low, 60))),
        "terms": (term, draw(st.integers(term, 40))),
        "factors": (factor, draw(st.integers(factor, 9))),
        "left_factor": draw(st.integers(1, 49)),
        "skills": draw(st.sampled_from(SKILLS)),
    }


def drawn(chains, seed, count=1):
    rng = np.random.default_rng(seed)
    return [draw_chain(uniforms(rng, chains.draws), chains) for _ in range(count)]


def plain_steps(question):
    """Rewrite the text: the first product, else the first sum, until one number is left."""
    text, steps = question.replace(" ", ""), []
    while not text.isdigit():
        found = re.search(r"(\d+)(\*)(\d+)", text) or re.search(r"(\d+)([+-])(\d+)", text)
        result = eval(found[0])  # digits and one operator
        steps.append(Step(int(found[1]), found[2], int(found[3]), result))
        text = text[: found.start()] + str(result) + text[found.end() :]
    return steps


def test_the_vocabulary_has_73_distinct_words_and_one_token_a_digit():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 73
    assert all(word and not re.search(r"\s", word) for word in VOCABULARY)
    assert [word for word in VOCABULARY if any(c.isdigit() for c in word)] == list(DIGITS)


def test_a_question_is_words_and_its_solution_takes_products_first():
    assert EXAMPLE.question == "1 2 + 7 * 3 - 2"
    assert solve(EXAMPLE) == [(7, "*", 3, 21), (12, "+", 21, 33), (33, "-", 2, 31)]


def test_a_wrong_result_is_carried_on():
    steps = solve(EXAMPLE, wrong_step=0, wrong_result=20)
    assert steps == [(7, "*", 3, 20), (12, "+", 20, 32), (32, "-", 2, 30)]


@settings(max_examples=40)
@given(settings_of_chains(), st.integers(0, 2**32))
def test_chains_have_the_sizes_asked_for_and_stay_in_range(change, seed):
    chains = Chains(**change)
    (chain,) = drawn(chains, seed)
    steps = solve(chain)
    assert steps == plain_steps(chain.question)
    assert steps[-1].result == eval(chain.question.replace(" ", ""))
    assert chains.operations[0] <= len(chain.operators) <= chains.operations[1]
    for number, operator in zip(chain.numbers, ("+", *chain.operators), strict=True):
        low, high = chains.factors if operator == "*" else chains.terms
        assert low <= number <= high
    for left, operator, _, result in steps:
        assert (0 <= result <= 99) if operator == "*" else (2 <= result <= 97)
        assert operator != "*" or left <= chains.left_factor
    assert parse(chain.question) == chain


def test_operations_and_numbers_have_the_shares_asked_for():
    # No products and few numbers to add: the range takes no operation away.
    chains = Chains(operations=(1, 4), terms=(3, 6), skills=(0.75, 0.25, 0.0))
    found = drawn(chains, seed=1, count=1000)
    counts = np.bincount([len(chain.operators) for chain in found], minlength=5)
    # 4 standard errors of a share of 1/4 of 1,000 are .055.
    assert counts[0] == 0
    assert counts[1:] / 1000 == pytest.approx([1 / 4] * 4, abs=0.055)
    numbers = np.bincount([chain.numbers[0] for chain in found])
    assert numbers[3:] / 1000 == pytest.approx([1 / 4] * 4, abs=0.055)
    # A minus that would leave the range is a plus: only after totals below 5.
    later = [o for c in found for o, step in zip(c.operators, solve(c), strict=True) if step[0] > 7]
    assert later.count("+") / len(later) == pytest.approx(0.75, abs=4 * 0.43 / len(later) ** 0.5)


@pytest.mark.parametrize(("operations", "count"), [((2, 4), 300), ((60, 60), 30)])
def test_about_the_share_of_products_asked_for(operations, count):
    found = drawn(Chains(operations=operations), seed=2, count=count)
    operators = [operator for chain in found for operator in chain.operators]
    assert 0.22 < operators.count("*") / len(operators) < 0.3
    assert 0.3 < operators.count("-") / len(operators) < 0.4


@pytest.mark.parametrize(
    "question",
    [
        "",
        "?",
        "5",
        "1 2 + 7 ?",
        "1 2 + 7 verdict right",
        "1 2 +",
        "+ 3",
        "1 + + 2",
        "0 1 + 2",
        "1 0 0 - 2",
        "12 + 3",
        "1 : 2",
        "1 + 2 <eos>",
        "٣ + 2",
    ],
)
def test_a_text_that_is_no_question_is_refused(question):
    with pytest.raises(InputError, match=r"'1 2 \+ 7 \* 3' is needed; .* came"):
        parse(question)


@pytest.mark.parametrize(("question", "reached"), [("5 0 + 5 0", 100), ("3 - 4 + 9", -1)])
def test_a_question_that_leaves_the_range_is_refused(question, reached):
    with pytest.raises(InputError, match=rf"0..99 is needed; .* reaches {reached}\."):
        parse(question)


def test_the_ends_of_the_range_are_allowed():
    assert parse("9 9 - 9 9 + 0") == Chain((99, 99, 0), ("-", "+"))


@given(st.lists(st.sampled_from([*VOCABULARY, "12", "-3", "", " "])))
def test_any_text_is_a_question_or_an_input_error(words):
    text = " ".join(words)
    try:
        chain = parse(text)
    except InputError:
        return
    assert chain.question == " ".join(text.split())


def test_problems_are_distinct_and_the_same_for_the_same_seed():
    found = problems(np.random.default_rng(5), count=100, chains=Chains(operations=(1, 2)))
    assert merge(found) == Merged(found, 0, [])
    again = problems(np.random.default_rng(5), count=150, chains=Chains(operations=(1, 2)))
    assert again[:100] == found
    assert found[7].name == "arithmetic-7"
    assert {problem.source for problem in found} == {"arithmetic"}
    assert all(int(p.answer) == plain_steps(p.question)[-1].result for p in found)


def test_more_problems_than_there_are_is_an_error_not_a_long_wait():
    # 2 numbers of 1..2 each: 1+1, 1+2, 2+1, 2+2; nothing can be taken from 1 or 2 with 2 left.
    few = Chains(operations=(1, 1), terms=(1, 2), skills=(1.0, 0.0, 0.0))
    assert len(problems(np.random.default_rng(0), count=4, chains=few)) == 4
    with pytest.raises(InputError, match=r"5 distinct questions are needed; .* gave 4"):
        problems(np.random.default_rng(0), count=5, chains=few)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operations": (0, 4)}, r"`operations\[0\]` needs a value in \[1, 60\]; it is 0"),
        ({"operations": (4, 3)}, r"`operations\[1\]` needs a value in \[4, 60\]; it is 3"),
        ({"operations": (4, 61)}, r"`operations\[1\]`"),
        ({"terms": (0, 20)}, r"`terms\[0\]`"),
        ({"factors": (2, 10)}, r"`factors\[1\]`"),
        ({"left_factor": 0}, "`left_factor`"),
        ({"error_rate": float("nan")}, "`error_rate`"),
        ({"fillers": (0.1, 0.96)}, "`fillers`"),
        ({"fillers": ()}, "a chance in `fillers`"),
        ({"skills": (0.0, 0.0, 1.0)}, r"some weight on `\+` or `-`"),
        ({"skills": (-1.0, 2.0, 1.0)}, "`skills`"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(SchemaError, match=message):
        Chains(**change)


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_a_chain_moves_the_generator_by_the_same_amount_whatever_it_is(seed):
    chains = Chains(operations=(1, 9))
    _, second = drawn(chains, seed, count=2)
    rng = np.random.default_rng(seed)
    rng.random(chains.draws)
    assert draw_chain(uniforms(rng, chains.draws), chains) == second
