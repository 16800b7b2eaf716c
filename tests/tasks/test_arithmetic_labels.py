import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.test_arithmetic import plain_steps
from tokensense.errors import InputError
from tokensense.schema import Kind
from tokensense.tasks.arithmetic import DIGITS, FILLERS, VOCABULARY, Chains
from tokensense.tasks.arithmetic_labels import label, verify
from tokensense.tasks.arithmetic_traces import examples

QUESTION = "1 2 + 7 - 3"
RIGHT = "first , well 1 2 + 7 makes 1 9 . now 1 9 - 3 = 1 6 / answer : 1 6 <eos>"
LETTERS = {
    "c": Kind.COMPUTED_DIGIT,
    "d": Kind.CARRIED_DIGIT,
    "o": Kind.OPERATOR,
    "w": Kind.CONNECTIVE,
    "l": Kind.DISCOURSE,
    "f": Kind.FORMAT,
    "a": Kind.FINAL_ANSWER,
    "-": Kind.OTHER,
}
WORDS = st.lists(st.sampled_from([*VOCABULARY, "12", "", "Ünïcode"]), max_size=60)
SEEDS = st.integers(0, 2**32)


def letters(found):
    names = {kind: letter for letter, kind in LETTERS.items()}
    return "".join(names[kind] for kind in found.kind)


def labelled(text, question=QUESTION):
    return label(text.split(), question)


def plain_events(words):
    """(event, token) up to the end token, found by looking around each token."""
    events = []
    for place, word in enumerate(words):
        if place and words[place - 1] in DIGITS and word not in DIGITS:
            events.append(("|", place))
        if word in DIGITS or word in ("+", "-", "*", "<eos>"):
            events.append((word, place))
        elif word in ("=", "is", "gives", "makes"):
            events.append(("=", place))
        if word == "<eos>":
            break
    return events


def plain_wrong(words, question):
    """First wrong token, by writing out the right solution and comparing."""
    right = []
    for left, operator, middle, result in plain_steps(question):
        right += [*str(left), operator, *str(middle), "=", *str(result), "."]
    right += [*str(result), "<eos>"]
    wanted = [event for event, _ in plain_events(right)]
    for given_one, event in zip(plain_events(words), wanted, strict=False):
        if given_one[0] != event:
            return given_one[1]
    return -1


def test_every_token_of_a_right_solution_has_its_kind_and_step():
    found = labelled(RIGHT)
    assert letters(found) == "wflddodoccfwddodoccfwfaaf"
    #      first , well 12 + 7 makes 19 .  now 19 - 3 = 16 /  answer : 16 <eos>
    assert found.step.tolist() == [0] * 11 + [1] * 9 + [2] * 4 + [-1]
    assert (found.wrong_token, found.wrong_step) == (-1, -1)
    assert found.right
    assert not found.lucky
    assert found.finished
    assert found.reward == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[ 1 9 ] <eos>", "faaff"),
        ("answer well 1 , 9 : 5 <eos>", "wlafafaf"),  # the answer goes on
        ("answer 1 2 + 7 = 9 8", "waaodocc"),  # until an operator
        ("answer 1 2 ; 7", "waafd"),  # or a separator
        ("[ 3 ] 4", "fafd"),
        ("= 1 well 2", "ocld"),  # one number a result
        ("= well 1 2", "olcc"),
        ("= ; 1", "ofd"),
        ("= = 1", "ooc"),
        ("= [ 1", "ofa"),
        ("+ = - 1", "oood"),
        ("verdict right : <pad> 1 ? 12 grade unknown", "--f-df---"),
        ("1 <eos> 1 + <eos>", "df---"),
        ("", ""),
    ],
)
def test_kinds_of_malformed_solutions(text, expected):
    assert letters(labelled(text)) == expected


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("1 2 + 7 = 1 8 . 1 8 - 3 = 1 5 . answer 1 5 <eos>", 6, False),
        ("1 2 + 7 = 2 9 .", 5, False),
        ("1 2 + 7 = 1 . 1", 6, False),  # the separator ends a number too early
        ("1 2 + 7 = 1 9 1 .", 7, False),  # a digit too many
        ("1 2 + 7 = 1 well 9", 6, False),
        ("7 + 1 2 = 1 9", 0, False),  # the other order
        ("1 2 - 7", 2, False),
        ("1 2 7", 2, False),
        ("1 2 + 7 1 9", 4, False),
        ("1 2 + 7 . 1 9", 5, False),  # no equality: wrong where a digit stands in its place
        ("1 2 + 7 = = 1 9", 5, False),
        ("answer 1 6 <eos>", 2, True),  # straight to the answer
        ("1 2 + 7 = 1 9 . <eos>", 8, False),  # ends too early
        ("<eos>", 0, False),
        ("1 2 + 7 = 1 9", -1, False),  # cut off, nothing wrong so far
        ("", -1, False),
        ("1 2 + 7 = 1 9 . 1 9 - 3 = 1 6 .", -1, False),
        ("1 2 + 7 = 1 9 . 1 9 - 3 = 1 6 . 1 6 . 1 6 <eos>", 19, True),
        ("1 2 + 7 = 1 9 . 1 9 - 3 = 1 6 . 0 1 6 <eos>", 16, False),
        ("1 2 + 7 = 1 9 . 1 9 - 3 = 1 6 . 1 well 6 <eos>", 17, False),
        ("1 2 + 7 = 1 9 . 1 9 - 3 = 1 6 1 6 <eos>", 15, False),
        ("1 2 + 7 = 1 9 . 1 9 - 3 = 1 6 [ 1 6 <eos> 9", -1, True),  # not read after the end
    ],
)
def test_first_wrong_token_and_verdict(text, wrong, right):
    found = labelled(text)
    assert (found.wrong_token, found.right) == (wrong, right)
    assert verify(text.split(), QUESTION) is right
    assert found.lucky is (right and wrong >= 0)
    assert plain_wrong(text.split(), QUESTION) == wrong


