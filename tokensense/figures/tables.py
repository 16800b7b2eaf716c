r"""The numbers of figures for LaTeX: tables (booktabs), and a macro for each number.

Reads  Rendered figures; the parts with `estimate`, `low` and `high`.
Gives  table_bytes, numbers_bytes; macro_name; escaped.
Sign   as in the figures.

A macro `\tsTriplesCorrelationVerdict` calls `\tsnumber{estimate}{interval}{n}{commit}`, which the
file defines as estimate and interval; whoever wants n or the commit in the text defines it anew
before. Nothing has to be typed by hand, and a number that changed changes in the text.

Source   own work; booktabs as every venue's class loads it or allows it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import xarray as xr

from tokensense.errors import FigureError
from tokensense.figures.marks import COUNTS
from tokensense.figures.spec import Rendered
from tokensense.figures.style import estimate_text

NUMBERS = "numbers.tex"
MOST_COLUMNS = 12
DIGITS = dict(zip("0123456789", ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven",
                                 "Eight", "Nine"), strict=True))  # fmt: skip
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", "−": "$-$", "†": r"$\dagger$",
    "²": "$^2$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "÷": r"$\div$",
    "μ": r"$\mu$", "λ": r"$\lambda$", "Σ": r"$\Sigma$", "‖": r"$\Vert$", "–": "--", "’": "'",
}  # fmt: skip


class Entry(NamedTuple):
    """One number: labels by dim, estimate, interval, what it rests on."""

    labels: dict[str, str]
    estimate: str
    interval: str
    n: str


def has_numbers(part: xr.Dataset) -> bool:
    """Whether a part of a figure holds estimates with intervals.

    Args:
        part: as drawn.
    """
    return all(name in part for name in ("estimate", "low", "high"))


def escaped(text: str) -> str:
    r"""Text as LaTeX shows it; a character without a command of ours as its code point.

    >>> escaped("cscr_placebo: −5 %")
    'cscr\\_placebo: $-$5 \\%'
    """
    return "".join(_SPECIAL.get(c, c if c.isascii() else f"[U+{ord(c):04X}]") for c in text)


def macro_name(*parts: str) -> str:
    r"""A name of letters only, as LaTeX wants it.

    >>> macro_name("triples", "mean |shift|", "verdict"), macro_name("p2")
    ('tsTriplesMeanShiftVerdict', 'tsPTwo')
    """
    spelled = [re.sub(r"[0-9]", lambda digit: f" {DIGITS[digit.group()]} ", part) for part in parts]
    words = [word for part in spelled for word in re.findall(r"[A-Za-z]+", part)]
    return "ts" + "".join(word[0].upper() + word[1:] for word in words)


def entries_of(part: xr.Dataset) -> Iterator[Entry]:
    """Every number of a part that has a value, in its order.

    Args:
        part: of `has_numbers`.
    """
    dims = [str(dim) for dim in part["estimate"].dims]
    names = [[str(label) for label in _labels(part, dim)] for dim in dims]
    wide = {n: part[n].broadcast_like(part["estimate"]).transpose(*dims).values
            for n in ("estimate", "low", "high", *(c for c, _ in COUNTS)) if n in part}  # fmt: skip
    for place in product(*(range(part.sizes[dim]) for dim in dims)):
        estimate, low, high = (float(wide[name][place]) for name in ("estimate", "low", "high"))
        if not np.isfinite(estimate):
            continue
        number, _, interval = estimate_text(estimate, low, high).partition(" ")
        counts = [
            f"{round(float(wide[name][place])):,} {noun}s" for name, noun in COUNTS if name in wide
        ]
        labels = {dim: names[i][at] for i, (dim, at) in enumerate(zip(dims, place, strict=True))}
        yield Entry(labels, number, interval, ", ".join(counts))


def _labels(part: xr.Dataset, dim: str) -> np.ndarray:
    return part[dim].values if dim in part.coords else np.arange(part.sizes[dim])


def table_bytes(part: xr.Dataset, *, name: str, caption: str) -> bytes:
    r"""A part as a table: the last dim becomes columns where that fits, all else rows.

    Args:
        part: of `has_numbers`.
        name: of the figure; the label is `tab:<name>`.
        caption: draft, stands above the rows.
    """
    dims = [str(dim) for dim in part["estimate"].dims]
    found = list(entries_of(part))
    across = dims[-1] if len(dims) > 1 and part.sizes[dims[-1]] <= MOST_COLUMNS else None
    columns = list(dict.fromkeys(e.labels[across] for e in found)) if across else ["estimate"]
    down = [dim for dim in dims if dim != across]
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for entry in found:
        row = cells.setdefault(tuple(entry.labels[dim] for dim in down), {})
        column = entry.labels[across] if across else "estimate"
        row[column] = _cell(entry)
    heads = [*(dim.replace("_", " ") for dim in down), *columns]
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{tab:{name}}}",
        rf"\begin{{tabular}}{{{'l' * len(down)}{'c' * len(columns)}}}",
        r"\toprule",
        _row(heads),
        r"\midrule",
        *(_row(labels, [row.get(c, "--") for c in columns]) for labels, row in cells.items()),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _cell(entry: Entry) -> str:
    """Estimate over interval."""
    below = rf"\\{{\scriptsize {escaped(entry.interval)}}}"
    return rf"\shortstack{{{escaped(entry.estimate)}{below}}}"


def _row(labels: Sequence[str], cells: Sequence[str] = ()) -> str:
    """A line of the table; labels are texts, cells are LaTeX."""
    shown = [escaped(label.replace("\n", " ")) for label in labels]
    return " & ".join([*shown, *cells]) + r" \\"


def numbers_bytes(rendered: Mapping[str, Rendered], *, commit: str) -> bytes:
    r"""Every number of a set as a macro.

    Args:
        rendered: figures by name.
        commit: of the code that made the numbers; "" where it is not known.

    Raises:
        FigureError: two numbers would have one name.
    """
    lines = [
        r"% \tsnumber{estimate}{interval}{n}{commit}; define it before this file to show more.",
        r"\providecommand{\tsnumber}[4]{#1 #2}",
    ]
    names: dict[str, str] = {}
    for figure, one in rendered.items():
        for part in one.parts.values():
            if not has_numbers(part):
                continue
            for entry in entries_of(part):
                name = macro_name(figure, *entry.labels.values())
                said = f"{figure}: {', '.join(entry.labels.values())}"
                if name in names:
                    raise FigureError(
                        f"numbers.tex needs a name for each number; {said!r} and {names[name]!r} "
                        f"would both be \\{name}. Name the rule or the score otherwise."
                    )
                names[name] = said
                texts = (entry.estimate, entry.interval, entry.n, commit or "not known")
                lines.append(
                    rf"\newcommand{{\{name}}}{{\tsnumber"
                    + "".join(f"{{{escaped(text)}}}" for text in texts)
                    + "}"
                )
    return ("\n".join(lines) + "\n").encode()
