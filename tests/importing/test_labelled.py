import json
import math
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tokensense.importing import read
from tokensense.importing.collecting import REPEATED
from tokensense.importing.labelled import (
    NO_STEP_BUT_WRONG,
    STEP_BUT_RIGHT,
    VERDICT_AGAINST_ANSWER,
    contradicts,
)
from tokensense.schema import NO_STEP, Finish, Label

SHARED = Path(os.environ.get("TOKENSENSE_SHARED", Path(__file__).parents[2] / "../shared"))
needs_shared = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason=f"no {SHARED}/data here")


@pytest.fixture
def write(tmp_path):
    def written(*rows):
        path = tmp_path / "rows.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return written


def process(steps=("One.", "Two!"), label=-1, correct=True, **other):
    return {
        "id": "gsm8k-0",
        "generator": "m",
        "problem": "q",
        "steps": list(steps),
        "label": label,
        "final_answer_correct": correct,
    } | other


def mistake(answer="4", target="4", index=None, **other):
    steps = ["2 + 2 = 4.", f"So the answer is {answer}"]
    fields = {"input": "2 + 2 =", "steps": steps, "target": target, "answer": answer}
    return fields | {"mistake_index": index} | other


def solved(*solutions, **other):
    return {
        "problem_id": "gsm8k-test-0",
        "question": "q",
        "ground_truth": "1 + 1 = <<1+1=2>>2\nA: 1,200",
        "solutions": [
            {"model": model, "solution": text, "is_correct": right}
            for model, text, right in solutions
        ],
    } | other


def test_processbench_steps_are_cut_out_exactly_and_the_wrong_one_is_marked(write):
    imported = read(write(process(["One.\n", " Two!"], 1, False)), format="processbench")
    (trace,) = imported.traces
    assert trace.text == "One.\n\n\n Two!"
    assert trace.steps == ((0, 5), (7, 12))
    assert trace.text[slice(*trace.steps[1])] == " Two!"
    assert (trace.label, trace.wrong_step, trace.reward) == (Label.ERROR, 1, 0.0)
    assert (trace.problem, trace.name, trace.generator) == ("gsm8k-0", "gsm8k-0", "m")
    assert imported.problems[0].answer is None


def test_processbench_traces_of_one_problem_keep_their_own_names(write):
    path = write(process(), process(id="gsm8k-7", generator="n"))
    imported = read(path, format="processbench")
    assert [problem.name for problem in imported.problems] == ["gsm8k-0"]
    assert [(t.problem, t.name, t.generator) for t in imported.traces] == [
        ("gsm8k-0", "gsm8k-0", "m"),
        ("gsm8k-0", "gsm8k-7", "n"),
    ]


def test_processbench_contradictions_are_set_aside_but_luck_is_not(write):
    path = write(
        process(), process(correct=False, problem="r"), process(label=0, problem="s", id="2")
    )
    imported = read(path, format="processbench")
    assert [(t.label, t.wrong_step, t.reward) for t in imported.traces] == [
        (Label.NO_ERROR, NO_STEP, 1.0),
        (Label.ERROR, 0, 1.0),
    ]
    assert imported.set_aside == {NO_STEP_BUT_WRONG: 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "`label` must be an integer from -1 to 1; 2 came"),
        ({"label": -2}, "`label` must be an integer from -1 to 1; -2 came"),
        ({"label": None}, "`label` must be an integer from -1 to 1; None came"),
        ({"label": True}, "`label` must be an integer from -1 to 1; True came"),
        ({"label": 1.0}, "`label` must be an integer from -1 to 1; 1.0 came"),
        ({"steps": []}, "`steps` must be a list of texts; [] came"),
        ({"steps": "One."}, "`steps` must be a list of texts; 'One.' came"),
        ({"steps": ["One.", None]}, "`steps` must be a list of texts"),
        ({"final_answer_correct": 1}, "`final_answer_correct` must be true or false; 1 came"),
        ({"problem": ""}, "`problem` must be text; an empty one came"),
        ({"generator": None}, "`generator` must be text; None came"),
        ({"id": 3}, "`id` must be text; 3 came"),
    ],
)
def test_broken_processbench_rows_are_named(write, change, message):
    path = write(process(), process() | change, '{"id": "gsm8k-2", "gener')
    imported = read(path, format="processbench")
    assert len(imported.traces) == 1
    assert imported.refused[0].startswith(f"{path}:2: ")
    assert message in imported.refused[0]
    assert imported.refused[1].startswith(f"{path}:3: JSON is needed")


