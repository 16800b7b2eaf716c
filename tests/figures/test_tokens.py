"""The token page without a browser: exact bytes, inert tokens, and the numbers of the data."""

import base64
import hashlib
import html
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import tokensense.figures.tokens as module
from tests.figures.builders import traced
from tests.figures.pages import Page, unboxed
from tokensense.errors import FigureError, SchemaError
from tokensense.figures.glyphs import plain, quoted, text_markup, token_markup
from tokensense.figures.shades import Coloring, colorings, legend, reach, shade_name, shades
from tokensense.figures.tokens import ALPHAS, Question, TokenView, token_view

HOSTILE = [
    b"</script>",
    b"<script>alert(1)</script>",
    b" <img src=x onerror=alert(1)>",
    b"&amp;",
    b"&#0;",
    b"\"'",
    b"' onmouseover=alert(1) x='",
    b'" onfocus=alert(1) autofocus x="',
    b"</style><style>*{display:none}",
    b"</label></div></main>",
    b"<!--",
    b"-->",
    b"]]>",
    b"{{ 7*7 }}",
    b"{% raw %}",
    b"url(http://evil.example/x)",
    b"\\",
    b"\xe2\x80\xaecod.exe\xe2\x80\xac",  # right-to-left override
    b"a\xe2\x80\x8bb",  # zero width space
    b"\xf0\x9f",  # half of an emoji
    b"\x98\x80",
    b"\x00",
    b"\x1b[31m",
    b"\r\n",
    b"\n\n",
    b"\t  x \n",
    b"    ",
    b" \n",
    b"\xc2\xa0",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xef\xbf\xbe",
    b"\xf3\xa0\x81\x81",
    b"",
]
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "fieldset"),
    *("legend", "label", "input", "section", "table", "tr", "th", "td", "ul", "li", "span"),
    *("main", "div", "article", "header", "i", "b", "select", "option", "output", "script"),
}
ATTRIBUTES = {
    *("class", "data-n", "type", "name", "id", "checked", "role", "aria-label", "lang"),
    *("charset", "http-equiv", "content", "scope", "translate", "selected"),
    *("data-js", "hidden", "autocomplete", "spellcheck"),
}
PALETTE = Path(module.__file__).with_name("tokens.css").read_text(encoding="utf-8")


def page(traces, **changes):
    return Page(token_view(**(traced(traces) | changes)).html)


def words(*sentences):
    """Traces of words, each with its leading space."""
    return [[f" {word}".encode() for word in text.split()] for text in sentences]


THREE = words(
    "so the total is 12 + 7 = 20 . A : 20", "it is 19", "we add 12 to 7 and get 19 , or so"
)


# --- text ----------------------------------------------------------------------------------------


def test_every_token_stands_there_once_in_order_with_its_exact_bytes():
    traces = [HOSTILE, THREE[0], HOSTILE[::-1]]
    assert [[token.raw for token in trace] for trace in page(traces).traces] == traces


@given(st.lists(st.lists(st.binary(max_size=8), min_size=1, max_size=6), min_size=1, max_size=3))
@settings(max_examples=15)
def test_any_bytes_can_be_read_back_from_the_page(traces):
    found = page(traces)
    assert [[token.raw for token in trace] for trace in found.traces] == traces
    assert {tag for tag, _ in found.tags} <= TAGS


@given(st.one_of(st.binary(max_size=30), st.text(max_size=15).map(str.encode)))
@settings(max_examples=300)
def test_what_is_not_printable_stands_in_a_box(raw):
    label = f'<label class="" data-n="">{token_markup(raw)}</label>'
    shown = Page(f'<div role="radiogroup">{label}</div>').traces[0][0]
    assert shown.raw == raw.removesuffix(b"\n")
    assert all(character.isprintable() or character in "\n\t" for character in shown.bare)


def test_characters_that_draw_nothing_stand_in_a_box_though_they_count_as_printable():
    for code in (0x034F, 0x115F, 0x180B, 0x2800, 0x3164, 0xFE0F, 0xFFA0, 0xE01EF):
        assert token_markup(chr(code).encode()) == f'<b class="c">U+{code:04X}</b>'
    for character in ("é", "e\u0301", "ش", "漢", "√", "😀"):
        assert token_markup(character.encode()) == character


