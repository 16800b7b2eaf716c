"""Prompts as sampled and the drift of re-tokenized text, on encoders that one can read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import ASSISTANT, BOS, END, USER, ByteEncoder
from tokensense.errors import PolicyError
from tokensense.rollouts.fidelity import Drift, drift, recover
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem


class ChatEncoder(ByteEncoder):
    """Role names around the question, as ChatML without its special tokens shows them."""

    def render(self, question, *, insert="", placement="user_end"):
        return [BOS, *self.encode(f"user\n{question}\n"), ASSISTANT, *self.encode("assistant\n")]


class PairEncoder(ByteEncoder):
    """`ab` is one token, 300; the sampler may draw `a`, `b` all the same."""

    def encode(self, text):
        ids = super().encode(text)
        out = []
        for i in ids:
            if out and out[-1] == ord("a") and i == ord("b"):
                out[-1] = 300
            else:
                out.append(i)
        return out

    def token_bytes(self, token_id):
        if token_id > 300:
            raise PolicyError(f"no token {token_id}")
        return b"ab" if token_id == 300 else super().token_bytes(token_id)


def recovered(prompt, encoder, question=""):
    imported = Imported([Problem("p", question, None)], [], prompts={"p": prompt})
    found, counts = recover(imported, encoder)
    return found.problems[0].question, counts


@settings(max_examples=25)
@given(st.text(max_size=30).filter(str.strip))
def test_the_question_is_what_the_template_put_there(question):
    """Pitfall 9: a prompt is not put through the template twice."""
    encoder = ChatEncoder()
    rendered = encoder.render(question)
    assert recovered(tuple(rendered), encoder) == (question, {"same ids": 1})
    assert recovered(encoder.plain_text(rendered), encoder) == (question, {"same text": 1})


def test_a_prompt_that_no_question_of_this_policy_gives_is_another_context():
    """Pitfall 10: an opener of another template is counted, not hidden."""
    text = "system\nbe brief\nuser\n1+1?\nassistant\n<think>"
    assert recovered(text, ChatEncoder()) == (text, {"another context": 1})
    ids = (BOS, BOS, *ChatEncoder().render("1+1?")[1:])  # pitfall 7: BOS twice
    assert recovered(ids, ChatEncoder())[1] == {"another context": 1}
    assert recovered("user\n \nassistant\n", ChatEncoder())[1] == {"another context": 1}


def test_a_bare_question_is_one_only_where_nothing_is_put_around_it():
    assert recovered("1+1?", ByteEncoder()) == ("1+1?", {"same text": 1})
    assert recovered("1+1?", ChatEncoder()) == ("1+1?", {"another context": 1})


def test_other_ids_of_the_same_text_are_told_apart():
    """Pitfall 6: tokens merge, or do not, where prompt parts meet."""
    ids = (BOS, USER, ord("a"), ord("b"), ASSISTANT)
    assert recovered(ids, PairEncoder()) == ("ab", {"same text": 1})
    assert recovered((BOS, USER, 300, ASSISTANT), PairEncoderPlain())[1] == {"same ids": 1}


class PairEncoderPlain(PairEncoder):
    def plain_text(self, ids):
        return b"".join(self.token_bytes(i) for i in ids if i < 256 or i == 300).decode()


def test_problems_without_a_prompt_are_left_as_they_are():
    imported = Imported([Problem("p", "q", "1")], [])
    assert recover(imported, ByteEncoder()) == (imported, {})


def test_an_id_of_another_policy_names_the_problem():
    with pytest.raises(
        PolicyError, match=r"prompt of problem 'p' needs ids of `bytes`.*no token 9"
    ):
        recovered((BOS, 999), PairEncoder())


def traced(*ids):
    return Trace("p", "t", "", ids=ids)


def test_drift_counts_ids_between_the_first_and_the_last_difference():
    """Pitfall 5: ids -> text -> ids is not the identity."""
    a, b, c = ord("a"), ord("b"), ord("c")
    same = traced(c, 300, c)
    split = traced(c, a, b, c)  # becomes c, ab, c: two ids changed
    apart = traced(a, b, c, a, b)  # becomes ab, c, ab
    assert drift([same], PairEncoder()) == Drift(1, 0, 3, 0)
    assert drift([split], PairEncoder()) == Drift(1, 1, 4, 2)
    assert drift([same, split, apart], PairEncoder()) == Drift(3, 2, 12, 7)


def test_drift_knows_nothing_of_text_and_of_nothing():
    assert drift([Trace("p", "t", "ab")], PairEncoder()) == Drift(0, 0, 0, 0)
    assert drift([traced()], PairEncoder()) == Drift(1, 0, 0, 0)


def test_half_a_character_is_drift():
    """Pitfall 15: one byte of an emoji decodes to U+FFFD and never comes back."""
    assert drift([traced(0xF0, 0x9F, 0x98)], ByteEncoder()).rollouts_changed == 1
    assert drift([traced(*"😀".encode())], ByteEncoder()).rollouts_changed == 0
    assert drift([traced(ord("x"), END)], ByteEncoder()).rollouts_changed == 1  # an end token
