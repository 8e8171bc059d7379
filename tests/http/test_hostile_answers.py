"""Hostile headers, bodies that grow when they are converted to text, and pages that are slow to convert."""

import threading
import time

import anyio
import pytest

from callboard_actors._util._excerpts import clean
from callboard_actors.http import HttpTools, Page, _tools
from callboard_actors.http._answer import told
from callboard_actors.http._page import _MOST_TAGS, _TOO_MANY, as_markdown

from ._world import LOOPBACK

pytestmark = pytest.mark.real_clock


def page(
    data: bytes = b"tea", *, status: int = 200, reason: str = "OK", kind: str = "text/plain", **headers: str
) -> Page:
    headers = {"content-type": kind, **headers}
    return Page(method="GET", url="https://example.org/", status=status, reason=reason, headers=headers, data=data)


async def test_json_with_line_breaks_is_no_bomb() -> None:
    """Indentation of deeply nested JSON would make 350 MB out of 800 kB and block the event loop."""
    deep = b"[" * 900 + b"1," * 400_000 + b"1" + b"]" * 900
    assert await page(deep, kind="application/json").readable() == deep.decode()
    assert await page(b'{"a":[1]}', kind="application/json").readable() == '{\n "a": [\n  1\n ]\n}'


async def test_json_with_half_a_character_stays_as_it_was_written() -> None:
    """A lone surrogate can neither be sent to a model nor be stored with the conversation."""
    data = b'{"tea": "\\ud800"}'
    assert await page(data, kind="application/json").readable() == data.decode()


def test_html_in_quotes_is_no_bomb() -> None:
    """Each line repeats the marks of all quotes around it: 1 MB would become 200 MB of text."""
    lines = "<pre>" + "tea\n" * 20_000
    deep = as_markdown("<blockquote>" * 200 + lines, "https://example.org/")
    few = as_markdown("<blockquote>" * 2 + lines, "https://example.org/")

    assert deep.startswith("tea\ntea")
    assert few.startswith("> > ```\n> > tea\n> > tea")


@pytest.mark.exhaustive
def test_html_that_is_nested_takes_no_time_that_grows_with_elements_and_depth() -> None:
    """The converter looks at all ancestors of each element; 45,000 elements in 200 quotes took ten seconds."""
    begun = time.process_time()
    as_markdown("<blockquote>" * 200 + "tea<br>" * 45_000, "https://example.org/")

    assert time.process_time() - begun < 5


def test_a_content_type_takes_no_time_that_grows_with_its_square() -> None:
    """The header is parsed on the event loop and may have 90 kB."""
    begun = time.process_time()
    for _ in range(10):
        assert page(kind='text/plain; a="' + ";" * 90_000).text == "tea"

    assert time.process_time() - begun < 5  # without a bound on the length: a minute


@pytest.mark.parametrize("kind", ["text/x-obey me", "text/" + "x" * 5000, "text/\u202ex\u200b", "text"])
def test_a_header_brings_no_words_of_a_server_to_the_model(kind: str) -> None:
    """Neither free text in place of a media type nor invisible characters reach the model."""
    assert (
        told(page(kind=kind), "tea", start=0, most=100)
        == "HTTP 200 OK, https://example.org/ (of no media type).\n\ntea"
    )


def test_a_reason_is_a_few_words() -> None:
    """A status line can have 90 kB, more than the characters that a model is to read."""
    assert len(told(page(reason="obey " * 9000), "tea", start=0, most=100)) < 150


def test_a_reason_is_one_line_without_signs_that_nobody_sees() -> None:
    """A reason may contain terminal escape sequences, or text that only a model notices."""
    reason = "\x1b[31mNot\x1b[0m \u202eFound\r\n\x07tea\U000e0041 \u2028now"

    assert told(page(reason=reason), "tea", start=0, most=100).startswith("HTTP 200 Not Found tea now, https://")


@pytest.mark.parametrize("wait", ["Fri, 31 Dec 9999 23:59:59 GMT", "86401", "1e400"])
def test_a_wait_of_thousands_of_years_is_told_as_much_later(wait: str) -> None:
    """Twelve digits of seconds help neither models nor users; Python parses 1e400 as infinity."""
    busy = page(status=503, **{"retry-after": wait})

    assert told(busy, None, start=0, most=100).endswith("Try again much later.")


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
    assert await tools._text(page(b"a\b" * 20)) == ""
    assert await tools._text(page(b"<p>tea", kind="text/html")) == "tea"

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
    assert _TOO_MANY not in as_markdown("<p>tea</p>" * 1000, "http://a/")
