import pytest

from tokensense.errors import SchemaError
from tokensense.rollouts.trajectory import Trace
from tokensense.schema import Kind
from tokensense.tasks.problem import Problem
from tokensense.trainer.problems import decisive, listed, planted

# One look-up: 80 questions in all.
SMALL = {"lookups": 1, "filler_mean": 0.0}


def questions(problems):
    return [problem.question for problem in problems]


def test_draws_follow_from_the_seed_and_never_meet_what_is_held_out():
    task = planted("tables", held_out=60, **SMALL)
    held = set(questions(task.held_out))
    drawn = [questions(task.draw(10, seed)) for seed in range(8)]
    assert drawn[3] == questions(task.draw(10, 3))
    assert len({tuple(some) for some in drawn}) == 8
    for some in drawn:
        assert len(set(some)) == 10
        assert not held & set(some)
    assert len(held | {q for some in drawn for q in some}) > 75


def test_problems_of_one_draw_have_names_of_their_own():
    # Most sums of one operator between small numbers are held out, so that draws are topped up.
    task = planted("arithmetic", held_out=400, operations=(1, 1))
    problems = task.draw(40, 5)
    assert len({problem.question for problem in problems}) == 40
    assert len({problem.name for problem in problems}) == 40
    assert any("~" in problem.name for problem in problems)


def test_too_few_questions_are_said_to_be_too_few():
    task = planted("tables", held_out=75, **SMALL)
    with pytest.raises(SchemaError, match=r"needs 6 problems; 5 were found outside the 75 held"):
        task.draw(6, 0)


def test_the_name_says_the_sizes():
    assert planted("tables", held_out=5, **SMALL).name == (
        "tables(filler_mean=0.0,lookups=1) held_out=5@2027"
    )


def test_listed_problems_are_drawn_without_those_held_out():
    problems = [Problem(str(i), f"What is {i}?", str(i)) for i in range(10)]
    task = listed(problems, held_out=problems[:4], name="numbers")
    assert sorted(p.name for p in task.draw(6, 0)) == ["4", "5", "6", "7", "8", "9"]
    assert questions(task.draw(3, 1)) == questions(task.draw(3, 1)) != questions(task.draw(3, 2))
    with pytest.raises(SchemaError, match=r"needs 7 problems; numbers has 6"):
        task.draw(7, 0)


def test_answers_for_the_majority():
    assert planted("tables", held_out=1).answer("I_0 o1 3 = 7 ans 7") == "7"
    assert planted("tables", held_out=1).answer("  ") is None
    said = listed([], name="none").answer
    assert said(r"So \boxed{3}.") == "3"
    assert said(r"So \boxed{3") is None


def test_results_of_right_responses_and_the_first_slip_of_wrong_ones_decide(policy):
    kinds = (Kind.OPERATOR, Kind.COMPUTED_DIGIT, Kind.DISCOURSE, Kind.COMPUTED_DIGIT)
    right, lucky, wrong, cut = (
        Trace("p", "", "", ids=(1, 2, 3, 4), kinds=kinds, reward=reward, wrong_token=token)
        for reward, token in ((1.0, -1), (1.0, 1), (0.0, 2), (0.0, -1))
    )
    found = decisive(policy, [], [right, lucky, wrong, cut])
    results, nothing = [False, True, False, True], [False] * 4
    assert found.tolist() == [*results, *results, False, False, True, False, *nothing]
    assert planted("tables", held_out=1).evidence == {"planted": decisive}
