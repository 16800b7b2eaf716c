import math

import numpy as np
import pytest
import xarray as xr

from tests.figures.builders import triple
from tokensense.errors import FigureError
from tokensense.figures import marks, style

NAN = np.nan


@pytest.fixture
def axes():
    with style.styled("neurips"):
        yield style.new_figure(5.5, 2.0).subplots()


def entries(estimate, low, high) -> xr.Dataset:
    columns = {"estimate": estimate, "low": low, "high": high}
    return xr.Dataset({name: ("row", values) for name, values in columns.items()})


def test_a_summary_has_the_interval_as_variables_and_the_method_in_words():
    found = marks.summary(triple())
    one = found.sel(statistic="correlation", term="placebo")
    # .94 plus and minus 2 % of the verdict's .93
    assert [float(one[name]) for name in ("low", "estimate", "high")] == pytest.approx(
        [0.9214, 0.94, 0.9586]
    )
    assert str(one["method"].values) == "bootstrap"
    assert "bound" not in found.dims
    assert marks.counts_text(one) == ["n = 1,234 tokens,", "24 rollouts,", "21 problems"]


def test_a_result_without_intervals_is_refused():
    with pytest.raises(FigureError, match=r"\['interval'\] are missing.*tokensense analyze"):
        marks.summary(triple().drop_vars("interval"))


def test_names_that_are_not_there_are_refused():
    with pytest.raises(FigureError, match=r"needs statistic=\['lift'\].*'same_direction'"):
        marks.selected(triple(), "statistic", ["same_direction", "lift"])
    with pytest.raises(FigureError, match=r"needs kind=\['digit'\]; the result has kind=\[\]"):
        marks.selected(triple(), "kind", ["digit"])


def test_pieces_join_while_they_fit():
    with style.styled("plain"):
        width = style.text_width("aa bb", 8.0)
        assert marks.joined(["aa", "bb", "cc"], width * 1.001, 8.0) == ["aa bb", "cc"]
        assert marks.joined(["aa", "bb", "cc"], 0.01, 8.0) == ["aa", "bb", "cc"]
        assert marks.joined(["aa", "bb", "cc"], 9.0, 8.0) == ["aa bb cc"]


def test_dots_intervals_gaps_and_daggers_stand_where_they_should(axes):
    #                whole, no interval, no value
    shown = entries([0.2, 0.5, NAN], [0.1, NAN, NAN], [0.4, NAN, NAN])
    marks.draw_dots(axes, shown, term="placebo", height=np.array([0.0, 1.0, 2.0]))
    (dots,) = axes.lines
    np.testing.assert_array_equal(dots.get_xdata(), [0.2, 0.5, NAN])
    assert dots.get_marker() == "s"
    assert dots.get_markerfacecolor() == "white"
    (whiskers,) = axes.collections
    (segment,) = whiskers.get_segments()
    assert segment.tolist() == [[0.1, 0.0], [0.4, 0.0]]
    dagger, gap = axes.texts
    assert (dagger.get_text(), dagger.xy) == ("†", (0.5, 1.0))
    assert (gap.get_text(), gap.get_position()) == ("not estimable", (0.5, 2.0))
    assert gap.get_color() == style.LOOKS["placebo"].color


def test_lacking_an_interval_is_not_lacking_a_value():
    assert not marks.lacks_interval(entries([0.1, NAN], [0.0, NAN], [0.2, NAN]))
    assert marks.lacks_interval(entries([0.1, 0.2], [0.0, NAN], [0.2, NAN]))


def test_spans_hold_intervals_and_what_must_be_inside():
    shown = entries([2.0, NAN], [1.0, NAN], [3.0, NAN])
    assert marks.span(shown) == pytest.approx((1 - 0.12, 3 + 0.12))
    assert marks.span(shown, include=0.0) == pytest.approx((-0.18, 3.18))
    assert marks.span(entries([NAN], [NAN], [NAN])) == (0.0, 1.0)
    low, high = marks.span(entries([2.0], [NAN], [NAN]))
    assert low < 2.0 < high
    low, high = marks.span(entries([0.0], [0.0], [0.0]))
    assert low < 0.0 < high


@pytest.mark.parametrize("reach", [0.02, 0.1, 0.3, 1.0, 3.0, 6.0])
def test_ratio_ticks_are_few_inside_and_apart(axes, reach):
    axes.set_xlim(-reach, 1.3 * reach)
    marks.set_ratio_ticks(axes)
    ticks = np.array(axes.get_xticks())
    labels = [float(label) for label in axes.xaxis.get_major_formatter().seq]
    np.testing.assert_allclose(np.log(labels), ticks)
    assert 0.0 in ticks  # the ratio 1
    assert 1 <= len(ticks) <= 5
    inch = marks.panel_width(axes) / (2.3 * reach)
    assert (np.diff(ticks) * inch >= 0.28).all()
    assert reach < 0.05 or len(ticks) >= 3


@pytest.mark.parametrize(
    ("limit", "width", "ticks"),
    [
        (20.0, 2.1, [-10, -1, -0.1, 0, 0.1, 1, 10]),
        # narrow: asinh(2)/asinh(400) * .5 in = .108 in from 0 to .1, too near
        (20.0, 1.0, [-1, 0, 1]),
        (0.05, 2.0, [-0.01, 0, 0.01]),
    ],
)
def test_ticks_of_shifts_are_powers_of_ten_apart(limit, width, ticks):
    found = marks.step_ticks(limit, width, linear_width=0.05)
    assert found == pytest.approx(ticks)
    scale = 0.5 * width / math.asinh(limit / 0.05)
    places = [scale * math.asinh(tick / 0.05) for tick in found]
    assert (np.diff(places) >= 0.2 - 1e-9).all()
