"""Isolation of the clients of one server over HTTP: neither state nor slots are mixed up."""

import gc
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import httpx2
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from mcp_types import RequestParamsMeta
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware

from callboard import Actor, CallContext, ToolNode, child, create_react_agent, handler, idempotency_key
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel
from callboard_actors.mcp_service import McpApp, mcp_app

from ._clients import in_both_eras, text_in
from ._commands import PATIENCE

pytestmark = [
    pytest.mark.real_clock,
    # The SDK's client on trio leaves a stream of events to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

TOKENS = {"ann": "ann's token", "bob": "bob's token"}


class Notebook(Actor):
    """Actor that keeps a note."""

    async def start(self) -> None:
        self.note = "nothing"

    @handler
    async def write(self, note: str) -> str:
        """Write a note."""
        self.note = note
        return "written"

    @handler
    async def read(self) -> str:
        """Read the note."""
        return self.note


def by_thread(_: Any, context: CallContext) -> str:
    return str(context.config.get("configurable", {}).get("thread_id", ""))


def notebooks() -> list[Any]:
    """Return tools that keep a state for each conversation."""
    return [child(Notebook, key=by_thread)]


async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} deleted"


@asynccontextmanager
async def in_process(
    app: Any, era: str, tokens: Sequence[str | None] = (None, None), **options: Any
) -> AsyncIterator[list[Client]]:
    """Connect a client for each token to an application in this process, each from its own port."""
    lifespan = cast("McpApp", app.app).lifespan if isinstance(app, AuthenticationMiddleware) else app.lifespan
    with anyio.fail_after(PATIENCE):
        async with lifespan(), AsyncExitStack() as stack:
            clients = []
            for port, token in enumerate(tokens, 1000):
                transport = httpx2.ASGITransport(cast("Any", app), client=("127.0.0.1", port))
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                http = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, headers=headers))
                line = streamable_http_client("http://127.0.0.1:8000/mcp", http_client=http)
                clients.append(await stack.enter_async_context(Client(line, mode=era, **options)))
            yield clients


def meta_of(key: str) -> RequestParamsMeta:
    return cast("RequestParamsMeta", {"callboard/idempotency-key": key})


async def reads(app: Any, era: str, tokens: Sequence[str | None], meta: Any = None) -> list[str]:
    """Return what two clients read in the notebook after the first one has written to it."""
    async with in_process(app, era, tokens) as (ann, bob):
        await ann.call_tool("write", {"note": "secret"}, meta=meta)
        return [text_in(await client.call_tool("read", {}, meta=meta)) for client in (ann, bob)]


@pytest.mark.parametrize("token", [None, "shared"])
@pytest.mark.parametrize("meta", [None, meta_of("same")], ids=["no key", "one key"])
async def test_a_client_with_a_session_never_finds_the_state_of_another(token: str | None, meta: Any) -> None:
    """Neither a shared idempotency key nor a shared token leads to another session's state."""
    app = mcp_app(notebooks(), token=token)
    assert await reads(app, "legacy", (token, token), meta) == ["secret", "nothing"]


@in_both_eras
async def test_a_client_with_a_token_of_its_own_never_finds_the_state_of_another(era: str) -> None:
    """A client finds its own state again, even without a session."""
    app = mcp_app(notebooks(), token=TOKENS)
    assert await reads(app, era, tuple(TOKENS.values()), meta_of("same")) == ["secret", "nothing"]


@pytest.mark.parametrize("token", [None, "shared"])
async def test_a_client_that_nothing_tells_from_others_is_refused_a_state(token: str | None) -> None:
    """A client without session and token would have to share its state. Tools without state are not refused."""
    async with in_process(mcp_app([*notebooks(), delete], token=token), "2026-07-28", [token]) as [client]:
        refused = await client.call_tool("write", {"note": "secret"}, meta=meta_of("mine"))
        stateless_result = await client.call_tool("delete", {"path": "a"})

    assert refused.is_error
    assert "nothing tells this client from others" in text_in(refused)
    assert "token of its own" in text_in(refused)
    assert text_in(stateless_result) == "a deleted"


@in_both_eras
async def test_an_actor_by_its_arguments_is_reached_by_all_clients(era: str) -> None:
    """The actor's key is made of the arguments, so clients share it deliberately."""
    tools = [child(Notebook, key=lambda call, _: call["name"] and "one for all")]
    async with in_process(mcp_app(tools), era) as (ann, bob):
        await ann.call_tool("write", {"note": "for all"})
        assert text_in(await bob.call_tool("read", {})) == "for all"


class ByName(AuthenticationBackend):
    """Custom authentication in which the token is the user's name."""

    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("authorization", "").removeprefix("Bearer ")
        return (AuthCredentials(), SimpleUser(name)) if name else None


async def test_clients_that_other_middleware_has_authenticated_are_told_apart() -> None:
    """Other middleware sets `scope["user"]`, as Starlette does."""
    app = AuthenticationMiddleware(mcp_app(notebooks()), backend=ByName())
    assert await reads(app, "2026-07-28", ("ann", "bob")) == ["secret", "nothing"]


async def where(config: RunnableConfig) -> str:
    """Tell the thread and the idempotency key."""
    return f"{config['configurable']['thread_id']} {idempotency_key()}"


