"""Tools over streamable HTTP: in this process, mounted in another application, and by the command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, types
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from callboard import Actor, ToolNode, handler
from callboard.middleware import RequireApproval
from callboard_actors.mcp_service import McpApp, _http, mcp_app

from ._clients import Person, fill_in, in_both_eras, text_in
from ._commands import PATIENCE, Process, appears, arguments, run_command, running_process

pytestmark = [
    pytest.mark.real_clock,
    # The SDK's client on trio leaves a stream of events to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
HEADERS = {"Accept": "application/json, text/event-stream"}


class Counter(Actor):
    async def start(self) -> None:
        self.count = 0

    @handler
    async def count_up(self, by: int) -> str:
        """Count up."""
        self.count += by
        return str(self.count)


async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} deleted"


@asynccontextmanager
async def visitor(app: Any, url: str, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Open an HTTP client of an application in this process."""
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url=url, headers=headers) as client:
        yield client


@asynccontextmanager
async def client_over(app: Any, path: str = "/mcp", *, era: str = "auto", **options: Any) -> AsyncIterator[Client]:
    """Open an MCP client of an application in this process."""
    headers = options.pop("headers", {})
    async with visitor(app, "http://127.0.0.1:8000", **headers) as visitor_:
        line = streamable_http_client(f"http://127.0.0.1:8000{path}", http_client=visitor_)
        async with Client(line, mode=era, **options) as client:
            yield client


@in_both_eras
async def test_an_application_serves_in_either_era(era: str) -> None:
    """Versions with and without sessions are served. The served actors live as long as the application."""
    app = mcp_app([Counter()])
    async with app.lifespan():
        for total in (2, 4):
            async with client_over(app, era=era) as client:
                assert text_in(await client.call_tool("count_up", {"by": 2})) == f"{total}"


async def test_an_application_that_was_drained_may_be_started_again() -> None:
    """Questions are asked again after the restart."""
    app = mcp_app(ToolNode([delete], middleware=[RequireApproval()]))
    async with app.lifespan():
        await app.drain(0)
    async with (
        app.lifespan(),
        client_over(app, elicitation_callback=Person(fill_in(decision="accept"))) as client,
    ):
        assert text_in(await client.call_tool("delete", {"path": "a.txt"})) == "a.txt deleted"


async def test_an_application_of_ones_own_has_it_as_a_part() -> None:
    """The mounted application works beside other routes; its questions need no session."""
    app = mcp_app(ToolNode([delete], middleware=[RequireApproval()]), path="/")
    routes = [Route("/hello", lambda request: PlainTextResponse("hello")), Mount("/tools", app)]
    application = Starlette(routes=routes, lifespan=app.lifespan)
    person = Person(fill_in(decision="accept"))
    async with app.lifespan(), client_over(application, "/tools/", elicitation_callback=person) as client:
        result = await client.call_tool("delete", {"path": "a.txt"})
    async with visitor(application, "http://127.0.0.1") as http_client:
        hello = (await http_client.get("/hello")).text

    assert (text_in(result), hello) == ("a.txt deleted", "hello")


async def test_a_part_that_does_not_run_says_what_is_missing() -> None:
    """The outer application does not start mounted ones, and the SDK's error does not explain this."""
    app = mcp_app([delete])
    async with visitor(app, "http://127.0.0.1") as client:
        with pytest.raises(RuntimeError, match=r"lifespan=app\.lifespan"):
            await client.post("/mcp", json=HELLO, headers=HEADERS)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8000", None, 200),
        ("localhost", None, 200),
        ("tools.example.com", None, 200),
        ("tools.example.com:443", "https://tools.example.com", 200),
        ("evil.example.com", None, 421),
        ("127.0.0.1:8000", "https://evil.example.com", 403),
    ],
)
async def test_nobody_is_let_in_by_another_name(host: str, origin: str | None, status: int) -> None:
    """A web page can give this address a name of its own (DNS rebinding), so unknown host names are refused."""
    app = mcp_app([delete], allowed_hosts=["127.0.0.1", "localhost", "tools.example.com"])
    headers = {**HEADERS, "Host": host, **({} if origin is None else {"Origin": origin})}
    async with app.lifespan(), visitor(app, "http://127.0.0.1:8000") as client:
        answer = await client.post("/mcp", json=HELLO, headers=headers)

    assert answer.status_code == status


@in_both_eras
async def test_who_does_not_show_the_token_is_not_let_in(era: str) -> None:
    """A client with the right token is let in, in either version."""
    app = mcp_app([delete], token="open sesame")
    async with app.lifespan():
        async with visitor(app, "http://127.0.0.1:8000") as client:
            for credentials in ({}, {"Authorization": "Bearer sesame"}, {"Authorization": "Basic open sesame"}):
                answer = await client.post("/mcp", json=HELLO, headers={**HEADERS, **credentials})
                assert answer.status_code == 401
        async with client_over(app, era=era, headers={"Authorization": "Bearer open sesame"}) as client:
            assert text_in(await client.call_tool("delete", {"path": "a"})) == "a deleted"


def with_name_of(length: int) -> dict[str, Any]:
    """Return a request that opens a session, with a client's name of this length."""
    params = {**HELLO["params"], "clientInfo": {"name": "n" * length, "version": "1"}}
    return {**HELLO, "params": params}


