"""Servers with invalid or excessive HTTP: each causes a one-sentence error soon."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from callboard import running
from callboard_actors.http import HttpTools

from ._world import LOOPBACK

pytestmark = pytest.mark.real_clock

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
