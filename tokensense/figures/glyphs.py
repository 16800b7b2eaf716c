"""Text as it is, in HTML: what would be invisible, or act, is made visible.

Reads  the exact bytes of a token, or a text.
Gives  token_markup, text_markup: HTML; plain, quoted: text for places that take no HTML.
Sign   none.

Printable text stays text. A space stays a space and gets a mark by style sheet, so that what is
copied is what was written; so do tab and line feed. All else that draws nothing or moves its
neighbors (controls, format and bidirectional characters, other spaces, unassigned code points) is
written as `U+200B`, and bytes that are no UTF-8, such as a part of a character, as `F0 9F`; both in
a box. HTML itself could not carry them: a parser drops or changes most controls.

Source   invisible characters: categories C* and Z* of Python's Unicode tables, and the rest of
         Default_Ignorable_Code_Point in DerivedCoreProperties.txt, and the blank U+2800.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup

# Letters and marks that draw nothing; ranges of code points, both ends included.
_BLANK = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF)),
)
# What `surrogateescape` makes of byte 0x80 to 0xFF; valid UTF-8 never gives these.
_BYTE = "\udc80-\udcff"
_RUN = re.compile(f"(?P<byte>[{_BYTE}]+)|(?P<space> +)|(?P<tab>\t)|(?P<line>\n)|(?P<other>.)", re.S)
_FORMS = {
    "space": Markup('<i class="s">{}</i>'),
    "tab": Markup('<i class="h">{}</i>'),
    "line": Markup('<i class="n"></i>{}'),
    "named": Markup('<b class="c">{}</b>'),
    "byte": Markup('<b class="c">{}</b>'),
    "text": Markup("{}"),
}


class Part(NamedTuple):
    """A run of characters of one form.

    Attributes:
        form: text, space, tab, line, named or byte.
        text: as it is shown.
    """

    form: str
    text: str


def parts(text: str) -> list[Part]:
    """Divide a text into runs.

    Args:
        text: bytes that are no UTF-8 stand in it as `surrogateescape` leaves them.
    """
    found: list[Part] = []
    for form, shown in _marked(text):
        if form == "text" and found and found[-1].form == form:
            found[-1] = Part(form, found[-1].text + shown)
        else:
            found.append(Part(form, shown))
    return found


def token_markup(token: bytes) -> Markup:
    """A token in HTML, without the line feed at its end: that stands behind it, see `line_end`.

    One leading space stands bare: nearly every token has one, and the style sheet marks it by the
    token's own class; see `leads`.

    Args:
        token: its exact bytes.
    """
    text = token.decode("utf-8", "surrogateescape")
    bare = " " if leads(token) else ""
    shown = Markup("").join(
        _FORMS[part.form].format(part.text) for part in parts(text[len(bare) :])
    )
    return Markup(bare) + Markup(shown.removesuffix("\n"))


def line_end(token: bytes) -> str:
    """The line feed at the end of a token, or nothing.

    Args:
        token: its exact bytes.
    """
    return "\n" if token.endswith(b"\n") else ""


def leads(token: bytes) -> bool:
    """Whether a token begins with exactly one space."""
    return token.startswith(b" ") and not token.startswith(b"  ")


def text_markup(text: str) -> Markup:
    """A text in HTML, with its invisible characters shown, and spaces as they are.

    Args:
        text: as a question or a name.
    """
    shown = (
        part.text if part.form in ("space", "tab", "line") else _FORMS[part.form].format(part.text)
        for part in parts(text)
    )
    return Markup("").join(shown)


def plain(text: str) -> str:
    """A text with its invisible characters in square brackets.

    Args:
        text: as a name that stands in an attribute.
    """
    return "".join(
        f"[{part.text}]" if part.form in ("named", "byte") else part.text for part in parts(text)
    )


def quoted(token: bytes) -> str:
    r"""A token between quotes, without anything invisible: `' the'`, `'\n'`, `b'\xf0\x9f'`.

    Args:
        token: its exact bytes.
    """
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


def _marked(text: str) -> Iterator[tuple[str, str]]:
    for match in _RUN.finditer(text):
        form, run = str(match.lastgroup), match.group()
        if form == "byte":
            yield form, run.encode("utf-8", "surrogateescape").hex(" ").upper()
        elif form == "other":
            yield ("named", f"U+{ord(run):04X}") if _is_invisible(run) else ("text", run)
        else:
            yield form, run


def _is_invisible(character: str) -> bool:
    code = ord(character)
    return unicodedata.category(character)[0] in "CZ" or any(a <= code <= b for a, b in _BLANK)
