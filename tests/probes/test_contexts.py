import numpy as np
import pytest

from tests.builders import BOS, END, ByteEncoder, problems, traces
from tokensense.errors import ConditionError, PolicyError, StoreError
from tokensense.probes import CATALOGUE
from tokensense.probes.comparability import limits
from tokensense.probes.conditions import BASE_CONDITION, Condition
from tokensense.probes.contexts import prompts, read_problems, survey
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.schema import Comparability
from tokensense.tasks.problem import Problem

OK, UNKNOWN, CUT = Comparability.OK, Comparability.NOT_APPLICABLE, Comparability.TRUNCATED


def node(made, given, encoder=None):
    return assemble(Imported(made, given), encoder or ByteEncoder())


def told(text, **fields):
    given = {"name": "c", "family": "f", "level": "none", "frame": "x", "wording": "w", **fields}
    return Condition(text=text, **given)


def bound(encoder):
    return limits(encoder, bos_id=BOS)


def test_problems_with_rollouts_come_apart_in_order():
    encoder, made = ByteEncoder(), problems(4)
    given = [Trace("p2", "a", "It is 4."), Trace("p0", "b", "é"), Trace("p2", "c", "")]
    found = read_problems(node(made, given), encoder)
    assert found.names == ["p0", "p2"]
    assert found.questions == ["What is 0 + 0?", "What is 2 + 2?"]
    assert found.answers == ["0", "4"]
    assert found.groups == [(0, 1), (1, 3)]
    assert found.texts == ["é", "It is 4.", ""]
    assert found.responses == [tuple("é".encode()), tuple(b"It is 4."), ()]
    assert found.bases == [tuple(encoder.render(q)) for q in found.questions]


def test_the_wrong_answer_is_the_groups_and_only_of_what_is_known_to_be_wrong():
    made = [Problem("p", "?", "18"), Problem("q", "??", "18"), Problem("r", "???", None)]
    given = [
        Trace("p", "a", "#### 25", reward=0.0),
        Trace("p", "b", "#### 31", reward=1.0),
        Trace("p", "c", "#### 31"),  # undecided
        Trace("q", "a", "#### 31"),
        Trace("r", "a", "#### 31", reward=0.0),
    ]
    found = read_problems(node(made, given), ByteEncoder())
    assert found.wrong_answers == ["25", "11", None]


def test_siblings_are_the_first_two_different_right_and_wrong_texts():
    texts = [("a", 1.0), ("b", 0.0), ("a", 1.0), (" ", 1.0), ("c", 1.0), ("d", 1.0), ("e", None)]
    given = [
        Trace("p", f"r{n}", text, **({} if reward is None else {"reward": reward}))
        for n, (text, reward) in enumerate(texts)
    ]
    found = read_problems(node([Problem("p", "?", "1")], given), ByteEncoder())
    assert found.siblings == [{"right_1": "a", "right_2": "c", "wrong_1": "b"}]


def test_the_special_tokens_that_end_a_response_are_not_shown():
    ids = [*b"It is 4.", END]
    given = [
        Trace("p", "a", "", ids=tuple(ids), reward=1.0),
        Trace("p", "b", "", ids=(END, *ids, END), reward=0.0),
        Trace("p", "c", "", ids=(END,), reward=0.0),
    ]
    encoder = ByteEncoder()
    found = read_problems(node([Problem("p", "?", "4")], given), encoder)
    assert found.texts == ["It is 4.", "<end>It is 4.", ""]
    assert found.responses[0] == tuple(ids)  # scored as it is
    assert found.siblings == [{"right_1": "It is 4.", "wrong_1": "<end>It is 4."}]


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_an_answer_that_is_blank_is_not_known(answer):
    found = read_problems(
        node([Problem("p", "?", answer)], [Trace("p", "a", "x", reward=0.0)]), ByteEncoder()
    )
    assert found.answers == found.wrong_answers == [None]


def test_a_store_of_another_tokenizer_is_refused():
    class Other(ByteEncoder):
        name = "other"
        tokenizer_digest = "bytes-2"

    made = node(problems(1), [])
    with pytest.raises(StoreError, match=r"the store's ids are by 'bytes' .* `other` has digest"):
        read_problems(made, Other())


