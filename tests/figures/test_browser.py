"""The token page in a real browser: no script, no request, right text, keyboard, colors, dark mode.

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


def test_nothing_runs_and_nothing_is_asked_for(visit, paths):
    found = visit("hostile")
    for choice in found.page.locator("fieldset input").all():
        choice.check()
    found.page.locator(".tokens label").nth(6).hover()
    found.press("Tab", "ArrowRight", "ArrowRight")
    assert found.page.locator("script, img, link, iframe, object, embed, form, a").count() == 0
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
    found.press("Tab", "Tab")
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
    found.press("Tab", "Tab")
    tree = found.page.locator(".tokens").first.aria_snapshot()
    assert "radiogroup" in tree
    assert "Tokens of rollout 0, ✗ wrong" in tree
    assert "token 1 of 13" in tree
    assert "labelled wrong step" in tree


def test_colors_are_chosen_by_radio_buttons_with_their_legend(visit):
    found = visit("three")
    seen = []
    for label in ("contrast", "shift z+", "shift z−", "surprisal", "weight cscr", "nothing"):
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
