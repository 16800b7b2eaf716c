import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pypdf import PdfReader

from tests.figures.builders import flat_tokens, kind_and_balance, triple
from tokensense.errors import FigureError, SchemaError
from tokensense.figures import CATALOGUE, draw, render
from tokensense.figures.export import Rendered, csv_bytes, write_set
from tokensense.figures.sets import provenance_of
from tokensense.figures.style import new_figure, styled
from tokensense.stats.points import shift_points

NAN = np.nan
FIGURES = ["shift_scatter", "shift_by_kind", "triples"]
STATE = ("verdict_pairs", "placebo_families", "all_tokens")


def inputs(*, rollouts: int = 60, mean_length: int = 60):
    """Inputs of the set `shifts`; 60 rollouts of 60 tokens are drawn as cells, 6 as points."""
    points = shift_points(flat_tokens(rollouts=rollouts, mean_length=mean_length))
    kind, balance = kind_and_balance()
    found = {"points": points, "triple": triple(), "kind": kind, "balance": balance}
    state = {name: points.attrs[name] for name in STATE}
    return {name: dataset.assign_attrs(state) for name, dataset in found.items()}


@pytest.fixture(scope="module")
def rendered() -> dict[str, Rendered]:
    return render("shifts", inputs(), style="icml")


@pytest.fixture(scope="module")
def drawn(rendered, tmp_path_factory) -> tuple[Path, dict]:
    """What `draw` does with what `render` gives; a test below draws again and compares."""
    folder = tmp_path_factory.mktemp("figures")
    origin = provenance_of(inputs())
    with styled("icml"):
        return folder, write_set(folder, rendered, name="shifts", style="icml", provenance=origin)


def composed(name: str, found, *, style: str = "acl"):
    """One figure of the set without layout, which costs most of the time."""
    with styled(style) as page:
        return CATALOGUE["shifts"][name].compose(found, page, page.column)


def fonts(path: Path) -> dict[str, dict]:
    """Font dictionaries of a PDF by name, those below Type 0 fonts included."""
    found = {}
    for page in PdfReader(path).pages:
        for reference in page["/Resources"]["/Font"].values():
            font = reference.get_object()
            found[str(font["/BaseFont"])] = font
            for below in font.get("/DescendantFonts", []):
                found[f"{font['/BaseFont']} below"] = below.get_object()
    return found


def test_every_figure_has_pdf_png_and_csv(drawn):
    folder, manifest = drawn
    assert list(manifest["figures"]) == FIGURES == list(CATALOGUE["shifts"])
    extra = {"captions.txt", "manifest.json", "numbers.tex"}
    expected = {f"{name}.{suffix}" for name in FIGURES for suffix in ("pdf", "png", "csv", "tex")}
    # Points and cells are no estimates: the numbers above them are a part of their own.
    expected -= {"shift_scatter.tex"}
    extra |= {"shift_scatter_statistics.csv", "shift_scatter_statistics.tex"}
    assert {path.name for path in folder.iterdir()} == expected | extra


def test_the_manifest_holds_the_digest_of_every_file(drawn):
    folder, manifest = drawn
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    for figure in manifest["figures"].values():
        for name, entry in figure["files"].items():
            content = (folder / name).read_bytes()
            assert entry["sha256"] == hashlib.sha256(content).hexdigest()
            assert entry["bytes"] == len(content)


def test_the_manifest_says_where_numbers_come_from(drawn):
    found = drawn[1]["provenance"]
    assert found["store"] == "runs/made-up.zarr"
    assert found["commit"] == "0123abc"
    assert found["scored_by"] == "SmolLM2-135M-Instruct (Q4_1, dequantized)"
    assert found["sampled_by"] == ["made-up-7b"]
    assert found["off_policy"] is True
    assert set(drawn[1]["versions"]) == {"tokensense", "matplotlib"}


@pytest.mark.parametrize("name", FIGURES)
def test_pages_are_as_wide_as_the_column(drawn, name):
    folder, manifest = drawn
    (page,) = PdfReader(folder / f"{name}.pdf").pages
    assert float(page.mediabox.width) / 72 == pytest.approx(3.25, abs=0.01)
    assert manifest["figures"][name]["width"] == 3.25
    with Image.open(folder / f"{name}.png") as picture:
        assert picture.width == 975  # 3.25 in at 300 dots
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1)


