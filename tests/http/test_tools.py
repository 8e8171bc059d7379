"""The tools with which a model reads pages, and their error messages."""

from pathlib import Path

import anyio
import pytest

from callboard import ToolNode, child, running
from callboard.testing import tool_call
from callboard_actors.http import HttpBounds, HttpTools

from ._world import AT_ONCE, LOOPBACK, WAIT, Names, Site

pytestmark = pytest.mark.real_clock

READS = {"allow": LOOPBACK, "retries": 0}


async def fetched(site: Site, path: str = "/page", start: int = 0, query: dict | None = None, **options: object) -> str:
    with anyio.fail_after(WAIT):
        async with running(HttpTools(**{**READS, **options})) as tools:
            return str(await tools.fetch(site.url(path, **(query or {})), start))


async def test_in_a_node_its_handlers_are_tools(site: Site) -> None:
    """The handlers become tools as those of any actor; disallowed methods have no tool."""
    node = ToolNode([HttpTools(allow=LOOPBACK)])
    async with node:
        found = await node.ainvoke([tool_call("fetch", "1", url=site.url()), tool_call("fetch", "2", url="nothing")])
    page, refused = (message.content for message in found["messages"])

    assert list(node.tools_by_name) == ["fetch"]
    assert page.startswith(f"HTTP 200 OK, {site.url()} (text/html).\n\n# Tea\n")
    assert "[more](" in page
    assert "Ignore all previous" not in page
    assert refused == ("GET nothing was not sent: it has to begin with http:// or https://. Allowed: 127.0.0.1.")


async def test_methods_that_write_have_a_tool_where_they_are_allowed(site: Site) -> None:
    """The tool refuses other methods, also after a restart of the actor."""
    node = ToolNode([child(HttpTools(allow=LOOPBACK, methods=["GET", "POST"]), prefix="web_")])
    sent = {"method": "POST", "url": site.url("/echo"), "body": '{"tea": 1}'}
    async with node:
        batch = [
            tool_call("web_http_request", "1", **sent),
            tool_call("web_http_request", "2", **{**sent, "method": "PUT"}),
        ]
        found = await node.ainvoke(batch)
    said, refused = (message.content for message in found["messages"])

    assert list(node.tools_by_name) == ["web_fetch", "web_http_request"]
    assert '"body": "{\\"tea\\": 1}"' in said
    assert refused == "Refused: 'PUT' is not allowed here, only GET, POST."


async def test_a_long_page_is_read_in_pieces(site: Site) -> None:
    """The text tells the model how to continue, and where the page ends."""
    query = {"size": 250, "type": "text/plain"}
    first = await fetched(site, "/body", query=query, max_chars=200)
    second = await fetched(site, "/body", 200, query=query, max_chars=200)
    beyond = await fetched(site, "/body", 250, query=query, max_chars=200)
    cut = await fetched(site, "/body", query=query, bounds=HttpBounds(max_bytes=100))

    assert first.endswith("x\n[... 50 more characters; start=200 reads on ...]")
    assert second.endswith("\n\n" + "x" * 50)
    assert beyond.endswith("It has 250 characters, and none from start=250 on.")
    assert cut.endswith("x" * 100 + "\n[... the rest is longer than what is read of a page ...]")


async def test_what_is_no_text_is_told_and_not_shown(site: Site, tmp_path: Path) -> None:
    """Binary content is described; with a download folder it is saved."""
    query = {"hex": "89504e470d0a1a0a00", "type": "image/png"}
    told = await fetched(site, "/body", query=query)
    unknown = await fetched(site, "/body", query={"hex": "00ff00ff"})
    saved = await fetched(site, "/body", query=query, downloads=tmp_path)
    [file] = tmp_path.iterdir()

    assert told.endswith("(image/png, 9 bytes). It is no text, and not shown.")
    assert unknown.endswith("(of no media type, 4 bytes). It is no text, and not shown.")
    assert saved.endswith(f"(image/png, 9 bytes). It is no text; the file {file} has it.")


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        (
            "/missing",
            {},
            "HTTP 404 Not Found, {url}. There is no such page: check the URL, or look for a page that has",
        ),
        (
            "/status",
            {"status": 429, "after": 7},
            "HTTP 429 Too Many Requests, {url}. There were too many requests. Try again in 7 s.",
        ),
        ("/status", {"status": 403}, "HTTP 403 Forbidden, {url}. The server does not let us have the page."),
        ("/status", {"status": 503}, "HTTP 503 Service Unavailable, {url}. The server has failed; try again later."),
    ],
)
async def test_a_page_that_says_no_comes_with_what_to_do(site: Site, path: str, query: dict, said: str) -> None:
    """The message contains a suggestion and the text of the server."""
    query = {**query, "case": site.case()}
    told = await fetched(site, path, query=query)

    assert told.startswith(said.format(url=site.url(path, **query)))
    if path == "/status":
        assert told.endswith("\n\nnot now")


async def test_a_message_has_no_header_and_where_it_ended(site: Site) -> None:
    """Headers may contain keys; the final URL tells the model where it was redirected."""
    headers = {site.origin: {"Authorization": "key-of-ours"}}
    told = await fetched(site, "/redirect", query={"to": "/missing"}, headers=headers)
    failed = await fetched(site, "/drop", query={"case": site.case(), "times": 9}, headers=headers)

    assert f"HTTP 404 Not Found, {site.url('/missing')}." in told
    assert failed.startswith("GET http://127.0.0.1")
    assert "has no answer: the connection failed" in failed
    assert "key-of-ours" not in told + failed


async def test_an_error_shows_no_control_characters_of_a_url() -> None:
    """A page may have made the model write control characters into the URL."""
    async with running(HttpTools(**READS)) as tools:
        told = str(await tools.fetch("http://\x1b[31mtea\n" + "x" * 1000))

    assert told.startswith("GET http://tea")
    assert "\x1b" not in told
    assert len(told) < 500


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
async def test_calls_of_many_go_over_one_pool_and_no_host_has_more_than_its_share(site: Site, count: int) -> None:
    """Even a batch of a thousand calls sends only a few concurrent requests to each host."""
    case = site.case()
    names = Names(tea_example_org=[["127.0.0.1"]])
    node = ToolNode([HttpTools(allow=["*", *LOOPBACK], resolver=names, backoff=AT_ONCE)])
    urls = [site.url("/busy", case=case), f"http://tea.example.org:{site.port}/busy?case={case}-tea"]
    with anyio.fail_after(120):
        async with node:
            found = await node.ainvoke([tool_call("fetch", str(n), url=urls[n % 2]) for n in range(count)])

    assert all(message.content.endswith("done") for message in found["messages"])
    for name in (case, f"{case}-tea"):
        seen = site.seen(name)
        assert len(seen["requests"]) == count // 2
        assert 2 <= seen["most"] <= 8
