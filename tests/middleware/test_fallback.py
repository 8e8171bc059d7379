"""`Fallback`: alternatives that answer for a tool that failed, under the id of the failed call."""

import threading
from contextlib import nullcontext
from typing import Any

import anyio
import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.types import Command, interrupt
from pydantic import TypeAdapter, ValidationError

from callboard import (
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    Limit,
    ToolInvocationError,
    ToolNode,
    observe,
    remaining,
    tool_call,
)
from callboard.middleware import CircuitBreaker, Fallback, Retry, Value
from callboard.testing import Recorder


def failing(recorder: Recorder, name: str = "search", error: Exception | None = None, **behaviour: Any) -> Any:
    return recorder.tool(name, raises=error or ConnectionError("down"), **behaviour)


def node_of(tools: list[Any], alternatives: Any, *inner: Any, on: Any = None, **options: Any) -> ToolNode:
    chosen = {} if on is None else {"on": on}
    return ToolNode(tools, middleware=[Fallback({"search": alternatives}, **chosen), *inner], **options)


async def answer_of(node: ToolNode, call: Any = None) -> ToolMessage:
    (message,) = (await node.ainvoke([call or tool_call("search", "1", query="tea")]))["messages"]
    assert isinstance(message, ToolMessage)
    return message


def by(message: ToolMessage) -> Any:
    return message.additional_kwargs.get("callboard", {}).get("fallback")


async def test_another_tool_of_the_node_answers(recorder: Recorder) -> None:
    """It gets the same arguments, and the message has the call's id. A tool that works is left alone."""
    message = await answer_of(node_of([failing(recorder), recorder.tool("cached_search")], "cached_search"))
    assert recorder.order == ["search(tea)", "cached_search(tea)"]
    assert (message.content, message.status) == ("tea", "success")
    assert (message.name, message.tool_call_id) == ("search", "1")
    assert message.additional_kwargs == {"callboard": {"fallback": "cached_search"}}
    works = Recorder()
    message = await answer_of(node_of([works.tool("search"), works.tool("cached_search")], "cached_search"))
    assert works.order == ["search(tea)"]
    assert by(message) is None


async def test_a_tool_without_an_alternative_fails_as_ever() -> None:
    recorder, error = Recorder(), ConnectionError("down")
    tools = [failing(recorder, "fetch", error), recorder.tool("search"), recorder.tool("x")]
    node = node_of(tools, "x")
    with pytest.raises(ConnectionError) as caught:
        await answer_of(node, tool_call("fetch", "1"))
    assert caught.value is error


async def test_a_tool_that_the_model_does_not_know_may_answer(recorder: Recorder) -> None:
    """An alternative may be a tool that is in no list of tools, not even the node's."""
    node = node_of([failing(recorder)], recorder.tool("hidden"))
    message = await answer_of(node)
    assert (message.content, by(message)) == ("tea", "hidden")
    assert list(node.tools_by_name) == ["search"]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        *(("Search is down.", "Search is down."), ({"hits": []}, '{"hits": []}'), ([1, 2], "[1, 2]")),
        *(([], []), ("", ""), (None, "null")),
        ([{"type": "text", "text": "down"}], [{"type": "text", "text": "down"}]),
    ],
    ids=repr,
)
async def test_a_value_answers(value: Any, content: Any) -> None:
    """A text is used as it is. Other values are formatted like the result of a tool."""
    message = await answer_of(node_of([failing(Recorder())], Value(value)))
    assert message.content == content
    assert (message.status, by(message)) == ("success", "value")


async def answer_from_cache(request: Any, failure: Any) -> str:
    await anyio.sleep(0)
    return f"cached {request.tool_call['args']['query']} after {failure}"


def from_a_file(request: Any, failure: Any) -> str:
    return f"{threading.current_thread() is threading.main_thread()}"


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("function", "content"),
    [
        (answer_from_cache, "cached tea after down"),
        (from_a_file, "False"),
        (lambda request, failure: answer_from_cache(request, failure), "cached tea after down"),
    ],
    ids=["async", "sync, in a thread", "plain around async"],
)
async def test_a_function_answers(function: Any, content: str) -> None:
    """Promise 8: a sync function may block. A lambda around an async function looks sync but returns an awaitable."""
    message = await answer_of(node_of([failing(Recorder())], function))
    assert (message.content, by(message)) == (content, function.__name__)


