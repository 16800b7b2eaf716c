import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tokensense.errors import InputError, SchemaError
from tokensense.tasks import CATALOGUE
from tokensense.tasks.math import (
    CONTRADICTORY,
    DAPO_HEAD,
    DAPO_TAIL,
    gsm8k_answer,
    plain_integer,
    read_problems,
)
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import RowError


@pytest.fixture
def write(tmp_path):
    def written(*records, name="test.jsonl"):
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in records]
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


def gsm8k(question, answer):
    return {"question": question, "answer": f"2 * 2 = <<2*2=4>>4, so.\n#### {answer}"}


def dapo(question, answer, index="id-1", *, wrapped=True):
    content = DAPO_HEAD + question + DAPO_TAIL if wrapped else question
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": content}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def test_gsm8k_answers_lose_commas_and_rows_count_from_zero(write):
    read = read_problems(write(gsm8k("How many?", "1,234"), gsm8k("And?", "-7")), format="gsm8k")
    assert [replace(problem, solution=None) for problem in read.problems] == [
        Problem("gsm8k-test-0", "How many?", "1234", "test.jsonl"),
        Problem("gsm8k-test-1", "And?", "-7", "test.jsonl"),
    ]
    assert [problem.solution[-5:] for problem in read.problems] == ["1,234", "## -7"]
    assert (read.duplicates, read.refused, read.set_aside) == (0, [], {})


def test_math_takes_the_answer_or_the_last_box_of_the_solution(write):
    path = write(
        {"problem": "p", "solution": "-", "answer": r"\frac{1}{2}", "unique_id": "test/1.json"},
        {"problem": "q", "solution": r"\boxed{1}, no: \boxed{\sqrt{2}}", "level": "Level 5"},
        {"problem": "r", "solution": r"\boxed{3"},
        {"problem": "s", "solution": "three"},
        {"problem": "t", "answer": None},
        {"problem": "u", "answer": 5},
    )
    read = read_problems(path, format="math")
    assert [(row.name, row.answer) for row in read.problems] == [
        ("test/1.json", r"\frac{1}{2}"),
        ("math-test-1", r"\sqrt{2}"),
        ("math-test-5", "5"),
    ]
    assert [line.partition(": ")[0].rpartition(":")[2] for line in read.refused] == ["3", "4", "5"]
    assert read.refused[0].endswith("is needed; unterminated box")
    assert read.refused[1].endswith("is needed; no box")


@pytest.mark.parametrize(
    "record",
    [
        {"id": 60, "problem": "p", "answer": "033", "url": "-", "year": "2024"},
        {"ID": "60", "Problem": "p", "Answer": 33, "Solution": "-"},
        {"problem_idx": 60, "question": "p", "answer": 33.0},
    ],
)
def test_aime_keys_of_any_case_and_answers_with_leading_zeros(write, record):
    read = read_problems(write(record), format="aime")
    assert read.problems == [Problem("60", "p", "33", "test.jsonl")]


@pytest.mark.parametrize("answer", ["1000", -1, 0.5, "33.5", "x", None, True, [33]])
def test_aime_answers_are_integers_from_0_to_999(write, answer):
    path = write({"problem": "p", "answer": answer}, {"problem": "q", "answer": "0"})
    read = read_problems(path, format="aime")
    assert [row.answer for row in read.problems] == ["0"]
    pattern = re.escape(f"{path}:1: `answer` must be an integer from 0 to 999")
    assert re.match(pattern, read.refused[0])


def test_dapo_loses_its_wrapping_and_its_repeats(write):
    path = write(*[dapo("What is 1 + 1?", "2")] * 100, dapo("And 2 + 2?", "4", "id-2"))
    read = read_problems(path, format="dapo")
    assert read.problems == [
        Problem("id-1", "What is 1 + 1?", "2", "test.jsonl"),
        Problem("id-2", "And 2 + 2?", "4", "test.jsonl"),
    ]
    assert read.duplicates == 99


