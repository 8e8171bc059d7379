"""`fetch_tool`: tool with which a model reads web pages."""

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import aclosing
from functools import partial
from http.client import responses
from typing import Final

import anyio
import httpx2
from anyio.lowlevel import RunVar
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from callboard import remaining
from callboard.extend import Resolver, system_resolver
from callboard_actors._util._excerpts import clean_text
from callboard_actors._util._import_path import import_path
from callboard_actors._util._options import check_counts, check_seconds
from callboard_actors.http._guard import GuardedTransport, UrlRefusedError, display_url, rules_of
from callboard_actors.http._page import Part, Task, media_type_of

# Conversion of a page in a process of its own.

_PROCESSES: Final = 4
"""Maximum processes of an event loop that convert pages at the same time."""
_CONVERSION_TIME = 10.0
"""Seconds after which the process of a conversion is killed."""
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("callboard_http_processes")
_COMMAND = "import sys; sys.path[:] = {path!r}; from callboard_actors.http._page import main; main()"


async def read_part(body: bytes | bytearray, task: Task, seconds: float) -> Part | None:
    """Return a part of the text of a page; `None` if its conversion takes too long or too much memory."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_PROCESSES)
        _limiter.set(limiter)
    # Isolated, and with the search path of this program: the process imports what this one would import.
    command = [sys.executable, "-I", "-S", "-c", _COMMAND.format(path=import_path())]
    page = json.dumps(task).encode() + b"\n" + body
    output = b""
    try:
        async with limiter:
            with anyio.move_on_after(seconds):  # a cancelled `run_process` kills the process
                try:
                    output = (await anyio.run_process(command, input=page, stderr=subprocess.DEVNULL)).stdout
                except* (OSError, anyio.BrokenResourceError, subprocess.CalledProcessError):  # it has failed
                    pass
    except NotImplementedError:
        raise RuntimeError(
            "pages are converted in a process of their own, which this event loop cannot start: on Windows, use the "
            "default event loop of asyncio, and not a selector loop"
        ) from None
    return json.loads(output) if output else None


# Texts for a model.

_LONGEST_ERROR_PAGE = 2_000
"""Maximum characters of a page that a model reads if the page has an error status."""
_LONGEST_REASON = 300
_LONGEST_TYPE = 1024
_MEDIA_TYPE = re.compile(r"[a-z0-9.+_-]{1,40}/[a-z0-9.+_-]{1,80}")
"""Pattern of a valid media type. Other texts are dropped: a server could write instructions to the model in them."""


def text_for_model(
    *, status: int, url: str, content_type: str, size: int, is_cut: bool, part: Part | None, start: int
) -> str:
    """Return a text about a page: its status, its URL, and a part of its text."""
    media_type = media_type_of(content_type)
    kind = media_type if _MEDIA_TYPE.fullmatch(media_type) else "of no media type"
    # Not the reason of the server, which may be any text.
    head = f"HTTP {status} {responses.get(status, '')}".rstrip() + f", {display_url(url)}"
    length = f"{'more than ' if is_cut else ''}{size:,} bytes"
    if part is None:
        return f"{head} ({kind}, {length}). It is too complex, and its text could not be read."
    text, total = part["text"], part["total"]
    if text is None:
        return f"{head} ({kind}, {length}). It is no text, and not shown."
    if total and not text:
        return f"{head} ({kind}). It has {total:,} characters, and none from start={start} on."
    if not text.strip():
        return f"{head} ({kind}). It is empty."
    end = max(0, start) + len(text)
    note = ""
    if end < total:
        note = f"\n[... {total - end:,} more characters; start={end} reads on ...]"
    elif is_cut:
        note = "\n[... the rest is longer than what is read of a page ...]"
    return f"{head} ({kind}).\n\n{text}{note}"


# The tool.

_MOST_REDIRECTS = 5
_MOST_TIME = 0.8
"""Share of a call's remaining time that a request or a conversion may use; the rest is for the tool's answer."""


def fetch_tool(
    *,
    hosts: Sequence[str] | None = None,
    allow_private: bool = False,
    ports: Collection[int] | None = None,
    max_chars: int = 20_000,
    max_bytes: int = 1_000_000,
    timeout: float = 30.0,
    resolver: Resolver = system_resolver,
    tls: ssl.SSLContext | None = None,
) -> BaseTool:
    """Return the tool `fetch`, with which a model reads web pages.

        node = ToolNode([fetch_tool(hosts=["example.org"])])

    The tool sends GET requests by a `GuardedTransport`. A process of its own converts each page to text, and is killed
    after ten seconds.

    Args:
        hosts: allowed hosts and networks, as for `GuardedTransport`; `None` for any public host.
        allow_private: whether every address is allowed, those of this machine included.
        ports: allowed ports; `None` for any.
        max_chars: characters of a page that a model reads at once.
        max_bytes: bytes of a page that are read at most; the rest is cut off.
        timeout: seconds for a request with its redirects.
        resolver: async function from a host and a port to addresses.
        tls: context for https; by default with the system's certificates.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: for a number out of range, or an invalid host.
    """
    check_seconds("fetch_tool", timeout=timeout)
    check_counts("fetch_tool", [("max_chars", max_chars, 100), ("max_bytes", max_bytes, 1)])
    rules = rules_of("fetch_tool", hosts, private=allow_private, ports=ports)
    tls = httpx2.create_ssl_context() if tls is None else tls

    open_transport = partial(
        GuardedTransport,
        hosts=hosts,
        allow_private=allow_private,
        ports=ports,
        max_bytes=max_bytes + 1,
        timeout=timeout,
        resolver=resolver,
        tls=tls,
    )
    open_transport()  # a wrong option is an error now, not in the first call

    async def fetch(url: str, start: int = 0) -> str:
        """Read a page or a file of the web: HTML as Markdown with its links, JSON and other text as it is.

        What is long is read in pieces: the answer says with which `start` the next one is read.
        """
        try:
            # The text of the URL is checked, too: libraries read unusual URLs in different ways.
            checked_url = rules.check(url)
            with anyio.fail_after(min(timeout, _MOST_TIME * remaining())):
                response, body, is_cut = await _get(checked_url, open_transport(), max_bytes)
        except UrlRefusedError as refused:
            raise ToolException(str(refused)) from refused
        except TimeoutError as error:
            raise ToolException(f"{display_url(url)} has no response: it did not end in time.") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:  # UnicodeError: a host that is no name
            reason = clean_text(str(error)[:_LONGEST_REASON]) or type(error).__name__
            raise ToolException(f"{display_url(url)} has no response: {reason}.") from error
        content_type = response.headers.get("content-type", "")[:_LONGEST_TYPE]
        task = Task(
            url=str(response.url),
            content_type=content_type,
            start=start if response.is_success else 0,
            max_chars=max_chars if response.is_success else min(max_chars, _LONGEST_ERROR_PAGE),
        )
        part = await read_part(body, task, min(_CONVERSION_TIME, _MOST_TIME * remaining()))
        return text_for_model(
            status=response.status_code,
            url=task["url"],
            content_type=content_type,
            size=len(body),
            is_cut=is_cut,
            part=part,
            start=task["start"],
        )

    return StructuredTool.from_function(coroutine=fetch, handle_tool_error=True)


async def _get(url: str, transport: GuardedTransport, max_bytes: int) -> tuple[httpx2.Response, bytearray, bool]:
    """Return the response to a GET request, up to `max_bytes` of its body, and whether the body is longer."""
    client = httpx2.AsyncClient(
        transport=transport,
        follow_redirects=True,
        max_redirects=_MOST_REDIRECTS,
        headers={"User-Agent": "callboard"},
        trust_env=False,
    )
    body = bytearray()
    async with client, client.stream("GET", url) as response, aclosing(response.aiter_raw()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > max_bytes:
                break
    is_cut = len(body) > max_bytes
    del body[max_bytes:]  # in place: a copy of megabytes would hold the event loop
    return response, body, is_cut
