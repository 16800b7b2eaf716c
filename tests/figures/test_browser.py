"""The token page in a real browser: no request, right text, keyboard, search, colors, dark mode.

Needs playwright and Debian's Chromium (`apt-get install chromium`); skips with a reason without
them, and fails instead where TOKENSENSE_NEEDS_BROWSER is set (`.ci/run`).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.figures.builders import traced
from tests.figures.test_tokens import HOSTILE, THREE
from tokensense.figures.tokens import token_view

CHROMIUM = Path("/usr/bin/chromium")
AFTER = "getComputedStyle(document.activeElement.parentElement, '::after')"
# Text of each trace as a reader's eye or clipboard gets it, boxes and all.
TEXTS = "Array.from(document.querySelectorAll('.tokens'), trace => trace.textContent)"
BACKGROUNDS = (
    "Array.from(document.querySelectorAll('.tokens label'), "
    "label => getComputedStyle(label).backgroundColor)"
)


def missing(what: str) -> None:
    reason = f"needs {what}"
    if os.environ.get("TOKENSENSE_NEEDS_BROWSER"):
        pytest.fail(f"TOKENSENSE_NEEDS_BROWSER is set, and this {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright: pip install -c constraints.txt 'tokensense[dev]'")
    if not CHROMIUM.exists():
        missing(f"{CHROMIUM}: apt-get install chromium")
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


class Visit:
    """A page that was opened, and everything that it asked for or tried."""

    def __init__(self, browser, path: Path, *, scheme: str = "light") -> None:
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
        self.requests: list[str] = []
        self.answered: list[str] = []
        self.events: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfinished", lambda request: self.answered.append(request.url))
        for event in ("dialog", "pageerror", "popup", "download", "worker"):
            self.page.on(event, lambda _, name=event: self.events.append(name))
        self.page.on("console", lambda message: self.events.append(message.text))
        self.page.goto(path.as_uri())

    def focused(self) -> str:
        """What the bar says, as it is drawn."""
        return self.page.evaluate(f"{AFTER}.content")

    def tab_to_traces(self) -> None:
        """Press Tab through the controls above the traces, and once more."""
        controls = self.page.locator("fieldset input[type=checkbox], .more select, .more input")
        self.press(*["Tab"] * (controls.count() + 2))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    groups = {"three": THREE, "hostile": [HOSTILE, HOSTILE[::-1]]}
    return {
        name: token_view(**traced(group)).save(folder / f"{name}.html")
        for name, group in groups.items()
    }


@pytest.fixture
def visit(browser, paths):
    opened = []

    def open_page(name: str, **settings: str) -> Visit:
        opened.append(Visit(browser, paths[name], **settings))
        return opened[-1]

    yield open_page
    for one in opened:
        one.page.close()


def test_nothing_of_a_store_runs_and_nothing_is_asked_for(visit, paths):
    found = visit("hostile")
    for choice in found.page.locator("fieldset input").all():
        choice.check()
    for label in ("#un", "#be"):
        found.page.select_option(label, index=2)
    found.page.locator(".tokens label").nth(6).hover()
    found.press("Tab", "ArrowRight", "ArrowRight")
    assert found.page.locator("img, link, iframe, object, embed, form, a").count() == 0
    assert found.page.locator("script").count() == 1
    assert found.requests == [paths["hostile"].as_uri()]
    assert found.events == []


def test_the_policy_stops_a_script_that_slipped_through(browser, tmp_path):
    text = token_view(**traced(THREE)).html
    path = tmp_path / "page.html"
    worse = "<script>document.title='ran'</script><img src='file:///none.png' onerror='alert(1)'>"
    path.write_text(text.replace("<main", worse + "<main"), encoding="utf-8")
    found = Visit(browser, path)
    assert found.page.title() != "ran"
    assert found.answered == [path.as_uri()]
    refused = "violates the following Content Security Policy directive"
    assert [refused in event for event in found.events] == [True] * len(found.events)
    assert len(found.events) >= 2
    found.page.close()


def test_the_text_is_the_text_of_the_traces(visit):
    assert visit("three").page.evaluate(TEXTS) == [b"".join(trace).decode() for trace in THREE]
    first, second = visit("hostile").page.evaluate(TEXTS)
    for text in (first, second):
        assert "</script><script>alert(1)</script> <img src=x onerror=alert(1)>" in first
        assert "U+202Ecod.exeU+202C" in text
        assert "U+000D\n" in text
        assert "F0 9F" in text
    assert sum(first.count(sign) for sign in "\u202e\u200b\x00\x1b\r\xa0\u2028\ufffd") == 0


def test_right_to_left_text_leaves_the_order_of_tokens_alone(browser, tmp_path):
    hebrew = [b" a", " שלום".encode(), " עולם".encode(), b" b"]
    found = Visit(browser, token_view(**traced([hebrew])).save(tmp_path / "rtl.html"))
    left = found.page.evaluate(
        "Array.from(document.querySelectorAll('.tokens label'), "
        "label => label.getBoundingClientRect().left)"
    )
    assert left == sorted(left)
    found.page.close()


def test_tab_goes_from_trace_to_trace_and_arrows_from_token_to_token(visit):
    found = visit("three")
    found.tab_to_traces()
    assert "token 1 of 13" in found.focused()
    found.press("ArrowRight", "ArrowRight")
    said = found.focused()
    notes = found.page.locator(".tokens label").nth(2).get_attribute("data-n")
    assert said.strip('"').replace("\\a ", "\n").replace("\\", "") == notes.replace("\\", "")
    for part in ("token 3 of 13", "surprisal", "entropy", "z+", "z−", "×", "weight", "nats"):
        assert part in said
    found.press("Tab")
    assert "token 1 of 3" in found.focused()
    found.press("Shift+Tab")
    assert "token 3 of 13" in found.focused()


def test_the_numbers_stand_inside_the_window_and_screen_readers_get_them(visit):
    found = visit("three")
    label = found.page.locator(".tokens label").nth(20)
    label.hover()
    drawn = "getComputedStyle(document.querySelectorAll('.tokens label')[20], '::after')"
    assert found.page.evaluate(f"{drawn}.position") == "fixed"
    assert found.page.evaluate(f"{drawn}.bottom") == "0px"
    found.tab_to_traces()
    tree = found.page.locator(".tokens").first.aria_snapshot()
    assert "radiogroup" in tree
    assert "Tokens of rollout 0, ✗ wrong" in tree
    assert "token 1 of 13" in tree
    assert "labelled wrong step" in tree


def test_colors_are_chosen_by_radio_buttons_with_their_legend(visit):
    found = visit("three")
    seen = []
    names = ("contrast", "shift z+", "shift z−", "surprisal", "entropy", "weight cscr", "nothing")
    for label in names:
        found.page.get_by_label(label, exact=True).check()
        seen.append(tuple(found.page.evaluate(BACKGROUNDS)))
        shown = found.page.locator(".legend:visible").count()
        assert shown == (0 if label == "nothing" else 1)
    assert len(set(seen)) == len(seen)
    assert set(seen[-1]) == {"rgba(0, 0, 0, 0)"}
    found.page.get_by_label("contrast", exact=True).focus()
    found.press("ArrowRight")
    assert tuple(found.page.evaluate(BACKGROUNDS)) == seen[1]


def test_a_token_has_the_color_of_its_place_in_the_legend(visit):
    found = visit("three")
    colors = found.page.evaluate(BACKGROUNDS)
    swatches = found.page.evaluate(
        "Object.fromEntries(Array.from(document.querySelectorAll('.legend.c0 td[class]'), "
        "cell => [cell.className, getComputedStyle(cell).backgroundColor]))"
    )
    classes = found.page.evaluate(
        "Array.from(document.querySelectorAll('.tokens label'), label => "
        "Array.from(label.classList).find(name => name.startsWith('c0')) || 'c0')"
    )
    assert colors == [swatches[name] for name in classes]
    assert len({swatches[f"c0{side}{step}"] for side in "pm" for step in range(1, 7)}) == 12


def test_dark_mode_turns_the_page_dark_and_keeps_hues(visit):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = (visit("three", scheme=scheme) for scheme in ("light", "dark"))
    assert light.page.evaluate(ground) == "rgb(255, 255, 255)"
    assert dark.page.evaluate(ground) == "rgb(21, 23, 26)"
    assert light.page.evaluate(BACKGROUNDS) == dark.page.evaluate(BACKGROUNDS)


def test_in_a_notebook_frame_it_works_the_same(browser, tmp_path):
    path = tmp_path / "notebook.html"
    shown = token_view(**traced([HOSTILE]))._repr_html_()
    path.write_text(f"<!doctype html><meta charset=utf-8>{shown}", encoding="utf-8")
    found = Visit(browser, path)
    frame = found.page.frame_locator("iframe")
    frame.locator(".tokens input").nth(1).focus()
    said = (
        frame.locator(".tokens label")
        .nth(1)
        .evaluate("label => getComputedStyle(label, '::after').content")
    )
    assert "token 2 of 34" in said
    assert [url for url in found.requests if not url.startswith("about:")] == [path.as_uri()]
    assert found.events == []
    found.page.close()


LINES = (
    "Array.from(document.querySelectorAll('.tokens:not(.beside) label'), label => { const s = "
    "getComputedStyle(label); return [parseFloat(s.borderBottomWidth), s.borderBottomStyle] })"
)


def test_a_second_quantity_is_underlined_thicker_where_larger_dashed_below_zero(visit):
    found = visit("three")
    before = found.page.evaluate(BACKGROUNDS)
    assert {width for width, _ in found.page.evaluate(LINES)} == {0}
    found.page.select_option("#un", "shift z+")
    lines = found.page.evaluate(LINES)
    values = traced(THREE)["tokens"]["positive"].values.tolist()
    assert found.page.evaluate(BACKGROUNDS) == before  # the color stays
    for value, (width, style) in zip(values, lines, strict=True):
        shown = abs(value) >= 0.01
        assert (width > 0) == shown
        if shown:
            assert style == ("solid" if value > 0 else "dashed")
    by_size = sorted((abs(v), w) for v, (w, _) in zip(values, lines, strict=True) if w)
    assert [width for _, width in by_size] == sorted(width for _, width in by_size)
    assert found.page.locator(".meaning:visible").count() == 1


def test_the_second_pane_shows_the_same_tokens_by_another_quantity(visit):
    found = visit("three")
    found.page.select_option("#be", "weight cscr")
    both = "[...document.querySelectorAll('{}')].map(p => p.textContent)"
    first, second = (
        found.page.evaluate(both.format(s)) for s in (".tokens:not(.beside)", ".beside")
    )
    assert first == second == [b"".join(trace).decode() for trace in THREE]
    color = BACKGROUNDS.replace(".tokens", ".beside")
    beside = found.page.evaluate(color)
    found.page.locator("#by6").check()
    own = found.page.evaluate(BACKGROUNDS)
    count = sum(map(len, THREE))
    assert len(own) == 2 * count
    per_trace = [len(trace) for trace in THREE]
    mine, place = [], 0
    for size in per_trace:  # each trace, then its copy
        mine += own[place : place + size]
        place += 2 * size
    assert mine == beside  # weight cscr has the same colors in either pane
    left, right = (found.page.locator(s).first.bounding_box() for s in (".tokens", ".beside"))
    assert left["x"] + left["width"] <= right["x"] + 1
    assert abs(left["y"] - right["y"]) < 2
    found.page.select_option("#be", index=0)
    assert found.page.locator(".beside:visible").count() == 0


def test_kinds_that_are_not_chosen_fade(visit):
    found = visit("three")
    found.page.get_by_label("digit", exact=False).first.uncheck()
    opacity = found.page.evaluate(
        "[...document.querySelectorAll('.tokens label')].map(l => [l.dataset.n, "
        "getComputedStyle(l).opacity])"
    )
    faded = [" · digit · " in note for note, _ in opacity]
    assert any(faded)
    assert [value == "0.22" for _, value in opacity] == faded


def test_search_goes_over_borders_of_tokens_and_says_how_many(visit):
    found = visit("three")
    found.press("/")
    assert found.page.evaluate("document.activeElement.id") == "search"
    found.page.keyboard.type("12 + 7")
    assert found.page.locator("#said").text_content() == "1 found"
    marked = found.page.locator(".m").all_text_contents()
    assert [text.strip() for text in marked] == ["12", "+", "7"]
    found.page.fill("#search", " 19")  # begins where a token begins
    assert found.page.locator(".m").all_text_contents() == [" 19", " 19"]
    found.page.fill("#search", "19")
    assert found.page.locator("#said").text_content() == "2 found"
    found.press("Enter")
    assert found.page.locator("#said").text_content() == "1 of 2 found"
    assert "token 3 of 3" in found.focused()
    found.press("n")
    assert "token 8 of 11" in found.focused()
    found.press("N")
    assert "token 3 of 3" in found.focused()
    found.page.fill("#search", "<nothing>")
    assert found.page.locator("#said").text_content() == "0 found"
    assert found.page.locator(".m").count() == 0


def test_keys_go_to_wrong_tokens_and_traces_and_change_colors(visit):
    found = visit("three")
    found.press("w")
    assert "first wrong token" in found.focused()
    found.press("t")
    assert "token 1 of 3" in found.focused()
    found.press("t", "T")
    assert "token 1 of 3" in found.focused()
    before = found.page.evaluate(BACKGROUNDS)
    found.press("c")
    assert found.page.locator("#by1").is_checked()
    assert found.page.evaluate(BACKGROUNDS) != before
    found.press("u")
    assert found.page.locator("#un").input_value() == "contrast"
    assert found.page.locator("#said").text_content() == "underlined by contrast"
    assert found.events == []


@pytest.mark.slow
def test_twenty_thousand_tokens_stay_smooth(browser, tmp_path):
    words = [f" w{place % 997}".encode() for place in range(2_500)]
    page = token_view(**traced([words] * 8))
    assert page.counts == "1 problem, 8 traces, 20,000 tokens"
    found = Visit(browser, page.save(tmp_path / "large.html"))

    def seconds(act: str) -> float:
        """Until the browser has painted what the action changed."""
        return found.page.evaluate(
            f"new Promise(done => {{ const t = performance.now(); {act}; "
            "requestAnimationFrame(() => setTimeout(() => done((performance.now() - t) / 1000))) })"
        )

    times = {
        "color": seconds("document.getElementById('by1').click()"),
        "underline": seconds("const s = document.getElementById('un'); s.selectedIndex = 2"),
        "kind": seconds("document.getElementById('kd0').click()"),
        "focus": seconds("document.querySelectorAll('.tokens input')[10000].focus()"),
        "search": seconds(
            "const s = document.getElementById('search'); s.value = 'w99'; "
            "s.dispatchEvent(new Event('input'))"
        ),
        "pane": seconds(
            "const s = document.getElementById('be'); s.selectedIndex = 1; "
            "s.dispatchEvent(new Event('change'))"
        ),
    }
    assert max(times.values()) < 4, times
    found.page.close()
