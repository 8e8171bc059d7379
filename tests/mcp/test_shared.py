"""One server shared by threads, event loops and users."""

from collections.abc import Generator, Hashable
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from callboard import ActorGoneError, ToolNode, tool_call
from callboard_actors.mcp import McpBounds, McpServer

from ._asked import NEW, OLD, ROOT, WAIT, answers, over_http
from ._served import server

pytestmark = pytest.mark.real_clock


def by_user(config: Any) -> Hashable:
    return str(config["configurable"]["user"])


def of(user: str) -> dict[str, Any]:
    return {"configurable": {"user": user}}


async def test_it_answers_in_every_event_loop_while_the_one_that_opened_it_runs() -> None:
    """An agent in another thread needs no connection of its own."""

    async def elsewhere() -> str:
        with anyio.fail_after(WAIT):
            [message] = await answers(node, tool_call("remember", "1", text="x"))
        return message.text

    async with McpServer(OLD, cwd=ROOT) as served:
        node = ToolNode([served])
        in_this_loop = await elsewhere()
        in_thread = await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere))
        on_trio = await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere, backend="trio"))
    assert (in_this_loop, in_thread, on_trio) == ("1", "2", "3")


def test_when_its_event_loop_has_ended_a_call_says_so() -> None:
    """A call to a server whose event loop has ended would wait for ever, so it raises an error."""
    opened: list[McpServer] = []

    async def leave_it_open() -> None:
        opened.append(await McpServer(server()).__aenter__())

    async def ask() -> None:
        with anyio.fail_after(WAIT), pytest.raises(ActorGoneError, match="it was ended"):
            await opened[0].call("echo", {"text": "x"})

    anyio.run(leave_it_open)
    anyio.run(ask)


async def test_each_user_has_a_connection_with_headers_of_their_own() -> None:
    """Users may have different permissions: bob sees no tools, and ann still sees hers."""

    async def headers(user: Hashable) -> dict[str, str]:
        return {"x-user": str(user)}

    async with over_http("_plain_http", "2025") as url, McpServer(url, key=by_user, headers=headers) as served:
        node = ToolNode([served])
        call = tool_call("header", "1", text="x-user")
        texts = [(await answers(node, call, config=of(user)))[0].text for user in ("ann", "bob", "ann")]
    assert texts == ["ann", "bob", "ann"]


class Badge(httpx2.Auth):
    """httpx authentication, in the same form as an OAuth provider of the SDK."""

    def __init__(self, user: Hashable) -> None:
        self._user = user

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        """Add the header to the request."""
        request.headers["x-badge"] = f"of {self._user}"
        yield request


@pytest.mark.parametrize(("auth", "badge"), [(Badge("all"), "of all"), (Badge, "of ann")], ids=["one", "by key"])
async def test_each_request_shows_who_it_is_from(auth: Any, badge: str) -> None:
    """`auth=` takes any authentication of httpx and applies it to each request."""
    async with over_http("_plain_http", "2026") as url, McpServer(url, key=by_user, auth=auth) as served:
        call = tool_call("header", "1", text="x-badge")
        [message] = await answers(ToolNode([served]), call, config=of("ann"))
    assert message.text == badge


async def test_users_share_no_session_and_one_who_goes_makes_room() -> None:
    """With a limit on connections the least recently used one is closed, and its session is lost."""
    async with McpServer(OLD, cwd=ROOT, key=by_user, cap=2) as served:
        node = ToolNode([served])
        texts = [
            (await answers(node, tool_call("remember", "1", text="x"), config=of(user)))[0].text
            for user in ("ann", "ann", "bob", "cid", "ann")
        ]
    assert [text[0] for text in texts] == ["1", "2", "1", "1", "1"]


async def test_no_more_calls_are_under_way_than_may_be() -> None:
    """Surplus calls wait in a queue, and their timeouts run meanwhile."""
    async with McpServer(server(), bounds=McpBounds(parallel=2)) as served:
        calls = [tool_call("meet", str(number)) for number in range(10)]
        messages = await answers(ToolNode([served]), *calls)
    assert max(int(message.text) for message in messages) == 2


async def test_a_command_has_its_environment_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of an agent contains keys that the server must not get."""
    monkeypatch.setenv("OUR_SECRET", "secret")
    show = "import os, sys; sys.stderr.write(repr(dict(os.environ))); sys.exit(1)"
    with pytest.raises(Exception, match="'MINE': 'yes'") as caught:
        await McpServer([*NEW[:1], "-c", show], env={"MINE": "yes"}).__aenter__()
    assert "OUR_SECRET" not in str(caught.value)
