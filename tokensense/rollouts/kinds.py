r"""What each token of a response is: deterministic rules on the decoded text with its neighbours.

Reads  the exact bytes of one response's tokens, and the question.
Gives  `classify`: one `schema.Kind` a token.

The text is cut into units (a word, a number, a command, one sign) and each unit gets one kind, so
all pieces of a word, and all pieces of a character, agree. A token that touches several units has
the kind of the first that is not FORMAT.

CALCULATOR    everything in `<<...>>`, delimiters too
FINAL_ANSWER  what the last stated answer says, FORMAT left out: in the last `\boxed{}`, after
              `####`, after `A:` or `answer is` or `answer:`, units and signs included; an answer
              that no mark announces is not found
DIGIT         numerals with their decimal points and thousands separators
OPERATOR      signs of operation and relation, `%` and minus included, LaTeX commands that are such
              (`\times`, `\frac`, `\leq`), `x` between numbers, the words plus, minus, equals
VARIABLE      a letter that stands for a quantity, Greek too (`\alpha`)
DISCOURSE     marks of order, turn and inference (First, So, then, therefore, let's) and hedges
CONNECTIVE    other function words
COPIED        other words that occur in the question, whatever case or plural
FORMAT        white space, punctuation, brackets, `$` (currency or delimiter), markdown, other LaTeX
              commands, enumerators and `Step 1` at the start of a line, special tokens and tags
OTHER         the rest: words that the question does not have, symbols, broken bytes

COMPUTED_DIGIT and CARRIED_DIGIT need a generator that knows; these rules never give them.

Source: own rules on the classes that the CSCR paper names (arXiv:2607.27888); agreement with hand
labels is measured in tests/rollouts.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int8

from tokensense.rollouts.alignment import characters_of
from tokensense.rollouts.wordlists import (
    AFTER_A_NAME,
    COMMA_OPENERS,
    DISCOURSE,
    ENDINGS,
    FUNCTION,
    OPENERS,
    PHRASES,
    SPEAKERS,
    SPEECH,
    UNITS,
)
from tokensense.schema import Kind

# Marks that extend the character before them: accents, variation selectors, joiners, skin tones.
_EXTENDS = "\u0300-\u036f\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff"
_LETTER = r"[^\W\d_²³¹⁰-⁹₀-₉¼-¾⅐-ↈ]"  # `\w` has raised digits and fractions, which are numbers
_UNIT = re.compile(
    rf"""
      (?P<calculator> <<[^<>\n]*(?:>>|\Z) )
    | (?P<tag> <\|[^|<>\s]*\|> | </?[A-Za-z]\w*> | \\(?:begin|end)\{{[^{{}}\n]*\}} )
    | (?P<command> \\[A-Za-z]+ | \\[^\sA-Za-z] )
    | (?P<number> \d+(?:,\d{{3}})*(?:\.\d+)? | (?<![\w.])\.\d+ )
    | (?P<word> {_LETTER}(?:{_LETTER}|[{_EXTENDS}]|['’](?={_LETTER}))* )
    | (?P<space> \s+ )
    | (?P<sign> .(?:[{_EXTENDS}]+(?:(?<=\u200d).)?)* )
    """,
    re.VERBOSE | re.DOTALL,
)
_LINE_MARK = re.compile(
    r"""(?mix)
      ^[ \t]*(?:[-*+>•]|\#{1,6}|\d{1,3}[.)]|[a-z][.)])(?=[ \t]|$)   # bullet, heading, enumerator
    | ^[ \t\#*>-]*step[ \t]+\d+                                     # "Step 1", "**Step 2"
    | ^[ \t*]*[aq]:(?=\s)                                           # "A:"
    | ^\#\#\#\#                                                     # GSM8K's mark, blank or not
    """
)
_ANSWER_MARK = re.compile(r"(?m)^[ \t*]*A:|^####|\b[Aa]nswer(?:[ \t]+is\b|[ \t*]*[:=])[ \t*]*:?")
_ANSWER_END = re.compile(r"\n|[.!?;](?=\s|\Z)|,(?=\s+[^\W\d])")
_PHRASE = re.compile(r"(?i)\b(?:" + "|".join(map(re.escape, PHRASES)) + r")\b")
_LONGEST_ANSWER = 200
_MATH_COMMANDS = frozenset(
    """
    times div cdot frac dfrac tfrac sqrt pm mp le leq leqslant ge geq geqslant lt gt ne neq approx
    equiv sim cong propto to rightarrow Rightarrow implies iff sum prod int mod bmod pmod cup cap in
    subset log ln sin cos tan %
    """.split()  # noqa: SIM905
)
_GREEK = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho
    sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell
    """.split()  # noqa: SIM905
)
_OPERATOR_SIGNS = frozenset("+*/^%·∙<>=")
_FORMAT_SIGNS = frozenset("|`_")
_DASHES = frozenset("-–—")
_BESIDE_MINUS = frozenset("()[]{}$+-−*/=^%")
_BEFORE_A_NAME = frozenset({"=", "+", "*", "/", "\\(", "$"})
_ENDS = frozenset(".!?:")
_SKIPPED = frozenset('*#_"“')


class _Unit(NamedTuple):
    """A stretch of text that is classified as a whole."""

    form: str
    text: str
    start: int
    end: int


class _Place(NamedTuple):
    """A unit's surroundings: the text, the dark units next to it, and whether a sentence opens."""

    text: str
    before: _Unit | None
    after: _Unit | None
    opens: bool


def classify(pieces: Sequence[bytes], *, question: str) -> Int8[np.ndarray, " token"]:
    """Kind of each token of one response.

    Args:
        pieces: exact bytes of each token, in order; a token may be part of a character.
        question: the question that the response answers; tells what is copied.

    Returns:
        Values of `schema.Kind`; dims (token,). A token without bytes is OTHER.

    Example:
        >>> found = classify([b"So", b" 1", b"+", b" e", b"ggs"], question="Eggs?")
        >>> [Kind(kind).name for kind in found]
        ['DISCOURSE', 'DIGIT', 'OPERATOR', 'COPIED', 'COPIED']
    """
    text, start, end = characters_of(pieces)
    kind = _character_kinds(text, _stems(question))
    size = len(text)
    place = np.where(kind != Kind.FORMAT, np.arange(size), size)
    telling = np.append(np.minimum.accumulate(place[::-1])[::-1], size)
    first = telling[start]
    found = np.full(len(pieces), Kind.FORMAT, np.int8)
    told = first < end
    found[told] = kind[first[told]]
    found[start == end] = Kind.OTHER
    return found


def _character_kinds(text: str, copied: frozenset[str]) -> Int8[np.ndarray, " character"]:
    """Kind of each character: units first, then what whole lines and the whole response say."""
    kind = np.full(len(text), Kind.FORMAT, np.int8)
    for unit, place in _dark_units(text):
        kind[unit.start : unit.end] = _unit_kind(unit, place, copied)
    for match in _PHRASE.finditer(text):
        kind[match.start() : match.end()] = Kind.DISCOURSE
    for match in _LINE_MARK.finditer(text):
        kind[match.start() : match.end()] = Kind.FORMAT
    start, end = _answer_span(text)
    answer = kind[start:end]
    answer[answer != Kind.FORMAT] = Kind.FINAL_ANSWER
    return kind


def _dark_units(text: str) -> Iterator[tuple[_Unit, _Place]]:
    """Units that are not white space, each with its surroundings."""
    units = [
        _Unit(match.lastgroup or "sign", match.group(), match.start(), match.end())
        for match in _UNIT.finditer(text)
        if match.lastgroup != "space"
    ]
    last: _Unit | None = None  # the unit before, emphasis and quotes skipped
    for place, unit in enumerate(units):
        opens = last is None or last.text in _ENDS or "\n" in text[last.end : unit.start]
        before = units[place - 1] if place else None
        after = units[place + 1] if place + 1 < len(units) else None
        yield unit, _Place(text, before, after, opens)
        if unit.text not in _SKIPPED:
            last = unit


def _unit_kind(unit: _Unit, place: _Place, copied: frozenset[str]) -> Kind:
    """Kind of one unit by its form."""
    if unit.form == "word":
        return _word_kind(unit, place, copied)
    if unit.form == "sign":
        return _sign_kind(unit, place)
    if unit.form == "command":
        name = unit.text[1:]
        if name in _MATH_COMMANDS:
            return Kind.OPERATOR
        return Kind.VARIABLE if name in _GREEK else Kind.FORMAT
    return {"calculator": Kind.CALCULATOR, "number": Kind.DIGIT, "tag": Kind.FORMAT}[unit.form]


def _sign_kind(unit: _Unit, place: _Place) -> Kind:
    """Kind of a character that is no letter, digit or blank."""
    sign = unit.text[0]
    if sign in _DASHES:
        return Kind.OPERATOR if _is_minus(unit, place) else Kind.FORMAT
    if sign == "*":
        return Kind.OPERATOR if _is_product(unit, place) else Kind.FORMAT
    if sign in _OPERATOR_SIGNS:
        return Kind.OPERATOR
    category = unicodedata.category(sign)
    if category == "Sm" and sign not in _FORMAT_SIGNS:
        return Kind.OPERATOR
    if category[0] == "N":
        return Kind.DIGIT
    formal = category[0] in "PZ" or category in ("Sc", "Cc", "Cf") or sign in _FORMAT_SIGNS
    return Kind.FORMAT if formal else Kind.OTHER


def _is_minus(unit: _Unit, place: _Place) -> bool:
    """Whether a dash subtracts or negates, rather than join words or set them apart."""
    left, right = place.text[unit.start - 1 : unit.start], place.text[unit.end : unit.end + 1]
    letters = [n is not None and n.form == "word" and len(n.text) == 1 for n in place[1:3]]
    if (left.isalpha() and right.isalpha()) or (left.isdigit() and right.isalpha()):
        return all(letters) or (left.isdigit() and letters[1])
    if unit.text[0] == "—":
        return False
    if any(letters) or any(n is not None and _is_mathematical(n) for n in place[1:3]):
        return True
    # Between words with blanks: an equation in words has its `=` on the same line.
    nearby = place.text[unit.start : unit.start + 100].partition("\n")[0]
    nearby += place.text[max(unit.start - 100, 0) : unit.start].rpartition("\n")[2]
    return left.isspace() and right.isspace() and "=" in nearby


def _is_mathematical(unit: _Unit) -> bool:
    """Whether a minus may stand next to it."""
    return unit.form in ("number", "command", "calculator") or unit.text in _BESIDE_MINUS


def _is_product(unit: _Unit, place: _Place) -> bool:
    """Whether an asterisk multiplies, rather than emphasize."""
    left, right = place.text[unit.start - 1 : unit.start], place.text[unit.end : unit.end + 1]
    if "*" in (left, right):
        return False
    open_left, open_right = not left or left.isspace(), not right or right.isspace()
    return open_left == open_right or not (right if open_left else left).isalpha()


def _word_kind(unit: _Unit, place: _Place, copied: frozenset[str]) -> Kind:
    """Kind of a word; single letters are names, articles or units."""
    word = _plain(unit.text)
    if word in ("plus", "minus", "equals") or _is_times(word, unit, place):
        return Kind.OPERATOR
    if len(word) == 1 and (word.isascii() or _is_symbol(word)):
        return _letter_kind(unit, place)
    if _is_discourse(word, place):
        return Kind.DISCOURSE
    stems = (word[: -len(ending)] for ending in ENDINGS if word.endswith(ending))
    if word in FUNCTION or any(stem in FUNCTION for stem in stems):
        return Kind.CONNECTIVE
    return Kind.COPIED if _stem(word) in copied else Kind.OTHER


def _is_times(word: str, unit: _Unit, place: _Place) -> bool:
    """Whether `x` or `times` multiplies: a number or an amount stands on either side."""
    before, after = place.before, place.after
    if word not in ("x", "times") or before is None or after is None:
        return False
    if "\n" in place.text[before.end : after.start]:
        return False
    amount = before.form in ("number", "calculator") or before.text in ")%}"
    spaced = before.end < unit.start and unit.end < after.start
    number = after.form in ("number", "calculator") or after.text in "($"
    if word == "times":
        # One letter is a quantity here, except in "3 times a week".
        lettered = after.form == "word" and len(after.text) == 1 and after.text != "a"
        return (amount or len(before.text) == 1) and (number or lettered)
    named = spaced and before.form == "word" and _plain(before.text) not in FUNCTION
    return (number and (amount or named)) or (amount and spaced and after.form == "word")


def _letter_kind(unit: _Unit, place: _Place) -> Kind:
    """Kind of a word of one letter: a quantity's name unless the surroundings say otherwise."""
    after = place.after
    calculates = after is not None and (after.text in "=+*/^-(" or after.form == "command")
    if _is_fragment(unit, place, calculates=calculates):
        return Kind.OTHER
    if unit.text == "I":
        beside = place.before is not None and place.before.text in _BEFORE_A_NAME
        return Kind.VARIABLE if calculates or beside else Kind.CONNECTIVE
    return Kind.CONNECTIVE if _is_article(unit, place) else Kind.VARIABLE


def _is_fragment(unit: _Unit, place: _Place, *, calculates: bool) -> bool:
    """Whether a letter is part of an abbreviation, a compound, a plural in brackets, or a unit."""
    text = place.text
    left, right = text[max(unit.start - 3, 0) : unit.start], text[unit.end : unit.end + 3]
    if re.match(r"\.[^\W\d]|-[^\W\d]{2}", right) or re.search(r"[^\W\d]\.$", left):
        return True  # a.m., U.S., T-shirt
    if re.search(r"[^\W\d]{2}\($", left) and unit.text == "s":
        return True  # book(s)
    counted = place.before is not None and place.before.form == "number" and not calculates
    return unit.text in UNITS and (counted or re.search(r"[^\W\d]/$", left) is not None)


def _is_article(unit: _Unit, place: _Place) -> bool:
    """Whether `a` or `A` stands before a noun."""
    after = place.after
    if unit.text not in "aA" or after is None or after.start == unit.end:
        return False
    noun = after.form in ("word", "number") or after.text in "$\"“'*"
    single = len(after.text) == 1 and after.form == "word"
    if not noun or single or _plain(after.text) in AFTER_A_NAME:
        return False
    return unit.text == "a" or place.opens


def _is_discourse(word: str, place: _Place) -> bool:
    """Whether a word marks order, turn, inference or doubt here."""
    before = _plain(place.before.text) if place.before is not None else ""
    after = _plain(place.after.text) if place.after is not None else ""
    if word in DISCOURSE:
        return not (word == "so" and after in ("many", "much", "far", "few", "little"))
    if word in SPEECH:
        return place.opens or before in SPEAKERS
    if word not in OPENERS:
        return False
    if after == "," and (place.opens or before in (",", ";", "and", "but", "so")):
        return True
    if word == "first" and before in SPEAKERS:
        return True
    return place.opens and word not in COMMA_OPENERS


def _answer_span(text: str) -> tuple[int, int]:
    """Characters [start, end) of the last stated answer; empty where no mark announces one."""
    boxed = text.rfind("\\boxed{")
    for mark in reversed(list(_ANSWER_MARK.finditer(text))):
        if mark.start() < boxed:
            break
        # A bound keeps long lines with many marks linear; no stated answer comes near it.
        limit = mark.end() + _LONGEST_ANSWER
        lead = re.compile(r"\s*").match(text, mark.end(), limit)
        start = lead.end() if lead else mark.end()
        stop = _ANSWER_END.search(text, start, limit)
        if stop is None and limit < len(text):
            continue
        end = stop.start() if stop else len(text)
        words = text[start:end].split()
        # `Answer:` may also open a whole solution.
        if 0 < len(words) <= 2 or (len(words) <= 12 and re.search(r"\d", text[start:end])):
            return start, end
    if boxed < 0:
        return 0, 0
    start = boxed + len("\\boxed{")
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:]):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return start, start + match.start()
    return start, len(text)


def _is_symbol(letter: str) -> bool:
    """Greek letters and mathematical alphabets."""
    return "\u0370" <= letter <= "\u03ff" or "\U0001d400" <= letter <= "\U0001d7ff"


def _plain(word: str) -> str:
    """Lower case, straight apostrophes."""
    return word.lower().replace("’", "'")


def _stem(word: str) -> str:
    """A word without its possessive and plural ending."""
    word = word.removesuffix("'s")
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and re.search(r"(?:s|x|z|ch|sh)es$", word):
        return word[:-2]
    return word[:-1] if len(word) > 3 and re.search(r"[^s]s$", word) else word


def _stems(question: str) -> frozenset[str]:
    """Stems of the question's words."""
    words = (match.group() for match in _UNIT.finditer(question) if match.lastgroup == "word")
    return frozenset(_stem(_plain(word)) for word in words)
