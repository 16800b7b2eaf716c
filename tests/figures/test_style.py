import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from tokensense.errors import SchemaError
from tokensense.figures import style

NAN = float("nan")


def text_figure(text: str):
    figure = style.new_figure(2.0, 1.0)
    figure.text(0.1, 0.5, text)
    return figure


@pytest.mark.parametrize(
    ("name", "column", "page"),
    [("neurips", 5.5, 5.5), ("icml", 3.25, 6.75), ("acl", 3.03, 6.3)],
)
def test_widths_are_those_of_the_venues(name, column, page):
    assert (style.STYLES[name].column, style.STYLES[name].page) == (column, page)


def test_an_unknown_style_is_refused_with_the_list():
    with pytest.raises(SchemaError, match=r"'acl', 'icml', 'neurips', 'plain'\]; it is 'nature'"):
        style.style_of("nature")


def test_settings_come_and_go():
    before = dict(matplotlib.rcParams)
    with style.styled("icml"):
        assert matplotlib.rcParams["pdf.fonttype"] == 42
        assert matplotlib.rcParams["text.parse_math"] is False
        assert matplotlib.rcParams["font.size"] == 8.0
    assert dict(matplotlib.rcParams) == before


def test_settings_of_the_caller_do_not_show():
    def drawn():
        with style.styled("plain"):
            return style.saved_bytes(text_figure("x"), format="png")

    expected = drawn()
    with matplotlib.rc_context({"text.color": "red", "font.size": 30, "savefig.bbox": "tight"}):
        assert drawn() == expected


def test_importing_changes_no_setting_and_opens_no_window():
    code = (
        "import matplotlib; before = dict(matplotlib.rcParams)\n"
        "import tokensense.figures, sys\n"
        "assert dict(matplotlib.rcParams) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_smallest_type_is_six_points():
    for name in style.STYLES:
        with style.styled(name):
            assert style.small_type() >= 6.0


def test_terms_differ_in_marker_and_filling_or_color_and_in_gray():
    looks = list(style.LOOKS.values())
    assert len({look.marker for look in looks}) == len({look.color for look in looks}) == 4
    assert style.LOOKS["verdict"].filled
    assert not style.LOOKS["placebo"].filled


def test_colors_of_counts_darken_steadily():
    red, green, blue = style.sequential()(np.linspace(0, 1, 50))[:, :3].T
    gray = 0.299 * red + 0.587 * green + 0.114 * blue
    assert (np.diff(gray) < 0).all()
    assert gray[0] < 0.85  # a single token must show on white paper


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        # half-width .0028: two decimals would round by .005, more than a fifth of it; three do not
        ((0.9050, 0.9022, 0.9078), "0.905 [0.902, 0.908]"),
        # half-width .1: two decimals round by .005, a twentieth
        ((0.5, 0.4, 0.6), "0.50 [0.40, 0.60]"),
        # half-width .0003, estimate below .1: five decimals
        ((0.0106, 0.0103, 0.0109), "0.0106 [0.0103, 0.0109]"),
        ((0.01062, 0.01054, 0.0107), "0.01062 [0.01054, 0.01070]"),
        # shares are never given to more than three
        ((0.9242, 0.92410, 0.92430), "0.924 [0.924, 0.924]"),
        ((-0.019, -0.022, -0.016), "−0.019 [−0.022, −0.016]"),
        ((-0.0000001, -0.3, 0.3), "0.00 [−0.30, 0.30]"),
        ((1.0, 1.0, 1.0), "1.000 [1.000, 1.000]"),
        ((0.5, NAN, NAN), "0.500 (no interval)"),
        ((NAN, NAN, NAN), "not estimable"),
        ((NAN, 0.1, 0.2), "not estimable"),
    ],
)
def test_numbers_have_the_decimals_that_their_interval_supports(numbers, text):
    assert style.estimate_text(*numbers) == text


def test_missing_and_invisible_characters_are_replaced_and_listed():
    with style.styled("neurips"):
        # STIX has no Greek Extended omega with psili; DejaVu has. None has a CJK ideograph.
        figure = text_figure("α 中 \u202e \x07 ὠ")
        assert style.replace_missing_glyphs(figure) == ("\x07", "\u202e", "中")
        assert figure.texts[0].get_text() == "α [U+4E2D] [U+202E] [U+0007] ὠ"
        assert style.saved_bytes(figure, format="png")  # and it warns of nothing


def test_fixed_tick_labels_are_checked_too():
    with style.styled("plain"):
        figure = style.new_figure(2.0, 1.0)
        axes = figure.subplots()
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([0, 1]))
        axes.xaxis.set_major_formatter(matplotlib.ticker.FixedFormatter(["a", "文"]))
        assert style.replace_missing_glyphs(figure) == ("文",)
        assert axes.xaxis.get_major_formatter().seq == ["a", "[U+6587]"]
        assert style.saved_bytes(figure, format="pdf")


@pytest.mark.parametrize("label", ["$$", "$x_$", r"\frac{", "a_b^c", "100 % & <b>"])
def test_labels_are_never_read_as_mathematics(label):
    with style.styled("acl"):
        figure = text_figure(label)
        assert style.replace_missing_glyphs(figure) == ()
        assert style.saved_bytes(figure, format="png")


def test_a_row_of_squares_fills_its_place():
    with style.styled("icml"):
        figure = style.new_figure(3.25, 3.0)
        axes = list(figure.subplots(1, 2))
        for panel in axes:
            panel.set_aspect("equal", adjustable="box")
        axes[0].set_title("a title\nof two lines")
        style.fit_square(figure, axes)
        width, height = figure.get_size_inches()
        assert width == 3.25
        place, shown = (axes[0].get_position(original=original) for original in (True, False))
        assert place.width * width == pytest.approx(place.height * height, abs=0.01)
        assert shown.width == pytest.approx(place.width, rel=0.01)


def test_text_width_is_that_of_the_type():
    with style.styled("plain"):
        one, two = style.text_width("mmmm", 8.0), style.text_width("mmmmmmmm", 8.0)
        assert two == pytest.approx(2 * one, rel=0.03)
        assert style.text_width("mmmm", 16.0) == pytest.approx(2 * one, rel=0.01)
        # DejaVu's m advances by .97 of its size: 4 x .97 x 8 points, less the blank at both ends
        assert one == pytest.approx(4 * 0.97 * 8 / 72, rel=0.05)
        assert style.text_width(" ", 8.0) == 0.0


def test_bytes_do_not_hang_on_the_process(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path\n"
        "from tokensense.figures import style\n"
        "with style.styled('icml'):\n"
        "    f = style.new_figure(3.25, 1.0); f.subplots().plot([1, 2], label='ab')\n"
        "    f.legend(); f.text(.1, .1, 'αβ z+ ☃')\n"
        "    for x in ('pdf', 'png'):\n"
        "        Path(sys.argv[1] + x).write_bytes(style.saved_bytes(f, format=x, subject='s'))\n"
    )
    for name, seed, epoch in (("a.", "1", "0"), ("b.", "2", "1700000000")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "SOURCE_DATE_EPOCH": epoch,
            "TZ": "UTC",
        }
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment
        )
    for suffix in ("pdf", "png"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
