"""The page of `tensorcore-dsl view` in Chromium: links, keys, widths, colours. `make test-browser` runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorcore_dsl.viewer.observe import observe
from tensorcore_dsl.viewer.page import page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright and Chromium: make test-browser"
)

SCRIPT = str(Path(__file__).with_name("viewed_kernels.py"))
LINES = Path(SCRIPT).read_text().splitlines()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(observe(SCRIPT, None)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, address):
    """A function that opens the page, at a size and with a colour scheme; mistakes of scripts fail."""
    mistakes, pages = [], []

    def open_page(width=1440, height=900, scheme="light", launch=0):
        shown = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(shown)
        shown.on("pageerror", lambda error: mistakes.append(str(error)))
        shown.on("console", lambda message: mistakes.append(message.text))
        shown.on("request", lambda request: mistakes.append(request.url) if request.url != address else None)
        shown.goto(address)
        if launch:
            shown.select_option("#which", str(launch))
        return shown

    yield open_page
    for shown in pages:
        shown.close()
    assert mistakes == []


def line(text):
    """The number of the first line of the script with this text."""
    return next(number for number, shown in enumerate(LINES, 1) if text in shown)


def visible(shown):
    return shown.eval_on_selector_all(".pane:not([hidden])", "panes => panes.map(pane => pane.dataset.name)")


def marked(shown, name):
    """Texts of the selected lines of a pane."""
    return shown.eval_on_selector_all(f".{name} .row.sel .code", "rows => rows.map(row => row.textContent)")


def test_a_click_marks_the_instructions_of_a_line(opened):
    shown = opened()
    shown.locator(f".Python .row[data-k$=':{line('total += tile')}'] .no").click()
    assert [text.strip() for text in marked(shown, "Python")] == [LINES[line("total += tile") - 1].strip()]
    for name, load in (("PTX", "ld.shared"), ("IR", "ld.shared")):
        assert len([text for text in marked(shown, name) if load in text]) == 32
    detail = shown.inner_text("#detail")
    assert "shared load: 4.0 KiB, 1,024 bank passes, ideal 32" in detail and "time " in detail
    assert shown.url.endswith(f"viewed_kernels.py%3A{line('total += tile')}")


def test_a_click_on_an_instruction_shows_its_line(opened):
    shown = opened()
    shown.click("button[data-name=PTX]")
    shown.locator(".PTX .row", has_text="bar.sync").locator(".no").click()
    assert [text.strip() for text in marked(shown, "Python")] == ["tc.barrier()"]
    row = shown.locator(".Python .row.sel")
    assert row.bounding_box()["y"] < shown.locator("#detail").bounding_box()["y"], "it is scrolled into view"


def test_counts_stand_beside_their_lines(opened):
    cells = opened().locator(f".Python .row[data-k$=':{line('total += tile')}'] .cell").all_inner_texts()
    assert cells[2:] == ["4.0 KiB", "32.0× banks"] and int(cells[1]) >= 96 and cells[0].endswith("%")


def test_findings_stand_in_place(opened):
    shown = opened(launch=1)
    assert shown.inner_text("nav .findings") == "1 finding"
    note = shown.locator(".note.error")
    assert note.inner_text().startswith("Race\n")
    above = note.evaluate("note => note.previousElementSibling.textContent")
    assert "= tile[63 - tc.threadIdx.x]" in above
    note.locator("button").click()
    assert [text.strip() for text in marked(shown, "Python")] == ["tile[tc.threadIdx.x] = x[tc.threadIdx.x]"]


def test_a_launch_that_failed_says_so(opened):
    shown = opened(launch=2)
    assert "did not come to its end" in shown.inner_text("#detail")
    assert shown.locator("#timeline").is_hidden() and shown.locator(".note.error").is_visible()


def test_keys(opened):
    shown = opened()
    press = shown.keyboard.press
    press("ArrowDown")
    press("j")
    (second,) = marked(shown, "Python")
    press("k")
    assert marked(shown, "Python") not in ([second], [])
    press("Escape")
    assert marked(shown, "Python") == []
    press("3")
    assert visible(shown) == ["Python", "PTX"]
    press("1")
    assert visible(shown) == ["PTX"]
    press("t")
    assert shown.locator("#timeline").is_hidden()
    press("?")
    assert shown.locator("#keys").is_visible()
    press("Escape")
    assert shown.locator("#keys").is_hidden()
    shown.select_option("#which", "1")
    shown.locator("#which").blur()
    press("f")
    assert "tile[63" in marked(shown, "Python")[0]


@pytest.mark.parametrize("width, count", [(360, 1), (390, 1), (760, 1), (1024, 2), (1440, 2), (1920, 3)])
def test_widths(opened, width, count):
    """Nothing reaches beyond the window, and each button can be pressed."""
    shown = opened(width, launch=1)
    assert len(visible(shown)) == count
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("IR", "PTX", "SASS", "Python"):
        if name not in visible(shown):
            shown.click(f"button[data-name={name}]")
        assert name in visible(shown)
    note = shown.locator(".note").bounding_box()
    assert note["x"] >= 0 and note["x"] + note["width"] <= width


def test_the_timeline_on_a_phone_stands_alone(opened):
    shown = opened(390)
    assert shown.locator("#timeline").is_hidden()
    shown.click("button[data-name=Timeline]")
    assert shown.locator("#canvas").is_visible() and visible(shown) == []
    shown.click("button[data-name=Python]")
    assert visible(shown) == ["Python"] and shown.locator("#timeline").is_hidden()


def test_the_timeline_selects_zooms_and_explains(opened):
    shown = opened()
    box = shown.locator("#canvas").bounding_box()
    pixels = "canvas => new Set(canvas.getContext('2d').getImageData(0, 4, canvas.width, 1).data).size"
    assert shown.eval_on_selector("#canvas", pixels) > 4, "something is drawn"
    shown.mouse.move(box["x"] + 400, box["y"] + 8)
    assert re.search(r"cycles, from [\d,]+, viewed_kernels.py:\d+$", shown.inner_text("#tip"))
    shown.mouse.click(box["x"] + 400, box["y"] + 8)
    assert len(marked(shown, "Python")) == 1
    whole = shown.evaluate("to - from")
    shown.locator("#canvas").focus()
    shown.keyboard.press("+")
    assert shown.evaluate("to - from") == pytest.approx(whole / 2)
    before = shown.evaluate("from")
    shown.keyboard.press("ArrowLeft")
    assert shown.evaluate("from") < before
    shown.keyboard.press("0")
    assert shown.evaluate("to - from") == whole


CONTRAST = """([text, ground]) => {
  const probe = document.createElement("span");
  document.body.append(probe);
  const light = (name) => {
    probe.style.color = `var(${name})`;
    const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number).map((c) => c / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [one, two] = [light(text), light(ground)].sort((x, y) => y - x);
  return (one + 0.05) / (two + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(opened, scheme):
    """Contrasts as WCAG 2 asks of small text (AA: 4.5)."""
    shown = opened(scheme=scheme)
    for name in (
        "text",
        "dim",
        "accent",
        "error",
        "warning",
        "keyword",
        "string",
        "comment",
        "number",
        "register",
    ):
        assert shown.evaluate(CONTRAST, [f"--{name}", "--bg"]) >= 4.5, name
    dark = "document.documentElement.classList.contains('dark')"
    assert shown.evaluate(dark) == (scheme == "dark")
    shown.click("#theme")
    assert shown.evaluate(dark) != (scheme == "dark")