def test_spaces_tabs_and_line_feeds_stay_themselves_and_are_marked():
    assert token_markup(b" a b") == ' a<i class="s"> </i>b'
    assert token_markup(b"  a") == '<i class="s">  </i>a'
    assert token_markup(b"\ta") == '<i class="h">\t</i>a'
    assert token_markup(b".\n\n") == '.<i class="n"></i>\n<i class="n"></i>'
    (trace,) = page([[b" a", b"a", b"  a", b" "]]).traces
    assert ["d" in token.classes for token in trace] == [True, False, False, True]


def test_parts_of_characters_show_as_bytes():
    assert token_markup(b"\xf0\x9f") == '<b class="c">F0 9F</b>'
    assert unboxed("F0 9F") == b"\xf0\x9f"
    assert quoted(b"\xf0\x9f") == r"b'\xf0\x9f'"
    assert quoted(b" \n\xe2\x80\xae") == r"' \n\u202e'"
    assert plain("a\u202eb\udcff") == "a[U+202E]b[FF]"


def test_questions_and_names_are_shown_as_they_are_too():
    name, text = "</title><script>", "How many?\n\t<img src=x> & so on\u202e"
    found = page(THREE, questions={0: Question(name, text)}, notes=["<b>a</b>\u200b"])
    assert f"Problem {name}" in "".join(found.text["h2"])
    assert "".join(found.text["p"]).count(text[:-1]) == 1
    assert found.text["b"].count("U+202E") == 1
    assert "<b>a</b>" in "".join(found.text["p"])
    assert {tag for tag, _ in found.tags} <= TAGS
    assert text_markup("a \t\n") == "a \t\n"


# --- inert ---------------------------------------------------------------------------------------


def test_hostile_tokens_make_no_tag_no_attribute_and_no_rule():
    found = page([HOSTILE, HOSTILE])
    assert {tag for tag, _ in found.tags} <= TAGS
    assert {name for _, attributes in found.tags for name in attributes} <= ATTRIBUTES
    styles = page([[b" a"] * len(HOSTILE)]).text["style"]  # of as many kinds
    assert found.text["style"] == styles
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]


def test_the_policy_forbids_to_fetch_and_to_run():
    (policy,) = (a["content"] for tag, a in page(THREE).tags if tag == "meta" and "http-equiv" in a)
    assert policy.split("; ")[:2] == ["default-src 'none'", "style-src 'unsafe-inline'"]
    (script,) = page(THREE).text["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy.split("script-src")[1]
    assert page([HOSTILE]).text["script"] == [script]  # nothing of a store is in it


def test_a_hostile_rule_name_stays_text():
    args = traced(THREE)
    tokens = args["tokens"].assign_coords(rule=["<script>\u202e", "{{x}}"])
    found = page(THREE, tokens=tokens)
    assert {tag for tag, _ in found.tags} <= TAGS
    assert "weight <script>[U+202E] " in found.traces[0][0].note
    assert " weight {{x}}" in found.text["label"]


# --- numbers -------------------------------------------------------------------------------------


def step_of(size):
    """Place of a size on the ladder .01, .03, .1, .3, 1, 3, by comparison with each."""
    return sum(abs(size) >= edge for edge in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0))


def class_of(value, *, ratio=False):
    if math.isnan(value):
        return "x"
    size = (math.log(value) if value > 0 else -math.inf) if ratio else value
    return f"{'p' if size > 0 else 'm'}{step_of(size)}" if step_of(size) else ""


def test_the_class_of_a_token_and_the_legend_say_what_the_data_say():
    args = traced(THREE)
    tokens, found = args["tokens"], page(THREE)
    columns = [
        *((tokens[name].values, False) for name in ("contrast", "positive", "negative")),
        (-tokens["logp"].values[0].astype(float), False),
        (tokens["entropy"].values[0], False),
        *((row, True) for row in tokens["weight"].values),
    ]
    shown = [token for trace in found.traces for token in trace]
    rows = [row for row in found.cells if row[0] == "tokens"]
    assert len(rows) == len(columns)
    for index, (values, ratio) in enumerate(columns):
        expected = [class_of(value, ratio=ratio) for value in values.tolist()]
        classes = [
            "".join(n.removeprefix(f"c{index}") for n in token.classes if n.startswith(f"c{index}"))
            for token in shown
        ]
        assert classes == expected
        count = Counter(expected)
        below = [] if index in (3, 4) else ["m6", "m5", "m4", "m3", "m2", "m1"]
        order = [*below, "", "p1", "p2", "p3", "p4", "p5", "p6", "x"]
        assert [int(cell) for cell in rows[index][1:]] == [count[name] for name in order]


