"""How figures look: column widths of venues, type, colors, number formats, missing glyphs.

Reads  names of styles and of terms; a drawn matplotlib Figure.
Gives  `styled`, a context in which figures are made and saved; `Style`, widths in inches; the
       looks of verdict, placebo and difference; text for numbers; the same bytes for the same
       figure.
Source Widths as in the venues' LaTeX classes: NeurIPS 5.5 in; ICML 3.25 and 6.75; ACL 3.03 and 6.3.
       Colors: Okabe & Ito (2008), safe for color blindness; written out because older matplotlib
       does not ship them.

Nothing changes on import, and nothing of the caller's matplotlib settings is read: within `styled`
matplotlib's own defaults hold, plus the table below, so that the same data gives the same bytes on
another person's machine. Only fonts that matplotlib brings along are used, for the same reason.
"""

import io
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedFormatter

from tokensense.checks import require_member

NOT_ESTIMABLE = "not estimable"
SMALLEST_TYPE = 6.0
RESOLUTION = 300


class Style(NamedTuple):
    """A venue's page.

    Attributes:
        column: width of a column, inches.
        page: width of the whole text, inches.
        size: of the type, points.
        small: of tick labels and notes, points.
        families: of fonts, in the order in which they are tried.
    """

    column: float
    page: float
    size: float
    small: float
    families: tuple[str, ...]


# STIX is the Times-like face that matplotlib ships; DejaVu Sans draws what STIX lacks.
_TIMES = ("STIXGeneral", "DejaVu Sans")
STYLES: dict[str, Style] = {
    "acl": Style(3.03, 6.3, 8.0, 7.0, _TIMES),
    "icml": Style(3.25, 6.75, 8.0, 7.0, _TIMES),
    "neurips": Style(5.5, 5.5, 8.5, 7.5, _TIMES),
    "plain": Style(6.0, 6.0, 8.0, 7.0, ("DejaVu Sans",)),
}


class Look(NamedTuple):
    """One term's mark. Shape and filling tell the terms apart where color is lost."""

    color: str
    marker: str
    filled: bool


LOOKS: dict[str, Look] = {
    "verdict": Look("#0072B2", "o", filled=True),
    "placebo": Look("#D55E00", "s", filled=False),
    "difference": Look("#000000", "D", filled=True),
    "no placebo": Look("#4d4d4d", "^", filled=False),
}
NEUTRAL = "#666666"


def sequential() -> Colormap:
    """Colors of counts: light is few, dark is many, so that paper stays paper where nothing lies.

    Cividis is perceptually uniform and looks the same with and without red-green vision; its
    brightest tenth is left out, because a single token must show on white.
    """
    shades = matplotlib.colormaps["cividis_r"](np.linspace(0.12, 1.0, 256))
    return ListedColormap(shades, name="tokens")


def small_type() -> float:
    """Size of tick labels and notes in the current style, points."""
    font = FontProperties(size=matplotlib.rcParams["xtick.labelsize"])
    return max(SMALLEST_TYPE, float(font.get_size_in_points()))


def text_width(text: str, size: float) -> float:
    """Width of one line of text in inches, in the first family of the current style.

    Args:
        text: one line.
        size: of the type, points.
    """
    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, size=size).get_extents().width) / 72


def style_of(name: str) -> Style:
    """The style of that name.

    Raises:
        SchemaError: there is none; the message lists those there are.
    """
    require_member("style", name, STYLES)
    return STYLES[name]


@contextmanager
def styled(name: str) -> Iterator[Style]:
    """Make and save figures in this context; matplotlib's settings are as before when it ends.

    Args:
        name: one of STYLES.

    Yields:
        The style: widths in inches, type in points.

    Raises:
        SchemaError: no style has that name.
    """
    style = style_of(name)
    # Any: the stubs list every setting, and cannot know a dict that is put together here.
    settings: dict[Any, Any] = {
        key: value
        for key, value in dict.items(matplotlib.rcParamsDefault)
        if not key.startswith("backend")
    }
    with matplotlib.rc_context(settings | _settings(style)):
        yield style


