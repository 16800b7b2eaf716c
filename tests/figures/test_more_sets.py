"""The sets credit, localization, centers and training: what was drawn, and the files."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from tests.figures.builders import PROVENANCE, result
from tests.figures.test_sets import fonts
from tests.stats.test_center_results import made as centers_made
from tests.stats.test_credited import made as credit_made
from tests.stats.test_runs import records
from tokensense.errors import FigureError
from tokensense.figures import CATALOGUE, draw
from tokensense.figures.credit import rule_order
from tokensense.figures.export import csv_bytes
from tokensense.figures.sets import drawable
from tokensense.figures.style import styled
from tokensense.figures.tables import escaped, macro_name, numbers_bytes, table_bytes
from tokensense.stats.center_results import center_results
from tokensense.stats.credited import credited
from tokensense.stats.resampling import Method
from tokensense.stats.runs import run_dataset, side_by_side

NAN = np.nan


def credit_inputs():
    tokens, credit = credit_made()
    credit = credit.assign_coords(rule=["even", "rare", "rare_placebo", "against"])
    return credited(tokens, credit, resamples=100)


def located(names, statistics, *, half=0.05):
    """A result of `localization`: .9 for verdicts, .8 for placebos, .5 for all others."""
    values = [0.9 if n in ("sensitivity", "absolute_contrast") else
              0.8 if n.startswith("placebo_") else 0.5 for n in names]  # fmt: skip
    table = np.tile(values, (len(statistics), 1))
    found = result(table, table - half, table + half,
                   {"statistic": list(statistics), "score": list(names)}, counts={})  # fmt: skip
    sizes = {"n_tokens": 3872, "n_rollouts": 113, "n_steps": 467}
    return found.assign(n_compared=("statistic", [113] * len(statistics))).assign_attrs(sizes)


def localization_inputs():
    scores = ("sensitivity", "placebo_sensitivity", "absolute_contrast", "surprisal", "random",
              "weight_cscr", "weight_cscr_placebo", "weight_uniform")  # fmt: skip
    tokens = ("auroc", "auroc_at_equal_surprisal", "auroc_at_equal_surprisal_and_kind",
              "average_precision", "hit_at_1")  # fmt: skip
    steps = ("auroc", "average_precision", "hit_at_1", "auroc_at_equal_surprisal")
    chosen = (*scores[:4], "sensitivity_max", "constant", "model_with", "placebo_model_with",
              "weight_cscr_top_3")  # fmt: skip
    return {"localization": located(scores, tokens), "step_choice": located(chosen, steps)}


def training_inputs():
    about = {"scored_by": "tiny:tables", "task": "tables"}
    runs = {
        name: run_dataset(records(accuracy=level), attrs={**about, "rule": name, "seed": 0})
        for name, level in (("uniform", 0.5), ("cscr", 0.6))
    }
    return {"training": side_by_side(runs)}


INPUTS = {
    "credit": credit_inputs,
    "localization": localization_inputs,
    "centers": lambda: center_results(*centers_made(), attrs=PROVENANCE, resamples=100),
    "training": training_inputs,
}


@pytest.fixture(scope="module", params=list(INPUTS))
def drawn(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, draw(request.param, INPUTS[request.param](), folder, style="icml")


@pytest.fixture(scope="module")
def composed():
    """Figures of a set without layout, which costs most of the time."""

    def compose(name: str, figure: str, *, style: str = "neurips", inputs=None):
        with styled(style) as page:
            spec = CATALOGUE[name][figure]
            return spec.compose(inputs or INPUTS[name](), page, page.column)

    return compose


def test_every_figure_has_its_files_embedded_fonts_and_the_width_of_the_column(drawn):
    folder, manifest = drawn
    assert list(manifest["figures"]) == list(CATALOGUE[manifest["set"]])
    for name, figure in manifest["figures"].items():
        assert {f"{name}.pdf", f"{name}.png", f"{name}.csv"} <= figure["files"].keys()
        assert figure["width"] == 3.25
        found = fonts(folder / f"{name}.pdf")
        assert found
        assert "/Type3" not in {str(font["/Subtype"]) for font in found.values()}
        assert figure["replaced_glyphs"] == []
        assert "n = " in figure["caption"]


def test_credit_localization_and_centers_have_tables_and_numbers(drawn):
    folder, manifest = drawn
    text = (folder / "numbers.tex").read_text()
    assert text.splitlines()[1] == r"\providecommand{\tsnumber}[4]{#1 #2}"
    if manifest["set"] == "training":
        return
    assert r"\newcommand{\ts" in text
    tables = list(folder.glob("*.tex"))
    assert len(tables) > 1
    for path in tables:
        content = path.read_text()
        assert content.count("{") == content.count("}")
        assert content.isascii()


def test_nothing_leaves_the_page(composed):
    for name, figures in (("credit", "credit_agreement"), ("centers", "center_types")):
        one = composed(name, figures, style="acl")
        with styled("acl"):
            one.figure.draw_without_rendering()
            box = one.figure.get_tightbbox()
        width, height = one.figure.get_size_inches()
        assert min(box.x0, box.y0) >= -0.02
        assert box.x1 <= width + 0.02
        assert box.y1 <= height + 0.02


def test_cells_are_colored_only_where_the_interval_leaves_out_no_difference(composed):
    one = composed("credit", "credit_by_kind")
    kinds = one.parts["kinds"].transpose("rule", "kind", ...)
    told = ((kinds["low"] > 1) | (kinds["high"] < 1)).values
    cells = [patch for patch in one.figure.axes[0].patches if isinstance(patch, Rectangle)]
    white = {
        (round(cell.get_y() + 0.5), round(cell.get_x() + 0.5)): cell.get_facecolor()[:3]
        == (1, 1, 1)
        for cell in cells
    }
    assert len(white) == int(kinds["estimate"].notnull().sum())
    assert {place for place, blank in white.items() if not blank} == set(
        map(tuple, np.argwhere(told))
    )
    assert 0 < told.sum() < told.size
    texts = {text.get_text() for text in one.figure.axes[0].texts}
    value = float(kinds["estimate"].sel(rule="rare", kind="digit"))
    assert f"{value:.2f}" in texts


def test_rules_stand_by_rotation_and_a_control_behind_its_rule():
    rules = credit_inputs()["rules"]
    assert rule_order(rules) == ["even", "rare", "rare_placebo", "against"]


def test_a_rule_and_its_control_share_a_row(composed):
    shown = composed("credit", "credit_concentration").parts["rules"]
    assert shown["row"].values.tolist() == ["even", "rare", "against"]
    placebo = shown["estimate"].sel(term="placebo", statistic="rotation")
    assert np.isfinite(placebo.sel(row="rare"))
    assert np.isnan(placebo.sel(row="even"))


def test_agreement_names_what_has_no_ranks_and_has_length_beside(composed):
    one = composed("credit", "credit_agreement")
    shown = one.parts["agreement"]
    assert "all tokens of a response get the same: even, against." in one.caption
    assert shown["other"].values.tolist()[-3:] == ["verdict contrast", "placebo contrast", "length"]
    assert float(shown["estimate"].sel(rule="rare", other="surprisal")) == pytest.approx(1.0)


def test_verdict_and_placebo_of_a_score_share_a_row_and_all_values_are_drawn(composed):
    one = composed("localization", "localization_tokens")
    shown = one.parts["scores"]
    rows = shown["row"].values.tolist()
    assert rows == ["sensitivity", "|contrast|", "surprisal", "random", "weight, cscr",
                    "weight, uniform"]  # fmt: skip
    first = shown.sel(row="sensitivity", statistic="auroc")
    assert float(first["estimate"].sel(term="verdict")) == 0.9
    assert float(first["estimate"].sel(term="placebo")) == 0.8
    assert len(one.figure.axes) == 3
    dots = {line.get_xdata()[0]: line.get_ydata() for line in one.figure.axes[0].lines if
            line.get_marker() in ("o", "s")}  # fmt: skip
    assert dots[0.9][0] < 0.0 < dots[0.8][0]  # above and below the middle of the row
    xs = np.concatenate([line.get_xdata() for line in one.figure.axes[0].lines if
                         line.get_linestyle() == "None"])  # fmt: skip
    np.testing.assert_allclose(np.sort(xs), [0.5] * 5 + [0.8, 0.9, 0.9])
    assert "ensitivity verdict 0.90 [0.85, 0.95], placebo 0.80 [0.75, 0.85]" in one.caption


def test_secondary_aggregates_of_steps_are_left_to_the_csv_of_analyze(composed):
    shown = composed("localization", "localization_steps").parts["scores"]
    assert shown["there"].sel(row="model with shifts", term="placebo").all()
    assert not any("top 3" in row or "max" in row for row in shown["row"].values)


def test_localization_is_drawn_where_only_steps_are_labelled():
    found = {"step_choice": localization_inputs()["step_choice"]}
    assert list(drawable("localization", found)) == ["localization_steps"]


@pytest.mark.parametrize(
    ("name", "command"),
    [("credit", "credit"), ("localization", "analyze"), ("centers", "centers"),
     ("training", "train")],
)  # fmt: skip
def test_a_set_without_data_says_which_command_makes_it(tmp_path, name, command):
    with pytest.raises(FigureError, match=f"run `tokensense {command}`"):
        draw(name, {}, tmp_path)


def test_learning_curves_show_accuracy_with_its_band_and_the_last_value_in_words(composed):
    one = composed("training", "learning_curves")
    left, right = one.figure.axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), [0.5, 0.52, 0.54])
    np.testing.assert_allclose(right.lines[1].get_ydata(), [0.1, 0.2, 0.3, 0.4])
    assert len(left.collections) == 2
    assert "uniform (rule uniform, seed 0): 0.54 [0.43, 0.65] after 4 updates" in one.caption
    lines = [(line.get_color(), line.get_linestyle()) for line in left.lines]
    assert len(set(lines)) == 2


def test_what_was_found_wrong_stands_on_its_curve_and_in_the_caption(composed):
    found = training_inputs()["training"]
    found["entropy"][:] = 1.5
    one = composed("training", "training_health", inputs={"training": found})
    crosses = [line for line in one.figure.axes[0].lines if line.get_marker() == "X"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in crosses] == [(2, 1.5)] * 2
    assert "uniform, after 2 updates: Entropy is low." in one.caption


def test_no_axis_goes_below_zero_for_numbers_that_cannot(composed):
    found = training_inputs()["training"]
    found["entropy"][:] = 0.0
    one = composed("training", "training_health", inputs={"training": found})
    assert one.figure.axes[0].get_ylim()[0] == 0.0


def test_more_runs_than_can_be_told_apart_are_refused(composed):
    many = side_by_side({f"r{i}": run_dataset(records(), attrs={"scored_by": "x"})
                         for i in range(7)})  # fmt: skip
    with pytest.raises(FigureError, match="at most 6 runs"):
        composed("training", "learning_curves", inputs={"training": many})


def test_centers_say_masses_and_have_the_placebo_in_the_row(composed):
    one = composed("centers", "centers")
    shown = one.parts["centers"]
    assert shown["row"].values.tolist() == ["all tokens", "without digit", "without format"]
    assert shown["there"].sel(term=["verdict", "placebo"]).values.all()
    assert "Masses M+ = " in one.caption


def part(values=((0.5, -0.25),)):
    table = np.array(values)
    coords = {"rule": ["a_b"], "statistic": ["gini", "p2"]}
    found = result(table, table - 0.1, table + 0.1, coords, counts={"n_tokens": ("rule", [1234])})
    return found.assign(low=found["estimate"] - 0.1, high=found["estimate"] + 0.1)


def test_a_table_has_a_row_a_label_and_escapes_what_latex_would_read():
    text = table_bytes(part(), name="one", caption="50 % of $x_1$").decode()
    assert r"\caption{50 \% of \$x\_1\$}" in text
    assert r"rule & gini & p2 \\" in text
    assert (
        r"a\_b & \shortstack{0.50\\{\scriptsize [0.40, 0.60]}} & "
        r"\shortstack{$-$0.25\\{\scriptsize [$-$0.35, $-$0.15]}} \\" in text
    )
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")


def test_each_number_is_a_macro_with_interval_n_and_commit():
    from matplotlib.figure import Figure

    from tokensense.figures.spec import Rendered

    text = numbers_bytes({"fig 1": Rendered(Figure(), {"x": part()}, "")}, commit="0a1b").decode()
    assert (
        r"\newcommand{\tsFigOneABGini}{\tsnumber{0.50}{[0.40, 0.60]}"
        r"{1,234 tokens, 21 problems}{0a1b}}" in text
    )
    twice = {"fig": Rendered(Figure(), {"x": part(), "y": part()}, "")}
    with pytest.raises(FigureError, match=r"would both be \\tsFigABGini"):
        numbers_bytes(twice, commit="")


def test_names_of_macros_are_letters_only():
    assert macro_name("a-1", "|β|") == "tsAOne"
    assert escaped("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    one, other = (
        draw("localization", localization_inputs(), tmp_path / str(i), style="acl") for i in (0, 1)
    )
    assert one == other


def test_inputs_of_two_policies_are_refused(tmp_path):
    found = localization_inputs()
    found["step_choice"].attrs["scored_by"] = "another"
    with pytest.raises(FigureError, match="scored_by is"):
        draw("localization", found, tmp_path)


def daggers(one) -> int:
    return sum(text.get_text().endswith("†") for text in one.figure.axes[0].texts)


def test_a_value_without_interval_is_marked_in_the_matrix(composed):
    found = credit_inputs()
    before = daggers(composed("credit", "credit_by_kind", inputs=found))
    place = {"rule": "rare", "kind": "digit"}
    found["rules_by_kind"]["interval"].loc[place] = NAN
    found["rules_by_kind"]["method"].loc[place] = int(Method.NONE_UNSTABLE)
    assert daggers(composed("credit", "credit_by_kind", inputs=found)) == before + 1


def test_csv_of_a_matrix_holds_intervals(composed):
    shown = composed("credit", "credit_agreement").parts["agreement"]
    table = pd.read_csv(io.BytesIO(csv_bytes(shown)))
    assert {"rule", "other", "estimate", "low", "high", "method"} <= set(table.columns)
