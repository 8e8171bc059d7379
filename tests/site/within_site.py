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


# Texts whose contrast to their background is below that of the accessibility guidelines (WCAG, level AA).
FAINT = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const colour = css => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = css;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const over = (back, [red, green, blue, alpha]) =>
        [red, green, blue].map((part, place) => part * alpha / 255 + back[place] * (1 - alpha / 255));
    const behind = element => element === null ? [255, 255, 255]
        : over(behind(element.parentElement), colour(getComputedStyle(element).backgroundColor));
    const linear = part => part <= 10 ? part / 3294.6 : ((part / 255 + .055) / 1.055) ** 2.4;
    const light = ([red, green, blue]) => .2126 * linear(red) + .7152 * linear(green) + .0722 * linear(blue) + .05;
    return [...document.querySelectorAll('body *')].filter(element => {
        const style = getComputedStyle(element);
        const hasText = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!hasText || style.visibility !== 'visible' || style.opacity === '0' || !element.offsetWidth) return false;
        const back = behind(element);
        const [dim, bright] = [light(back), light(over(back, colour(style.color)))].sort((one, other) => one - other);
        return bright / dim < 4.5;
    }).map(element => element.outerHTML.slice(0, 120)).slice(0, 3);
}"""


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
    """The strict build does not see links in HTML and in the theme."""
    assert list(links.faults(SITE)) == []


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.hangs_after(600)
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_page_is_wider_than_the_window(window: Window, folder: str) -> None:
    """On a phone, only tables and code scroll sideways. No page has an error or loads a file of another host."""
    for name in links.pages(SITE):
        if str(Path(name).parent) == folder:
            window.page.set_viewport_size({"width": 1280, "height": 844})
            faults = window.open(name).evaluate(WIDER)
            window.page.set_viewport_size({"width": 390, "height": 844})
            for element in [*faults, *window.page.evaluate(WIDER)]:
                window.fault(f"wider than the window: {element}")


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.hangs_after(300)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "name", ["index.html", "explanation/security.html", "explanation/structured-concurrency.html", "reference/cli.html"]
)
def test_all_text_has_enough_contrast(window: Window, name: str, theme: str) -> None:
    """The theme's own colours of links, numbers and constants are too dark on a dark page."""
    window.page.emulate_media(color_scheme=theme)
    for width in (1280, 390):
        window.page.set_viewport_size({"width": width, "height": 844})
        for text in window.open(name).evaluate(FAINT):
            window.fault(f"too little contrast at {width} px: {text}")


@needs_chromium
@pytest.mark.real_clock
def test_a_line_of_python_is_not_cut_on_a_phone(window: Window) -> None:
    window.page.set_viewport_size({"width": 390, "height": 844})
    blocks = window.open("how-to/approvals.html").locator(".language-python code")

    assert blocks.count() > 0
    assert not any(blocks.evaluate_all("all => all.map(code => code.scrollWidth > code.clientWidth)"))


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.parametrize("words", ["timeout", "drain", "CallPolicy"])
def test_search_finds(window: Window, words: str) -> None:
    """Search runs in the browser, on an index of the site."""
    page = window.open("index.html")
    page.locator(".md-search__input").fill(words)
    result = page.locator(".md-search-result__item").first
    result.wait_for(state="attached")

    assert words.lower() in result.inner_text().lower()


SEARCHES = {
    "timeout for each tool": "how-to/timeouts-and-budgets",
    "how to install": "how-to/install",
    "use openai": "how-to/use-a-real-model",
    "retry a failed call": "how-to/retries-and-budgets",
    "human in the loop": "how-to/interrupts",
    "ask a person before a tool runs": "how-to/(approvals|interrupts)",
    "migrate from langgraph": "how-to/migrate-from-langgraph",
    "limit the number of calls": "how-to/limits",
    "rate limit": "how-to/limits",
    "stream tokens": "how-to/stream-an-agent",
    "save a conversation in postgres": "how-to/keep-conversations",
    "cancel a running call": "how-to/cleanup-and-cancellation",
    "what is an actor": "how-to/test-actors|explanation/supervision|tutorial/first-actor",
    "test an agent without a key": "how-to/test-your-agents",
    "use an mcp server": "how-to/mcp-servers",
    "run python code of a model": "how-to/run-python",
    "opentelemetry traces": "how-to/trace-calls",
    "deploy with docker": "how-to/docker-and-kubernetes",
    "create_agent middleware": "how-to/(langchain-agents|middleware)",
    "how fast is it": "explanation/performance",
}
"""Searches of a newcomer, each with the pages that answer it."""


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.hangs_after(300)
def test_the_page_that_answers_is_among_the_first_three(window: Window) -> None:
    """Words such as "each" and "for" are in every page, and hide the words that matter."""
    missed: dict[str, list[str]] = {}
    for words, answer in SEARCHES.items():
        page = window.open("index.html")
        page.locator(".md-search__input").fill(words)
        links = page.locator(".md-search-result__item > a.md-search-result__link:first-child")
        links.first.wait_for(state="attached")
        first = [urlsplit(link.get_attribute("href")).path.removeprefix("/") for link in links.all()[:3]]
        if not any(re.match(answer, address) for address in first):
            missed[words] = first

    assert missed == {}


@needs_chromium
@pytest.mark.real_clock
@pytest.mark.parametrize("words", ["job", "jobs", "poll", "polling"])
def test_words_of_other_frameworks_lead_to_background_calls(window: Window, words: str) -> None:
    page = window.open("index.html")
    page.locator(".md-search__input").fill(words)
    results = page.locator(".md-search-result__item > a")
    results.first.wait_for(state="attached")

    assert any("how-to/background-calls.html" in results.nth(index).get_attribute("href") for index in range(3))


@needs_chromium
@pytest.mark.real_clock
def test_search_finds_in_a_folder_without_a_server(browser: Any) -> None:
    """A copy of the site is read offline."""
    window = Window(browser, SITE.as_uri())
    page = window.open("how-to/limits.html")
    page.locator(".md-search__input").fill("drain")
    result = page.locator(".md-search-result__item a").first
    result.wait_for(state="attached")

    assert result.get_attribute("href").startswith(SITE.as_uri())
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
    home = _pages.ROOT / "docs" / "README.md"  # its columns are HTML
    pages = [page for page in sorted((_pages.ROOT / "docs").rglob("*.md")) if page != home]

    assert {page.name: in_site(page) for page in pages} == {page.name: in_markdown(page) for page in pages}


def test_files_for_language_models_come_with_the_site() -> None:
    """Each page that `llms.txt` lists is there as Markdown."""
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (SITE / "llms.txt").read_text(), re.MULTILINE)

    assert len(listed) > 40
    assert [name for name in listed if not (SITE / name).is_file()] == []
    assert (SITE / "llms-full.txt").read_text().count("<!-- ") >= len(listed)
