"""The typed surface, as users meet it; the type checkers read this file, nothing runs it."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, assert_type

from langchain_core.tools import tool
from langgraph.runtime import RunControl
from langgraph.types import GraphOutput

from callboard import (
    Agent,
    CallContext,
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    Limit,
    Rate,
    Statistics,
    ToolCallRequest,
    ToolNode,
    cleanup,
    create_react_agent,
    observe,
    progress,
    remaining,
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
    made = create_react_agent("openai:gpt-5", [fetch], prompt="Be brief.")
    assert_type(made, Agent)
    assert_type(made.invoke({"messages": []}), dict[str, Any])
    assert_type(await made.ainvoke({"messages": []}, control=RunControl(), budget=3.0), dict[str, Any])
    assert_type(await made.ainvoke(None, version="v2", durability="sync"), GraphOutput[Any])
    assert_type(made.invoke(None, version="v2"), GraphOutput[Any])
    assert_type(await made.ainvoke(None, output_keys=["messages"]), dict[str, Any])
    assert_type(await made.ainvoke(None, output_keys="messages"), Any)
    assert_type(await made.ainvoke(None, stream_mode=["updates", "values"]), Any)
    assert_type(made.astream(None, stream_mode="updates", subgraphs=True), AsyncGenerator[Any])
    assert_type(made.astream(None, version="v2"), AsyncGenerator[dict[str, Any]])
    assert_type(made.stream(None, version="v2"), Iterator[dict[str, Any]])


def watch(event: CallEvent) -> None:
    assert_type(event.queue_wait, float)
    assert_type(event.message, str | None)


def observed() -> None:
    with observe(watch):
        pass


async def misspelt() -> None:
    made, tools = create_react_agent("openai:gpt-5", [fetch]), ToolNode([fetch])
    await made.ainvoke(None, cofig={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    made.invoke(None, cofig={})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    made.astream(None, strem_mode="values")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    made.stream(None, strem_mode="values")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await tools.ainvoke([], cofig={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tools.invoke([], cofig={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


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
