"""wrap_tool_call and awrap_tool_call."""

from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from ._harness import ASYNC_MODES, DIRECT_MODES, Case, alike, asks, call, table_test, wants

Log = list[Any]


def wrapping_node(ns: Any, decide: Any, log: Log, *, sync: bool = True, **options: Any) -> Any:
    """A node whose wrapper is `decide`, a generator that yields requests and receives results."""

    def wrap(request: Any, execute: Any) -> Any:
        steps, result = decide(request, log), None
        while True:
            try:
                result = execute(steps.send(result))
            except StopIteration as stop:
                return stop.value

    async def awrap(request: Any, execute: Any) -> Any:
        steps, result = decide(request, log), None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as stop:
                return stop.value
            result = await execute(step)

    return ns.ToolNode([counter(log)], **({"wrap_tool_call": wrap} if sync else {"awrap_tool_call": awrap}), **options)


def counter(log: Log) -> Any:
    @tool
    def count(x: int) -> str:
        """Count."""
        log.append(("body", x))
        if x < 0:
            raise ValueError("below zero")
        return f"counted {x}"

    return count


def passes(request: Any, log: Log) -> Any:
    log.append(("request", request.tool_call, request.tool.name, sorted(request.state), request.runtime.tool_call_id))
    return (yield request)


def modifies(request: Any, log: Log) -> Any:
    args = {"x": request.tool_call["args"]["x"] * 10}
    return (yield request.override(tool_call={**request.tool_call, "args": args}))


def retries(request: Any, log: Log) -> Any:
    for attempt in range(3):
        changed = {**request.tool_call, "args": {"x": attempt}}
        result = yield request.override(tool_call=changed)
        log.append((attempt, result.content))
    return result


def short_circuits(request: Any, log: Log) -> Any:
    return ToolMessage("cached", tool_call_id=request.tool_call["id"], name="cache", id="m")
    yield


def marks_the_result(request: Any, log: Log) -> Any:
    result = yield request
    result.content += " and marked"
    return result


def gives_a_command(request: Any, log: Log) -> Any:
    result = yield request
    return Command(update={"messages": [result], "foo": "commanded"}, goto="other")


def gives_a_command_without_a_message(request: Any, log: Log) -> Any:
    return Command(update={"foo": "unchecked"})
    yield


def renames(request: Any, log: Log) -> Any:
    return (yield request.override(tool_call={**request.tool_call, "name": "renamed"}))


def invents_an_id(request: Any, log: Log) -> Any:
    return (yield request.override(tool_call={**request.tool_call, "id": "invented"}))


def answers_invalid_arguments(request: Any, log: Log) -> Any:
    result = yield request.override(tool_call={**request.tool_call, "args": {"x": "no"}})
    log.append(("status", result.status))
    return result


DECISIONS = [
    passes,
    modifies,
    retries,
    short_circuits,
    marks_the_result,
    gives_a_command,
    gives_a_command_without_a_message,
    renames,
    invents_an_id,
    answers_invalid_arguments,
]


def raises_before(request: Any, log: Log) -> Any:
    raise RuntimeError("wrapper failed")
    yield


def raises_after(request: Any, log: Log) -> Any:
    log.append((yield request))
    raise RuntimeError("wrapper failed")


def only_value_errors(e: ValueError) -> str:
    return f"told: {e!r}"


def deciding(decide: Any, *, sync: bool = True, **options: Any) -> Any:
    """Return a scenario of a wrapper that decides so."""

    def scenario(ns: Any) -> Case:
        log: Log = []
        return Case(wrapping_node(ns, decide, log, sync=sync, **options), wants("count", {"x": 2}, foo="f"), log=log)

    return scenario


FLAGS = {
    "True": True,
    "a text": "own text",
    "types": (KeyError,),
    "a type": ValueError,
    "a function": only_value_errors,
}
DECIDED: dict[str, Any] = {
    **{decide.__name__: deciding(decide) for decide in DECISIONS},
    **{
        f"{decide.__name__}, handled by {name}": deciding(decide, handle_tool_errors=flag)
        for decide in (raises_before, raises_after)
        for name, flag in FLAGS.items()
    },
    **{
        f"{decide.__name__}, {options}": (deciding(decide, **options), "RuntimeError")
        for decide in (raises_before, raises_after)
        for options in ({}, {"handle_tool_errors": False})
    },
}
test_a_sync_wrapper = table_test(DECIDED)
test_an_async_wrapper = table_test(
    {decision.__name__: deciding(decision, sync=False) for decision in DECISIONS}, modes=ASYNC_MODES
)