def test_bigbench_rewards_come_from_target_and_contradictions_are_set_aside(write):
    path = write(
        mistake(),
        mistake("5", index=1, input="b"),
        mistake("5", input="c"),
        mistake(index=0, input="d"),
        mistake("04", input="e"),
    )
    imported = read(path, format="bigbench_mistake")
    assert [(t.problem, t.label, t.wrong_step, t.reward) for t in imported.traces] == [
        ("bigbench_mistake-0", Label.NO_ERROR, NO_STEP, 1.0),
        ("bigbench_mistake-1", Label.ERROR, 1, 0.0),
        ("bigbench_mistake-4", Label.NO_ERROR, NO_STEP, 1.0),
    ]
    assert imported.set_aside == {NO_STEP_BUT_WRONG: 1, STEP_BUT_RIGHT: 1}
    assert imported.problems[0].answer == "4"
    assert imported.traces[0].text == "2 + 2 = 4.\nSo the answer is 4"
    assert imported.traces[0].steps == ((0, 10), (11, 29))


def test_broken_bigbench_rows_are_named(write):
    rows = [
        mistake(index=2),
        mistake(target=4),
        {k: v for k, v in mistake().items() if k[0] != "m"},
    ]
    path = write(mistake(), *rows)
    refused = read(path, format="bigbench_mistake").refused
    assert refused[0] == f"{path}:2: `mistake_index` must be an integer from 0 to 1; 2 came"
    assert refused[1] == f"{path}:3: `target` must be text; 4 came"
    assert refused[2].startswith(f"{path}:4: the field `mistake_index` is needed")


def test_gsm8k_solutions_are_a_group_with_generators_and_rewards(write):
    path = write(solved(("6b", "A: 1200", True), ("175b", "<<1+1=2>>2\nA: 2", False)))
    imported = read(path, format="gsm8k_solutions")
    assert [(p.name, p.answer) for p in imported.problems] == [("gsm8k-test-0", "1200")]
    assert [(t.name, t.generator, t.reward, t.label) for t in imported.traces] == [
        ("gsm8k-test-0/6b", "6b", 1.0, Label.UNLABELED),
        ("gsm8k-test-0/175b", "175b", 0.0, Label.UNLABELED),
    ]
    assert imported.traces[1].text == "<<1+1=2>>2\nA: 2"  # calculator marks stay
    assert imported.traces[0].finish is Finish.UNKNOWN


def test_a_solution_whose_verdict_contradicts_its_answer_is_set_aside_alone(write):
    path = write(solved(("6b", "A: 1,200", False), ("175b", "A: 2", True), ("x", "cut", True)))
    imported = read(path, format="gsm8k_solutions")
    assert [trace.generator for trace in imported.traces] == ["x"]
    assert imported.set_aside == {VERDICT_AGAINST_ANSWER: 2}


def test_a_repeated_row_counts_each_of_its_solutions(write):
    line = solved(("6b", "A: 1", False), ("175b", "A: 2", False))
    imported = read(write(line, line), format="gsm8k_solutions")
    assert len(imported.traces) == 2
    assert imported.set_aside == {REPEATED: 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solutions": []}, "`solutions` must be a list of solutions; [] came"),
        ({"solutions": ["A: 1"]}, "a solution must be an object; 'A: 1' came"),
        ({"solutions": [{"model": "m", "solution": "s"}]}, "the field `is_correct` is needed"),
        ({"ground_truth": "2"}, "`#### answer` is needed; the text ends with '2'"),
        ({"question": None}, "`question` must be text; None came"),
    ],
)
def test_broken_gsm8k_rows_are_named(write, change, message):
    good = solved(("6b", "A: 1", False), question="other", problem_id="other")
    path = write(good, solved(("6b", "A: 1", False), **change))
    imported = read(path, format="gsm8k_solutions")
    assert len(imported.traces) == 1
    assert imported.refused[0].startswith(f"{path}:2: {message}")


def test_only_a_stated_number_contradicts_a_verdict():
    assert not contradicts("A: many", "4", correct=True)
    assert not contradicts("so 5", "4", correct=True)
    assert not contradicts("A: 5", "four", correct=True)
    assert not contradicts("A: 4.0", "4", correct=True)
    assert contradicts("A: 4.0", "4", correct=False)