@pytest.mark.parametrize("name", FIGURES)
def test_fonts_are_embedded_as_truetype(drawn, name):
    found = fonts(drawn[0] / f"{name}.pdf")
    assert found
    assert "/Type3" not in {str(font["/Subtype"]) for font in found.values()}
    described = [font["/FontDescriptor"] for font in found.values() if "/FontDescriptor" in font]
    assert described
    assert all("/FontFile2" in descriptor.get_object() for descriptor in described)


@pytest.mark.parametrize("name", FIGURES)
def test_text_in_the_pdf_is_six_points_or_more(drawn, name):
    sizes = []

    def visit(text, _matrix, text_matrix, _font, size):
        if text.strip():
            sizes.append(size * abs(text_matrix[0] or text_matrix[1]))

    PdfReader(drawn[0] / f"{name}.pdf").pages[0].extract_text(visitor_text=visit)
    assert sizes
    assert min(sizes) >= 6.0


def test_the_pdf_says_what_it_shows_and_no_date(drawn):
    folder, manifest = drawn
    found = PdfReader(folder / "triples.pdf").metadata
    assert found["/Subject"] == manifest["figures"]["triples"]["caption"]
    assert "/CreationDate" not in found
    assert "/ModDate" not in found


def test_the_same_inputs_give_the_same_bytes(drawn, tmp_path):
    folder, manifest = drawn
    assert draw("shifts", inputs(), tmp_path, style="icml") == manifest
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_panels_keep_to_the_page_and_off_each_other(rendered):
    narrow = render("shifts", inputs(), style="acl")
    for name, one in [*rendered.items(), *narrow.items()]:
        width, height = one.figure.get_size_inches() * one.figure.dpi
        places = [axes.get_window_extent() for axes in one.figure.axes]
        for index, axes in enumerate(one.figure.axes):
            box = axes.get_tightbbox()
            assert min(box.x0, box.y0) >= -1, name
            assert box.x1 <= width + 1, name
            assert box.y1 <= height + 1, name
            # Ticks, labels, heading and notes of one panel stay out of every other's place.
            others = [place.padded(-2) for at, place in enumerate(places) if at != index]
            over = [place for place in others if box.overlaps(place)]
            # A line above a narrow panel may reach past its side, where nothing else is.
            assert all(name == "shift_scatter" and place.y1 <= box.y1 for place in over), name


def test_csv_holds_the_cells_that_were_drawn(drawn, rendered):
    table = pd.read_csv(drawn[0] / "shift_scatter.csv")
    density = rendered["shift_scatter"].parts["density"]
    counts = density["tokens"]
    assert len(table) == int(counts.notnull().sum())
    rows = (table["term"], table["positive_cell"], table["negative_cell"])
    term, positive, negative = (np.asarray(column) for column in rows)
    term = np.array([["verdict", "placebo"].index(name) for name in term])
    np.testing.assert_array_equal(table["tokens"], counts.values[term, positive, negative])
    np.testing.assert_array_equal(table["positive_low"], density["positive_low"].values[positive])


@pytest.mark.parametrize(("name", "part"), [("shift_by_kind", "kinds"), ("triples", "triples")])
def test_csv_holds_every_number_to_the_last_digit(drawn, rendered, name, part):
    dataset = rendered[name].parts[part]
    labels = [str(dim) for dim in dataset.sizes]
    table = pd.read_csv(drawn[0] / f"{name}.csv").set_index(labels)
    for column in ("estimate", "low", "high"):
        expected = dataset[column].to_series()
        np.testing.assert_array_equal(table.loc[expected.index, column], expected)
    assert set(table["method"]) == {"bootstrap"}
    assert (table["n_tokens"] > 0).all()


