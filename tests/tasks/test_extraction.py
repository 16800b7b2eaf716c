import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.tasks.extraction import final_answer, last_box, outer_markup_removed, plain_number


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\fbox{7}", "7"),
        (r"$\boxed 5$.", "5"),
        (r"\boxed {6}", "6"),
        ("\\boxed{ 8\n}", "8"),
        (r"The answer is 3. \boxed{4}", "4"),
        (r"\boxed{4}. The answer is 3.", "4"),
    ],
)
def test_the_last_box_decides(response, answer):
    assert final_answer(response) == (answer, "boxed", "")


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (r"\boxed{3} or rather \boxed{4", "unterminated box"),
        (r"\boxed{3} or rather \boxed{\frac{4}{5}", "unterminated box"),
        (r"\boxed{3} or rather \boxed{4\}", "unterminated box"),
        (r"\boxed{3} or rather \boxed", "unterminated box"),
        (r"A: 3" + "\n" + r"so \boxed{", "unterminated box"),
        (r"\boxed{3} put it into \boxed{ }", "empty box"),
        ("", "empty response"),
        (" \n\t", "empty response"),
        ("3 + 4 = 7\nA:  ", "answer announced, none given"),
    ],
)
def test_a_cut_or_empty_answer_is_none_and_no_earlier_one_is_taken(response, why):
    assert final_answer(response) == ("", "none", why)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("6 * 3 = 18\nA: 18", "18"),
        ("A: 17\nA: 18\n", "18"),
        ("so\n#### 1,234", "1,234"),
        ("The answer is 18.", "18"),
        ("the answer is: $18$. I hope it is correct.", "18"),
        ("Final Answer: The final answer is $18$. I hope it is correct.", "18"),
        ("**Final Answer:** 18", "18"),
        ("**Answer**: $18 per day.", "$18 per day"),
        ("Answer:\n\n\\[ 18 \\]", "18"),
        (r"The final answer is: \(\frac{1}{2}\).", r"\frac{1}{2}"),
        ("So the answer to the question is 5.", "5"),
        ("Answer: 3.5. Done", "3.5"),
        ("Answer: 34", "34"),
    ],
)
def test_announced_answers(response, answer):
    assert final_answer(response) == (answer, "stated", "")


@pytest.mark.parametrize(
    "response", ["data: 5", "a: 5", "So she has 18 eggs.", "Q: who? A: 5", "answers vary: 3"]
)
def test_what_announces_nothing_leaves_the_last_line(response):
    found = final_answer("first 1\n" + response + "\n\n")
    assert found == (response, "last line", "")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("**$18$**.", "18"),
        (r"\[ x \]", "x"),
        ("$1$ or $2$", "$1$ or $2$"),
        ("$18", "$18"),
        ("...", "..."),
        ("$$", ""),
        ("", ""),
    ],
)
def test_outer_markup(text, bare):
    assert outer_markup_removed(text) == bare


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("007", 7),
        ("-5", -5),
        ("−5", -5),
        ("+ 5", 5),
        ("1,234,567", 1234567),
        (r"1\,234", 1234),
        ("1{,}234", 1234),
        ("1,234.50", Fraction("1234.5")),
        (".5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-3 1/2", Fraction(-7, 2)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        (r"-\dfrac{1}{3}", Fraction(-1, 3)),
        (r"\frac{-1}{3}", Fraction(-1, 3)),
    ],
)
def test_plain_numbers_are_exact(text, value):
    assert plain_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "1,2", "12,34", "1,2345", "1/0", "5.", "1e5", "x", "1 234", r"3\frac{-1}{2}"],
)
def test_other_texts_are_no_plain_number(text):
    assert plain_number(text) is None


@given(st.integers(-(10**20), 10**20))
def test_integers_and_their_thousands_separators_read_back(number):
    assert plain_number(str(number)) == plain_number(f"{number:,}") == number


@given(st.text())
def test_any_text_gives_an_answer_or_a_reason(text):
    found = final_answer(text)
    assert (found.rule == "none") == bool(found.why) == (found.text == "")
    assert last_box(text) is None or found.rule in ("boxed", "none")


@pytest.mark.parametrize(
    "piece",
    [
        "answer is ",
        "\\boxed{",
        "A: ",
        "#",
        "answer to ",
        "\n",
        "*",
        "1 ",
        "a.b ",
        "A. ",
        "$",
        "{",
        "*.",
    ],
)
def test_time_is_linear_in_the_length(piece):
    started = time.process_time()
    for lead in ("", "the answer is ", "A: ", "\\boxed{"):
        final_answer(lead + piece * (200_000 // len(piece)))
    assert time.process_time() - started < 3.0  # a quadratic rule would take minutes
