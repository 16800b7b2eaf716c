import numpy as np
import pytest

from tests.figures.builders import kind_and_balance, points, triple
from tokensense.errors import FigureError
from tokensense.figures import panels, style
from tokensense.figures.density import shift_density

NAN = np.nan
POINTS = points(
    [[0.5, 0.02, -1.5, NAN], [0.4, 0.03, -1.0, 0.2]],
    [[0.4, -0.01, -1.2, NAN], [0.4, 0.01, -1.0, 0.1]],
)


@pytest.fixture
def page():
    with style.styled("neurips"):
        yield style.new_figure(5.5, 3.0)


def pair(page):
    return list(page.subplots(1, 2))


def texts(axes) -> str:
    return "\n".join([axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)])


def test_points_are_drawn_as_they_are_and_unscored_ones_are_not(page):
    axes = pair(page)
    drawn = panels.draw_shift_points(axes, POINTS, triple=triple())["points"]
    assert drawn["pair"].values.tolist() == ["pair0"] * 3 + ["pair1"] * 4
    assert drawn["token"].values.tolist() == [0, 1, 2, 0, 1, 2, 3]
    np.testing.assert_array_equal(drawn["positive"].values[:3], POINTS["positive"].values[0, :3])
    verdict = axes[0].lines[0]
    np.testing.assert_array_equal(verdict.get_xdata(), POINTS["negative"].values[0])
    np.testing.assert_array_equal(verdict.get_ydata(), POINTS["positive"].values[0])
    assert (verdict.get_marker(), axes[1].lines[0].get_marker()) == ("o", "s")


def test_both_panels_share_limits_that_leave_no_token_out(page):
    axes = pair(page)
    panels.draw_shift_points(axes, POINTS, triple=triple())
    for panel in axes:
        assert panel.get_xlim() == panel.get_ylim() == (-2.0, 2.0)
        assert panel.get_xscale() == panel.get_yscale() == "asinh"
        assert panel.get_aspect() == 1.0
    identity = axes[0].lines[-1]
    assert list(identity.get_xdata()) == list(identity.get_ydata()) == [-2.0, 2.0]
    assert "(nats)" in axes[0].get_xlabel()
    assert "(nats)" in axes[0].get_ylabel()


def test_numbers_with_intervals_and_n_stand_above_each_panel(page):
    axes = pair(page)
    statistics = panels.draw_shift_points(axes, POINTS, triple=triple())["statistics"]
    # .951 and .962, plus and minus 2 % of .951
    assert "verdict\nsame direction 0.951 [0.932, 0.970]" in texts(axes[0])
    assert "placebo\nsame direction 0.962 [0.943, 0.981]" in texts(axes[1])
    assert "n = 1,234 tokens, 24 rollouts, 21 problems" in texts(axes[1])
    assert statistics["estimate"].sel(statistic="correlation").values.tolist() == [0.93, 0.94]


def test_narrow_panels_break_lines_between_pieces_only():
    with style.styled("acl"):
        axes = pair(style.new_figure(3.03, 2.5))
        panels.draw_shift_points(axes, POINTS, triple=triple())
        assert "same direction\n0.951 [0.932, 0.970]\n" in texts(axes[0])
        assert axes[0].get_xlabel() == "z− (nats)"


def test_density_shows_the_counts_on_one_color_scale(page):
    axes = pair(page)
    # the verdict's fullest cell holds 1, the placebo's 12: both panels reach to 12
    positive, negative = [[0.5] + [NAN] * 11, [0.4] * 12], [[0.4] + [NAN] * 11, [0.4] * 12]
    density = shift_density(points(positive, negative), cells=9)
    drawn = panels.draw_shift_density(axes, density, triple=triple())["density"]
    for panel, term in zip(axes, ("verdict", "placebo"), strict=True):
        (mesh,) = panel.collections
        expected = density["tokens"].sel(term=term).values
        np.testing.assert_array_equal(mesh.get_array().filled(NAN), expected)
        np.testing.assert_array_equal(drawn["tokens"].sel(term=term).values, expected)
        assert (mesh.norm.vmin, mesh.norm.vmax) == (1.0, 12.0)
        # rows of the mesh are the vertical axis: z+
        assert mesh.get_coordinates()[0, 0].tolist() == [-0.5, -0.5]
    (bar,) = axes[1].child_axes
    assert bar.get_ylabel() == "tokens per cell"


def test_a_token_likelier_under_pos_alone_is_above_the_horizontal_line(page):
    axes = pair(page)
    density = shift_density(points([[1.0], [1.0]], [[0.0], [0.0]]), cells=5)
    panels.draw_shift_density(axes, density, triple=triple())
    (mesh,) = axes[0].collections
    row, column = np.argwhere(np.isfinite(mesh.get_array().filled(NAN)))[0]
    (left, low), (_, high) = mesh.get_coordinates()[[row, row + 1], [column, column]]
    assert low < 1.0 <= high
    assert left < 0.0


@pytest.mark.parametrize("dense", [False, True])
def test_a_term_without_tokens_is_refused(page, dense):
    empty = points([[0.5], [NAN]], [[0.4], [0.1]])
    draw = panels.draw_shift_density if dense else panels.draw_shift_points
    shown = shift_density(empty) if dense else empty
    axes = pair(page)
    with pytest.raises(FigureError, match="'placebo' has none"):
        draw(axes, shown, triple=triple())