async def test_a_function_may_return_a_message_or_a_command(recorder: Recorder) -> None:
    """A function may return what a tool may return. An error message that it returns is its answer."""
    aside = ToolMessage("aside", tool_call_id="another")

    async def refuse(request: Any, failure: Any) -> ToolMessage:
        return ToolMessage("gone", tool_call_id="1", status="error", additional_kwargs={"a": 1, "callboard": {"b": 2}})

    async def command(request: Any, failure: Any) -> Command[Any]:
        return Command(update={"messages": [aside, ToolMessage("moved", tool_call_id="1")], "x": 1})

    fallback = Fallback({"search": refuse, "fetch": command})
    node = ToolNode([failing(recorder), failing(recorder, "fetch")], middleware=[fallback])

    message = await answer_of(node)
    assert (message.status, message.name) == ("error", "search")
    assert message.additional_kwargs["a"] == 1
    assert message.additional_kwargs["callboard"]["b"] == 2
    assert by(message) == "refuse"
    (moved,) = await node.ainvoke({"messages": [AIMessage("", tool_calls=[tool_call("fetch", "1")])]})
    first, answer = moved.update["messages"]
    assert first == aside
    assert (answer.name, by(answer), moved.update["x"]) == ("fetch", "command", 1)


async def test_what_another_tool_returned_stays_as_it_was() -> None:
    """The alternative may keep its message, as a cache does, so the message is copied before it is changed."""
    stored_message = ToolMessage("kept", tool_call_id="1", name="cached")

    async def cached(query: str = "") -> ToolMessage:
        """Answer from memory."""
        return stored_message

    node = node_of([failing(Recorder()), cached], "cached")

    assert (await answer_of(node)).name == "search"
    assert (stored_message.name, stored_message.additional_kwargs) == ("cached", {})


async def test_alternatives_are_tried_in_order(recorder: Recorder) -> None:
    tools = [failing(recorder), failing(recorder, "second"), recorder.tool("third"), recorder.tool("fourth")]
    node = node_of(tools, ["second", "third", "fourth", Value("none")])
    assert by(await answer_of(node)) == "third"
    assert [line.partition("(")[0] for line in recorder.order] == ["search", "second", "third"]


async def test_the_first_error_stands_when_all_fail() -> None:
    """The first error is raised unwrapped with its own traceback. Its notes list the errors of the alternatives."""
    recorder, error = Recorder(), ConnectionError("first")

    async def broken(request: Any, failure: Any) -> str:
        raise KeyError("third")

    tools = [failing(recorder, error=error), failing(recorder, "second", ValueError("second"))]
    node = node_of(tools, ["second", broken])

    with pytest.raises(ConnectionError) as caught:
        await answer_of(node)

    assert caught.value is error
    assert caught.value.__cause__ is None
    notes = error.__notes__
    assert len(notes) == 3
    assert notes[2] == "In tool 'search' (call '1')."
    assert "The fallback 'second' failed too: ValueError('second')" in notes[0]
    assert "KeyError('third')" in notes[1]


async def test_an_error_message_of_another_tool_is_no_answer() -> None:
    """An error message of the alternative would tell the model about arguments and a tool that it did not use."""
    recorder, error = Recorder(), ConnectionError("down")

    async def by_number(number: int) -> str:
        """Search by number."""
        return "never"

    node = node_of([failing(recorder, error=error), by_number], "by_number")

    with pytest.raises(ConnectionError):
        await answer_of(node)

    assert error.__notes__ == [
        "The fallback 'by_number' failed too: it answered with an error message",
        "In tool 'search' (call '1').",
    ]


async def test_invalid_arguments_are_no_failure(recorder: Recorder) -> None:
    async def search(count: int) -> str:
        """Search."""
        return "never"

    node = node_of([search, recorder.tool("other")], "other")
    message = await answer_of(node, tool_call("search", "1", count="many"))

    assert message.status == "error"
    assert "count" in str(message.content)
    assert recorder.order == []


@pytest.mark.parametrize(
    ("on", "falls_back"),
    [
        (ConnectionError, True),
        ((KeyError, OSError), True),
        (lambda error: "down" in str(error), True),
        (KeyError, False),
        (lambda _: False, False),
    ],
)
async def test_only_chosen_errors_are_failures(on: Any, falls_back: bool) -> None:
    node = node_of([failing(Recorder())], Value("v"), on=on, handle_tool_errors=True)
    assert by(await answer_of(node)) == ("value" if falls_back else None)


