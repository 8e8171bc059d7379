"""Hostile headers and bodies, and servers with invalid or excessive HTTP."""

import gzip
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from callboard import running
from callboard_actors._util._excerpts import clean
from callboard_actors.http import HttpTools, Page, _tools
from callboard_actors.http._page import _MOST_TAGS, _TOO_MANY, as_markdown
from callboard_actors.http._tools import told

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


def test_a_reason_is_a_few_words_without_signs_that_nobody_sees() -> None:
    """A status line can have 90 kB, terminal escape sequences, or text that only a model notices."""
    reason = "\x1b[31mNot\x1b[0m \u202eFound\r\n\x07tea\U000e0041 \u2028now"

    assert told(page(reason=reason), "tea", start=0, most=100).startswith("HTTP 200 Not Found tea now, https://")
    assert len(told(page(reason="obey " * 9000), "tea", start=0, most=100)) < 150


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


# Servers with invalid or excessive HTTP: each causes a one-sentence error soon.


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LEADS = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "


@asynccontextmanager
async def server(head: bytes, then: bytes = b"") -> AsyncIterator[str]:
    """Run a server that answers each request with the same bytes, followed by other bytes for ever if there are any."""

    async def serve(client: SocketStream) -> None:
        async with client:
            try:
                await client.receive()
                await client.send(head)
                while then:
                    await client.send(then)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                pass

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/"
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("head", "then", "said"),
    [
        (OK + b"X: " + b"a" * 2_000_000, b"", "Receive buffer too long"),
        (OK, b"X: y\r\n" * 1000, "Receive buffer too long"),
        (CHUNKED + b"0\r\n", b"X: y\r\n" * 1000, "Receive buffer too long"),
        (CHUNKED + b"5;", b"a=b;" * 1000, "Receive buffer too long"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "was not there within 0.5 s"),
        (OK + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"") * 1000, "was not there within 0.5 s"),
        (CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n", b"", "illegal chunk header"),
        (CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", b"", "illegal chunk header"),
        (OK + b"Content-Length: -5\r\n\r\nhello", b"", "bad Content-Length"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"", "conflicting Content-Length"),
        (OK + b"Content-Encoding: " + b"gzip, " * 500 + b"gzip\r\n\r\nx", b"", "cannot be undone"),
        (b"tea and ham\r\n", b"", "has no answer"),
        (LEADS + b"file:///etc/passwd\r\n\r\n", b"", "its scheme has to be http or https"),
        (LEADS + b"gopher://127.0.0.1:6379/_FLUSHALL\r\n\r\n", b"", "its scheme has to be http or https"),
        (LEADS + b"//user:secret@127.0.0.1/\r\n\r\n", b"", "names a user before its host"),
        (LEADS + b"http://169.254.169.254\\@127.0.0.1/\r\n\r\n", b"", "names a user before its host"),
        (LEADS + b"http://[::1\r\n\r\n", b"", "not written as usual"),
    ],
)
async def test_an_answer_that_is_none_is_told_in_a_sentence(head: bytes, then: bytes, said: str) -> None:
    """Whatever bytes come, the request ends with bounded memory and without a traceback."""
    async with server(head, then) as url, running(HttpTools(allow=LOOPBACK, retries=0, timeout=0.5)) as tools:
        found = await tools.fetch(url)

    assert said in str(found)
    assert len(str(found)) < 500
    assert found.artifact is None


async def test_a_text_of_backspaces_is_read_at_once() -> None:
    """Removing one character after the other would block the event loop for an hour."""
    body = b"tea" + b"x" * 300_000 + b"\x08" * 300_000
    async with server(OK + b"Content-Type: text/plain\r\n\r\n" + body) as url:
        async with running(HttpTools(allow=LOOPBACK)) as tools:
            assert str(await tools.fetch(url)).endswith("\n\ntea")