def test_kinds_stand_in_the_order_of_the_schema_with_the_rest_last(page):
    kind, balance = kind_and_balance(["other", "mine", "format", "digit", "final_answer"])
    axes = pair(page)
    drawn = panels.draw_shift_by_kind(axes, kind, balance=balance)["kinds"]
    names = ["digit", "format", "final_answer", "mine", "other"]
    assert drawn["kind"].values.tolist() == names
    labels = axes[0].yaxis.get_major_formatter().seq
    assert labels == ["digit", "format", "final answer", "mine", "other"]
    low, high = axes[0].get_ylim()
    assert low > high  # the first is on top


def test_kinds_are_drawn_as_they_are_verdict_above_placebo(page):
    kind, balance = kind_and_balance(["digit", "format"])
    axes = pair(page)
    drawn = panels.draw_shift_by_kind(axes, kind, balance=balance)["kinds"]
    for panel, scale in zip(axes, ("log_ratio", "log_ratio_matched"), strict=True):
        part = kind.sel(scale=scale, measure="absolute_shift")
        for term, offset in (("verdict", -0.17), ("placebo", 0.17)):
            (dots,) = [x for x in panel.lines if x.get_marker() == style.LOOKS[term].marker]
            np.testing.assert_array_equal(dots.get_xdata(), part["estimate"].sel(term=term))
            np.testing.assert_allclose(dots.get_ydata(), np.arange(2) + offset)
            np.testing.assert_array_equal(
                drawn["high"].sel(scale=scale, term=term),
                part["interval"].sel(term=term, bound="high"),
            )
    assert axes[0].get_xlim() == axes[1].get_xlim()
    # raw on the left, matched on the right
    assert axes[0].get_xlabel() == "ratio to all\nother tokens"
    assert axes[1].get_xlabel() == "ratio to equally\nsurprising tokens"


def test_tokens_of_each_kind_and_the_matched_share_are_written(page):
    kind, balance = kind_and_balance(["digit", "format"])
    kind["n_tokens"][:] = [12_345, 0]
    balance["matched_share"][:] = [0.876, NAN]
    axes = pair(page)
    panels.draw_shift_by_kind(axes, kind, balance=balance)
    written = texts(axes[1]).splitlines()
    assert "12,345 (88%)" in written
    assert "0" in written


def test_a_kind_without_value_says_so_and_the_others_are_drawn(page):
    kind, balance = kind_and_balance(["digit", "format"])
    for name in ("estimate", "interval"):
        kind[name].loc[{"kind": "format", "term": ["placebo", "difference"]}] = NAN
    axes = pair(page)
    drawn = panels.draw_shift_by_kind(axes, kind, balance=balance)["kinds"]
    for panel in axes:
        (gap,) = [text for text in panel.texts if text.get_text() == "not estimable"]
        assert gap.get_position() == (0.5, 1.17)
        assert gap.get_color() == style.LOOKS["placebo"].color
    assert np.isnan(drawn["estimate"].sel(kind="format", term="placebo")).all()
    assert np.isfinite(drawn["estimate"].sel(kind="format", term="verdict")).all()


def test_a_kind_without_interval_carries_a_dagger_and_the_key_explains_it(page):
    kind, balance = kind_and_balance(["digit", "format"])
    kind["interval"].loc[{"kind": "digit"}] = NAN
    axes = pair(page)
    panels.draw_shift_by_kind(axes, kind, balance=balance)
    assert texts(axes[0]).count("†") == 2
    (key,) = page.legends
    assert [x.get_text() for x in key.get_texts()] == ["verdict", "placebo", "† no interval"]


def test_triples_put_terms_left_and_their_difference_right(page):
    values = {"correlation": (0.93, 0.94), "mean_absolute_shift": (0.09, 0.08)}
    axes = [list(row) for row in page.subplots(2, 2)]
    statistics = {name: panels.TRIPLE_STATISTICS[name] for name in values}
    drawn = panels.draw_triples(axes, triple(values), statistics=statistics)["triples"]
    assert drawn["estimate"].sel(term="difference").values == pytest.approx([-0.01, 0.01])
    for (left, right), (verdict, placebo) in zip(axes, values.values(), strict=True):
        dots = {line.get_marker(): line for line in (*left.lines, *right.lines)}
        assert dots["o"].get_xdata() == pytest.approx([verdict])
        assert dots["s"].get_xdata() == pytest.approx([placebo])
        assert dots["D"].get_xdata() == pytest.approx([verdict - placebo])
        low, high = right.get_xlim()
        assert low < 0 < high
    assert axes[1][0].get_ylabel() == "mean |shift|\n(nats)"


def test_a_triple_without_placebo_says_so_in_its_place(page):
    values = {"correlation": (0.93, NAN)}
    axes = [list(row) for row in page.subplots(1, 2, squeeze=False)]
    panels.draw_triples(axes, triple(values), statistics={"correlation": "r"})
    (left,) = axes[0][0].texts
    (right,) = axes[0][1].texts
    assert left.get_text() == right.get_text() == "not estimable"
    assert left.get_color() == style.LOOKS["placebo"].color
    assert right.get_color() == style.LOOKS["difference"].color