async def test_another_tool_is_held_to_its_own_policy(recorder: Recorder) -> None:
    """The alternative runs under its own limit and timeout, not those of the failed tool."""
    policies = {"other": CallPolicy(timeout=3, limit=Limit(concurrency=1))}
    tools = [failing(recorder), recorder.tool("other", hang=True)]
    node = node_of(tools, ["other", Value("v")], policies=policies)
    started = anyio.current_time()
    await node.ainvoke([tool_call("search", f"{number}") for number in range(3)])
    assert anyio.current_time() - started == pytest.approx(9)
    assert recorder.peak_of("other") == 1


async def test_no_alternative_is_started_when_time_is_up() -> None:
    """Promise 6: if the budget has ended, the first error is the result."""
    recorder, error = Recorder(), ConnectionError("late")

    async def stubborn(request: Any, call_next: Any) -> Any:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(11)
        assert remaining() == 0
        raise error

    tools, policies = [recorder.tool("search"), recorder.tool("other")], {"search": CallPolicy(budget=10, grace=5)}
    node = node_of(tools, ["other", Value("v")], stubborn, policies=policies)
    message = await answer_of(node)

    assert message.additional_kwargs["callboard"]["ended"] == "deadline"
    assert recorder.order == []
    assert not hasattr(error, "__notes__")


async def test_a_question_is_no_failure(recorder: Recorder) -> None:
    """Promise 4: questions of the tool and of an alternative reach the person."""

    async def search() -> str:
        """Search."""
        return str(interrupt("first?"))

    async def ask(request: Any, failure: Any) -> str:
        return str(interrupt("second?"))

    first = node_of([search, recorder.tool("other")], "other")
    second = node_of([failing(recorder)], [ask, Value("v")])

    for node, question in ((first, "first?"), (second, "second?")):
        call = tool_call("search", "1")
        with pytest.raises(CallsInterrupted) as caught:
            await answer_of(node, call)
        assert [open_question.value for open_question in caught.value.interrupts] == [question]
        result = await node.ainvoke([call], ledger=caught.value.ledger, resume="yes")
        assert result["messages"][0].content == "yes"

    assert recorder.count("started", "other") == 0


async def test_neither_questions_nor_invalid_arguments_of_middleware_are_failures() -> None:
    """An interrupt or argument error raised by inner middleware starts no alternative."""
    began: list[str] = []

    async def stand_in(request: Any, failure: Any) -> str:
        began.append(type(failure).__name__)
        return "never"

    async def asks(request: Any, call_next: Any) -> Any:
        interrupt("may I?")

    async def validates(request: Any, call_next: Any) -> Any:
        try:
            TypeAdapter(int).validate_python("x")
        except ValidationError as error:
            raise ToolInvocationError("search", error, {}) from error

    for middleware, outcome in ((asks, CallsInterrupted), (validates, None)):
        node = ToolNode([Recorder().tool("search")], middleware=[Fallback({"search": stand_in}), middleware])
        with nullcontext() if outcome is None else pytest.raises(outcome):
            assert (await answer_of(node)).status == "error"

    assert began == []


async def test_an_open_circuit_is_a_failure(recorder: Recorder) -> None:
    middleware = [Fallback({"search": "other"}), CircuitBreaker(minimum=2)]
    node = ToolNode([failing(recorder), recorder.tool("other")], middleware=middleware)
    for _ in range(5):
        assert by(await answer_of(node)) == "other"
    assert (recorder.count("started", "search"), recorder.count("started", "other")) == (2, 5)


async def test_a_fallback_waits_for_all_attempts(recorder: Recorder) -> None:
    """A retry inside the fallback makes all its attempts first. The alternative has its own attempts."""
    tools = [failing(recorder), failing(recorder, "other", times=1)]
    policies = {name: CallPolicy(idempotent=True) for name in ("search", "other")}
    middleware = [Fallback({"search": "other"}), Retry(3, initial=0, any_tool=True)]
    assert by(await answer_of(ToolNode(tools, middleware=middleware, policies=policies))) == "other"
    assert (recorder.count("started", "search"), recorder.count("started", "other")) == (3, 2)


