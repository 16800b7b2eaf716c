"""A page of tokens read back with the standard library's parser: nothing of jinja or markupsafe."""

import re
from html.parser import HTMLParser
from typing import NamedTuple

VOID = {"meta", "input"}


class Shown(NamedTuple):
    """One token as the page has it.

    Attributes:
        classes: of its label.
        note: numbers that show when it is pointed at.
        raw: exact bytes, rebuilt from what is shown.
        bare: characters outside boxes.
        in_step: whether it lies inside the outline of the wrong step.
    """

    classes: set[str]
    note: str
    raw: bytes
    bare: str
    in_step: bool


class Page(HTMLParser):
    """All tags with attributes, the text of the page, and its tokens trace by trace."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.cells: list[list[str]] = []
        self.traces: list[list[Shown]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute of <{tag}> stands there twice"
        self.tags.append((tag, found))
        if tag not in VOID:
            self.open.append((tag, found))
        if found.get("role") == "radiogroup":
            self.traces.append([])
        if tag == "label" and "data-n" in found:
            inside = any(attributes.get("class") == "e" for _, attributes in self.open)
            classes = set((found["class"] or "").split())
            self.traces[-1].append(Shown(classes, found["data-n"] or "", b"", "", inside))
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        tag, found = self.open[-1] if self.open else ("", {})
        self.text.setdefault(tag, []).append(data)
        if tag in ("td", "th"):
            self.cells[-1][-1] += data
        if any(attributes.get("role") == "radiogroup" for _, attributes in self.open):
            last = self.traces[-1][-1]
            boxed = tag == "b" and found.get("class") == "c"
            raw = unboxed(data) if boxed else data.encode()
            bare = last.bare + ("" if boxed else data)
            self.traces[-1][-1] = last._replace(raw=last.raw + raw, bare=bare)


def unboxed(text: str) -> bytes:
    """The bytes that a box stands for: a named character, or bytes in hexadecimal."""
    named = re.fullmatch(r"U\+([0-9A-F]{4,6})", text)
    return chr(int(named[1], 16)).encode() if named else bytes.fromhex(text)
