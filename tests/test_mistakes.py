"""Mistakes of the first hour: each error names the value that is wrong, and the remedy."""

import asyncio
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import (
    Actor,
    CallPolicy,
    Limit,
    Rate,
    ToolNode,
    ValidationNode,
    create_agent,
    drain_on_signal,
    handler,
    idempotency_key,
    observe,
    progress,
    running,
    watch,
)
from callboard.guards import Detector
from callboard.middleware import CircuitBreaker, RequireApproval, Retry, TokenLimit
from callboard.telemetry import RecordingWriter, Tracing, continue_trace
from callboard.testing import ScriptedModel, fake_tools

pytestmark = pytest.mark.real_clock


@tool
def search(query: str) -> str:
    """Search."""
    return query


@tool("search")
def other_search(query: str) -> str:
    """Search elsewhere."""
    return query


def transfer(amount: int) -> int:
    return amount


async def slow() -> str:
    """Block the event loop."""
    import time

    time.sleep(1.5)  # the watchdog looks from time to time; on a busy machine it may be late
    return "done"


class Counter(Actor):
    @handler
    async def add(self, number: int) -> int:
        """Add a number."""
        return number


class Unmarked(Actor):
    async def add(self, number: int) -> int:
        """Add a number."""
        return number


THREAD: Any = {"configurable": {"thread_id": "1"}}
HELLO = {"messages": [("user", "Hello.")]}


def agent(tools: Any = (search,), **options: Any) -> Any:
    return create_agent(ScriptedModel(["Hello."]), tools, **options)


def agent_with_saver(**options: Any) -> Any:
    return agent(checkpointer=InMemorySaver(), **options)


def call(**call: Any) -> Any:
    return ToolNode([search]).invoke([{"id": "1", "type": "tool_call", **call}])["messages"][0].content


def enter(block: Any) -> None:
    with block:
        raise AssertionError


MISTAKES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a timeout as text": (lambda: agent(timeout="30"), "'30'", "a number of seconds"),
    "a negative limit": (lambda: Limit(concurrency=-1), "-1", "must be 1 or more"),
    "a number as limit": (lambda: agent(limit=3), "got 3", "Limit(concurrency=64)"),
    "a rate as number": (lambda: Limit(rate=10), "got 10", "Rate(20, per=1.0)"),  # type: ignore[arg-type]
    "a rate as text": (lambda: Rate("10/s"), "'10/s'", "a whole number"),  # type: ignore[arg-type]
    "a text for tools": (lambda: agent("search"), "'search'", "give the tool itself in place of its name, in a list"),
    "one tool for tools": (lambda: agent(search), "got StructuredTool(name='search'", "write [search]"),
    "one tool for a node": (lambda: ToolNode(slow), "not ToolNode(slow)", "ToolNode([slow])"),  # type: ignore[arg-type]
    "a called function": (lambda: agent([transfer(1)]), "got 1", "A tool is a LangChain tool or a function"),
    "a tool without a docstring": (lambda: agent([transfer]), "'transfer'", "write one below `def transfer(...)`"),
    "two tools of one name": (lambda: agent([search, other_search]), "'search'", "Give one of them another name"),
    "an actor class": (lambda: agent([Counter]), "Counter'>", "write Counter(...)"),
    "no handler": (lambda: agent([Unmarked()]), "Unmarked", "mark its methods with @handler"),
    "a policy of an unknown tool": (
        lambda: agent(policies={"serch": CallPolicy(timeout=1.0)}),
        "'serch'",
        "did you mean 'search'?",
    ),
    "a number as policy": (lambda: agent(policies={"search": 3.0}), "got 3.0", "CallPolicy(timeout=2.0)"),
    "a policy without the name of its option": (
        lambda: CallPolicy(3),  # type: ignore[call-arg]
        "CallPolicy",
        "give options by name: timeout=, idle_timeout=, ",
    ),
    "retries in a policy": (lambda: CallPolicy(retries=3), "'retries'", "Retry(attempts=3)"),  # type: ignore[call-arg]
    "retries of an agent": (lambda: agent(retries=3), "'retries'", "middleware=[callboard.middleware.Retry(3)]"),
    "a middleware class": (lambda: agent(middleware=[Retry]), "Retry is a class", "write Retry(...)"),
    "an approval of an unknown tool": (
        lambda: agent(middleware=[RequireApproval(["serch"])]),
        "'serch'",
        "did you mean 'search'?",
    ),
    "a middleware in a wrong order": (
        lambda: agent(middleware=[Retry(any_tool=True), CircuitBreaker()]),
        "Retry is outside of CircuitBreaker",
        "Put CircuitBreaker before Retry",
    ),
    "a file as checkpointer": (lambda: agent(checkpointer="agent.db"), "'agent.db'", "'sqlite:///agent.db'"),
    "no thread": (lambda: agent_with_saver().invoke(HELLO), "thread_id", "config={'configurable': {'thread_id': '1'}}"),
    "a thread as config": (
        lambda: agent_with_saver().invoke(HELLO, "1"),
        "got '1'",
        "{'configurable': {'thread_id': '1'}}",
    ),
    "a thread as option": (
        lambda: agent_with_saver().invoke(HELLO, thread_id="1"),
        "'thread_id'",
        "config={'configurable': {'thread_id': ...}}",
    ),
    "a thread without a checkpointer": (
        lambda: agent().get_state(THREAD),
        "No checkpointer set",
        "checkpointer='sqlite:///agent.db'",
    ),
    "an answer without a question": (
        lambda: agent_with_saver().invoke(Command(resume="yes"), THREAD),
        "'yes'",
        "No question is open",
    ),
    "a text as input": (lambda: agent().invoke("hi"), "got hi", "{'messages': [('user', 'hi')]}"),
    "a misspelt key of the input": (
        lambda: agent().invoke({"message": "hi"}),
        "{'message': 'hi'}",
        "{'messages': [('user', 'hi')]}",
    ),
    "the method of another library": (lambda: agent().run("hi"), "Agent has no method 'run'", "await ainvoke(...)"),
    "the method of another library at a node": (
        lambda: ToolNode([search]).run([]),  # type: ignore[attr-defined]
        "ToolNode has no method 'run'",
        "write invoke(...)",
    ),
    "an unknown mode of a stream": (
        lambda: list(agent().stream(HELLO, stream_mode="tokens")),
        "'tokens'",
        "'messages'",
    ),
    "a call in another form": (
        lambda: ToolNode([search]).invoke([{"name": "search", "arguments": {"query": "a"}, "id": "1"}]),
        "{'query': 'a'}",
        "under 'args', not 'arguments'",
    ),
    "the prompt of another library": (lambda: agent(prompt="Be brief."), "'prompt'", "write system_prompt="),
    "the model of another library": (lambda: agent(llm=1), "'llm'", "write model="),
    "progress as a number": (lambda: progress(3), "got 3", "progress(done=...)"),  # type: ignore[arg-type]
    "a key outside of a tool": (idempotency_key, "none runs here", "call it in the body of a tool"),
    "an actor without its life": (lambda: asyncio.run(Counter().add(1)), "Counter.add", "async with running(Counter"),
    "an actor in a block without async": (
        lambda: enter(running(Counter())),
        "running(Counter)",
        "`async with running(Counter) as actor:`",
    ),
    "a view without its block": (watch, "watch()", "`with callboard.watch():`"),
    "observers without their block": (lambda: observe(print), "not entered", "`with callboard.observe(...):`"),
    "spans without their block": (lambda: Tracing().on(), "not entered", "`with observers.on():`"),
    "a trace without its block": (
        lambda: continue_trace({}),
        "not entered",
        "`with callboard.telemetry.continue_trace",
    ),
    "fakes without their block": (lambda: fake_tools({}), "not entered", "`with callboard.testing.fake_tools(...):`"),
    "a drain without its block": (
        lambda: drain_on_signal(ToolNode([search])),
        "not entered",
        "`async with callboard.drain_on_signal(...):`",
    ),
    "a tool that blocks": (
        lambda: asyncio.run(ToolNode([slow]).ainvoke([{"name": "slow", "args": {}, "id": "1", "type": "tool_call"}])),
        "tool 'slow'",
        "make the tool a plain function",
    ),
}
"""A program, the value that its error has to name, and the remedy."""


