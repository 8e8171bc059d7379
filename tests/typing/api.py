"""The typed surface, as users meet it; the type checkers read this file, nothing runs it."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, assert_type

from langchain_core.tools import tool
from langgraph.runtime import RunControl
from langgraph.types import GraphOutput

from callboard import (
    Actor,
    Agent,
    CallContext,
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    Limit,
    Rate,
    Reply,
    Statistics,
    Supervisor,
    ToolCallRequest,
    ToolNode,
    child,
    cleanup,
    create_react_agent,
    handler,
    keyed,
    observe,
    progress,
    remaining,
    running,
)
from callboard.middleware import Cache, CircuitBreaker


@tool
async def fetch(url: str) -> str:
    """Fetch a page."""
    with cleanup():
        return url


def by_host(call: Mapping[str, Any]) -> str:
    return str(call["args"]["url"])


def by_user(call: Mapping[str, Any], context: CallContext) -> str:
    return str(context.config["configurable"]["user_id"])


def by_request(request: ToolCallRequest, context: CallContext) -> tuple[str, str]:
    return request.tool_call["name"], str(context.context)


def keys() -> None:
    Limit(1, key=by_user)
    Limit(1, key=lambda call: call["args"]["host"])
    Limit(1, key=lambda call, context: context.config["configurable"]["user_id"])
    CircuitBreaker(key=by_host)
    CircuitBreaker(key=by_user)
    CircuitBreaker(key=lambda call, context: context.state["user_id"])
    Cache({"fetch"}, key=by_request)
    Cache({"fetch"}, key=lambda request: request.tool_call["name"])
    Cache({"fetch"}, key=lambda request, context: (request.tool_call["name"], context.context))
    assert_type(CallContext({}, None, None).config, Mapping[str, Any])


async def node() -> None:
    limit = Limit(concurrency=8, queue=100, rate=Rate(20, per=1.0), key=by_host)
    tools = ToolNode([fetch], timeout=1.0, policies={"fetch": CallPolicy(timeout=2.0, limit=limit)}, on_error="finish")
    assert_type(tools.statistics(), Statistics)
    assert_type(remaining(), float)
    assert_type(progress("page 3 of 7", done=3, total=7.5), None)
    assert_type(CallPolicy(idle_timeout=30).idle_timeout, float | None)
    try:
        await tools.ainvoke([{"name": "fetch", "args": {}, "id": "1", "type": "tool_call"}])
    except CallsInterrupted as waiting:
        await tools.ainvoke([], ledger=waiting.ledger, resume={waiting.interrupts[0].id: "yes"})


async def agent() -> None:
    new_agent = create_react_agent("openai:gpt-5", [fetch], prompt="Be brief.")
    assert_type(new_agent, Agent)
    assert_type(new_agent.invoke({"messages": []}), dict[str, Any])
    assert_type(await new_agent.ainvoke({"messages": []}, control=RunControl(), budget=3.0), dict[str, Any])
    assert_type(await new_agent.ainvoke(None, version="v2", durability="sync"), GraphOutput[dict[str, Any]])
    assert_type(new_agent.invoke(None, version="v2"), GraphOutput[dict[str, Any]])
    assert_type(await new_agent.ainvoke(None, output_keys=["messages"]), dict[str, Any])
    assert_type(await new_agent.ainvoke(None, output_keys="messages"), Any)
    assert_type(await new_agent.ainvoke(None, stream_mode=["updates", "values"]), Any)
    assert_type(new_agent.astream(None, stream_mode="updates", subgraphs=True), AsyncGenerator[Any])
    assert_type(new_agent.astream(None, version="v2"), AsyncGenerator[dict[str, Any]])
    assert_type(new_agent.stream(None, version="v2"), Iterator[dict[str, Any]])


def watch(event: CallEvent) -> None:
    assert_type(event.queue_wait, float)
    assert_type(event.message, str | None)


def observe_calls() -> None:
    with observe(watch):
        pass


async def misspelt() -> None:
    new_agent, tools = create_react_agent("openai:gpt-5", [fetch]), ToolNode([fetch])
    await new_agent.ainvoke(None, cofig={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    new_agent.invoke(None, cofig={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    new_agent.astream(None, strem_mode="values")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    new_agent.stream(None, strem_mode="values")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await tools.ainvoke([], cofig={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    tools.invoke([], cofig={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def no_user(call: Mapping[str, Any], context: CallContext, user: str) -> str:
    return user


def wrong() -> None:
    Limit(1, key=no_user)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Limit(1, key="host")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ToolNode([fetch], on_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    progress("half way", 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    progress(done="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    CallPolicy(2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Limit(concurrency="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Notebook(Actor):
    """Handlers of every kind."""

    groups = {"reads": 8}
    fatal = (ConnectionError, OSError)

    def __init__(self, path: str) -> None:
        self.path = path
        self.replies: list[Reply[list[str]]] = []

    async def start(self) -> None:
        assert_type(await self.enter(nullcontext("file")), str)
        assert_type(await self.enter(an_async_one()), bytes)

    def stop(self) -> None:
        self.replies.clear()

    @handler
    async def append(self, line: str, *, times: int = 1) -> int:
        assert_type(await self.read(), str)
        return len(line) * times

    @handler
    def sync(self, line: str) -> float:
        return float(line)

    @handler(group="reads")
    async def read(self) -> str:
        return self.path

    @handler(on_cancel="restart", reentrant=True)
    def sync_with_options(self, number: int) -> bytes:
        return bytes(number)

    @handler(deferred=True)
    async def later(self, reply: Reply[list[str]], name: str) -> None:
        assert_type(reply.send([name]), bool)
        assert_type(reply.fail(ValueError(name)), bool)
        reply.send(name)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Typed(Notebook):
    """What is inherited is there."""

    @handler
    async def more(self) -> None:
        pass


@asynccontextmanager
async def an_async_one() -> AsyncGenerator[bytes]:
    yield b""


async def ask_notebook(notebook: Notebook) -> None:
    assert_type(await notebook.append("x"), int)
    assert_type(await notebook.append("x", times=3), int)
    assert_type(await notebook.sync("1"), float)
    assert_type(await notebook.read(), str)
    assert_type(await notebook.sync_with_options(1), bytes)
    assert_type(await notebook.later("x"), list[str])


async def lives() -> None:
    async with running(Notebook("a")) as notebook:
        assert_type(notebook, Notebook)
        await ask_notebook(notebook)
    async with running(child(Typed, "a", name="typed")) as typed:
        assert_type(typed, Typed)
        assert_type(await typed.append("x"), int)
        assert_type(await typed.more(), None)
    async with Supervisor([Notebook("a"), child(Typed, "b"), Supervisor([Notebook])]) as tree:
        assert_type(tree, Supervisor)
        assert_type(tree[Notebook], Notebook)
        assert_type(await tree[Typed].append("x"), int)
        assert_type(tree["Notebook"], Any)
    async with keyed(Notebook("a"), cap=10) as notebooks:
        assert_type(notebooks["mine"], Notebook)
        assert_type(await notebooks["mine", 1].read(), str)
    ToolNode([fetch, Notebook("a"), child(Typed("b"), prefix="typed_", key=by_user)])


async def ask_wrongly(notebook: Notebook, tree: Supervisor) -> None:
    await notebook.append(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await notebook.append()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await notebook.append("x", tims=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await notebook.sync(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await notebook.read("x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await notebook.later(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await notebook.apend("x")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    tree[str]  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tree[1]  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    child(str)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    child(Notebook, restart="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handler(grup="reads")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    handler(on_cancel="stop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