async def test_observers_are_told_who_takes_over(recorder: Recorder) -> None:
    """Observers get the name of the alternative and the error type, without arguments or results."""
    events: list[CallEvent] = []
    tools = [failing(recorder), failing(recorder, "second", ValueError("secret"))]
    node = node_of(tools, ["second", Value("v")])

    with observe(events.append):
        await answer_of(node)

    noted = [(event.note, dict(event.facts)) for event in events if event.phase == "noted"]
    assert noted == [
        ("fallback", {"to": "second", "error": "ConnectionError"}),
        ("fallback_failed", {"to": "second", "error": "ValueError"}),
        ("fallback", {"to": "value", "error": "ConnectionError"}),
    ]


def test_a_slip_in_the_name_of_an_alternative_shows_where_the_node_is_built() -> None:
    """Without this check, a typo would show only at the first failure of the tool."""
    with pytest.raises(ValueError, match=r"no tool 'cached', only \['search'\].* Value\('cached'\)"):
        node_of([Recorder().tool("search")], "cached")


@pytest.mark.parametrize(
    ("alternative", "kind", "text"),
    [
        ({"search": 7}, TypeError, r"got 7; to answer with that, write Value\(7\)"),
        ({"search": {"a": 1}}, TypeError, r"write Value\(\{'a': 1\}\)"),
        ({"search": ["other", None]}, TypeError, r"write Value\(None\)"),
        ({"search": ValueError}, TypeError, "takes the name of a tool"),
        ({"search": []}, ValueError, "no alternative"),
        ({"search": "search"}, ValueError, "cannot stand in for itself"),
        ("search", TypeError, "by tool name"),
    ],
    ids=repr,
)
def test_what_is_no_alternative_is_refused(alternative: Any, kind: type[Exception], text: str) -> None:
    """The error comes at construction and says what to pass."""
    with pytest.raises(kind, match=text):
        Fallback(alternative)


class Starts(AsyncCallbackHandler):
    """Callback that records the tags of each tool run."""

    def __init__(self) -> None:
        self.tags: list[tuple[str, list[str]]] = []

    async def on_tool_start(self, serialized: dict[str, Any], input_str: str, **kwargs: Any) -> None:
        self.tags.append((serialized["name"], kwargs["tags"]))


@pytest.mark.real_clock
async def test_a_tool_that_the_node_does_not_know_runs_under_its_own_callbacks_and_tags() -> None:
    recorder, starts = Recorder(), Starts()

    def make_tool(name: str) -> StructuredTool:
        tool = recorder.tool(name)
        tool.tags = [name]
        return tool

    async def many(request: Any, call_next: Any) -> Any:
        for number in range(100):
            tool = make_tool(f"tool_{number}")
            output = await call_next(request.override(tool=tool, tool_call={**request.tool_call, "name": tool.name}))
        return output

    node = ToolNode([recorder.tool("search")], middleware=[many])
    await node.ainvoke([tool_call("search", "1")], {"callbacks": [starts]})

    assert [tags for _, tags in starts.tags] == [[name] for name, _ in starts.tags]


async def test_what_it_covers_stays_offered_while_the_circuit_is_open(recorder: Recorder) -> None:
    """The model may still call the tool, because the fallback answers while its circuit is open."""
    breaker = CircuitBreaker(minimum=1, open_for=60)
    failing = recorder.tool("work", raises=ValueError("no"))
    node = ToolNode([failing], middleware=[Fallback({"work": Value("stale")}), breaker])
    bare = ToolNode([failing], middleware=[breaker])
    await node.ainvoke([tool_call("work", "1")])
    assert [tool.name for tool in node.offered_tools()] == ["work"]
    assert bare.offered_tools() == []


async def test_middleware_sees_errors_beside_langgraphs_wrapper_too() -> None:
    breaker = CircuitBreaker(minimum=1, open_for=60)

    async def wrap(request: Any, execute: Any) -> Any:
        return await execute(request)

    tools = [Recorder().tool("work", raises=ValueError("no"))]
    node = ToolNode(tools, middleware=[breaker], awrap_tool_call=wrap, handle_tool_errors=True)
    result = await node.ainvoke([tool_call("work", "1")])

    assert result["messages"][0].status == "error"
    assert breaker.state("work") == "open"
