"""Options of the client are checked when it is made, and unsupported ones are reported."""

import inspect
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_type_hints

import anyio
import pytest
from anyio.abc import SocketStream

from callboard import Limit, running
from callboard_actors.http import HttpBounds, HttpClient, HttpTools, UrlRefusedError
from callboard_actors.http._client import Options

from ._world import LOOPBACK, Names, Site

pytestmark = pytest.mark.real_clock

WRONG = [
    ({"allow": "example.org"}, TypeError, r"one text.*\['example.org'\]"),
    ({"allow": []}, ValueError, "no host at all"),
    ({"allow": ["http://example.org/"]}, ValueError, "takes hosts such as"),
    ({"allow": ["10.0.0.1/8"]}, ValueError, "bits behind its mask"),
    ({"allow": ["exa mple"]}, ValueError, "exa mple"),
    ({"headers": {"Authorization": "key"}}, TypeError, "has headers by host"),
    ({"headers": {"other.org": {"A": "b"}}, "allow": ["example.org"]}, ValueError, "is for a host that is asked"),
    ({"headers": {"example.org": {"Host": "b"}}}, ValueError, "made by the client"),
    ({"headers": {"example.org": {"A": "b\r\nC: d"}}}, ValueError, "no header may have"),
    ({"headers": {"example.org": {"A b": "c"}}}, ValueError, "'a b' has signs"),
    ({"headers": {"example.org": {"A:b": "c"}}}, ValueError, "'a:b' has signs"),
    ({"headers": {"example.org": {"A": "\x01"}}}, ValueError, "no header may have"),
    ({"headers": {"example.org": {"A": 1}}}, TypeError, "'a' has a text as its value, not int"),
    ({"timeout": 0}, ValueError, "timeout=0"),
    ({"retries": -1}, ValueError, "retries=-1"),
    ({"retries": 1.5}, ValueError, "retries=1.5"),
    ({"ports": [0.5]}, TypeError, "whole number"),
    ({"limit": 8}, TypeError, "Limit"),
    ({"trusted_proxy": "socks5://proxy"}, ValueError, "such as 'http://proxy"),
    ({"honours_keys": "example.org"}, TypeError, r"one text.*\['example.org'\]"),
    ({"honours_keys": ["https://example.org"]}, ValueError, "takes hosts such as"),
    ({"honours_keys": ["example.org:443"]}, ValueError, "without scheme, port"),
    ({"honours_keys": ["*.example.org"]}, ValueError, "each of them"),
    ({"backoff": 1.0}, TypeError, "is a Backoff, such as"),
    ({"bounds": {}}, TypeError, "is an HttpBounds"),
    ({"resolver": 5}, TypeError, "is an async function"),
    ({"tls": False}, TypeError, "ssl.SSLContext; leave it out"),
    ({"headers": [("authorization", "x")]}, TypeError, r"list\) has headers by host"),
]


@pytest.mark.parametrize(("option", "value"), [("read_timeout", float("inf")), ("max_bytes", 0), ("max_download", 0)])
def test_bounds_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"HttpBounds\({option}={value}\)"):
        HttpBounds(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("options", "kind", "said"), WRONG, ids=[repr(options) for options, _, _ in WRONG])
def test_what_cannot_work_is_an_error_when_the_client_is_made(options: dict, kind: type, said: str) -> None:
    """The error does not wait for the first page; the tools raise the same one."""
    for make in (HttpClient, HttpTools):
        with pytest.raises(kind, match=said):
            make(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": "GET"}, r"methods=\['GET'\]"),
        ({"methods": ["GET", "BREW"]}, "got 'BREW'"),
        ({"methods": ["POST"]}, "lacks 'GET'"),
        ({"max_chars": 5}, "at least 100"),
        ({"max_char": 500}, "max_char"),
    ],
)
def test_what_tools_cannot_be_told_is_an_error_when_they_are_made(options: dict, said: str) -> None:
    """A misspelt method would otherwise be refused for ever."""
    with pytest.raises((TypeError, ValueError), match=said):
        HttpTools(**options)


def test_tools_hand_every_option_on() -> None:
    """The list of forwarded options and the signature have to agree."""
    parameters = list(inspect.signature(HttpClient).parameters)

    assert list(get_type_hints(Options)) == parameters


def test_no_header_is_shown_of_a_client() -> None:
    """The representation of a client appears in logs and errors."""
    client = HttpClient(headers={"example.org": {"Authorization": "key-of-ours"}})

    assert "key-of-ours" not in f"{client!r} {HttpTools(headers={'example.org': {'A': 'key-of-ours'}})!r}"


