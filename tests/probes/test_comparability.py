import numpy as np
import pytest

from tests.builders import ASSISTANT, BOS, ByteEncoder
from tokensense.probes.comparability import Prompt, Response, limits, verdicts
from tokensense.probes.conditions import BASE_CONDITION, Condition
from tokensense.schema import Comparability

QUESTION = "How many?"
SHORT = Response("It is 3.", 8)


def condition(level="none", **fields):
    given = {"name": level, "text": "", "family": "f", "frame": "x", "wording": "w", **fields}
    return Condition(level=level, **given)


def prompt(encoder, text, *, level="none", **fields):
    ids = encoder.render(QUESTION, insert=text)
    return Prompt(condition(level, **fields), text, tuple(ids))


def verdict(encoder, *prompts, response=SHORT, bos_id=BOS):
    """Verdicts of one rollout, as enumeration members."""
    found = verdicts(
        encoder.render(QUESTION), prompts, [response], limits=limits(encoder, bos_id=bos_id)
    )
    assert found.shape == (len(prompts), 1)
    return [Comparability(value) for value in found[:, 0]]


class ThinkingEncoder(ByteEncoder):
    """As templates that close a think block only where there is an instruction."""

    def render(self, question, *, insert="", placement="user_end"):
        ids = super().render(question, insert=insert, placement=placement)
        return [*ids, *self.encode("</think>\n")] if insert else ids


class DoublingEncoder(ByteEncoder):
    """Template and tokenizer both write BOS as soon as there is an insert."""

    def render(self, question, *, insert="", placement="user_end"):
        ids = super().render(question, insert=insert, placement=placement)
        return [BOS, *ids] if insert else ids


class DroppingEncoder(ByteEncoder):
    """BOS is lost as soon as there is an insert."""

    def render(self, question, *, insert="", placement="user_end"):
        return super().render(question, insert=insert, placement=placement)[bool(insert) :]


class SpecialEncoder(ByteEncoder):
    """Special tokens written out in a text become their ids."""

    def encode(self, text):
        parts = text.split("<bos>")
        ids = super().encode(parts[0])
        for part in parts[1:]:
            ids += [BOS, *super().encode(part)]
        return ids


class DeafEncoder(ByteEncoder):
    """Inserts never reach the prompt."""

    def render(self, question, *, insert="", placement="user_end"):
        return super().render(question)


class CuttingEncoder(ByteEncoder):
    """Inserts are cut after ten characters."""

    def render(self, question, *, insert="", placement="user_end"):
        return super().render(question, insert=insert[:10], placement=placement)


def test_a_plain_insert_is_comparable():
    encoder = ByteEncoder()
    for placement in ("user_end", "user_start", "system"):
        ids = tuple(encoder.render(QUESTION, insert="Label: x.", placement=placement))
        given = Prompt(condition(placement=placement), "Label: x.", ids)
        assert verdict(encoder, given) == [Comparability.OK]


def test_the_base_is_comparable_with_itself():
    encoder = ByteEncoder()
    base = Prompt(BASE_CONDITION, "", tuple(encoder.render(QUESTION)))
    assert verdict(encoder, base) == [Comparability.OK]


def test_the_opener_is_what_ends_all_prompts_alike():
    assert limits(ByteEncoder(), bos_id=BOS).opener == 1
    assert ByteEncoder().render("a")[-1] == ASSISTANT

    class Longer(ByteEncoder):
        def render(self, question, *, insert="", placement="user_end"):
            return [*super().render(question, insert=insert), *self.encode("think:\n")]

    assert limits(Longer(), bos_id=BOS).opener == 1 + len("think:\n")


def test_words_that_a_policy_does_not_know_are_no_part_of_the_opener():
    class Digits(ByteEncoder):
        """One token a word; words other than digits are all the same unknown one."""

        def render(self, question, *, insert="", placement="user_end"):
            words = f"{question} {insert}".split()
            return [*(int(word) if word.isdigit() else 99 for word in words), ASSISTANT]

    assert limits(Digits(), bos_id=None).opener == 1


def test_another_opener_is_found():
    given = prompt(ThinkingEncoder(), "Label: x.")
    assert verdict(ThinkingEncoder(), given) == [Comparability.OPENER_DIFFERS]


def test_prompt_and_response_must_fit_together_to_the_token():
    encoder = ByteEncoder()
    given = prompt(encoder, "Label: x.")
    encoder.context_length = len(given.ids) + 8
    base, bound = encoder.render(QUESTION), limits(encoder, bos_id=BOS)
    responses = [Response("?", 8), Response("?", 9), Response("?", 0)]
    found = verdicts(base, [given], responses, limits=bound)
    assert found.tolist() == [[Comparability.OK, Comparability.TRUNCATED, Comparability.OK]]


@pytest.mark.parametrize("encoder", [DeafEncoder(), CuttingEncoder()])
def test_a_text_that_does_not_reach_the_prompt_is_truncated(encoder):
    one, two = (prompt(encoder, f"One label: {word}") for word in ("right", "wrong"))
    assert verdict(encoder, one, two) == [Comparability.TRUNCATED] * 2