def test_the_legend_names_edges_units_n_and_what_lies_beyond_the_last_color():
    found = page(THREE)
    edges = [row for row in found.cells if row[0].startswith("color from")]
    assert edges[0][0] == "color from, nats"
    sizes = ["0.01", "0.03", "0.1", "0.3", "1", "3"]
    below, above = [f"≤−{size}" for size in sizes[::-1]], [f"≥{size}" for size in sizes]
    assert edges[0][1:] == [*below, "0", *above, "not known"]
    assert edges[3][1:3] == ["<0.01", "≥0.01"]
    assert edges[4][:3] == ["color from, nats", "<0.01", "≥0.01"]
    assert edges[5][0] == "color from, ratio to 1"
    assert edges[5][1:3] == ["≤0.0498", "≤0.368"]  # exp(-3), exp(-1)
    coloring = Coloring("a", "b", np.array([-3.5, 0.0, 3.0, np.nan]), "difference")
    assert reach(coloring) == (
        "n = 3 tokens, from -3.5 to 3. The outermost colors are open; "
        "tokens at 3 nats or beyond: 2."
    )
    assert "No token" in reach(coloring._replace(values=np.array([np.nan])))


def test_edges_belong_above_and_weights_are_seen_as_ratios():
    edges = Coloring("a", "b", np.array([0.01, 0.0099, -0.01, 3.0, -99.0]), "difference")
    assert [shade_name(shade) for shade in shades(edges).tolist()] == ["p1", "", "m1", "p6", "m6"]
    ratios = np.array([1.0, 2.0, 0.5, 0.0, -1.0, np.nan, np.inf])
    weights = Coloring("a", "b", ratios, "ratio")
    assert [shade_name(s) for s in shades(weights).tolist()] == [
        "",
        "p4",
        "m4",
        "m6",
        "m6",
        "x",
        "p6",
    ]
    assert sum(swatch.tokens for swatch in legend(weights)) == ratios.size


def test_the_numbers_of_a_token_are_those_of_the_data():
    args = traced(THREE)
    tokens = args["tokens"]
    place = 5  # the first wrong token of the first trace; resolved or not as the data say
    lines = page(THREE).traces[0][place].note.split("\n")
    raw = args["vocabulary"][int(tokens["token_id"][place])]
    kind = str(tokens["kind"].values[place]).replace("_", " ")
    identity = [repr(raw.decode()), f"token 6 of {len(THREE[0])}", kind, "step 1"]
    assert [part in lines[0].split(" · ") for part in identity] == [True] * 4
    assert lines[0].endswith("first wrong token")
    logp, entropy = (float(tokens[name].values[0, place]) for name in ("logp", "entropy"))
    assert lines[1] == (
        f"surprisal {-logp:.4f} nats (p {math.exp(logp):.4g}) · entropy {entropy:.4f} nats"
    )
    moved = [
        f"{name} {value:+.4f} nats ×{math.exp(value):.4g}"
        for name, value in (
            ("z+", float(tokens["positive"][place])),
            ("z−", float(tokens["negative"][place])),
            ("contrast", float(tokens["contrast"][place])),
        )
    ]
    assert lines[2] == " · ".join([*moved, "floor 0.0500 nats: unresolved"])
    weights = tokens["weight"].values[:, place]
    assert lines[3] == f"weight uniform {weights[0]:.4g} · cscr {weights[1]:.4g}"


def test_what_is_not_known_is_said_and_never_zero():
    args = traced(THREE)
    place = int(np.flatnonzero(args["tokens"]["state"].values == 2)[0])
    tokens = args["tokens"].copy(deep=True)
    tokens["logp"][0, place] = np.nan
    lines = page(THREE, tokens=tokens).traces[0][place].note.split("\n")
    assert lines[1].startswith("surprisal not known nats (p not known)")
    assert lines[2].startswith("z+ not known · z− ")
    assert lines[2].endswith(": not known")


# --- marks ---------------------------------------------------------------------------------------


def test_marks_follow_state_first_wrong_token_and_labelled_step():
    args = traced(THREE)
    tokens, found = args["tokens"], page(THREE)
    shown = [token for trace in found.traces for token in trace]
    state = tokens["state"].values
    assert [("u" in t.classes, "k" in t.classes) for t in shown] == [
        (value == 1, value == 2) for value in state.tolist()
    ]
    assert [("w" in t.classes) for t in shown] == tokens["is_wrong_token"].values.tolist()
    assert [t.in_step for t in shown[:13]] == [4 <= place < 8 for place in range(13)]
    assert not any(t.in_step for t in shown[13:])
    signs = "".join(found.text["li"])
    assert f"floor: {(state == 1).sum()} tokens" in signs
    assert "first wrong token, where it is known: 1" in signs


