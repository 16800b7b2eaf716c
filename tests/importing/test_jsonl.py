import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokensense.errors import InputError, SchemaError
from tokensense.importing import read
from tokensense.importing.collecting import CONTRADICTORY, REPEATED, steps_joined
from tokensense.schema import Finish


@pytest.fixture
def write(tmp_path):
    def written(*rows):
        path = tmp_path / "rows.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return written


def row(question="q", text="t", **other):
    return {"question": question, "text": text} | other


def test_rows_of_equal_question_are_one_group_in_the_order_of_the_file(write):
    path = write(row("a", "1"), row("b", "2"), row(" a", "3"), row("b", "4"), row("a\n", "5"))
    imported = read(path, format="jsonl")
    assert [(p.name, p.question, p.answer, p.source) for p in imported.problems] == [
        ("rows:1", "a", None, "rows.jsonl"),
        ("rows:2", "b", None, "rows.jsonl"),
    ]
    assert [(t.problem, t.name, t.text) for t in imported.traces] == [
        ("rows:1", "rows:1", "1"),
        ("rows:2", "rows:2", "2"),
        ("rows:1", "rows:3", "3"),
        ("rows:2", "rows:4", "4"),
        ("rows:1", "rows:5", "5"),
    ]
    assert imported.set_aside == {}
    assert imported.refused == []


def test_a_field_map_reaches_into_rows_of_any_shape(write):
    record = {
        "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}],
        "completion": {"text": "2", "token_ids": [5, 0, 2**31 - 1], "log_probs": [-1, -2, 0]},
        "score": "1.0",
        "gold": 2.0,
        "uid": 17,
        "sample": 3,
        "model": "m",
        "finish_reason": "MAX_TOKENS",
    }
    fields = {
        "question": "prompt.-1.content",
        "text": "completion.text",
        "ids": "completion.token_ids",
        "logp": "completion.log_probs",
        "reward": "score",
        "answer": "gold",
        "group": "uid",
        "name": "sample",
        "generator": "model",
        "finish": "finish_reason",
    }
    imported = read(write(record), format="jsonl", fields=fields)
    (problem,), (trace,) = imported.problems, imported.traces
    assert (problem.name, problem.question, problem.answer) == ("17", "1+1?", "2")
    assert (trace.problem, trace.name, trace.text) == ("17", "3", "2")
    assert trace.ids == (5, 0, 2**31 - 1)
    assert (trace.reward, trace.generator, trace.finish) == (1.0, "m", Finish.LENGTH)


@pytest.mark.parametrize(
    ("given", "reward"),
    [(True, 1.0), (False, 0.0), (1, 1.0), ("1.0", 1.0), (-0.5, -0.5), (0.25, 0.25), ("-2", -2.0)],
)
def test_rewards_are_numbers_however_they_are_written(write, given, reward):
    assert read(write(row(reward=given)), format="jsonl").traces[0].reward == reward


def test_what_is_null_or_not_there_is_not_known(write):
    null = dict.fromkeys(["ids", "logp", "reward", "answer", "group", "name", "finish"])
    for imported in (read(write(row(**null)), format="jsonl"), read(write(row()), format="jsonl")):
        (trace,) = imported.traces
        assert math.isnan(trace.reward)
        assert (trace.ids, trace.finish, trace.generator) == (None, Finish.UNKNOWN, "")
        assert imported.problems[0].answer is None


def test_an_empty_response_is_a_rollout_and_ids_may_stand_alone(write):
    imported = read(write(row(text=""), {"question": "q", "ids": []}), format="jsonl")
    assert [(trace.text, trace.ids) for trace in imported.traces] == [("", None), ("", ())]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"question": "q", "te', "JSON is needed"),
        ("3", "a JSON object is needed; 3 came"),
        ({"text": "t"}, "the field `question` is needed; the row has ['text']"),
        ({"question": "q"}, "the field `text` is needed; the row has ['question']"),
        (row(question=3), "`question` must be text; 3 came"),
        (row(question=" "), "`question` must be text; an empty one came"),
        (row(text=None), "`text` must be text; None came"),
        (row(text=["t"]), "`text` must be text; ['t'] came"),
        ('{"question": "q", "text": "t", "reward": NaN}', "NaN is not JSON"),
        ('{"question": "q", "text": "t", "reward": 1e999}', "`reward` must be a finite number"),
        (row(reward="good"), "`reward` must be a finite number, true, false or null; 'good' came"),
        (row(reward="nan"), "`reward` must be a finite number"),
        (row(reward=10**400), "`reward` must be a finite number"),
        (row(reward=1e39), "`reward` must be a finite number"),
        (row(reward=[1]), "`reward` must be a finite number, true, false or null; [1] came"),
        (row(ids="5"), "`ids` must be a list of token ids; '5' came"),
        (row(ids=[1, -1]), "integers from 0 to 2147483647; -1 came at token 1"),
        (row(ids=[2**31]), "integers from 0 to 2147483647; 2147483648 came at token 0"),
        (row(ids=[1.0]), "integers from 0 to 2147483647; 1.0 came at token 0"),
        (row(ids=[True]), "integers from 0 to 2147483647; True came at token 0"),
        (row(ids=[None]), "integers from 0 to 2147483647; None came at token 0"),
        (row(ids=[1, 2], logp=[-1]), "`logp` must hold one value a token, 2; 1 values came"),
        (row(ids=[1], logp=[-1, -2]), "`logp` must hold one value a token, 1; 2 values came"),
        (row(ids=[], logp=0), "`logp` must hold one value a token, 0; 0 came"),
        (row(finish="tired"), "`finish` must be one of ['abort', 'aborted', 'completed'"),
        (row(finish=1), "or null; 1 came"),
        (row(generator=["m"]), "`generator` must be text or a number; ['m'] came"),
        (row(answer=True), "`answer` must be text or a number; True came"),
        (row(name={}), "`name` must be text or a number; {} came"),
    ],
)
def test_a_broken_row_is_named_and_the_good_ones_come_in(write, record, message):
    path = write(row("a"), record, row("b"))
    imported = read(path, format="jsonl")
    assert [problem.question for problem in imported.problems] == ["a", "b"]
    assert [trace.name for trace in imported.traces] == ["rows:1", "rows:3"]
    assert len(imported.refused) == 1
    assert imported.refused[0].startswith(f"{path}:2: ")
    assert message in imported.refused[0]


