import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.tasks.problem import Problem, merge, question_key


def problem(question, answer="1", name="p"):
    return Problem(name, question, answer)


def test_white_space_and_unicode_form_do_not_make_another_question():
    composed, decomposed = "caf\u00e9  costs\n2", "cafe\u0301 costs 2 "
    assert question_key(composed) == question_key(decomposed)


@pytest.mark.parametrize("other", ["find A", "find a!", "finda", "find ª"])
def test_case_signs_and_compatibility_characters_make_another_question(other):
    assert question_key("find a") != question_key(other)


def test_repeats_are_dropped_and_counted_in_order_of_first_appearance():
    rows = [problem("b", name="1"), problem("a", name="2"), problem("b ", name="3")]
    merged = merge([*rows, rows[1]])
    assert [row.name for row in merged.problems] == ["1", "2"]
    assert (merged.duplicates, merged.contradictory) == (2, [])


def test_all_rows_of_a_question_with_two_answers_are_set_aside():
    rows = [problem("a", "1"), problem("b", "5"), problem("a", "1"), problem("a", "2")]
    merged = merge(rows)
    assert merged.problems == [rows[1]]
    assert merged.duplicates == 0
    assert sorted(row.answer for row in merged.contradictory) == ["1", "1", "2"]


@pytest.mark.parametrize("answers", [(None, "2"), ("2", None), (None, "2", None)])
def test_an_unknown_answer_contradicts_nothing_and_the_known_one_stays(answers):
    merged = merge(problem("a", answer) for answer in answers)
    assert [row.answer for row in merged.problems] == ["2"]
    assert (merged.duplicates, merged.contradictory) == (len(answers) - 1, [])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "1", "2"]))))
def test_every_row_is_kept_merged_or_set_aside(rows):
    merged = merge(problem(question, answer) for question, answer in rows)
    assert len(merged.problems) + merged.duplicates + len(merged.contradictory) == len(rows)
    for question in "abc":  # the plain statement of what may be kept
        known = {answer for q, answer in rows if q == question} - {None}
        kept = [row for row in merged.problems if row.question == question]
        assert len(kept) == (len(known) < 2 and any(q == question for q, _ in rows))
        assert all(row.answer in (known or {None}) for row in kept)
