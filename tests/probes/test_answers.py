import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import ByteEncoder
from tokensense.probes.answers import with_other_digit, wrong_answer


def found(answer, *responses):
    return wrong_answer(answer, responses, encoder=ByteEncoder())


def test_the_groups_most_frequent_wrong_answer_of_equal_length_is_taken():
    assert found("18", "So it is 12.", "#### 25", r"Thus \boxed{25}", "#### 1234") == "25"
    assert found("18", "#### 31", "#### 25") == "25"  # a tie: the smaller text
    assert found("18", "#### 31", "#### 1234", "#### 1234") == "31"  # 1234 is two tokens longer


def test_a_digit_is_changed_where_the_group_has_no_answer_of_that_length():
    # 8 + 3 is 1, in the place of 8.
    assert found("18") == "11"
    assert found("18", "I do not know.") == "11"
    assert found("18", "#### 1234") == "11"


def test_without_a_digit_the_group_is_what_is_left():
    assert found("x", r"\boxed{yz}") == "yz"
    assert found("x") is None
    assert found("x", "a line without an answer") is None


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("18", "#### 18"),
        ("18", r"\boxed{18.0}"),  # the same number
        ("1,200", "#### 1200"),
        ("x + 1", r"\boxed{x + 1}"),
        ("18", r"\boxed{" + "1" * 41 + "}"),  # no answer, a sentence
    ],
)
def test_what_is_not_wrong_or_not_an_answer_is_not_taken(answer, response):
    assert found(answer, response) == found(answer)


def test_units_and_words_around_a_number_are_left_out():
    assert found("18", "The answer is $25 a day.") == "25"
    assert found("1,250", "#### 1,300 dollars") == "1,300"


@pytest.mark.parametrize(
    ("answer", "first"),
    [("18", "11"), ("7", "4"), ("10", "13"), ("1/7", "1/4"), (r"\frac{3}{4}", r"\frac{3}{7}")],
)
def test_the_last_digit_changes_and_never_to_nought(answer, first):
    others = with_other_digit(answer)
    assert others[0] == first
    assert len(set(others)) == len(others)
    assert not any(other.endswith("0") for other in others)


@given(st.text(max_size=20))
def test_one_digit_changes_and_nothing_else(answer):
    others = with_other_digit(answer)
    digits = [c for c in answer if c in "0123456789"]
    assert len(others) == (0 if not digits else 9 if digits[-1] == "0" else 8)
    for other in others:
        changed = [(a, b) for a, b in zip(answer, other, strict=True) if a != b]
        assert len(changed) == 1
        assert changed[0][0] == digits[-1]
