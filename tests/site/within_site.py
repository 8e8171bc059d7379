"""The built site in a browser: `.ci/run` builds it and names its folder in `SITE_FOLDER`."""

import functools
import http.server
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

from tests.chromium import chromium, needs_chromium
from tests.site import _pages, links

SITE = Path(os.environ["SITE_FOLDER"])
FOLDERS = sorted({str(Path(name).parent) for name in links.pages(SITE)})


# Elements that stick out of the window, without those in a table or in code that scrolls inside of itself.
WIDER = """() => {
    const scrolls = one => one && one !== document.body
        && (['auto', 'scroll'].includes(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
    const wide = [...document.querySelectorAll('.md-content__inner *')].filter(one =>
        one.getBoundingClientRect().right > innerWidth + 1 && !scrolls(one));
    return [document.documentElement.scrollWidth > innerWidth ? 'page' : null,
        ...wide.slice(0, 3).map(one => one.outerHTML.slice(0, 120))].filter(Boolean);
}"""

# Each entry of the API reference: its anchor, and whether it has a signature and a text. A class without `__init__`,
# such as a protocol, has its bases and members instead of a signature.
ENTRIES = """() => [...document.querySelectorAll('.doc-object > .doc-heading[id]')].map(heading => {
    const own = selector => heading.parentElement.querySelector(`:scope > ${selector}`);
    const text = [...own('.doc-contents')?.children ?? []].find(one =>
        !one.matches('.doc-class-bases, .doc-children, details') && one.innerText.trim());
    const signature = own('.doc-signature') ?? heading.parentElement.querySelector(
        ':scope.doc-class > .doc-contents > :is(.doc-class-bases, .doc-children)');
    return [heading.id, Boolean(signature), Boolean(text)];
})"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Window:
    """Browser window with its errors, and its requests to other hosts."""

    def __init__(self, browser: Any, address: str) -> None:
        self.address = address
        self.faults: list[str] = []
        self.context = browser.new_context(viewport={"width": 1280, "height": 844}, color_scheme="light")
        self.context.set_default_timeout(20_000)
        self.page: Any = self.context.new_page()
        self.page.on("console", lambda message: message.type in ("error", "warning") and self.fault(message.text))
        self.page.on("pageerror", lambda error: self.fault(str(error)))
        self.page.on("request", lambda request: self._check(request.url))
        self.page.on("response", lambda answer: answer.status >= 400 and self.fault(f"{answer.status} {answer.url}"))

    def fault(self, text: str) -> None:
        self.faults.append(f"{self.page.url}: {text}")

    def _check(self, url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(self.address):
            self.fault(f"requests {url}")

    def open(self, name: str) -> Any:
        self.page.goto(f"{self.address}/{name}")
        return self.page


@pytest.fixture
def window(browser: Any, address: str) -> Iterator[Window]:
    opened = Window(browser, address)
    yield opened
    opened.context.close()
    assert opened.faults == []


def test_every_link_anchor_and_image_is_there() -> None:
    """The strict build does not see links in HTML, in the theme, and between pages of the API reference."""
    assert list(links.faults(SITE)) == []


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_page_is_wider_than_the_window(window: Window, folder: str) -> None:
    """On a phone, only tables and code scroll sideways. No page has an error or loads a file of another host."""
    for name in links.pages(SITE):
        if str(Path(name).parent) == folder:
            window.page.set_viewport_size({"width": 1280, "height": 844})
            faults = window.open(name).evaluate(WIDER)
            window.page.set_viewport_size({"width": 390, "height": 844})
            for one in [*faults, *window.page.evaluate(WIDER)]:
                window.fault(f"wider than the window: {one}")


@needs_chromium
@pytest.mark.real_clock
def test_every_public_name_has_an_entry(browser: Any, address: str) -> None:
    """An entry has an anchor, a signature and a docstring."""
    window = Window(browser, address)
    missing: list[str] = []
    seen = 0
    for module in _pages.modules():
        entries = window.open(f"reference/python/{module}.html").evaluate(ENTRIES)
        found = {name: rest for name, *rest in entries}
        names = [f"{module}.{name}" for name in _pages.public_names(module)]
        missing += [f"{name}: {found.get(name)}" for name in names if found.get(name) != [True, True]]
        seen += len(names)
    window.context.close()

    assert seen > 250
    assert missing == []


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.parametrize("words", ["timeout", "drain", "CallPolicy"])
def test_search_finds(window: Window, words: str) -> None:
    """Search runs in the browser, on an index of the site."""
    page = window.open("index.html")
    page.locator(".md-search__input").fill(words)
    found = page.locator(".md-search-result__item").first
    found.wait_for(state="attached")

    assert words.lower() in found.inner_text().lower()


@needs_chromium
@pytest.mark.real_clock
def test_search_finds_in_a_folder_without_a_server(browser: Any) -> None:
    """A copy of the site is read offline."""
    window = Window(browser, SITE.as_uri())
    page = window.open("how-to/limits.html")
    page.locator(".md-search__input").fill("drain")
    found = page.locator(".md-search-result__item a").first
    found.wait_for(state="attached")

    assert found.get_attribute("href").startswith(SITE.as_uri())
    window.context.close()
    assert window.faults == []


@needs_chromium
@pytest.mark.real_clock
def test_the_theme_changes_from_that_of_the_system_to_light_and_dark(window: Window) -> None:
    """The choice stays on the next page."""
    page = window.open("index.html")
    schemes = []
    for title in ("Use the light theme", "Use the dark theme"):
        page.locator(f"label[title='{title}']").click()
        schemes.append(page.locator("body").get_attribute("data-md-color-scheme"))
    window.open("tutorial/first-steps.html")

    assert schemes == ["default", "slate"]
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"


@needs_chromium
@pytest.mark.real_clock
def test_the_button_of_a_code_block_copies_it(window: Window) -> None:
    """The clipboard has the code exactly, so that it runs."""
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.open("tutorial/first-steps.html")
    page.locator("button[data-md-type='copy'], .md-clipboard").first.click()
    page.get_by_text("Copied to clipboard").wait_for()

    assert page.evaluate("navigator.clipboard.readText()") in (_pages.ROOT / "docs/tutorial/first-steps.md").read_text()
    assert "async def weather" in page.evaluate("navigator.clipboard.readText()")


def in_markdown(page: Path) -> dict[str, int]:
    """Return the number of elements by name, as GitHub and other readers of the repository show a page."""
    html = MarkdownIt("commonmark").enable("table").render(page.read_text())
    return {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in ("h2", "h3", "li", "ol", "pre", "td", "ul")}


def in_site(page: Path) -> dict[str, int]:
    """Return the number of elements by name in the body of a page of the site."""
    html = (SITE / page.relative_to(_pages.ROOT / "docs")).with_suffix(".html").read_text()
    body = html.partition("<article")[2].partition("</article")[0].partition('<div class="footnote"')[0]
    body = re.sub(r'<nav class="md-tags".*?</nav>', "", body, flags=re.DOTALL)
    return {tag: len(re.findall(rf"<{tag}[ >]", body)) for tag in ("h2", "h3", "li", "ol", "pre", "td", "ul")}


def test_a_page_has_the_same_parts_on_the_site_as_in_the_repository() -> None:
    """The two readers of Markdown differ, such as in lists after a paragraph and in bars within tables."""
    pages = [page for page in sorted((_pages.ROOT / "docs").rglob("*.md")) if page.parent.name != "python"]
    index = _pages.ROOT / _pages.INDEX

    assert {page.name: in_site(page) for page in pages if page != index} == {
        page.name: in_markdown(page) for page in pages if page != index
    }


def test_files_for_language_models_come_with_the_site() -> None:
    """Each page that `llms.txt` lists is there as Markdown."""
    listed = re.findall(r"\]\(([^)]+)\)", (SITE / "llms.txt").read_text())

    assert len(listed) > 40
    assert [name for name in listed if not (SITE / name).is_file()] == []
    assert (SITE / "llms-full.txt").read_text().count("<!-- ") >= len(listed)