def test_an_error_that_is_taken_back_is_right_by_luck():
    found = labelled("1 2 + 7 = 1 8 . now 1 9 - 3 = 1 6 . [ 1 6 ] <eos>")
    assert found.right
    assert found.lucky
    assert (found.wrong_token, found.wrong_step) == (6, 0)


def test_the_wrong_step_is_the_one_that_holds_the_wrong_token():
    assert labelled("1 2 + 7 = 1 9 . 1 9 - 3 = 1 7 .").wrong_step == 1
    assert labelled("1 2 + 7 = 1 . 1 9").wrong_step == 0  # a separator belongs to its step
    assert labelled("1 2 + 7 = 1 9 . <eos>").wrong_step == -1


@given(WORDS, SEEDS)
def test_any_words_are_labelled_and_the_plain_reading_agrees(words, seed):
    (example,) = examples(np.random.default_rng(seed), count=1)
    question = example.chain.question
    found = label(words, question)
    assert len(found.kind) == len(found.step) == len(words)
    assert set(found.kind.tolist()) <= set(LETTERS.values())
    assert found.wrong_token == plain_wrong(words, question)
    assert found.right is verify(words, question)
    assert not found.right or found.finished
    if found.finished and not found.right:
        assert found.wrong_token >= 0


# A place (cut to the length), how many words are taken out there, and what is put in.
EDIT = st.tuples(
    st.integers(0, 60), st.integers(0, 1), st.lists(st.sampled_from(VOCABULARY), max_size=1)
)
EDITS = st.lists(EDIT, max_size=2)


def spoiled(seed, edits):
    """A right solution with a few words put in, taken out or replaced, and its question."""
    chains = Chains(error_rate=0.0, operations=(1, 3))
    (example,) = examples(np.random.default_rng(seed), count=1, chains=chains)
    words = list(example.words)
    for place, taken, put in edits:
        words[place : place + taken] = put
    return words, example.chain.question


@given(SEEDS, EDITS)
def test_spoiled_solutions_are_read_as_the_plain_reading_does(seed, edits):
    words, question = spoiled(seed, edits)
    found = label(words, question)
    assert found.wrong_token == plain_wrong(words, question)
    assert found.lucky is (found.right and found.wrong_token >= 0)


@given(SEEDS, EDITS, st.integers(0, 60))
def test_labels_of_a_prefix_are_the_prefix_of_the_labels(seed, edits, size):
    words, question = spoiled(seed, edits)
    whole, part = label(words, question), label(words[:size], question)
    assert part.kind.tolist() == whole.kind.tolist()[:size]
    assert part.step.tolist() == whole.step.tolist()[:size]
    assert part.wrong_token == (whole.wrong_token if whole.wrong_token < len(part.kind) else -1)


@given(st.permutations(RIGHT.split()))
def test_the_kind_of_a_word_that_is_no_digit_does_not_depend_on_its_place(words):
    alone = dict(zip(RIGHT.split(), labelled(RIGHT).kind, strict=True))
    end = words.index("<eos>")
    found = label(words, QUESTION)
    for word, kind in list(zip(words, found.kind, strict=True))[: end + 1]:
        if word.isdigit():
            assert kind in (Kind.COMPUTED_DIGIT, Kind.CARRIED_DIGIT, Kind.FINAL_ANSWER)
        else:
            assert kind == alone[word]


@given(st.lists(st.tuples(st.integers(0, 24), st.sampled_from(FILLERS)), max_size=5))
def test_fillers_between_the_parts_change_nothing_but_their_own_labels(inserts):
    words, plain = RIGHT.split(), labelled(RIGHT)
    for place, filler in sorted(inserts, reverse=True):
        if not (words[place].isdigit() and words[place - 1].isdigit()):  # not inside a number
            words.insert(place, filler)
    found = label(words, QUESTION)
    kept = [kind for word, kind in zip(words, found.kind, strict=True) if word not in FILLERS]
    assert kept == [kind for kind in plain.kind if kind != Kind.DISCOURSE]
    assert found.right
    assert found.wrong_token == -1


def test_what_is_no_question_is_refused():
    for reader in (label, verify):
        with pytest.raises(InputError, match="a question such as"):
            reader(RIGHT.split(), "What is 1 + 1?")