def group_rewards(imported):
    rewards = defaultdict(list)
    for trace in imported.traces:
        rewards[trace.problem].append(trace.reward)
    return rewards


@needs_shared
def test_all_of_processbench_comes_in():
    imported = read(SHARED / "data/processbench_gsm8k.jsonl", format="processbench")
    assert (len(imported.problems), len(imported.traces)) == (253, 260)
    assert (imported.set_aside, imported.refused) == ({}, [])
    assert Counter(trace.label for trace in imported.traces) == {
        Label.ERROR: 201,
        Label.NO_ERROR: 59,
    }
    assert sum(trace.reward for trace in imported.traces) == 60  # one is right by luck
    assert len({trace.generator for trace in imported.traces}) == 12
    lines = (SHARED / "data/processbench_gsm8k.jsonl").read_text().splitlines()
    for trace, line in zip(imported.traces, lines, strict=True):
        steps = json.loads(line)["steps"]
        assert [trace.text[start:end] for start, end in trace.steps] == steps
        assert trace.wrong_step < len(steps)


@needs_shared
def test_bigbench_mistake_loses_its_eleven_contradictions():
    path = SHARED / "data/big_bench_mistake_arithmetic.jsonl"
    imported = read(path, format="bigbench_mistake")
    assert (len(imported.problems), len(imported.traces)) == (189, 189)
    assert imported.set_aside == {NO_STEP_BUT_WRONG: 10, STEP_BUT_RIGHT: 1}
    assert sum(trace.reward for trace in imported.traces) == 34
    assert all((t.label is Label.ERROR) == (t.reward == 0.0) for t in imported.traces)


@pytest.fixture(scope="module")
def solutions():
    return read(SHARED / "data/gsm8k_model_solutions.jsonl", format="gsm8k_solutions")


@needs_shared
def test_gsm8k_solutions_have_groups_of_four_with_mixed_outcomes(solutions):
    assert (len(solutions.problems), len(solutions.traces)) == (900, 3600)
    assert (solutions.set_aside, solutions.refused) == ({}, [])
    groups = group_rewards(solutions)
    assert {len(rewards) for rewards in groups.values()} == {4}
    assert sum(len(set(rewards)) == 2 for rewards in groups.values()) == 503
    assert Counter(trace.generator for trace in solutions.traces) == dict.fromkeys(
        ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"], 900
    )


@needs_shared
def test_the_first_200_groups_are_whole(solutions, tmp_path):
    path = tmp_path / "head.jsonl"
    whole = (SHARED / "data/gsm8k_model_solutions.jsonl").read_bytes()
    path.write_bytes(b"\n".join(whole.split(b"\n")[:250]))
    first = read(path, format="gsm8k_solutions", limit=200)
    assert (len(first.problems), len(first.traces)) == (200, 800)
    assert sum(len(set(rewards)) == 2 for rewards in group_rewards(first).values()) == 101
    assert repr(first.traces) == repr(solutions.traces[:800])


def disagreements(imported, *, first=None):
    """Undecided traces, and those where checker and published verdict differ."""
    from tokensense.tasks.answers import AnswerChecker

    answers = {problem.name: problem.answer for problem in imported.problems}
    traces = imported.traces[:first]
    with AnswerChecker() as checker:
        found = checker.check_many([(trace.text, answers[trace.problem]) for trace in traces])
    pairs = list(zip(traces, found, strict=True))
    undecided = [trace for trace, verdict in pairs if math.isnan(verdict.reward)]
    differing = [t for t, v in pairs if not math.isnan(v.reward) and v.reward != t.reward]
    return undecided, differing


@needs_shared
def test_published_verdicts_agree_with_the_answer_checker(solutions):
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    path = SHARED / "data/big_bench_mistake_arithmetic.jsonl"
    assert disagreements(read(path, format="bigbench_mistake")) == ([], [])
    undecided, differing = disagreements(solutions, first=160)
    assert differing == []
    assert [trace.name for trace in undecided] == ["gsm8k-test-5/175b_finetuning"]  # cut off


@needs_shared
@pytest.mark.slow
def test_all_published_verdicts_agree_with_the_answer_checker(solutions):
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    undecided, differing = disagreements(solutions)
    assert differing == []
    assert len(undecided) == 8  # cut off before the answer, but for one "A: -1.8 billion"
    assert all(trace.reward == 0.0 for trace in undecided)