def _settings(style: Style) -> dict[Any, Any]:
    """What departs from matplotlib's own defaults, and why where it is not plain."""
    return {
        "font.family": list(style.families),
        "font.size": style.size,
        "axes.labelsize": style.size,
        "axes.titlesize": style.size,
        "axes.titlelocation": "left",
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.labelsize": style.small,
        "ytick.labelsize": style.small,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "legend.fontsize": style.small,
        "legend.frameon": False,
        "hatch.linewidth": 0.4,
        "lines.linewidth": 1.0,
        "lines.markersize": 4.0,
        "savefig.dpi": RESOLUTION,
        # "tight" would cut the page to its ink and so miss the column width.
        "savefig.bbox": "standard",
        # 42 embeds TrueType; the default, Type 3, is refused by some venues.
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        # Names of kinds, families and policies may hold dollar signs and underscores.
        "text.parse_math": False,
        "text.usetex": False,
    }


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, outside pyplot's list of open figures.

    Margins are made inside the page (constrained layout), so that the page keeps its width.
    """
    # Laid out at the resolution it is saved in: fewer dots round the widths of letters.
    figure = Figure(figsize=(width, height), dpi=RESOLUTION, layout="constrained")
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.set(w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.03)  # type: ignore[call-arg]  # the base class declares none
    return figure


def fit_square(figure: Figure, axes: Sequence[Axes]) -> None:
    """Make the page as high as a row of square axes needs, and lay it out.

    Constrained layout does not know that axes of equal scales shrink in their place: it would cut
    what stands above them or leave gaps. So the place itself is made square.

    Args:
        figure: its width stays.
        axes: a row of axes with equal scales.
    """
    for panel in axes:
        panel.set_aspect("auto")
    # Margins are fixed lengths, so one step lands there; the second is for ticks that changed.
    for _ in range(2):
        figure.draw_without_rendering()
        place = axes[0].get_position(original=True)
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + place.width * width - place.height * height)
    freeze_layout(figure)
    for panel in axes:
        panel.set_aspect("equal", adjustable="box")


def freeze_layout(figure: Figure) -> None:
    """Lay the figure out once and for all, so that PDF and PNG show the same places.

    Args:
        figure: with all its texts; call it inside `styled`.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def saved_bytes(figure: Figure, *, format: Literal["pdf", "png"], subject: str = "") -> bytes:
    """The figure as a file's bytes: no date and no machine in it, equal for equal figures.

    Call it inside `styled`: font embedding is decided when a figure is saved.

    Args:
        figure: the figure.
        format: pdf, or png at RESOLUTION dots an inch.
        subject: what it shows; kept inside the file.
    """
    # None drops a field that matplotlib would fill with the time or its own version.
    metadata: Mapping[str, str | None] = (
        {"Creator": "tokensense", "Producer": None, "CreationDate": None, "Subject": subject}
        if format == "pdf"
        else {"Software": "tokensense", "Description": subject}
    )
    target = io.BytesIO()
    figure.savefig(target, format=format, dpi=RESOLUTION, metadata=dict(metadata))
    return target.getvalue()


def replace_missing_glyphs(figure: Figure) -> tuple[str, ...]:
    """Replace what no font of the figure can draw by a visible code point, such as [U+1F600].

    Otherwise a box would stand there and two labels could look the same. Control and bidirectional
    marks are replaced too: they are drawn as nothing and change what is beside them.

    Args:
        figure: a drawn figure; its texts and fixed tick labels are changed in place.

    Returns:
        The replaced characters, sorted, each once; to be listed beside the figure.
    """
    replaced: set[str] = set()
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(_drawable(text.get_text(), text.get_fontproperties(), replaced))
    for axis in figure.findobj(Axis):
        assert isinstance(axis, Axis)
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FixedFormatter):
            font = axis.get_major_ticks()[0].label1.get_fontproperties()
            formatter.seq = [_drawable(label, font, replaced) for label in formatter.seq]
    return tuple(sorted(replaced))


def _drawable(text: str, font: FontProperties, replaced: set[str]) -> str:
    faces = [get_font(path) for path in _font_files(font)]
    shown = []
    for character in text:
        visible = character == "\n" or (
            unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
            and any(face.get_char_index(ord(character)) for face in faces)
        )
        if not visible:
            replaced.add(character)
        shown.append(character if visible else f"[U+{ord(character):04X}]")
    return "".join(shown)


def _font_files(font: FontProperties) -> list[str]:
    """Files of the font's families, in the order in which matplotlib tries them."""
    found = []
    for family in font.get_family():
        single = font.copy()
        single.set_family(family)
        found.append(str(fontManager.findfont(single, fallback_to_default=False)))
    return found


def estimate_text(estimate: float, low: float, high: float) -> str:
    """An estimate with its interval, to as many decimals as the interval supports.

    Decimals: as few as keep rounding below a fifth of the interval's half-width; two to five
    (to three for estimates of .1 and more).

    >>> estimate_text(0.95123, 0.94011, 0.96204)
    '0.951 [0.940, 0.962]'
    >>> estimate_text(0.95123, float("nan"), float("nan"))
    '0.951 (no interval)'
    >>> estimate_text(float("nan"), float("nan"), float("nan"))
    'not estimable'
    """
    if not math.isfinite(estimate):
        return NOT_ESTIMABLE
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{_number(estimate, 3)} (no interval)"
    half = (high - low) / 2
    most = 3 if abs(estimate) >= 0.1 else 5
    decimals = most if half <= 0 else min(most, max(2, math.ceil(-math.log10(0.4 * half))))
    return f"{_number(estimate, decimals)} [{_number(low, decimals)}, {_number(high, decimals)}]"


def _number(value: float, decimals: int) -> str:
    """Fixed decimals with a true minus sign; a rounded zero has no sign."""
    shown = f"{value:.{decimals}f}"
    if float(shown) == 0:
        shown = shown.removeprefix("-")
    return shown.replace("-", "−")


def count_text(count: int, one: str, many: str = "") -> str:
    """A count with its noun.

    >>> count_text(66204, "token")
    '66,204 tokens'
    >>> count_text(1, "token")
    '1 token'
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def tick_text(value: float, _position: int | None = None) -> str:
    """A tick label without mathematics markup, for matplotlib's `FuncFormatter`.

    >>> tick_text(-0.5), tick_text(10.0), tick_text(0.0)
    ('−0.5', '10', '0')
    """
    return f"{value:g}".replace("-", "−") if value else "0"
