"""The site in Chromium, at the widths of a desktop and of a phone. `make test-browser` builds it and runs this."""

from __future__ import annotations

import http.server
import re
import threading
from functools import partial
from pathlib import Path

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright and Chromium: make test-browser"
)

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
PAGES = re.findall(r"^   [^\n<`]+<([\w/]+)>$", (ROOT / "docs" / "index.rst").read_text(), re.M)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    assert (SITE / "index.html").exists(), "make site"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def phone(browser):
    return browser.new_page(viewport={"width": 390, "height": 844})


@pytest.fixture(scope="module")
def desktop(browser):
    return browser.new_page(viewport={"width": 1400, "height": 1000})


# Names in cells of tables that stand on more than one line.
BROKEN = """() => [...document.querySelectorAll("td code")]
  .filter((code) => code.getClientRects().length > 1).map((code) => code.textContent)"""


@pytest.mark.parametrize("name", ["index", "programs/hopper_gemm_8_ping_pong", "reference/memory", *PAGES])
def test_a_page_fits_on_a_phone(phone, address, name):
    """Nothing but a block that scrolls is wider than the window, and tables do not break names."""
    assert phone.goto(f"{address}/{name}.html").ok
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert phone.evaluate(BROKEN) == []


def test_the_start_page_shows_its_picture_which_leads_on(desktop, address):
    desktop.goto(f"{address}/index.html")
    picture = desktop.locator("article img")
    assert picture.count() == 1 and picture.evaluate("image => image.naturalWidth") > 1000
    picture.click()
    assert desktop.url.endswith("/view/hopper_gemm_5_producer_consumer.html")
    assert desktop.inner_text("#name") == "matmul"


def test_a_name_in_a_program_leads_to_the_reference(desktop, address):
    desktop.goto(f"{address}/programs/hopper_gemm_5_producer_consumer.html")
    desktop.locator(".highlight a.name", has_text="tc.warp_specialize").click()
    desktop.wait_for_url(re.compile(r"/reference/\w+\.html#tensorcore_dsl\.warp_specialize$"))
    assert desktop.locator("[id='tensorcore_dsl.warp_specialize']").count() == 1


@pytest.mark.parametrize(
    "words, page",
    [
        ("flash attention", "programs/flash_attention"),
        ("histogram", "programs/histogram"),
        ("ping-pong", "programs/"),
    ],
)
def test_search_finds_programs(desktop, address, words, page):
    desktop.goto(f"{address}/search.html?q={words.replace(' ', '+')}")
    desktop.wait_for_selector(f"#search-results a[href*='{page}']", timeout=20_000)


def test_texts_for_programs_are_served_with_the_pages_that_they_name(desktop, address):
    text = desktop.request.get(f"{address}/llms.txt").text()
    for target in re.findall(r"^- \[.*\]\((.*)\)$", text, re.M):
        assert desktop.request.get(f"{address}/{target}").ok, target