async def test_a_request_that_opens_a_session_is_short() -> None:
    """A session keeps its first request until it ends, so a hundred long ones would fill the memory."""
    app = mcp_app([delete])
    async with app.lifespan(), visitor(app, "http://127.0.0.1:8000") as client:
        fits = await client.post("/mcp", json=with_name_of(50_000), headers=HEADERS)
        too_long = await client.post("/mcp", json=with_name_of(70_000), headers=HEADERS)
        unknown = {**HEADERS, "MCP-Protocol-Version": "2025-06-18"}
        in_an_old_version = await client.post("/mcp", json=with_name_of(70_000), headers=unknown)

    assert [response.status_code for response in (fits, too_long, in_an_old_version)] == [200, 413, 413]


@in_both_eras
async def test_a_request_has_a_greatest_length(era: str) -> None:
    """The event loop is held while a request is parsed, and other clients wait."""
    app = mcp_app([delete])
    async with app.lifespan(), client_over(app, era=era) as client:
        assert text_in(await client.call_tool("delete", {"path": "p" * 250_000})).endswith("deleted")
        with pytest.raises(MCPError):
            await client.call_tool("delete", {"path": "p" * 270_000})


async def test_sessions_have_a_greatest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens sessions and leaves takes no more memory; sessions that are open go on."""
    monkeypatch.setattr(_http, "_MOST_SESSIONS", 2)
    app = mcp_app([delete])
    async with app.lifespan(), visitor(app, "http://127.0.0.1:8000") as client:
        opened = [await client.post("/mcp", json=HELLO, headers=HEADERS) for _ in range(3)]
        session = {**HEADERS, "Mcp-Session-Id": opened[0].headers["mcp-session-id"]}
        listed = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=session)
        await client.delete("/mcp", headers=session)
        reopened = await client.post("/mcp", json=HELLO, headers=HEADERS)

    assert [response.status_code for response in (*opened, listed, reopened)] == [200, 200, 503, 200, 200]


async def test_a_session_belongs_to_the_token_that_opened_it() -> None:
    """A client that has learned another client's session id gets the answer for an unknown session."""
    app = mcp_app([delete], token={"ann": "ann's", "bob": "bob's"})
    ann, bob = ({**HEADERS, "Authorization": f"Bearer {name}'s"} for name in ("ann", "bob"))
    asks = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    async with app.lifespan(), visitor(app, "http://127.0.0.1:8000") as client:
        opened = await client.post("/mcp", json=HELLO, headers=ann)
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        stolen = [
            (await client.post("/mcp", json=asks, headers=bob | session)).status_code,
            (await client.delete("/mcp", headers=bob | session)).status_code,
            (await client.get("/mcp", headers=bob | session)).status_code,
        ]
        own_response = await client.post("/mcp", json=asks, headers=ann | session)

    assert (stolen, own_response.status_code) == ([404] * 3, 200)


@in_both_eras
async def test_an_application_that_is_drained_lets_calls_finish(era: str, tmp_path: Path) -> None:
    """Running calls are answered, and later requests are told that the service is closing."""
    began, results = anyio.Event(), list[types.CallToolResult]()

    async def stay() -> str:
        """Stay."""
        began.set()
        await anyio.sleep(0.3)
        return "left"

    async def call(app: McpApp) -> None:
        async with client_over(app, era=era) as client:
            await client.list_tools()  # otherwise the client would ask for schemas when the answer has arrived
            results.append(await client.call_tool("stay", {}))

    app = mcp_app([stay])
    async with app.lifespan(), anyio.create_task_group() as group:
        group.start_soon(call, app)
        await began.wait()
        report = await app.drain(10)
        async with visitor(app, "http://127.0.0.1:8000") as client:
            late = await client.post("/mcp", json=HELLO, headers=HEADERS)

    assert (report.finished, report.ended, late.status_code) == (1, 0, 503)
    assert [text_in(result) for result in results] == ["left"]


@asynccontextmanager
async def serving(name: str) -> AsyncIterator[tuple[Process, str]]:
    """Start the command with a name of `_served`; yield the process and its URL."""
    with running_process(*arguments(name, "--http", "--port", "0")) as server, anyio.fail_after(PATIENCE):
        yield server, await anyio.to_thread.run_sync(server.url)


@pytest.mark.exhaustive
async def test_the_command_leaves_imported_objects_out_of_garbage_collections() -> None:
    """A request of many lists would start collections that hold the event loop for 100 ms each."""
    async with serving("frozen") as (_, url), Client(url) as client:
        frozen = await client.call_tool("count_frozen", {})

    assert int(text_in(frozen)) > 100_000


@in_both_eras
@pytest.mark.exhaustive
@pytest.mark.backends("asyncio")
async def test_a_signal_lets_calls_over_http_finish(era: str, tmp_path: Path) -> None:
    """Answers arrive and the process ends, even if a client of version 2025 still holds its event stream open."""
    results: list[types.CallToolResult] = []

    async def call(url: str) -> None:
        async with Client(url, mode=era) as client:
            await client.list_tools()  # otherwise the client would ask for schemas when the answer has arrived
            results.append(await client.call_tool("stay", {"seconds": 2, "folder": str(tmp_path)}))
            with anyio.move_on_after(PATIENCE):
                await anyio.to_thread.run_sync(server.end)

    async with serving("tools") as (server, url), anyio.create_task_group() as group:
        group.start_soon(call, url)
        await appears(tmp_path / "began")
        server.signal()

    assert server.process.returncode == 0
    assert [text_in(result) for result in results] == ["left"]


@pytest.mark.exhaustive
def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    """The error is a message, not a traceback."""
    with running_process(*arguments("tools", "--http", "--port", "0")) as server:
        port = server.url().rpartition(":")[2].partition("/")[0]
        code, error = run_command(*arguments("tools", "--http", "--port", port))

    assert code == 1
    assert "Error: " in error
    assert "Traceback" not in error