def test_a_store_of_another_template_is_refused():
    class Changed(ByteEncoder):
        def render(self, question, *, insert="", placement="user_end"):
            return super().render(question + " ", insert=insert)

    made = problems(2)
    with pytest.raises(StoreError, match="they differ for problem 'p1'"):
        read_problems(node(made, [Trace("p1", "a", "x")]), Changed())


def test_prompts_hold_the_text_at_its_place_and_the_base_is_the_stored_one():
    encoder = ByteEncoder()
    found = read_problems(node(problems(1), [Trace("p0", "a", "x")]), encoder)
    conditions = [
        BASE_CONDITION,
        told("Key: {answer}"),
        told("Key: {answer}", placement="user_start"),
        told("Key: {wrong_answer}", placement="system"),
    ]
    asked = prompts(found, 0, conditions, encoder=encoder)
    texts = ["".join(map(chr, p.ids)) for p in asked]
    q = "What is 0 + 0?"
    bos, user, assistant = map(chr, (256, 257, 258))
    assert texts == [
        f"{bos}{user}{q}{assistant}",
        f"{bos}{user}{q}\nKey: 0{assistant}",
        f"{bos}{user}Key: 0\n{q}{assistant}",
        f"{bos}Key: 3\n{user}{q}{assistant}",
    ]
    assert [p.text for p in asked] == ["", "Key: 0", "Key: 0", "Key: 3"]


def test_a_prompt_that_the_template_refuses_names_problem_and_condition():
    class Strict(ByteEncoder):
        def render(self, question, *, insert="", placement="user_end"):
            if placement == "system":
                raise PolicyError("no system messages here")
            return super().render(question, insert=insert)

    encoder = Strict()
    found = read_problems(node(problems(1), [Trace("p0", "a", "x")]), encoder)
    with pytest.raises(ConditionError, match=r"`c` .* 'p0'; the policy refuses: no system"):
        prompts(found, 0, [told("x", placement="system")], encoder=encoder)


def test_a_survey_counts_what_will_be_scored():
    encoder = ByteEncoder()
    made = [Problem("p", "ab?", "18"), Problem("q", "c?", None)]
    given = [Trace("p", "a", "x" * 5), Trace("p", "b", "x" * 50), Trace("q", "a", "x" * 3)]
    found = read_problems(node(made, given), encoder)
    # Base of "ab?" is 6 tokens, the insert "\nLabel" 6 more: 12 + 50 > 61.
    encoder.context_length = 61
    asked = [told("Label"), told("{answer}", name="d")]
    seen = survey(found, asked, encoder=encoder, limits=bound(encoder))
    assert seen.comparability.tolist() == [[OK, CUT, OK], [OK, OK, UNKNOWN]]
    assert seen.inserted.tolist() == [[6, 6, 6], [3, 3, 0]]
    assert seen.scored.tolist() == [2 * 5, 50, 3]
    # The longest branch is fed its prompt and all but the last of the response.
    assert seen.longest.tolist() == [6 + 6 + 5 - 1, 6 + 3 + 50 - 1, 5 + 6 + 3 - 1]
    base = survey(found, [BASE_CONDITION], encoder=encoder, limits=bound(encoder))
    assert base.comparability.tolist() == [[OK, OK, OK]]
    assert base.scored.tolist() == [5, 50, 3]


def test_a_text_that_is_blank_for_a_problem_is_not_applicable():
    encoder = ByteEncoder()
    blank = [Problem("p", " ", "1")]
    found = read_problems(node(blank, [Trace("p", "a", "x")]), encoder)
    seen = survey(found, [told("{question}")], encoder=encoder, limits=bound(encoder))
    assert seen.comparability.tolist() == [[UNKNOWN]]


@pytest.mark.parametrize("probe", ["opposed", "placebo", "neutral", "answer"])
def test_the_shipped_probes_are_comparable(probe):
    encoder, made = ByteEncoder(), problems(3)
    found = read_problems(node(made, traces(made, 4)), encoder)
    conditions = CATALOGUE[probe](encoder, frames=6)
    seen = survey(found, conditions, encoder=encoder, limits=bound(encoder))
    assert not seen.comparability.any()
    pairs = seen.inserted.reshape(-1, 2, 12) if probe != "neutral" else seen.inserted[:, None]
    assert np.ptp(pairs, axis=1).max() == 0
