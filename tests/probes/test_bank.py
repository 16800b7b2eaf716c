import re
from itertools import chain

import pytest

from tokensense.probes import bank
from tokensense.tasks import arithmetic, tables

PLACEBO_WORDS = [word for pairs in bank.PLACEBOS.values() for pair in pairs for word in pair]
VERDICT_WORDS = list(chain(*bank.VERDICTS))


def test_the_bank_is_as_large_as_the_statistics_ask_for():
    assert len(bank.FRAMES) >= 6
    assert len(bank.VERDICTS) >= 6
    assert len(bank.PLACEBOS) >= 19  # the rank of the verdict among m families has p = 1 / (m + 1)
    assert bank.VERDICTS[0] == ("correct", "wrong")


@pytest.mark.parametrize(
    ("frames", "places"),
    [
        (bank.FRAMES, ["word"]),
        (bank.OUTCOME_FRAMES, ["word", "tone_1", "tone_2"]),
        (bank.ANSWER_FRAMES, ["answer"]),
        ({"paragraph": bank.PUBLISHED}, ["word", *bank.PUBLISHED_SLOTS]),
    ],
)
def test_each_frame_has_each_place_once_and_ends_as_a_sentence(frames, places):
    for name, text in frames.items():
        assert sorted(re.findall(r"\{(\w+)\}", text)) == sorted(places), name
        assert text[-1] in ".!", name
    assert len(set(frames.values())) == len(frames)


def test_no_word_stands_for_two_things():
    words = [*PLACEBO_WORDS, *VERDICT_WORDS, *bank.NEUTRAL_WORDS]
    twice = {word for word in words if words.count(word) > 1}
    assert twice <= {"evening"}  # two pairs of one family, of which one is used
    for first, second in [*bank.VERDICTS, *bank.TONES, *chain(*bank.PLACEBOS.values())]:
        assert first != second


def test_placebo_and_neutral_words_say_nothing_about_answers():
    # Any part of these would be a verdict, praise, blame, or a number that a task may hold.
    tainted = re.compile(
        r"\d|correct|right|wrong|true|false|valid|pass|fail|accept|reject|good|bad|error|check|"
        r"verif|one|two|three|four|five|six|seven|eight|nine|ten|dozen|half|double",
        re.IGNORECASE,
    )
    harmless = {"stone"}  # holds "one"
    for word in [*PLACEBO_WORDS, *bank.NEUTRAL_WORDS]:
        assert word in harmless or not tainted.search(word), word


def test_words_are_single_words_that_can_be_part_of_a_name():
    words = [*PLACEBO_WORDS, *VERDICT_WORDS, *bank.NEUTRAL_WORDS, *chain(*bank.TONES)]
    names = [*bank.FRAMES, *bank.OUTCOME_FRAMES, *bank.ANSWER_FRAMES, *bank.PLACEBOS]
    assert all(re.fullmatch(r"[A-Za-z]+", text) for text in [*words, *names])


@pytest.mark.parametrize(
    ("task", "lead"), [(arithmetic, {*arithmetic.LEADS}), (tables, {"{word}"})]
)
def test_policies_of_a_planted_task_are_told_its_tags_and_nothing_else(task, lead):
    own = bank.BANKS[task.SOURCE]
    assert {text.split()[0] for text in own.frames.values()} == lead
    pairs = [*own.verdicts, *chain(*own.placebos.values())]
    told = [
        text.replace("{word}", word)
        for text in own.frames.values()
        for word in [*chain(*pairs), *own.neutral_words]
    ]
    assert len(told) == len(set(told))
    assert {word for text in told for word in text.split()} <= set(task.VOCABULARY)
    assert len(own.placebos) >= 3  # the fewest that give a wording floor


def test_the_first_word_of_a_verdict_is_the_favorable_one():
    for task, word in (("english", "correct"), ("arithmetic", "right"), ("tables", "R")):
        assert bank.BANKS[task].verdicts[0][0] == word