@pytest.mark.every_variant
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_of_a_mistake_names_its_value_and_the_remedy(mistake: str) -> None:
    """A newcomer has the error and no more: it says what was given, and what to write instead."""
    program, value, remedy = MISTAKES[mistake]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            program()
        except Exception as error:
            text = "".join(traceback.format_exception_only(error))
        else:
            text = "\n".join(str(warning.message) for warning in caught)

    assert value in text
    assert remedy in text


async def never(*_: Any) -> Any:
    """Return nothing: what expects a plain function gets a coroutine, which counts as true and never runs."""


class Never:
    """Object whose call is async."""

    async def __call__(self, *_: Any) -> Any: ...


PLAIN_FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "observe(observer=...)": lambda function: enter(observe(function)),
    "observe(runs=...)": lambda function: enter(observe(print, runs=function)),
    "observe(actors=...)": lambda function: enter(observe(print, actors=function)),
    "redact": lambda function: Tracing(redact=function),
    "RecordingWriter(clock=...)": lambda function: RecordingWriter("never.jsonl", clock=function),
    "TokenLimit(key=...)": lambda function: TokenLimit(100, key=function),
    "Detector(find=...)": lambda function: Detector("code", function),
    "Detector(check=...)": lambda function: Detector("code", "[0-9]+", check=function),
    "ValidationNode(format_error=...)": lambda function: ValidationNode([search], format_error=function),
    "handle_tool_errors": lambda function: ToolNode([search], handle_tool_errors=function),
}
"""Makers of objects, by the option that takes a plain function."""


@pytest.mark.every_variant
@pytest.mark.parametrize("function", [never, Never()])
@pytest.mark.parametrize("option", PLAIN_FUNCTIONS)
def test_an_async_function_in_place_of_a_plain_one_is_refused(option: str, function: object) -> None:
    """Nobody awaits it: an observer would see nothing, and each request would have a limit of its own."""
    with pytest.raises(TypeError, match=re.escape(option) + ".* a plain function"):
        PLAIN_FUNCTIONS[option](function)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"name": "serch", "args": {"query": "a"}}, ["serch", "try one of [search]"]),
        ({"name": "search", "args": {"q": "a"}}, ["{'q': 'a'}", "query: Field required"]),
    ],
)
def test_a_model_reads_its_own_mistakes(mistake: Any, words: list[str]) -> None:
    """They are messages and no errors: the model corrects them in its next reply."""
    text = call(**mistake)

    assert [word for word in words if word not in text] == []


def test_invoke_works_in_a_running_event_loop() -> None:
    """Elsewhere this is an error that newcomers meet in notebooks."""

    async def main() -> Any:
        return agent().invoke(HELLO)["messages"][-1].content

    assert asyncio.run(main()) == "Hello."
