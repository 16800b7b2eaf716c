r"""The final answer of a response, found in its text by fixed rules, and numbers read exactly.

Reads  a response, or an answer as text.
Gives  `final_answer`: the answer text and which rule found it, or why there is none;
       `plain_number`: the exact value of a text that is one number.

The rules, in order. (1) The last `\boxed` decides alone: cut off, it is no answer, and an earlier
box is never taken instead; a response cut inside its last box has not answered. (2) The last of
`#### x`, `A: x`, `Answer: x` and "the answer is x". (3) The last line that is not blank; it counts
where its last sentence has one number or formula. Every rule is linear in the text's length.

Source: own rules. The traps are public: marin-community/marin#9163 (earlier box used when the last
is cut), verifiers#1028 (whole text searched when there is no box), lmms-eval#1511 (first box).
"""

import re
from collections import deque
from fractions import Fraction
from typing import Literal, NamedTuple

Rule = Literal["boxed", "stated", "last line", "none"]

BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
STATED = re.compile(
    r"####[ \t]*(?P<marked>[^\n]*)"
    r"|^[ \t>#*_]{0,8}(?:the[ \t]|my[ \t])?(?:final[ \t])?(?:(?-i:A)|answer)[ \t]?[*_]{0,3}[ \t]?:"
    r"[*_]{0,3}[ \t]*\n?\s{0,8}(?P<colon>[^\n]*)"
    r"|\banswer(?:[ \t]to[ \t][^.\n:]{1,80})?[ \t](?:is|equals)\b[ \t]?:?[ \t]*\n?\s{0,8}"
    r"(?P<phrase>[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
ANNOUNCED_AGAIN = re.compile(r"^[*_ ]{0,8}(?:the |my )?(?:final )?answer is:?\s", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[^\s.])\.(?=\s+[A-Z*])")
NUMBER = re.compile(
    r"(?P<sign>[-+−–]?)\s*(?:"
    r"(?P<whole>\d{1,3}(?:(?:,|\\,|\\!|\\ |\{,\}|,\\!)\d{3})+|\d{1,1000})?"
    r"(?P<decimals>\.\d{1,1000})?"
    r"|(?P<mixed>\d{1,20}\s+)?(?P<top>\d{1,1000})\s*/\s*(?P<bottom>\d{1,1000})"
    r"|(?P<whole_part>\d{1,20})?\s*\\[dt]?frac\s*\{\s*(?P<over>-?\d{1,1000})\s*\}"
    r"\s*\{\s*(?P<under>\d{1,1000})\s*\})"
)
BRACKETS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
LONGEST_MARKED = 10_000
MARKUP = "*_` \t\r\n"


class Found(NamedTuple):
    """Where the final answer lies.

    Attributes:
        text: the answer as written, outer mark-up removed; "" where there is none.
        rule: what found it; "none" where nothing did.
        why: why there is none, else "".
    """

    text: str
    rule: Rule
    why: str = ""


def final_answer(response: str) -> Found:
    r"""The final answer of a response.

    Args:
        response: the whole text, never the prompt.

    Returns:
        See Found. An empty or unterminated last box gives rule "none" and the reason.

    >>> final_answer(r"So \boxed{3}. No: \boxed{\frac{1}{2}}.").text
    '\\frac{1}{2}'
    >>> final_answer(r"So \boxed{3}. No: \boxed{4").why
    'unterminated box'
    >>> final_answer("2 + 2 = 4\nA: 4")
    Found(text='4', rule='stated', why='')
    """
    if not response.strip():
        return Found("", "none", "empty response")
    boxed = last_box(response)
    if boxed is not None:
        return boxed
    stated = last_match(STATED, response)
    if stated is not None:
        marked, rest = stated["marked"], stated["colon"] or stated["phrase"] or ""
        text = outer_markup_removed(
            ANNOUNCED_AGAIN.sub("", rest if marked is None else marked, count=1)
        )
        return Found(text, "stated") if text else Found("", "none", "answer announced, none given")
    line = response.rstrip().rsplit("\n", 1)[-1].strip()
    return Found(line, "last line")


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last of all matches from the left; None where there is none."""
    found: deque[re.Match[str]] = deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


def last_box(text: str) -> Found | None:
    r"""Content of the last `\boxed` or `\fbox`; None where there is no box.

    `\boxed 5` without braces holds the next run of characters that are not white space, `$` or `.`.
    """
    match = last_match(BOX, text)
    if match is None:
        return None
    start = match.end()
    if not text.startswith("{", start):
        bare = re.match(r"[^\s$.{}]+", text[start:])
        return Found(bare[0], "boxed") if bare else Found("", "none", "unterminated box")
    depth, place = 0, start
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 1  # an escaped brace opens and closes nothing
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                content = text[start + 1 : place].strip()
                return Found(content, "boxed") if content else Found("", "none", "empty box")
        place += 1
    return Found("", "none", "unterminated box")


def outer_markup_removed(text: str) -> str:
    r"""`text` without Markdown stars, sentence end and math brackets around the whole of it.

    A text of more than LONGEST_MARKED characters is no answer, and stays as it is.

    >>> outer_markup_removed(r"**\(18\)**.")
    '18'
    >>> outer_markup_removed("$18 a day. I hope it is correct.")
    '$18 a day'
    """
    text = SENTENCE_END.split(text, maxsplit=1)[0]
    while len(text) <= LONGEST_MARKED:
        before, text = text, text.strip(MARKUP)
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        for opening, closing in BRACKETS:
            inner = text[len(opening) : len(text) - len(closing)]
            wrapped = len(text) > len(opening) + len(closing) - 1 and text.startswith(opening)
            if wrapped and text.endswith(closing) and opening not in inner and closing not in inner:
                text = inner
        if text == before:
            break
    return text


def plain_number(text: str) -> Fraction | None:
    r"""Exact value of a text that is one number and nothing else; None for any other text.

    Reads integers, thousands separators, decimals, `a/b`, `\frac{a}{b}` and mixed numbers.

    >>> plain_number("1,234.50"), plain_number("-3 1/2"), plain_number("1,2")
    (Fraction(2469, 2), Fraction(-7, 2), None)
    """
    match = NUMBER.fullmatch(text.strip())
    if match is None or (match["whole"], match["decimals"], match["top"], match["over"]) == (
        (None,) * 4
    ):
        return None
    if match["top"] is not None or match["over"] is not None:
        top, bottom = match["top"] or match["over"], match["bottom"] or match["under"]
        if int(bottom) == 0 or (match["whole_part"] and top.startswith("-")):
            return None
        value = int(match["mixed"] or match["whole_part"] or 0) + Fraction(int(top), int(bottom))
    else:
        whole = re.sub(r"\D", "", match["whole"] or "0")
        value = Fraction(f"{whole}{match['decimals'] or ''}")
    return -value if match["sign"] in ("-", "−", "–") else value