def test_a_heading_says_right_wrong_undecided_generator_and_length():
    found = page(THREE)
    assert found.text["h3"] == ["✗ wrong", "✓ right", "? undecided"]
    facts = [text for text in found.text["header"] if text.strip()]
    assert facts[0].endswith(
        "rollout 0 · made-up-7b · 13 tokens · first wrong token 6 · labelled wrong step 1"
    )
    assert facts[1].endswith("rollout 1 · made-up-7b · 3 tokens")


def test_a_wrong_step_without_tokens_and_other_rewards_are_said():
    args = traced(THREE)
    tokens = args["tokens"].assign_coords(
        step=args["tokens"]["step"] * 0, reward=("token", np.full(27, 0.5))
    )
    found = page(THREE, tokens=tokens)
    assert "labelled wrong step 1, which no token belongs to" in "".join(found.text["header"])
    assert set(found.text["h3"]) == {"reward 0.5"}


def test_without_states_or_floor_nothing_is_marked():
    args = traced(THREE)
    names = ["positive", "negative", "contrast", "floor", "state", "weight"]
    found = page(THREE, tokens=args["tokens"].drop_vars(names))
    assert found.text["label"][:3] == [" surprisal", " entropy", " nothing"]
    assert len(found.traces[0][0].note.split("\n")) == 2
    unknown = args["tokens"].assign(state=args["tokens"]["state"] * 0 + 2)
    unknown["state"].attrs = args["tokens"]["state"].attrs
    marked = [token for trace in page(THREE, tokens=unknown).traces for token in trace]
    assert not any(token.classes & {"u", "k"} for token in marked)


def test_several_problems_stand_one_below_the_other_in_the_order_they_come():
    args = traced(THREE)
    problem = np.array([3, 3, 1])[args["tokens"]["rollout"].values]
    tokens = args["tokens"].assign_coords(problem=("token", problem))
    questions = {3: Question("first", "a?"), 1: Question("second", "b?")}
    found = page(THREE, tokens=tokens, questions=questions)
    assert found.text["h2"] == ["Problem first", "Problem second"]
    assert "2 problems, 3 traces, 27 tokens" in "".join(found.text["h1"])
    named = [a["aria-label"] for _, a in found.tags if a.get("role") == "radiogroup"]
    assert named == [
        "Tokens of rollout 0, ✗ wrong",
        "Tokens of rollout 1, ✓ right",
        "Tokens of rollout 2, ? undecided",
    ]


# --- colors --------------------------------------------------------------------------------------


