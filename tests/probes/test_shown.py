"""Siblings and requests: who is shown what, and that nobody is shown himself."""

from tests.builders import BOS, ByteEncoder
from tokensense.probes import CATALOGUE
from tokensense.probes.comparability import limits
from tokensense.probes.conditions import require_conditions
from tokensense.probes.contexts import prompts, read_problems, survey
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.schema import Comparability
from tokensense.tasks.problem import Problem

RIGHT, OTHER, WRONG = ("Two and two make four.", "Count it: 1, 2, 3, 4.", "Two and two make five.")


def group(*texts):
    given = [Trace("p", f"r{n}", text, reward=float(text != WRONG)) for n, text in enumerate(texts)]
    encoder = ByteEncoder()
    node = assemble(Imported([Problem("p", "2 + 2?", "4")], given), encoder)
    return read_problems(node, encoder), encoder


def text_of(prompt):
    return bytes(token for token in prompt.ids if token < BOS).decode()


def test_no_rollout_is_compared_under_its_own_text_and_each_has_a_right_sibling():
    problems, encoder = group(RIGHT, OTHER, WRONG)
    conditions = CATALOGUE["sibling"](encoder)
    require_conditions("sibling", conditions)
    found = survey(problems, conditions, encoder=encoder, limits=limits(encoder, bos_id=BOS))
    ok = {
        (condition.frame, condition.level): [
            Comparability(value) is Comparability.OK for value in row
        ]
        for condition, row in zip(conditions, found.comparability, strict=True)
    }
    assert ok == {
        ("1", "pos"): [False, True, True],
        ("1", "neg"): [True, True, False],
        ("2", "pos"): [True, False, True],
        ("2", "neg"): [False, False, False],  # there is no second wrong response
    }
    assert (found.inserted[0] != found.inserted[2]).any()  # siblings are of any length


def test_the_prompt_holds_the_siblings_text_and_no_other():
    problems, encoder = group(RIGHT, WRONG)
    conditions = CATALOGUE["sibling"](encoder)
    by_name = {p.condition.name: p for p in prompts(problems, 0, conditions, encoder=encoder)}
    assert RIGHT in text_of(by_name["sibling_1_pos"])
    assert WRONG not in text_of(by_name["sibling_1_pos"])
    assert WRONG in text_of(by_name["sibling_1_neg"])
    assert by_name["sibling_2_pos"].ids == ()


def test_a_text_with_braces_is_shown_as_it_is():
    problems, encoder = group("{question} \\boxed{{answer}}", WRONG)
    first, *_ = prompts(problems, 0, CATALOGUE["sibling"](encoder), encoder=encoder)
    assert "{question} \\boxed{{answer}}" in first.text


def test_the_reference_solution_is_shown_where_one_is_known():
    encoder = ByteEncoder()
    made = [Problem("p", "2 + 2?", "4", solution="Count to {4}."), Problem("q", "1 + 1?", "2")]
    given = [Trace("p", "a", "It is four."), Trace("q", "b", "It is two.")]
    problems = read_problems(assemble(Imported(made, given), encoder), encoder)
    assert problems.solutions == ["Count to {4}.", None]
    (condition,) = CATALOGUE["reference"](encoder)
    shown, none = (prompts(problems, i, [condition], encoder=encoder)[0] for i in (0, 1))
    assert "Count to {4}." in text_of(shown)
    assert none.ids == ()


def test_requests_are_word_pairs():
    conditions = CATALOGUE["negative_prompt"](ByteEncoder(), frames=6)
    require_conditions("negative_prompt", conditions)
    for right, wrong in zip(conditions[::2], conditions[1::2], strict=True):
        assert (right.level, wrong.level) == ("pos", "neg")
        assert right.text.replace("right", "wrong") == wrong.text != right.text