def test_few_tokens_are_drawn_as_points_and_float32_survives_the_csv():
    found = inputs(rollouts=6, mean_length=20)
    one = composed("shift_scatter", found)
    points = one.parts["points"]
    table = pd.read_csv(io.BytesIO(csv_bytes(points)))
    assert list(table.columns[:5]) == ["point", "pair", "term", "family", "frame"]
    np.testing.assert_array_equal(table["positive"].astype(np.float32), points["positive"])
    count = 2 * found["points"].sizes["token"]  # two frames
    assert table["term"].value_counts().to_dict() == {"verdict": count, "placebo": count}
    assert "One mark a token" in one.caption


def test_captions_say_numbers_intervals_n_and_off_policy(drawn):
    folder, manifest = drawn
    captions = {name: figure["caption"] for name, figure in manifest["figures"].items()}
    for name, caption in captions.items():
        assert "n = " in caption
        assert "tokens" in caption
        assert "95 %, one-stage cluster bootstrap over problem texts, 1,000 resamples" in caption
        assert "Scored by SmolLM2-135M-Instruct (Q4_1, dequantized); off-policy" in caption
        assert f"{name}\n{caption}\n" in (folder / "captions.txt").read_text()
    numbers = (
        "Same direction: verdict 0.951 [0.932, 0.970], placebo 0.962 [0.943, 0.981], "
        "difference −0.011 [−0.030, 0.008]."
    )
    assert numbers in captions["shift_scatter"]
    assert "1,234 tokens, 24 rollouts, 21 problems under both." in captions["triples"]
    assert "placebo families (color, day, place)" in captions["triples"]


def test_on_policy_numbers_are_not_called_off_policy():
    found = {"triple": triple().assign_attrs(off_policy=0)}
    caption = composed("triples", found).caption
    assert "off-policy" not in caption
    assert "dequantized), which sampled the tokens." in caption


def test_what_limits_the_numbers_is_in_the_caption():
    found = triple().assign_attrs(statements='["2 verdict pairs: results hold for these wordings"]')
    found["interval"].loc[{"statistic": "correlation"}] = NAN
    caption = composed("triples", {"triple": found}).caption
    assert "2 verdict pairs: results hold for these wordings." in caption
    assert "verdict 0.930 (no interval)" in caption
    assert "† no interval could be made." in caption


def test_what_is_not_estimable_is_drawn_as_such_and_named_in_the_caption():
    kind, balance = kind_and_balance()
    for name in ("estimate", "interval"):
        kind[name].loc[{"kind": "final_answer", "scale": "log_ratio_matched"}] = NAN
    one = composed("shift_by_kind", {"kind": kind, "balance": balance})
    assert "Not estimable: final answer (log ratio matched)." in one.caption
    shown = [text.get_text() for axes in one.figure.axes for text in axes.texts]
    assert shown.count("not estimable") == 2
    table = pd.read_csv(io.BytesIO(csv_bytes(one.parts["kinds"])))
    lost = table[table["estimate"].isna()]
    assert set(lost["kind"]) == {"final_answer"}
    assert len(lost) == 2


def test_characters_without_glyph_are_listed_in_the_manifest(tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "kinds", {"shift_by_kind": CATALOGUE["shifts"]["shift_by_kind"]})
    kind, balance = kind_and_balance(["digit", "数"])
    manifest = draw("kinds", {"kind": kind, "balance": balance}, tmp_path, style="acl")
    assert manifest["figures"]["shift_by_kind"]["replaced_glyphs"] == ["数"]


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (["points"], r"\['points'\] are missing.*finish the probes `opposed` and `placebo`"),
        (["kind", "balance"], r"\['kind', 'balance'\] are missing.*run `tokensense analyze`"),
    ],
)
def test_a_missing_input_is_named_with_what_to_run(tmp_path, lost, message):
    found = {name: dataset for name, dataset in inputs().items() if name not in lost}
    with pytest.raises(FigureError, match=message):
        draw("shifts", found, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scored_by", "another model"),
        ("policy_digest", "aa"),
        ("off_policy", False),
        ("all_tokens", 7),
        ("placebo_families", '["day"]'),
    ],
)
def test_mixed_or_stale_inputs_are_refused(name, value):
    found = inputs()
    found["points"].attrs.setdefault("policy_digest", "bb")
    found["triple"].attrs[name] = value
    with pytest.raises(FigureError, match=rf"{name} is .* in 'points' and .* in 'triple'"):
        render("shifts", found)


