"""How objects show in a notebook: tables of escaped text, styled in place, with a stated end.

Reads  texts.
Gives  table_html.
Sign   none.

No script, no style sheet, nothing fetched: what is shown is the same on GitHub, nbviewer and in a
dark theme, whose own colors it takes.
"""

from collections.abc import Sequence

from markupsafe import Markup

MOST_ROWS = 200
_CELL = Markup('<td style="text-align:left;vertical-align:top;padding:1px 8px">{}</td>')
_HEAD = Markup('<th scope="{}" style="text-align:left;vertical-align:top;padding:1px 8px">{}</th>')


def table_html(
    title: str,
    rows: Sequence[Sequence[str]],
    *,
    heads: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """A table as HTML; everything in it is escaped.

    Args:
        title: above it.
        rows: cells, the first one a heading.
        heads: of the columns; none for a list of facts.
        notes: sentences below.
    """
    parts = [Markup("<p><b>{}</b></p>").format(title)]
    parts.append(Markup('<table style="border-collapse:collapse">'))
    if heads:
        cells = Markup("").join(_HEAD.format("col", head) for head in heads)
        parts.append(Markup("<thead><tr>{}</tr></thead>").format(cells))
    for first, *rest in rows[:MOST_ROWS]:
        cells = _HEAD.format("row", first) + Markup("").join(map(_CELL.format, rest))
        parts.append(Markup("<tr>{}</tr>").format(cells))
    parts.append(Markup("</table>"))
    left = len(rows) - MOST_ROWS
    said = [*notes, *([f"{left:,} more rows are not shown."] if left > 0 else [])]
    parts += [Markup("<p>{}</p>").format(note) for note in said]
    return str(Markup("").join(parts))
