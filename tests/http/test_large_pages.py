"""Pages that are slow to convert are cut, and converted off the event loop."""

import threading

import anyio
import pytest

from callboard_actors._util._excerpts import clean
from callboard_actors.http import HttpTools, _tools
from callboard_actors.http._page import _MOST_TAGS, _TOO_MANY, Page, as_markdown

from ._world import LOOPBACK

pytestmark = pytest.mark.real_clock


def page(text: str, kind: str) -> Page:
    headers = {"content-type": kind}
    return Page(method="GET", url="http://a/", status=200, reason="OK", headers=headers, data=text.encode())


async def test_a_page_with_a_megabyte_of_backspaces_is_cleaned_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each backspace costs a step of Python; together they would block the event loop for a third of a second."""
    threads: list[threading.Thread] = []

    def cleaned(text: str) -> str:
        threads.append(threading.current_thread())
        return clean(text)

    monkeypatch.setattr(_tools, "clean", cleaned)
    tools = HttpTools(allow=LOOPBACK)
    tools._readers = anyio.CapacityLimiter(1)
    assert await tools._text(page("a\b" * 20, "text/plain")) == ""
    assert await tools._text(page("<p>tea", "text/html")) == "tea"

    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_a_page_with_more_elements_than_are_read_is_cut_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building 330,000 elements triggers garbage collection that stops all threads."""
    parsed: list[str] = []
    import bs4

    real = bs4.BeautifulSoup

    class Soup(real):
        def __init__(self, html: str = "", parser: str = "lxml", **options: object) -> None:
            parsed.append(html)
            super().__init__(html[:2000], parser, **options)

    monkeypatch.setattr(bs4, "BeautifulSoup", Soup)
    text = as_markdown("<p>tea" * 330_000, "http://a/")

    assert [html.count("<") for html in parsed] == [_MOST_TAGS]
    assert text.startswith("tea\n\ntea")
    assert text.endswith(_TOO_MANY)


def test_a_page_with_as_many_elements_as_are_read_is_whole() -> None:
    """The bound is far above the size of real pages."""
    assert _TOO_MANY not in as_markdown("<p>tea</p>" * 1000, "http://a/")