def test_dapo_without_the_wrapping_stays_as_it_is(write):
    question = "Answer: what?" + DAPO_TAIL
    read = read_problems(write(dapo(question, "2", wrapped=False)), format="dapo")
    assert read.problems[0].question == question


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": "plain"}, "`prompt` must be a list of turns, one of them the user's; 'plain'"),
        ({"prompt": []}, "one of them the user's; []"),
        ({"prompt": [{"role": "user", "content": 3}]}, "`content` must be text; 3 came"),
        ({"reward_model": {}}, "the field `reward_model.ground_truth` is needed"),
        ({"reward_model": {"ground_truth": ["2"]}}, "must be text or a number; ['2'] came"),
    ],
)
def test_broken_dapo_rows_are_named(write, change, message):
    path = write(dapo("a", "1"), dapo("b", "2") | change)
    read = read_problems(path, format="dapo")
    assert len(read.problems) == 1
    assert read.refused[0].startswith(f"{path}:2: ")
    assert message in read.refused[0]


def test_equal_questions_with_different_answers_are_set_aside_and_counted(write):
    rows = [gsm8k("a", "1"), gsm8k("b", "2"), gsm8k("a", "3"), gsm8k(" a", "1"), gsm8k("b", "2")]
    read = read_problems(write(*rows), format="gsm8k")
    assert [row.question for row in read.problems] == ["b"]
    assert read.duplicates == 1
    assert read.set_aside == {CONTRADICTORY: 3}


def test_an_id_of_two_problems_gets_a_number(write):
    rows = [{"id": 0, "problem": text, "answer": "1"} for text in "abc"]
    read = read_problems(write(*rows), format="aime")
    assert [row.name for row in read.problems] == ["0", "0#2", "0#3"]


def test_half_a_last_line_and_a_missing_mark_are_refused_and_the_rest_comes_in(write):
    path = write(gsm8k("a", "1"), {"question": "b", "answer": "2"}, '{"question": "c", "ans')
    read = read_problems(path, format="gsm8k")
    assert len(read.problems) == 1
    assert read.refused[0] == f"{path}:2: `#### answer` is needed; the text ends with '2'"
    assert read.refused[1].startswith(f"{path}:3: JSON is needed")


def test_a_file_of_another_layout_is_refused_whole(write):
    with pytest.raises(InputError, match=r"none could be read, the first because: .*test.jsonl:1"):
        read_problems(write(gsm8k("a", "1")), format="dapo")


def test_an_unknown_format_is_refused(write):
    with pytest.raises(SchemaError, match=r"`format` needs one of \['aime', 'dapo', 'gsm8k'"):
        read_problems(write(gsm8k("a", "1")), format="gsm")


@pytest.mark.parametrize("layout", ["aime", "dapo", "gsm8k", "math"])
def test_the_catalogue_reads_every_format_from_jsonl_and_parquet(write, tmp_path, layout):
    record = {
        "aime": {"id": "1", "problem": "q", "answer": "4"},
        "dapo": dapo("q", "4"),
        "gsm8k": gsm8k("q", "4"),
        "math": {"problem": "q", "answer": "4"},
    }[layout]
    assert [row.answer for row in CATALOGUE[layout](write(record)).problems] == ["4"]
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `io`")
    import pyarrow.parquet as parquet

    path = tmp_path / "test.parquet"
    parquet.write_table(arrow.Table.from_pylist([record] * 3), path)
    read = CATALOGUE[layout](path)
    assert [(row.question, row.answer) for row in read.problems] == [("q", "4")]
    assert read.duplicates == 2


def test_gsm8k_marks_of_both_kinds_and_no_mark():
    assert gsm8k_answer("#### 1\n#### 2,000 ") == "2000"
    assert gsm8k_answer("x\nA: 18") == "18"
    with pytest.raises(RowError, match="`#### answer` is needed"):
        gsm8k_answer("####\n")


def test_only_whole_integers_are_made_plain():
    texts = ["1,234", "007", "-01", "0", "1,2", "1,234.5", r"\frac{1}{2}"]
    assert [plain_integer(text) for text in texts] == ["1234", "7", "-1", "0", *texts[4:]]


def test_the_paths_come_as_text_too(write):
    path = write(gsm8k("a", "1"))
    assert read_problems(str(path), format="gsm8k") == read_problems(Path(path), format="gsm8k")