def test_what_is_mapped_must_be_in_every_row(write):
    path = write(row("a", score=1), row("b"))
    imported = read(path, format="jsonl", fields={"reward": "score"})
    assert len(imported.traces) == 1
    assert "the field `score` (reward) is needed" in imported.refused[0]


def test_a_row_that_repeats_another_in_every_field_is_set_aside(write):
    named = [row(name=1), row(name=2)]
    imported = read(write(*named, *reversed(named), row(name=1, x=0)), format="jsonl")
    assert [trace.name for trace in imported.traces] == ["1", "2", "1"]
    assert imported.set_aside == {REPEATED: 2}


def test_rollouts_of_a_question_with_two_answers_are_set_aside(write):
    rows = [row("a", answer="1"), row("b", answer="1"), row("a", "u", answer=2), row("a", "v")]
    imported = read(write(*rows), format="jsonl")
    assert [problem.question for problem in imported.problems] == ["b"]
    assert [trace.problem for trace in imported.traces] == ["rows:2"]
    assert imported.set_aside == {CONTRADICTORY: 3}


def test_an_answer_that_comes_late_is_the_problem_s(write):
    imported = read(write(row("a"), row("a", answer="7")), format="jsonl")
    assert [problem.answer for problem in imported.problems] == ["7"]
    assert len(imported.traces) == 2


def test_a_group_name_of_two_questions_is_refused_the_second_time(write):
    path = write(row("a", group="g"), row("b", group="g"), row("a", "u", group="g"))
    imported = read(path, format="jsonl")
    assert [trace.problem for trace in imported.traces] == ["g", "g"]
    assert imported.refused == [
        f"{path}:2: a name of its own is needed for each question; 'g' was that of another "
        "question before"
    ]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_limit_counts_problems_and_keeps_groups_whole(write, limit):
    rows = [row("a", "1"), row("b", "2"), row("c", "3"), row("a", "4"), "broken"]
    imported = read(write(*rows), format="jsonl", limit=limit)
    assert [problem.question for problem in imported.problems] == ["a", "b", "c"][:limit]
    expected = {1: "14", 2: "124", 5: "1234"}[limit]
    assert "".join(trace.text for trace in imported.traces) == expected
    assert len(imported.refused) == 1  # of the whole file


def test_limit_below_one_is_refused(write):
    with pytest.raises(InputError, match="`limit` needs at least 1 problem; it is 0"):
        read(write(row()), format="jsonl", limit=0)


def test_a_file_of_which_nothing_can_be_read_is_refused_with_the_first_reason(write):
    path = write({"prompt": "q", "completion": "t"})
    with pytest.raises(InputError, match=r"none could be read, the first because: .*rows.jsonl:1"):
        read(path, format="jsonl")


def test_an_empty_file_is_refused(write):
    with pytest.raises(InputError, match="has none"):
        read(write(), format="jsonl")


def test_names_that_are_not_ours_are_refused(write):
    with pytest.raises(InputError, match=r"it has \['score'\]"):
        read(write(row()), format="jsonl", fields={"score": "reward"})


def test_an_unknown_format_is_refused(write):
    with pytest.raises(SchemaError, match=r"`format` needs one of \['bigbench_mistake', "):
        read(write(row()), format="json")


@pytest.mark.parametrize("format", ["processbench", "bigbench_mistake", "gsm8k_solutions"])
def test_labelled_formats_take_no_field_map(write, format):
    with pytest.raises(InputError, match=f"no field map is needed for the format `{format}`"):
        read(write(row()), format=format, fields={"text": "t"})


def test_parquet_comes_in_like_json_lines(write, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `io`")
    import pyarrow.parquet as parquet

    records = [row("a", "1", ids=[1, 2], reward=1.0), row("b", "2", ids=[], reward=None)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.Table.from_pylist(records), path)
    found, expected = read(path, format="jsonl"), read(write(*records), format="jsonl")
    # NaN is not equal to itself: compare what is printed.
    assert repr(found.traces) == repr(expected.traces)
    assert [problem.question for problem in found.problems] == ["a", "b"]


@given(
    st.lists(st.text(), max_size=8),
    st.sampled_from(["\n", "\n\n", ""]),
)
def test_step_bounds_cut_the_steps_out_of_the_joined_text(steps, separator):
    text, bounds = steps_joined(steps, separator)
    assert [text[start:end] for start, end in bounds] == steps
    assert text == separator.join(steps)


QUESTIONS = st.sampled_from(["a", "b", "c"])


ROWS = st.tuples(QUESTIONS, st.integers(0, 9), st.sampled_from([None, "1", "2"]))


@given(rows=st.lists(ROWS, min_size=1))
def test_every_row_is_a_trace_or_counted(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    records = [row(question, str(text), answer=answer) for question, text, answer in rows]
    path.write_text("\n".join(json.dumps(record) for record in records))
    imported = read(path, format="jsonl")
    assert len(imported.traces) + sum(imported.set_aside.values()) == len(rows)
    assert imported.refused == []
    names = {problem.name for problem in imported.problems}
    assert len(names) == len(imported.problems)
    assert {trace.problem for trace in imported.traces} == names
