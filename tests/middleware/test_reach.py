"""What middleware may change about a call, the rules for such changes, and its notes."""

from typing import Any

import pytest
from langchain_core.tools import BaseTool

from callboard import CallEvent, CallPolicy, CallTimeoutError, Limit, ToolNode, observe
from callboard.middleware import note
from callboard.testing import Recorder, tool_call

WAIT = 1000


def instead(other: BaseTool) -> Any:
    async def middleware(request: Any, call_next: Any) -> Any:
        call = {**request.tool_call, "name": other.name}
        return await call_next(request.override(tool_call=call, tool=other))

    return middleware


def with_query(query: str) -> Any:
    async def middleware(request: Any, call_next: Any) -> Any:
        return await call_next(request.override(tool_call={**request.tool_call, "args": {"query": query}}))

    return middleware


async def test_another_tool_is_held_to_its_own_limit(recorder: Recorder) -> None:
    """Promise 7: if a middleware replaces the tool, the limit of the new tool applies."""
    first, second = recorder.tool("first"), recorder.tool("second", seconds=1)
    policies = {"second": CallPolicy(limit=Limit(concurrency=1))}
    node = ToolNode([first, second], middleware=[instead(second)], policies=policies)
    await node.ainvoke([tool_call("first", str(number)) for number in range(3)])
    assert recorder.peak_of("second") == 1
    assert recorder.count("started") == 3


async def test_another_tool_is_held_to_its_own_timeout(recorder: Recorder) -> None:
    first, second = recorder.tool("first"), recorder.tool("second", hang=True)
    policies = {"first": CallPolicy(timeout=9), "second": CallPolicy(timeout=2)}
    node = ToolNode([first, second], middleware=[instead(second)], policies=policies, handle_tool_errors=False)
    with pytest.raises(CallTimeoutError, match=r"'second'.*2 s"):
        await node.ainvoke([tool_call("first", "1")])


async def test_a_limits_key_sees_the_arguments_that_the_tool_gets() -> None:
    """Promise 7: the key is computed from the arguments after middleware changed them, not from the model's."""
    recorder, keys = Recorder(), []

    def by_query(call: Any) -> str:
        keys.append(call["args"]["query"])
        return str(call["args"]["query"])

    policies = {"work": CallPolicy(limit=Limit(concurrency=1, key=by_query))}
    node = ToolNode([recorder.tool("work")], middleware=[with_query("changed")], policies=policies)

    await node.ainvoke([tool_call("work", "1", query="written")])

    assert keys == ["changed"]


async def test_what_a_middleware_notes_reaches_the_observers() -> None:
    events: list[CallEvent] = []

    async def noting(request: Any, call_next: Any) -> Any:
        note("seen", attempts=2)
        return await call_next(request)

    with observe(events.append):
        await ToolNode([Recorder().tool("work")], middleware=[noting]).ainvoke([tool_call("work", "1")])

    (noted,) = [event for event in events if event.phase == "noted"]
    assert (noted.what, noted.facts, noted.call_id, noted.tool) == ("seen", {"attempts": 2}, "1", "work")