def test_equal_texts_may_have_equal_prompts():
    one, two = (prompt(ByteEncoder(), "Label: x.", name=name) for name in "ab")
    assert verdict(ByteEncoder(), one, two) == [Comparability.OK] * 2


@pytest.mark.parametrize(
    ("encoder", "text"),
    [
        (DoublingEncoder(), "Label: x."),
        (DroppingEncoder(), "Label: x."),
        (SpecialEncoder(), "Label: <bos>."),
    ],
)
def test_bos_comes_as_often_as_in_the_base(encoder, text):
    assert verdict(encoder, prompt(encoder, text)) == [Comparability.BOS]
    # Without a BOS there is nothing to count.
    assert verdict(encoder, prompt(encoder, text), bos_id=None) == [Comparability.OK]


def test_a_base_with_two_bos_at_its_start_is_no_base():
    class Twice(ByteEncoder):
        def render(self, question, *, insert="", placement="user_end"):
            return [BOS, *super().render(question, insert=insert)]

    encoder = Twice()
    base = Prompt(BASE_CONDITION, "", tuple(encoder.render(QUESTION)))
    assert verdict(encoder, base, prompt(encoder, "x")) == [Comparability.BOS] * 2


def test_bos_that_the_template_repeats_for_each_turn_is_fine():
    class Turns(ByteEncoder):
        def render(self, question, *, insert="", placement="user_end"):
            return [*super().render(question, insert=insert), BOS, *self.encode("answer")]

    assert verdict(Turns(), prompt(Turns(), "Label: x.")) == [Comparability.OK]


def test_a_rollout_is_not_its_own_example():
    encoder = ByteEncoder()
    own = "First 2 + 3 = 5.\n\nSo it is 5."
    given = prompt(encoder, "Look at this: First  2 + 3 = 5. So it is 5. Well?")
    found = verdicts(
        encoder.render(QUESTION),
        [given],
        [Response(own, 30), Response(own + " Done.", 36), Response("So it is 5.", 11), SHORT],
        limits=limits(encoder, bos_id=BOS),
    )
    # White space aside it is shown; the longer one is not, the third is a bare answer.
    assert found[0].tolist() == [Comparability.OWN_EXAMPLE, 0, 0, 0]


def test_an_empty_response_is_nobodys_example():
    encoder = ByteEncoder()
    assert verdict(encoder, prompt(encoder, "x"), response=Response("", 0)) == [Comparability.OK]


def test_both_sides_of_an_unequal_pair_are_marked_and_no_other():
    encoder = ByteEncoder()
    given = [
        prompt(encoder, "It is 18.", level="pos"),
        prompt(encoder, "It is 1234.", level="neg"),
        prompt(encoder, "It is 18!", level="pos", frame="y"),
        prompt(encoder, "It is 19!", level="neg", frame="y"),
        prompt(encoder, "It is something else.", level="none"),
    ]
    unequal, ok = Comparability.UNEQUAL_LENGTH, Comparability.OK
    assert verdict(encoder, *given) == [unequal, unequal, ok, ok, ok]


def test_cells_of_a_factorial_are_equally_long_in_all_tones():
    encoder = ByteEncoder()
    given = [
        prompt(encoder, f"{level}{tone}", level=level, tone=tone)
        for level in ("pos", "neg")
        for tone in ("kind", "harsh")
    ]
    assert verdict(encoder, *given) == [Comparability.UNEQUAL_LENGTH] * 4


def test_not_applicable_wins_and_does_not_spoil_its_partner():
    encoder = ByteEncoder()
    given = [Prompt(condition("pos"), "", ()), prompt(encoder, "It is 19.", level="neg")]
    assert verdict(encoder, *given) == [Comparability.NOT_APPLICABLE, Comparability.OK]


def test_the_first_fault_of_the_list_wins():
    encoder = ThinkingEncoder()
    pair = [prompt(encoder, t, level=side) for t, side in (("1", "pos"), ("22", "neg"))]
    assert verdict(encoder, *pair) == [Comparability.OPENER_DIFFERS] * 2
    long = replace_length(encoder, pair[0])
    assert verdict(long, pair[0]) == [Comparability.TRUNCATED]
    both = DoublingEncoder()
    assert (
        verdict(both, prompt(both, "1", level="pos"), prompt(both, "22", level="neg"))
        == [Comparability.BOS] * 2
    )


def replace_length(encoder, given):
    """The encoder with a context that the prompt alone fills."""
    small = type(encoder)()
    small.context_length = len(given.ids)
    return small


def test_dims_are_condition_and_rollout():
    encoder = ByteEncoder()
    given = [prompt(encoder, "a"), prompt(encoder, "b"), prompt(encoder, "c")]
    bound = limits(encoder, bos_id=BOS)
    found = verdicts(encoder.render(QUESTION), given, [SHORT, SHORT], limits=bound)
    assert found.shape == (3, 2)
    assert found.dtype == np.int8
    assert verdicts(encoder.render(QUESTION), given, [], limits=bound).shape == (3, 0)