def luminance(color):
    """Relative luminance of WCAG 2.2, from 8-bit sRGB."""
    parts = [c / 255 for c in color]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast_ratio(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def variables(theme):
    """Colors of the light theme, or of the dark one where it sets them."""
    blocks = re.findall(r":root\{([^}]*)\}", PALETTE)
    told = blocks if theme == "dark" else blocks[:1]
    found = dict(re.findall(r"--(\w+):([^;]+)", ";".join(told)))
    return {
        name: tuple(bytes.fromhex("".join(c * (2 if len(value) == 4 else 1) for c in value[1:])))
        if value.startswith("#")
        else tuple(map(int, value.split()))
        for name, value in found.items()
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_tint(theme):
    color = variables(theme)
    for hue in ("positive", "negative", "size"):
        for alpha in ALPHAS:
            sides = zip(color[hue], color["paper"], strict=True)
            tint = [alpha * over + (1 - alpha) * under for over, under in sides]
            assert contrast_ratio(tint, color["ink"]) >= 4.5, (hue, alpha)
    assert contrast_ratio(color["soft"], color["paper"]) >= 4.5
    assert contrast_ratio(color["ink"], color["box"]) >= 4.5
    assert contrast_ratio(color["mark"], color["paper"]) >= 3.0


def test_every_shade_has_a_rule():
    (styles,) = page(THREE).text["style"]
    for index in range(7):
        sides = "p" if index in (3, 4) else "pm"
        for side in sides:
            assert [f".c{index}{side}{step}{{" in styles for step in range(1, 7)] == [True] * 6
    assert len(ALPHAS) == 6
    assert list(ALPHAS) == sorted(ALPHAS)


# --- the object ----------------------------------------------------------------------------------


def test_a_notebook_gets_the_page_in_a_frame_without_rights():
    view = token_view(**traced([HOSTILE]))
    shown = view._repr_html_()
    (frame,) = re.findall(r'<iframe sandbox="" title="Token view" srcdoc="([^"]*)"', shown)
    # All but the script, which such a frame would refuse to run.
    assert html.unescape(frame) == re.sub("<script>.*</script>", "", view.html, flags=re.S)
    assert "<script>" in view.html
    assert repr(view) == "TokenView(1 problem, 1 trace, 34 tokens): .save('page.html'), or " + (
        "show it in a notebook"
    )


def test_a_page_too_large_for_a_notebook_is_named_and_not_shown():
    shown = TokenView("x" * 4_000_001, "60 problems")._repr_html_()
    assert "<iframe" not in shown
    assert "60 problems: not shown here, because 4.0 MB are more than the 4 MB" in shown
    assert "<iframe" in TokenView("x" * 4_000_000, "")._repr_html_()


def test_a_saved_page_is_the_page(tmp_path):
    view = token_view(**traced([HOSTILE]))
    path = view.save(tmp_path / "new" / "page.html")
    assert path.read_bytes().decode() == view.html
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(FigureError, match="folder that can be written"):
        view.save(tmp_path / "file" / "page.html")


def test_no_tokens_make_an_empty_page():
    args = traced(THREE)
    found = page(THREE, tokens=args["tokens"].isel(token=slice(0)))
    assert found.traces == []
    assert "0 problems, 0 traces, 0 tokens" in "".join(found.text["h1"])


def test_what_is_missing_is_named():
    args = traced(THREE)
    with pytest.raises(SchemaError, match=r"needs \['entropy'\].*Study.tokens"):
        token_view(**(args | {"tokens": args["tokens"].drop_vars("entropy")}))
    mixed = args["tokens"].isel(token=[0, 13, 1])
    with pytest.raises(SchemaError, match="2 rollouts stand in 3 pieces"):
        token_view(**(args | {"tokens": mixed}))
    with pytest.raises(SchemaError, match=r"every token_id .* needs an entry; 1 have none, as 0"):
        token_view(**(args | {"vocabulary": {k: v for k, v in args["vocabulary"].items() if k}}))
    with pytest.raises(SchemaError, match="every problem"):
        token_view(**(args | {"questions": {}}))
    weight = xr.DataArray(np.ones(args["tokens"].sizes["token"]), dims="token")
    with pytest.raises(SchemaError, match="`weight` needs dims"):
        colorings(args["tokens"].drop_vars(["weight", "rule"]).assign(weight=weight))


def test_measured_values_are_colors_too_where_a_store_has_them():
    args = traced(THREE)
    tokens = args["tokens"]
    count = tokens.sizes["token"]
    values = np.linspace(-2.0, 2.0, count)
    more = tokens.assign(
        value_drop=("token", values / 4),
        contribution=(("rule", "token"), np.stack([values * 1e-6, np.full(count, np.nan)])),
    )
    found = colorings(more)
    assert [one.label for one in found][-3:] == [
        *("value drop", "credit × value uniform", "credit × value cscr")
    ]  # fmt: skip
    # A learning value has no scale of its own: it is shown in units of its root mean square.
    np.testing.assert_allclose(np.mean(found[-2].values ** 2), 1.0)
    assert np.isnan(found[-1].values).all()
    assert "better" not in found[-3].meaning
    assert len(page(THREE, tokens=more).traces) == 3


def test_a_token_has_the_class_of_its_kind_and_the_kinds_are_counted():
    found = page(THREE)
    shown = [token for trace in found.traces for token in trace]
    kinds = [re.search(r" · id \d+ · ([a-z ]+) · ", token.note)[1] for token in shown]
    named = {name: f"f{place}" for place, name in enumerate(
        sorted(set(kinds), key=lambda name: (-kinds.count(name), name)))}  # fmt: skip
    for token, kind in zip(shown, kinds, strict=True):
        assert {name for name in token.classes if name[0] == "f"} == {named[kind]}
    assert f" {kinds[0]} ({kinds.count(kinds[0])})" in found.text["label"]


def test_underline_and_second_pane_offer_what_the_colors_offer():
    found = page(THREE)
    labels = [one.label for one in colorings(traced(THREE)["tokens"])]
    assert found.text["option"] == ["nothing", *labels, "no second pane", *labels]
    parts = [
        attributes for tag, attributes in found.tags if tag == "label" and "data-js" in attributes
    ]
    assert all("hidden" in attrs for attrs in parts)  # until the script shows them