async def test_a_client_is_used_while_it_is_open(site: Site) -> None:
    """A client serves one block at a time and can be opened again."""
    http = HttpClient(allow=LOOPBACK)
    with pytest.raises(RuntimeError, match="not open"):
        await http.get(site.url())
    for _ in range(2):
        async with http:
            assert (await http.get(site.url())).ok
            with pytest.raises(RuntimeError, match="open already"):
                await http.__aenter__()
    with pytest.raises(RuntimeError, match="not open"):
        await http.get(site.url())


async def test_what_a_request_cannot_be_is_an_error_of_its_caller(site: Site) -> None:
    """The mistake is an exception, not an answer of a server."""
    async with HttpClient(allow=LOOPBACK) as http:
        with pytest.raises(ValueError, match="is one of DELETE, GET"):
            await http.request("get", site.url())
        for url in (None, b"http://example.org/"):
            with pytest.raises(TypeError, match="is a text, such as 'https://"):
                await http.get(url)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="two bodies"):
            await http.post(site.url(), content="a", json={})
        with pytest.raises(ValueError, match="made by the client"):
            await http.get(site.url(), headers={"host": "example.org"})


async def test_a_limit_with_a_key_of_its_own_is_kept_as_it_is(site: Site) -> None:
    """The request resembles a tool call, so a key function written for tools works."""
    case = site.case()
    limit = Limit(concurrency=1, key=lambda call: call["args"]["url"].partition("?")[0])
    async with HttpClient(allow=LOOPBACK, limit=limit) as http, anyio.create_task_group() as group:
        for n in range(4):
            group.start_soon(http.get, site.url("/busy", case=case, n=n))

    assert site.seen(case)["most"] == 1


class Proxy:
    """HTTP proxy that connects to one server whatever the request asks for, and records the requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.heads: list[str] = []


@asynccontextmanager
async def proxy(site: Site) -> AsyncIterator[Proxy]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    running = Proxy(f"http://user:password@127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}")

    async def serve(client: SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", site.port) as server:
            head = await client.receive()
            running.heads.append(head.decode())
            method, url, rest = head.split(b" ", 2)
            await server.send(b"%s /%s %s" % (method, url.split(b"/", 3)[3], rest))
            async for part in server:
                await client.send(part)

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield running
        group.cancel_scope.cancel()


async def test_a_proxy_that_is_trusted_is_gone_by(site: Site) -> None:
    """The proxy's address is not chosen by the model. The proxy resolves names, so only host names are checked here."""
    names = Names()
    async with proxy(site) as between:
        options = {"trusted_proxy": between.url, "resolver": names, "allow": ["tea.example.org"]}
        async with HttpClient(**options) as http:
            page = await http.get("http://tea.example.org/page")
            with pytest.raises(UrlRefusedError):
                await http.get("http://10.0.0.1/")

    assert page.ok
    [head] = between.heads
    assert head.startswith("GET http://tea.example.org/page HTTP/1.1")
    assert "proxy-authorization: basic" in head.lower()
    assert names.asked == []


async def test_a_proxy_of_the_environment_is_not_gone_by_and_that_is_said(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy would connect without our address checks; a warning explains why servers cannot be reached."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://user:secret@127.0.0.1:9/")
    with caplog.at_level(logging.WARNING, "callboard"):
        async with HttpClient(allow=LOOPBACK) as http:
            assert (await http.get(site.url())).ok

    assert "does not go by HTTP_PROXY" in caplog.text
    assert "secret" not in caplog.text


async def test_an_actor_that_cannot_open_its_client_says_so_at_the_start(tmp_path: object) -> None:
    """A missing download folder fails at the start, not with the first download."""
    from callboard import ActorStartError

    with pytest.raises(ActorStartError, match="no such folder"):
        async with running(HttpTools(downloads=f"{tmp_path}/missing")):
            pass


@pytest.mark.parametrize("package", ["httpx2", "lxml", "markdownify"])
def test_a_missing_extra_is_named(package: str) -> None:
    """The error comes when the actor is first imported; other actors do not need the extra."""
    code = (
        "import importlib.util as u, sys\n"
        "there = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {package!r} else there(name, *rest)\n"
        "import callboard_actors\n"
        "try:\n    import callboard_actors.http\n"
        "except ImportError as error:\n    sys.exit(str(error))"
    )
    run = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)

    assert run.stderr.strip() == f"callboard_actors.http needs {package}: pip install 'callboard-actors[http]'"


def test_importing_the_package_loads_no_client() -> None:
    """The HTTP client is imported only when its names are used."""
    code = "import sys, callboard_actors.http; sys.exit('httpx2' in sys.modules or 'lxml' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