@in_both_eras
@pytest.mark.parametrize("tokens", [(None, None), tuple(TOKENS.values())], ids=["anybody", "known"])
async def test_a_thread_is_named_by_the_server_alone(era: str, tokens: Sequence[str | None]) -> None:
    """Idempotency keys and session ids do not name threads, because a client could guess or leak them."""
    token = None if tokens[0] is None else TOKENS
    async with in_process(mcp_app([where], token=token), era, tokens) as (ann, bob):
        threads_and_keys = [
            text_in(await client.call_tool("where", {}, meta=meta_of("k1"))).split() for client in (ann, bob, ann)
        ]
    threads, keys = zip(*threads_and_keys, strict=True)

    assert threads[0] != threads[1]
    assert not any("k1" in thread for thread in threads)
    assert keys[0] == keys[2], "made again, it is known again"
    assert (keys[0] == keys[1]) is (token is None), "of authenticated clients each has keys of its own"


@in_both_eras
async def test_a_conversation_belongs_to_the_client_that_began_it(era: str) -> None:
    """An authenticated client that names another client's thread gets a separate thread of the same name."""
    saver = InMemorySaver()
    agent = create_react_agent(ScriptedModel([AIMessage(text) for text in "abc"]), [], name="clerk", checkpointer=saver)
    async with in_process(mcp_app(agent, token=TOKENS), era, tuple(TOKENS.values())) as (ann, bob):
        for client in (ann, bob, ann):
            result = await client.call_tool("clerk", {"message": "Hi", "thread_id": "diary"})
            assert (result.structured_content or {})["thread_id"] == "diary"
    threads = {saved.config["configurable"]["thread_id"] for saved in saver.list(None)}
    states = [await agent.aget_state({"configurable": {"thread_id": thread}}) for thread in threads]

    assert sorted(len(state.values["messages"]) for state in states) == [2, 4]


@in_both_eras
async def test_a_client_that_is_not_known_goes_on_with_threads_that_the_server_has_named(era: str) -> None:
    """Anonymous clients could guess names that other clients invented."""
    agent = create_react_agent(
        ScriptedModel([AIMessage("Hello."), AIMessage("Again.")]), [], name="clerk", checkpointer=InMemorySaver()
    )
    async with in_process(mcp_app(agent), era) as (ann, _):
        refused = await ann.call_tool("clerk", {"message": "Hi", "thread_id": "diary"})
        first = await ann.call_tool("clerk", {"message": "Hi"})
        thread = (first.structured_content or {})["thread_id"]
        second_result = await ann.call_tool("clerk", {"message": "Me", "thread_id": thread})

    assert refused.is_error
    assert "'diary'" in text_in(refused)
    assert second_result.structured_content == {"answer": "Again.", "thread_id": thread}


async def open_question(client: Client, path: str) -> str:
    """Return the state of a question that stays open."""
    question = await client.session.call_tool("delete", {"path": path}, allow_input_required=True)
    assert isinstance(question, types.InputRequiredResult)
    return str(question.request_state)


async def answer_question(client: Client, path: str, state: str) -> types.CallToolResult:
    answer: Any = {"0.0": types.ElicitResult(action="accept", content={"decision": "accept"})}
    return await client.session.call_tool("delete", {"path": path}, input_responses=answer, request_state=state)


async def never(context: object, params: object) -> types.ElicitResult:
    raise AssertionError("the test answers by itself")


async def test_a_question_is_answered_by_the_client_that_was_asked() -> None:
    """A client that has obtained the state of another client's question cannot answer it."""
    app = mcp_app(ToolNode([delete], middleware=[RequireApproval()]), token=TOKENS)
    async with in_process(app, "2026-07-28", tuple(TOKENS.values()), elicitation_callback=never) as (ann, bob):
        state = await open_question(ann, "a.txt")
        with pytest.raises(Exception, match="Invalid or expired"):
            await answer_question(bob, "a.txt", state)
        assert text_in(await answer_question(ann, "a.txt", state)) == "a.txt deleted"


@pytest.mark.exhaustive
async def test_open_questions_take_no_room_in_the_server() -> None:
    """Clients that ask and leave can neither fill the memory nor push out the question of another client."""
    app = mcp_app(ToolNode([delete], middleware=[RequireApproval()]))
    async with in_process(app, "2026-07-28", elicitation_callback=never) as (ann, bob):
        hers = await open_question(ann, "a.txt")
        tracemalloc.start()
        try:
            sizes: list[int] = []
            for _ in range(2):
                for _ in range(10):
                    await open_question(bob, "b" * 100_000)
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert sizes[1] - sizes[0] < 10 * 100_000 / 2
        assert text_in(await answer_question(ann, "a.txt", hers)) == "a.txt deleted"


async def test_a_client_cannot_make_or_change_the_state_of_a_question() -> None:
    """The state decides which call continues, so a forged one could continue a call that no person has approved."""
    app = mcp_app(ToolNode([delete], middleware=[RequireApproval()]))
    async with in_process(app, "2026-07-28", elicitation_callback=never) as (ann, _):
        state = await open_question(ann, "a.txt")
        for forged in ("", "v1.", state[:-4] + "AAAA", state.removeprefix("v1."), "callboard"):
            with pytest.raises(Exception, match="Invalid or expired"):
                await answer_question(ann, "a.txt", forged)


@pytest.mark.parametrize("token", [" ", {}, {"ann": " "}, {"ann": "one", "bob": "one"}])
def test_tokens_that_tell_no_clients_apart_are_refused(token: Any) -> None:
    """An empty token would let every client in."""
    with pytest.raises(ValueError, match="token"):
        mcp_app([delete], token=token)