@pytest.mark.parametrize("name", ["scored_by", "off_policy"])
def test_inputs_that_do_not_say_who_scored_them_are_refused(name):
    found = inputs()
    del found["kind"].attrs[name]
    with pytest.raises(FigureError, match=rf"'kind' lacks .*{name}"):
        render("shifts", found)


def test_texts_and_numbers_from_a_store_equal_what_was_written():
    memory, stored = triple(), triple()
    memory.attrs |= {"off_policy": True, "sampled_by": ["a", "b"], "all_tokens": 7}
    stored.attrs |= {
        "off_policy": np.int64(1),
        "sampled_by": '["a", "b"]',
        "all_tokens": np.int64(7),
    }
    found = provenance_of({"memory": memory, "stored": stored})
    assert (found["off_policy"], found["sampled_by"], found["all_tokens"]) == (True, ["a", "b"], 7)
    array = stored.assign_attrs(sampled_by=np.array(["a", "b"]))
    assert provenance_of({"stored": stored, "array": array}) == found


@pytest.mark.parametrize(("dirty", "commit"), [(False, "0a1b"), (True, "0a1b-dirty")])
def test_the_commit_is_read_from_the_stamp_of_a_store(dirty, commit):
    found = triple()
    del found.attrs["commit"]
    assert "commit" not in provenance_of({"triple": found})
    found.attrs["provenance"] = json.dumps({"git": {"commit": "0a1b", "dirty": dirty}})
    assert provenance_of({"triple": found})["commit"] == commit
    found.attrs["provenance"] = json.dumps({"git": None})  # an installed package
    assert "commit" not in provenance_of({"triple": found})


def test_unknown_sets_and_styles_are_refused(tmp_path):
    with pytest.raises(SchemaError, match=r"`set` needs one of .*; it is 'all'"):
        draw("all", inputs(), tmp_path)
    with pytest.raises(SchemaError, match=r"`style` needs one of .*; it is 'nature'"):
        draw("shifts", inputs(), tmp_path, style="nature")


def small_set(folder: Path):
    with styled("plain"):
        figure = new_figure(1.0, 1.0)
        one = Rendered(figure, {"triples": triple()[["estimate"]]}, "caption", ())
        return write_set(folder, {"one": one}, name="s", style="plain", provenance={})


def test_a_failure_while_writing_leaves_the_old_manifest_and_nothing_half_written(tmp_path):
    (tmp_path / "manifest.json").write_text("old")
    (tmp_path / "one.png").mkdir()  # no file can be renamed to it
    with pytest.raises(FigureError, match=r"folder that can be written; .* gave"):
        small_set(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == "old"
    assert [path for path in tmp_path.iterdir() if path.suffix == ".part"] == []
    (tmp_path / "one.png").rmdir()
    assert small_set(tmp_path) == json.loads((tmp_path / "manifest.json").read_text())


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(FigureError, match="Name another folder"):
        small_set(tmp_path / "out")


def test_wide_pages_show_nats_beside_the_ratios():
    kind, balance = kind_and_balance(["digit", "format"])
    one = composed("shift_by_kind", {"kind": kind, "balance": balance}, style="plain")
    assert [axes.get_xlabel() for axes in one.figure.axes] == [
        "mean |shift|\n(nats)",
        "ratio to all\nother tokens",
        "ratio to equally\nsurprising tokens",
    ]
    expected = kind["estimate"].sel(scale="mean", measure="absolute_shift", term="verdict")
    np.testing.assert_array_equal(one.figure.axes[0].lines[1].get_xdata(), expected)


def test_counts_that_differ_between_terms_are_both_in_the_caption():
    found = triple()
    found["n_rollouts"][:] = [24, 23, 23]
    caption = composed("triples", {"triple": found}).caption
    assert (
        "verdict: n = 1,234 tokens, 24 rollouts, 21 problems; "
        "placebo: n = 1,234 tokens, 23 rollouts, 21 problems." in caption
    )
