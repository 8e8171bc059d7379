"""Servers with invalid or excessive HTTP, and pages that are made to take long: none of them holds the event loop."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

import anyio
import httpx2
import pytest
from anyio.abc import SocketAttribute, SocketStream

from callboard import ToolNode, tool_call
from callboard_actors.http import fetch_tool
from tests.helpers import watch_loop

from ._world import BOTH_LIBRARIES, LOOPBACK, WAIT, Site, client_of

pytestmark = pytest.mark.real_clock


# Servers with invalid or excessive HTTP: each causes a one-sentence error soon.


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
REDIRECT = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "
TOO_LONG = "the head of the response has more than 65,536 bytes or 400 lines"


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


async def fetch(url: str) -> str:
    node = ToolNode([fetch_tool(hosts=LOOPBACK)])
    with anyio.fail_after(WAIT):
        return (await node.ainvoke([tool_call("fetch", "1", url=url)]))["messages"][0].text


@pytest.mark.parametrize(
    ("head", "then", "reason"),
    [
        (OK + b"X: " + b"a" * 2_000_000, b"", TOO_LONG),
        (OK, b"X: y\r\n" * 1000, TOO_LONG),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, TOO_LONG),
        (CHUNKED + b"0\r\n", b"X: y\r\n" * 1000, "Receive buffer too long"),
        (CHUNKED + b"5;", b"a=b;" * 1000, "Receive buffer too long"),
        (OK + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"") * 1000, "goes on after its end"),
        (CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n", b"", "illegal chunk header"),
        (CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", b"", "illegal chunk header"),
        (OK + b"Content-Length: -5\r\n\r\nhello", b"", "bad Content-Length"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"", "conflicting Content-Length"),
        (OK + b"Content-Encoding: " + b"gzip, " * 500 + b"gzip\r\n\r\nx", b"", "and only gzip, once, was asked for"),
        (OK + b"Content-Encoding: \x1b[31mobey \xff\r\n\r\nx", b"", "encoded as 'obey ÿ', and only gzip"),
        (
            OK + b"Location: \xff\r\nContent-Type: \xff\xfe/\xed\xa0\x80\r\n\r\ntea",
            b"",
            "(of no media type, 3 bytes). It is no text",
        ),
        (b"tea and ham\r\n", b"", "disconnected without sending a response"),
        (REDIRECT + b"file:///etc/passwd\r\n\r\n", b"", "its scheme has to be http or https"),
        (REDIRECT + b"gopher://127.0.0.1:6379/_FLUSHALL\r\n\r\n", b"", "its scheme has to be http or https"),
        (REDIRECT + b"//user:secret@127.0.0.1/\r\n\r\n", b"", "names a user before its host"),
        (REDIRECT + b"http://169.254.169.254\\@127.0.0.1/\r\n\r\n", b"", "was not requested"),
        (REDIRECT + b"http://[::1\r\n\r\n", b"", "has no response"),
        (REDIRECT + b"http://xn--" + b"a" * 250 + b".org/\r\n\r\n", b"", "has no response: Domain too long"),
        (REDIRECT + b"http://\xed\xa0\x80/\r\n\r\n", b"", "has no response"),
    ],
)
async def test_an_answer_that_is_none_is_told_in_a_sentence(head: bytes, then: bytes, reason: str) -> None:
    """Whatever bytes come, the request ends soon, with bounded memory and without a traceback."""
    async with server(head, then) as url:
        text = await fetch(url)

    assert reason in text
    assert len(text) < 500
    text.encode()


@BOTH_LIBRARIES
async def test_a_head_without_end_is_an_error_of_the_library(library: ModuleType) -> None:
    """Interim responses and header fields count together."""
    async with server(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10, b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n") as url:
        async with client_of(library, hosts=LOOPBACK) as client:
            with anyio.fail_after(WAIT), pytest.raises(library.RemoteProtocolError, match=TOO_LONG):
                await client.get(url)


async def test_a_body_of_many_lines_behind_its_head_is_no_long_head() -> None:
    """Only what is read for the head counts."""
    async with server(OK + b"Content-Type: text/plain\r\nContent-Length: 500000\r\n\r\n" + b"\n" * 500_000) as url:
        text = await fetch(url)

    assert "HTTP 200 OK" in text


# Pages that are made to take long.

MOST = 0.02
"""Seconds for which the event loop may be held."""
MB = 1_000_000
PAGES = {
    "comments without a media type": ("", b"<!---->"),
    "paragraphs": ("text/html", b"<p>"),
    "links": ("text/html", b"<a href=x>"),
    "brackets": ("text/html", b"<"),
    "formats": ("text/html", b"<a><b><i><u><p>"),
    "hidden": ("text/html", b"<b hidden>"),
    "characters": ("text/html", b"&amp;"),
    "escapes": ("text/plain", b"\x1b["),
    "titles": ("text/plain", b"\x1b]"),
    "backspaces": ("text/plain", b"a\x08"),
    "json": ("application/json", b"[{},"),
    "gb18030": ("text/plain; charset=gb18030", b"\x81\x30\x81\x30"),
    "iso-2022": ("text/plain; charset=iso-2022-jp", b"\x1b$B0!\x1b(B"),
}


async def hold_of(url: str, **options: object) -> tuple[float, str]:
    """Fetch a page until it holds the loop shortly, three times at most; return the last hold and text."""
    node = ToolNode([fetch_tool(hosts=LOOPBACK, **options)])
    for _ in range(3):
        async with watch_loop() as hold:
            state = await node.ainvoke([tool_call("fetch", "1", url=url)])
        if hold.longest < MOST:
            break
    return hold.longest, state["messages"][0].text


@pytest.mark.usefixtures("short_conversions")
@pytest.mark.parametrize("kind", PAGES)
async def test_no_page_of_a_megabyte_holds_the_loop(site: Site, kind: str) -> None:
    """169 bytes of empty comments without a media type doubled the time of a regular expression with each comment."""
    content_type, part = PAGES[kind]
    query = {"type": content_type} if content_type else {}
    hold, text = await hold_of(site.url("/body", hex=part.hex(), times=MB // len(part), **query))

    assert text.startswith("HTTP 200 OK")
    assert hold < MOST


@pytest.mark.parametrize("layers", [1, 2, 3])
async def test_no_bomb_holds_the_loop(site: Site, layers: int) -> None:
    """Decompression runs in pieces, and other tasks between them."""
    hold, _ = await hold_of(site.url("/bomb", layers=layers), max_bytes=16 * MB)

    assert hold < MOST


@pytest.mark.parametrize("line", [b"Set-Cookie: a=b\r\n", b"X: y\r\n", b"X:\r\n", b" folded\r\n"])
async def test_no_head_holds_the_loop(line: bytes) -> None:
    """The head of a response is parsed at once, and a client looks for cookies in all of it."""
    holds = []
    async with server(OK + b"X: y\r\n" + line * 390 + b"\r\n") as url:
        for _ in range(3):
            async with client_of(httpx2, hosts=LOOPBACK) as client, watch_loop() as hold:
                assert (await client.get(url)).is_success
            holds.append(hold.longest)

    assert min(holds) < MOST