@pytest.mark.parametrize("handled", [True, False])
@alike
def test_an_error_of_the_body_reaches_the_wrapper_only_unhandled(ns: Any, handled: bool) -> Case:
    log: Log = []

    def catches(request: Any, execute: Any) -> Any:
        try:
            result = execute(request)
        except ValueError as error:
            log.append(("caught", error))
            return ToolMessage("caught", tool_call_id=request.tool_call["id"], id="m")
        log.append(("result", result.status))
        return result

    node = ns.ToolNode([counter(log)], handle_tool_errors=handled, wrap_tool_call=catches)
    return Case(node, wants("count", {"x": -1}), log=log)


@alike
def test_a_wrapper_wraps_every_call(ns: Any) -> Case:
    calls = asks(*(call("count", {"x": n}, f"c{n}") for n in range(4)))
    return Case(wrapping_node(ns, modifies, []), {"messages": [calls]})


def with_tools(wrap: Any, tools: Any, name: str, args: dict[str, Any]) -> Any:
    return lambda ns: Case(ns.ToolNode(tools, wrap_tool_call=wrap), wants(name, args, foo="f"))


def answers(request: Any, execute: Any) -> Any:
    return ToolMessage(f"tool is {request.tool}", tool_call_id=request.tool_call["id"], name="missing", id="m")


def rename_call(request: Any, execute: Any) -> Any:
    return execute(request.override(tool_call={**request.tool_call, "name": "count"}))


def brings(tool: Any) -> Any:
    return lambda request, execute: execute(request.override(tool=tool))


def missing(x: int, foo: Annotated[str, InjectedState("foo")]) -> str:
    """Brought along."""
    return f"brought {x} {foo}"


def peek(foo: Annotated[str, InjectedState("foo")]) -> str:
    """Peek."""
    return foo


def with_another_state(request: Any, execute: Any) -> Any:
    return execute(request.override(state={"messages": [], "foo": "overridden"}))


def forges(request: Any, execute: Any) -> Any:
    return execute(request.override(tool_call={**request.tool_call, "args": {"foo": "forged"}}))


def takes_y(y: int) -> str:
    """Brought along."""
    return f"brought {y}"


def scenario_without_tool(wrap: Any) -> Any:
    return with_tools(wrap, [counter([])], "missing", {"x": 1})


test_a_wrapper_changes_the_tool_or_the_state = table_test(
    {
        "an answer for an unregistered tool": scenario_without_tool(answers),
        "an unregistered tool that is executed": scenario_without_tool(lambda request, execute: execute(request)),
        "an unregistered call that is renamed": (scenario_without_tool(rename_call), "TypeError"),
        "a tool that is brought along": scenario_without_tool(brings(tool(missing))),
        "a tool that is brought along and refuses arguments": scenario_without_tool(
            brings(StructuredTool.from_function(takes_y, name="missing"))
        ),
        "another state, which reaches injection": with_tools(with_another_state, [peek], "peek", {}),
        "forged values": with_tools(forges, [peek], "peek", {}),
    }
)


@alike(modes=ASYNC_MODES)
def test_of_both_wrappers_the_async_one_is_taken_in_async_code(ns: Any) -> Case:
    def sync(request: Any, execute: Any) -> Any:
        return ToolMessage("sync", tool_call_id=request.tool_call["id"], id="m")

    async def later(request: Any, execute: Any) -> Any:
        return ToolMessage("async", tool_call_id=request.tool_call["id"], id="m")

    return Case(ns.ToolNode([counter([])], wrap_tool_call=sync, awrap_tool_call=later), wants("count", {"x": 1}))


@alike
def test_an_assigned_attribute_is_used_by_the_execution(ns: Any) -> Case:
    def assigns(request: Any, execute: Any) -> Any:
        with pytest.warns(DeprecationWarning, match="Setting attribute 'tool_call'"):
            request.tool_call = {**request.tool_call, "args": {"x": 99}}
        return execute(request)

    return Case(ns.ToolNode([counter([])], wrap_tool_call=assigns), wants("count", {"x": 1}))


test_a_wrapper_that_returns_no_message_is_passed_on_alike = table_test(
    {
        repr(result): with_tools(lambda request, execute, result=result: result, [counter([])], "count", {"x": 1})  # type: ignore[misc]
        for result in ("text", None, 7)
    },
    modes=DIRECT_MODES,
)
