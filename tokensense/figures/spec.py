"""What a figure of a set is: its inputs, and how it is put on a page.

Reads  nothing.
Gives  FigureSpec, Inputs, Rendered: the words that sets, figures and export share.
Sign   none.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import xarray as xr
from matplotlib.figure import Figure

from tokensense.figures.style import Style

Inputs = Mapping[str, xr.Dataset]
Span = Literal["column", "page"]


class Rendered(NamedTuple):
    """One finished figure.

    Attributes:
        figure: as it is saved.
        parts: the Datasets it shows, by name; the first is the figure's own CSV file. Those with
            `estimate`, `low` and `high` become tables and numbers too.
        caption: a draft, with n and intervals.
        replaced: characters that no font could draw, sorted.
    """

    figure: Figure
    parts: Mapping[str, xr.Dataset]
    caption: str
    replaced: tuple[str, ...] = ()


class FigureSpec(NamedTuple):
    """One figure of a set.

    Attributes:
        needs: inputs by name.
        compose: puts the panels on a page of that width, inches; glyphs are checked afterwards.
        optional: drawn where its inputs are there, and named as not drawn elsewhere.
    """

    needs: tuple[str, ...]
    compose: Callable[[Inputs, Style, float], Rendered]
    optional: bool = False
