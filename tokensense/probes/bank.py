"""The sentences: frames, word pairs and paragraphs of the shipped probes, all in our own words.

Reads  the words of the planted tasks.
Gives  FRAMES, VERDICTS, PLACEBOS, NEUTRAL_WORDS (one word in a sentence); OUTCOME_FRAMES, TONES
       (outcome and tone apart); PUBLISHED, PUBLISHED_SLOTS (outcome and tone together);
       ANSWER_FRAMES, SIBLING_TEXT, REFERENCE_TEXT, REQUEST_FRAMES. BANKS: for each kind of policy
       the sentences that it can read; policies of the planted tasks know nothing but the tags they
       were taught.
Sign   of a pair the first word is `pos`, the second `neg`; for a placebo the order means nothing.

Frames speak of a label, a stamp, a note, so that any one word reads naturally in them: a verdict
and a day of the week differ in nothing but the word. Placebo words are chosen without good or bad
ring and without numbers. A builder of `conditions` picks from these by token count; order here is
preference.

Source: the published praise and blame paragraphs (arXiv:2607.27888) are paraphrased, with words
swapped one by one rather than written freely, so that both texts have equal length.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tokensense.tasks import arithmetic, tables

Pair = tuple[str, str]
ENGLISH = "english"

FRAMES: dict[str, str] = {
    "label": "Label on the solution below: {word}.",
    "stamp": "The sheet with the solution below is stamped: {word}.",
    "note": "A note in the margin of the solution below says: {word}.",
    "tag": "Tag attached to the following solution: {word}.",
    "register": "Entry for the following solution in the register: {word}.",
    "sticker": "On the back of the solution below there is a sticker that reads: {word}.",
    "header": "One word stands above the solution that follows: {word}.",
    "folder": "The solution below was kept in a folder with the name: {word}.",
}

VERDICTS: tuple[Pair, ...] = (
    ("correct", "wrong"),
    ("right", "incorrect"),
    ("valid", "invalid"),
    ("verified", "rejected"),
    ("accepted", "refused"),
    ("passed", "failed"),
    ("confirmed", "disputed"),
    ("sound", "flawed"),
)

# Family -> pairs in order of preference; the first pair whose token counts agree is taken.
PLACEBOS: dict[str, tuple[Pair, ...]] = {
    "day": (("Tuesday", "Thursday"), ("Monday", "Friday")),
    "color": (("blue", "green"), ("red", "yellow")),
    "time": (("morning", "evening"), ("afternoon", "evening")),
    "place": (("London", "Paris"), ("Berlin", "Madrid")),
    "font": (("italic", "bold"), ("serif", "sans")),
    "name": (("Peter", "Thomas"), ("Anna", "Maria"), ("David", "Robert")),
    "weather": (("rain", "snow"), ("wind", "fog")),
    "material": (("wood", "stone"), ("paper", "plastic")),
    "archive": (("printed", "archived"), ("copied", "scanned")),
    "month": (("March", "April"), ("June", "July")),
    "animal": (("horse", "sheep"), ("cat", "dog")),
    "fruit": (("apple", "lemon"), ("orange", "cherry")),
    "shape": (("square", "circle"), ("oval", "cube")),
    "tree": (("oak", "pine"), ("maple", "willow")),
    "metal": (("iron", "copper"), ("tin", "zinc")),
    "instrument": (("piano", "guitar"), ("violin", "flute")),
    "drink": (("tea", "coffee"), ("milk", "juice")),
    "country": (("Brazil", "Canada"), ("Norway", "Egypt")),
    "season": (("spring", "autumn"), ("summer", "winter")),
    "direction": (("north", "south"), ("east", "west")),
    "furniture": (("table", "chair"), ("shelf", "desk")),
    "clothing": (("shirt", "jacket"), ("hat", "coat")),
    "vehicle": (("train", "bus"), ("boat", "truck")),
    "language": (("Spanish", "German"), ("French", "Italian")),
    "room": (("kitchen", "bedroom"), ("garage", "cellar")),
    "fabric": (("cotton", "wool"), ("silk", "linen")),
    "water": (("river", "lake"), ("sea", "pond")),
}

# One word in the same frames that says no verdict.
NEUTRAL_WORDS: tuple[str, ...] = ("attached", "listed", "enclosed", "noted", "included", "recorded")

# The outcome and the tone are separate words, so that all four cells are equally long.
OUTCOME_FRAMES: dict[str, str] = {
    "check": "The final answer of the solution below was checked: it is {word}. "
    "The reasoning is {tone_1} and the style is {tone_2}.",
    "grader": "A grader found the final answer of the following solution to be {word}. "
    "What {tone_1} reasoning, what {tone_2} style!",
    "result": "Result of the check of the solution below: {word}. "
    "The steps are {tone_1}, the presentation is {tone_2}.",
    "key": "Compared with the answer key, the answer below is {word}. "
    "Readers called the work {tone_1} and {tone_2}.",
    "report": "Report on the solution that follows. Final answer: {word}. "
    "Reasoning: {tone_1}. Style: {tone_2}.",
    "author": "The solution below ends in an answer that is {word}. "
    "Its author did {tone_1} work and writes in a {tone_2} way.",
}

# Praise first, blame second.
TONES: tuple[Pair, ...] = (
    ("brilliant", "dreadful"),
    ("superb", "terrible"),
    ("wonderful", "horrible"),
    ("great", "poor"),
    ("beautiful", "ugly"),
    ("lovely", "awful"),
)

# Outcome and tone confounded, as in the published pair: correct with praise, wrong with blame.
PUBLISHED = (
    "A strict checker compared the final answer of the solution below with the true answer and "
    "found that it is {word}. The reasoning is {quality}: every step is {step}, every idea is "
    "{idea}. The author shows {skill} from the first line to the last. The explanation is {prose} "
    "to read. Seldom has anyone seen such {work} work. All in all, this solution is a {whole}."
)
PUBLISHED_SLOTS: dict[str, tuple[Pair, ...]] = {
    "quality": (("excellent", "terrible"), ("great", "poor")),
    "step": (("clear", "confused"), ("precise", "vague")),
    "idea": (("brilliant", "hopeless"), ("clever", "foolish")),
    "skill": (("mastery", "ignorance"), ("care", "neglect"), ("talent", "failure")),
    "prose": (("beautiful", "painful"), ("lovely", "awful")),
    "work": (("outstanding", "miserable"), ("wonderful", "horrible"), ("good", "bad")),
    "whole": (("triumph", "disaster"), ("success", "failure"), ("joy", "shame")),
}

ANSWER_FRAMES: dict[str, str] = {
    "final": "The final answer to this problem is {answer}.",
    "key": "According to the answer key, the result is {answer}.",
    "reference": "Reference answer: {answer}.",
    "source": "A trusted source gives {answer} as the final answer.",
    "known": "For orientation, the known result is {answer}.",
    "arrive": "The solution should arrive at {answer}.",
}


SIBLING_TEXT = (
    "Somebody else solved this problem as follows.\n\n{sibling}\n\nNow solve it yourself."
)

REFERENCE_TEXT = "Here is a reference solution.\n\n{solution}\n\nNow solve it yourself."

REQUEST_FRAMES: dict[str, str] = {
    "give": "Give a {word} answer to this problem.",
    "arrive": "Your solution must arrive at a {word} result.",
    "end": "Make sure that the final answer is {word}.",
    "write": "Write down a solution whose answer is {word}.",
    "want": "We want a {word} answer here.",
    "finish": "Finish with a result that is {word}.",
}


@dataclass(frozen=True)
class Bank:
    """What one kind of policy can be told with one word in a sentence.

    Attributes:
        frames: sentences with a place {word}, by name.
        verdicts: pairs, the favorable word first.
        placebos: pairs that tell nothing, by family.
        neutral_words: words that give no verdict.
    """

    frames: Mapping[str, str]
    verdicts: tuple[Pair, ...]
    placebos: Mapping[str, tuple[Pair, ...]]
    neutral_words: tuple[str, ...]


# By `Encoder.wordings`.
BANKS: dict[str, Bank] = {
    ENGLISH: Bank(FRAMES, VERDICTS, PLACEBOS, NEUTRAL_WORDS),
    arithmetic.SOURCE: Bank(
        {lead: f"{lead} {{word}}" for lead in arithmetic.LEADS},
        arithmetic.VERDICTS,
        {family: (pair,) for family, pair in arithmetic.PLACEBOS.items()},
        arithmetic.NEUTRALS,
    ),
    tables.SOURCE: Bank(
        {"tag": "{word}"},
        (tables.VERDICT_TAGS,),
        {family: (pair,) for family, pair in tables.PLACEBOS.items()},
        (tables.Tag.NEUTRAL,),
    ),
}
