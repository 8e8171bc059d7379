"""wrap_tool_call and awrap_tool_call."""

from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from ._harness import ASYNC_MODES, Case, alike, asks, call, wants
from .conftest import Same

Log = list[Any]


def wrapped(ns: Any, decide: Any, log: Log, *, sync: bool = True, **options: Any) -> Any:
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


@pytest.mark.parametrize("decide", DECISIONS, ids=lambda decide: decide.__name__)
@alike
def test_a_sync_wrapper(ns: Any, decide: Any) -> Case:
    log: Log = []
    return Case(wrapped(ns, decide, log), wants("count", {"x": 2}, foo="f"), log=log)


@pytest.mark.parametrize("decide", DECISIONS, ids=lambda decide: decide.__name__)
@alike(modes=ASYNC_MODES)
def test_an_async_wrapper(ns: Any, decide: Any) -> Case:
    log: Log = []
    return Case(wrapped(ns, decide, log, sync=False), wants("count", {"x": 2}, foo="f"), log=log)


def raises_before(request: Any, log: Log) -> Any:
    raise RuntimeError("wrapper failed")
    yield


def raises_after(request: Any, log: Log) -> Any:
    log.append((yield request))
    raise RuntimeError("wrapper failed")


def only_value_errors(e: ValueError) -> str:
    return f"told: {e!r}"


@pytest.mark.parametrize("decide", [raises_before, raises_after], ids=lambda decide: decide.__name__)
@pytest.mark.parametrize("flag", [True, "own text", (KeyError,), ValueError, only_value_errors])
@alike
def test_an_error_of_the_wrapper_is_handled(ns: Any, decide: Any, flag: Any) -> Case:
    log: Log = []
    return Case(wrapped(ns, decide, log, handle_tool_errors=flag), wants("count", {"x": 2}), log=log)


@pytest.mark.parametrize("options", [{}, {"handle_tool_errors": False}], ids=["default", "false"])
@pytest.mark.parametrize("decide", [raises_before, raises_after], ids=lambda decide: decide.__name__)
@alike(raises="RuntimeError")
def test_an_error_of_the_wrapper_is_raised(ns: Any, decide: Any, options: dict[str, Any]) -> Case:
    log: Log = []
    return Case(wrapped(ns, decide, log, **options), wants("count", {"x": 2}), log=log)


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
    return Case(wrapped(ns, modifies, []), {"messages": [calls]})


def unregistered(ns: Any, wrap: Any, **options: Any) -> Case:
    return Case(ns.ToolNode([counter([])], wrap_tool_call=wrap, **options), wants("missing", {"x": 1}, foo="f"))


def test_a_wrapper_answers_for_an_unregistered_tool(same: Same) -> None:
    def answers(request: Any, execute: Any) -> Any:
        return ToolMessage(f"tool is {request.tool}", tool_call_id=request.tool_call["id"], name="missing", id="m")

    same(lambda ns: unregistered(ns, answers))


def test_executing_an_unregistered_tool_says_that_it_is_none(same: Same) -> None:
    same(lambda ns: unregistered(ns, lambda request, execute: execute(request)))


def test_renaming_an_unregistered_call_without_a_tool_is_a_type_error(same: Same) -> None:
    def renamed(request: Any, execute: Any) -> Any:
        return execute(request.override(tool_call={**request.tool_call, "name": "count"}))

    same(lambda ns: unregistered(ns, renamed), raises="TypeError")


@alike
def test_a_wrapper_brings_the_tool_along(ns: Any) -> Case:
    @tool
    def missing(x: int, foo: Annotated[str, ns.InjectedState("foo")]) -> str:
        """Brought along."""
        return f"brought {x} {foo}"

    return unregistered(ns, lambda request, execute: execute(request.override(tool=missing)))


def test_a_brought_tool_tells_invalid_arguments(same: Same) -> None:
    @tool
    def missing(y: int) -> str:
        """Brought along."""
        return f"brought {y}"

    same(lambda ns: unregistered(ns, lambda request, execute: execute(request.override(tool=missing))))


@alike
def test_an_overridden_state_does_not_reach_injection(ns: Any) -> Case:
    @tool
    def peek(foo: Annotated[str, ns.InjectedState("foo")]) -> str:
        """Peek."""
        return foo

    def wrap(request: Any, execute: Any) -> Any:
        return execute(request.override(state={"messages": [], "foo": "overridden"}))

    return Case(ns.ToolNode([peek], wrap_tool_call=wrap), wants("peek", {}, foo="original"))


@alike
def test_forged_values_are_stripped_behind_the_wrapper(ns: Any) -> Case:
    @tool
    def peek(foo: Annotated[str, ns.InjectedState("foo")]) -> str:
        """Peek."""
        return foo

    def wrap(request: Any, execute: Any) -> Any:
        return execute(request.override(tool_call={**request.tool_call, "args": {"foo": "forged"}}))

    return Case(ns.ToolNode([peek], wrap_tool_call=wrap), wants("peek", {}, foo="original"))


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


@pytest.mark.parametrize("result", ["text", None, 7], ids=repr)
def test_a_wrapper_that_returns_no_message_is_passed_on_alike(result: Any, same_direct: Same) -> None:
    same_direct(
        lambda ns: Case(
            ns.ToolNode([counter([])], wrap_tool_call=lambda request, execute: result), wants("count", {"x": 1})
        )
    )
