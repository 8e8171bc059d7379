"""The typed surface, as users meet it; the type checkers read this file, nothing runs it."""

from collections.abc import Mapping
from typing import Any, assert_type

from langchain_core.tools import tool

from callboard import (
    Agent,
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    Limit,
    Rate,
    Statistics,
    ToolNode,
    cleanup,
    create_react_agent,
    observe,
    remaining,
)


@tool
async def fetch(url: str) -> str:
    """Fetch a page."""
    with cleanup():
        return url


def by_host(call: Mapping[str, Any]) -> str:
    return str(call["args"]["url"])


async def node() -> None:
    limit = Limit(concurrency=8, queue=100, rate=Rate(20, per=1.0), key=by_host)
    tools = ToolNode([fetch], timeout=1.0, policies={"fetch": CallPolicy(timeout=2.0, limit=limit)}, on_error="finish")
    assert_type(tools.statistics(), Statistics)
    assert_type(remaining(), float)
    try:
        await tools.ainvoke([{"name": "fetch", "args": {}, "id": "1", "type": "tool_call"}])
    except CallsInterrupted as waiting:
        await tools.ainvoke([], ledger=waiting.ledger, resume={waiting.interrupts[0].id: "yes"})


def agent() -> None:
    assert_type(create_react_agent("openai:gpt-5", [fetch], prompt="Be brief."), Agent)


def watch(event: CallEvent) -> None:
    assert_type(event.queue_wait, float)


def observed() -> None:
    with observe(watch):
        pass


def wrong() -> None:
    ToolNode([fetch], on_error="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    CallPolicy(2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Limit(concurrency="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
