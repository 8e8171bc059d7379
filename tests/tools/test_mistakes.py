"""Common mistakes of newcomers: the error names the wrong value, and the right form."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import sniffio
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import InvalidUpdateError
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from callboard import (
    Actor,
    CallboardWarning,
    CallContext,
    CallPolicy,
    IdleMiddlewareWarning,
    Limit,
    ToolNode,
    child,
    create_react_agent,
    handler,
    running,
    tool_call,
)
from callboard.exceptions import CallRejectedError
from callboard.guards import Redact, Results, Sanitize, Url
from callboard.middleware import Cache, CircuitBreaker, Fallback, RequireApproval, Retry, Supervise
from callboard.testing import Recorder, ScriptedModel

from .test_nested_limits import Store

WAIT = 30


@tool
def search(query: str) -> str:
    """Search."""
    return query


async def aquery(query: str) -> str:
    """Search."""
    return query


def query(query: str) -> str:
    """Search."""
    return query


class Counter(Actor):
    @handler
    async def put(self, number: int) -> int:
        """Put a number."""
        return number


def numbers() -> Any:
    """Yield numbers."""
    yield 1


async def anumbers() -> Any:
    """Yield numbers."""
    yield 1


def transfer(amount: int) -> str:
    return str(amount)


class AsyncKey:
    async def __call__(self, call: object) -> str:
        return "a"


class Node(ToolNode):
    """A node that returns its input."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)


def model() -> ScriptedModel:
    return ScriptedModel(["Hello."])


def agent(*, tools: Any = (search,), **options: Any) -> Any:
    return create_react_agent(options.pop("model", None) or model(), tools, **options)


CALL = tool_call("search", "1", query="tea")
OPENAI = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "tea"}'}}

Make = Callable[[], object]
MISTAKES: dict[str, tuple[Make, str] | tuple[Make, str, type[Exception]]] = {
    # one where several are expected
    "a tool": (lambda: ToolNode(search), r"ToolNode\(\[search\]\), not ToolNode\(search\)"),
    "a function": (lambda: ToolNode(query), r"ToolNode\(\[query\]\), not ToolNode\(query\)"),
    "a tool for an agent": (lambda: agent(tools=search), r"tools=...\) is a sequence of tools, or a.*write \[search\]"),
    "a function for an agent": (lambda: agent(tools=query), r"write \[query\]"),
    "no tools": (lambda: ToolNode(None), r"takes a list of tools, such as ToolNode\(\[search\]\); got None"),
    "a mapping of tools": (lambda: ToolNode({"search": search}), "takes a list of tools"),
    "names of tools": (lambda: ToolNode(["search"]), "got 'search'; give the tool itself instead of its"),
    "a list in a list": (lambda: ToolNode([[search]]), "it is a list in a list"),
    "a class of tools": (lambda: ToolNode([ToolNode]), r"it is a class: write ToolNode\(...\)"),
    "a provider's tool": (lambda: ToolNode([{"type": "web"}]), "is for create_react_agent"),
    "a policy": (
        lambda: ToolNode([search], policies=CallPolicy(timeout=1)),
        r"ToolNode\(policies=...\) takes a CallPolicy by the name of each tool.*got CallPolicy\(timeout=1",
    ),
    "a policy for an agent": (lambda: Supervise(policies=CallPolicy()), r"Supervise\(policies=...\) takes"),
    "a policy by its tool": (lambda: ToolNode([query], policies={query: CallPolicy()}), "for a name"),
    "a middleware": (lambda: ToolNode([search], middleware=Retry()), r"takes a list of middleware.*\[Retry\(...\)\]"),
    "a middleware for an agent": (lambda: agent(middleware=Retry()), r"takes a list of middleware.*\[Retry\(...\)\]"),
    "a middleware for another agent": (lambda: Supervise(middleware=Retry()), r"Supervise\(middleware=...\)"),
    "a function as middleware": (lambda: ToolNode([search], middleware=query), r"write \[query\]"),
    "no middleware": (lambda: ToolNode([search], middleware=None), "got None; leave it out for none"),
    # a class where an object is expected
    "a class of middleware": (lambda: ToolNode([search], middleware=[Retry]), r"a class; write Retry\(...\)"),
    "a class of models": (lambda: agent(model=ScriptedModel), r"is a class: write ScriptedModel\(...\)"),
    "a class of savers": (lambda: agent(checkpointer=InMemorySaver), r"write InMemorySaver\(...\)"),
    "a class of stores": (lambda: agent(store=InMemoryStore), r"write InMemoryStore\(...\)"),
    # inputs
    "a text for an agent": (
        lambda: agent().invoke("hello"),
        r"Expected dict, got hello; an agent .*\{'messages': \[\('user', 'hello'\)\]\}",
        InvalidUpdateError,
    ),
    "messages for an agent": (
        lambda: agent().invoke([HumanMessage("x")]),
        r"\{'messages': \[...\]",
        InvalidUpdateError,
    ),
    "a text for a node": (
        lambda: ToolNode([search]).invoke("hello"),
        "a node takes messages .* got 'hello'",
        ValueError,
    ),
    "one call": (lambda: ToolNode([search]).invoke(CALL), r"a tool call goes in a list, \[call\]; got \{", ValueError),
    "one message": (lambda: ToolNode([search]).invoke(AIMessage("")), r"goes in a list, \[message\]", ValueError),
    "a call of OpenAI's": (lambda: ToolNode([search]).invoke([OPENAI]), "with name, args and id.*OpenAI", ValueError),
    "one call of OpenAI's": (lambda: ToolNode([search]).invoke(OPENAI), "with name, args and id.*OpenAI", ValueError),
    "a number as text": (
        lambda: ToolNode([search]).invoke([CALL], {"max_concurrency": "3"}),
        r"config\['max_concurrency'\] is a whole number, got '3'",
    ),
    # options
    "system_prompt": (lambda: agent(system_prompt="x"), "instead of system_prompt use prompt="),
    "state_modifier": (lambda: agent(state_modifier="x"), "instead of state_modifier use prompt="),
    "timeout": (lambda: agent(timeout=3), r"use budget=.*ToolNode\(\[...\], timeout=...\)"),
    "policies": (lambda: agent(policies={}), r"ToolNode\(\[...\], policies=...\)"),
    "memory": (lambda: agent(memory=1), "instead of memory use checkpointer="),
    "a slip": (lambda: agent(pormpt="x"), "did you mean 'prompt'"),
    "a file": (lambda: agent(checkpointer="trip.db"), "'trip.db'.*for a file write 'sqlite:///trip.db'", ValueError),
    "a file of a store": (lambda: agent(store="trip.db"), "for a file write 'sqlite:///trip.db'", ValueError),
    "a path": (lambda: agent(checkpointer=Path("/a/trip.db")), "'sqlite:////a/trip.db'"),
    "half a URL": (lambda: agent(checkpointer="sqlite:trip.db"), "for a file write 'sqlite:///trip.db'", ValueError),
    "a saver not yet opened": (
        lambda: agent(checkpointer=AsyncSqliteSaver.from_conn_string("trip.db")),
        "takes what `with` or `async with` gives",
    ),
    "a store for a saver": (lambda: agent(checkpointer=InMemoryStore()), "does not take a store: write store="),
    "a saver for a store": (lambda: agent(store=InMemorySaver()), "write checkpointer="),
    "a model without tools": (
        lambda: agent(model=GenericFakeChatModel(messages=iter([]))),
        r"GenericFakeChatModel has no bind_tools\(\) of its own.*'search'",
        NotImplementedError,
    ),
    "a slip of a node": (lambda: ToolNode([search], polices={}), "'polices'.*[Dd]id you mean 'policies'"),
    "a slip of a node's subclass": (lambda: Node([search], midleware=[]), "[Dd]id you mean 'middleware'"),
    "nothing like an option": (lambda: ToolNode([search], xyzzy=1), "keyword argument 'xyzzy'$"),
    # kinds of values
    "no grace": (lambda: ToolNode([search], grace=None), r"ToolNode\(grace=...\) is a number of seconds"),
    "an async handler": (lambda: ToolNode([search], handle_tool_errors=aquery), "takes a plain function"),
    "an async key": (lambda: Limit(3, key=aquery), r"Limit\(key=...\) takes a plain function"),
    "an async key that is an object": (lambda: Limit(3, key=AsyncKey()), r"Limit\(key=...\) takes a plain"),
    "a key without arguments": (
        lambda: Limit(3, key=lambda: "a"),
        r"Limit\(key=...\) takes a function of the tool call, `lambda call: ...`, or of .*; got .*lambda.* \(\)$",
    ),
    "a key of three arguments": (
        lambda: Limit(3, key=lambda call, config, state: "a"),
        r"`lambda call, context: ...`; got .* with the parameters \(call, config, state\)$",
    ),
    "a key that wants a keyword": (
        lambda: Limit(3, key=lambda call, *, context: "a"),
        r"with the parameters \(call, \*, context\)$",
    ),
    "a breaker's key of three arguments": (
        lambda: CircuitBreaker(key=lambda call, config, state: "a"),
        r"CircuitBreaker\(key=...\) takes a function of the tool call",
    ),
    "a cache's key without arguments": (
        lambda: Cache({"a"}, key=lambda: "a"),
        r"Cache\(key=...\) takes a function of the request, `lambda call: ...`, or",
    ),
    "an async key of a breaker": (lambda: CircuitBreaker(key=aquery), "takes a plain function"),
    "an async condition": (lambda: Retry(on=aquery), r"Retry\(on=...\)"),
    "an async condition of messages": (lambda: Retry(on_message=aquery), r"Retry\(on_message=...\)"),
    "a text for a condition": (lambda: CircuitBreaker(on_message="x"), r"CircuitBreaker\(on_message=...\)"),
    "an async condition of a fallback": (lambda: Fallback({"a": "b"}, on=aquery), r"Fallback\(on=...\)"),
    "attempts as text": (lambda: Retry("3"), r"Retry\(attempts=...\) is a whole number, got '3'"),
    "half an attempt": (lambda: Retry(2.5), r"Retry\(attempts=...\) is a whole number, got 2.5"),
    "a factor as text": (lambda: Retry(factor="3"), r"Retry\(factor=...\) is a number, got '3'"),
    "a seed": (lambda: Retry(rng=3), r"Retry\(rng=...\) takes Random"),
    "a ratio as text": (lambda: CircuitBreaker("0.5"), r"CircuitBreaker\(ratio=...\) is a number, got '0.5'"),
    "yes": (lambda: CallPolicy(idempotent="yes"), r"CallPolicy\(idempotent=...\) is True, False or None"),
    "a key as text": (lambda: Redact(key="x" * 20), r"Redact\(key=...\) takes bytes"),
    "a number as vault": (lambda: Redact(vault=3), r"Redact\(vault=...\) takes a vault"),
    "a detector's slip": (lambda: Redact(["emial"]), "did you mean 'email'", ValueError),
    "a tool to reveal": (lambda: Redact(reveal=[search]), "takes names of tools"),
    "a tool to approve": (lambda: RequireApproval([search]), "takes names of tools"),
    "a tool to fence": (lambda: Results(fence=[search]), "takes names of tools"),
    "rules as a list": (lambda: Sanitize(["path"]), r"takes rules by argument.*got \['path'\]"),
    "rules of tools as a list": (lambda: Sanitize(tools=["x"]), r"Sanitize\(tools=...\) takes rules by tool"),
    "a rule for a tool": (lambda: Sanitize(tools={"x": Url()}), r"Sanitize\(tools\['x'\]\) takes rules by arg"),
    "a depth as text": (lambda: Sanitize(max_depth="3"), r"Sanitize\(max_depth=...\) is a whole number"),
    "no results": (lambda: Sanitize(results=True), r"Sanitize\(results=...\) takes Results"),
    "one port": (lambda: Url(ports=443), r"Url\(ports=...\) takes several: ports=\{443\}"),
    "a port as text": (lambda: Url(ports=["443"]), r"Url\(ports=...\) is a whole number, got '443'"),
    "a scheme with its colon": (lambda: Url(schemes=["https://"]), "such as 'https'; got 'https://'", ValueError),
    "a sync resolver": (lambda: Url(resolve=lambda host, port: []), r"Url\(resolve=...\) takes True or an"),
    "an actor that does not run": (lambda: ToolNode([running(Counter())]), r"first: `async with running\(Counter\)"),
    "a handler of an actor that does not run": (
        lambda: running(Counter()).put,
        r"`async with running\(Counter\) as actor: await actor.put\(...\)`",
        AttributeError,
    ),
    "a handler of a description": (
        lambda: child(Counter).put,
        r"child\(Counter\) describes an actor and has no 'put'.*`async with",
        AttributeError,
    ),
    "a function without a docstring": (
        lambda: ToolNode([transfer]),
        r"(?s)docstring.*'transfer' has no docstring.*below `def transfer\(...\)`",
        ValueError,
    ),
    "a generator": (lambda: ToolNode([numbers]), r"'numbers' is a generator, and a call has one result: return it"),
    "an async generator": (lambda: ToolNode([StructuredTool.from_function(anumbers)]), "'anumbers' is a generator"),
    "a middleware of one argument": (lambda: ToolNode([search], middleware=[query]), r"\(request, call_next\), and"),
}
"""Mistake, text of the error, and the type of the error; by default TypeError."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_remedy(mistake: str) -> None:
    """A user can correct the mistake without reading the source; the error's type is LangGraph's, if it has one."""
    make, says, *error = MISTAKES[mistake]
    with pytest.raises(*error or [TypeError], match=says):
        make()


def test_a_coroutine_instead_of_a_function_is_told() -> None:
    """A user wrote `function()` in place of `function`; the error says so."""
    called = aquery("tea")
    with pytest.raises(TypeError, match="give the function itself, without calling it"):
        ToolNode([called])  # type: ignore[list-item]
    called.close()


def test_middleware_may_come_from_a_generator() -> None:
    """A generator of middleware was once exhausted by a check before the node read its elements."""
    recorder = Recorder()

    async def refuse(request: Any, call_next: Any) -> Any:
        raise PermissionError("no")

    node = ToolNode([recorder.tool("work")], middleware=(middleware for middleware in [refuse]))

    with pytest.raises(PermissionError):
        node.invoke([tool_call("work", "1")])
    assert recorder.order == []


async def uses_asyncio(query: str) -> str:
    """Use asyncio itself."""
    asyncio.get_running_loop()
    return query


class Foreign:
    def __await__(self) -> Any:
        loop = asyncio.new_event_loop()
        try:
            yield loop.create_future()
        finally:
            loop.close()


async def awaits_a_future(query: str) -> str:
    """Await what only asyncio knows."""
    await Foreign()
    return query


@pytest.mark.parametrize("fn", [uses_asyncio, awaits_a_future])
async def test_a_tool_that_needs_asyncio_is_named_on_trio(fn: Any) -> None:
    """The error names the tool and a remedy; asyncio's and trio's own errors do not name the tool."""
    node, calls = ToolNode([fn]), [tool_call(fn.__name__, "7", query="tea")]
    with anyio.fail_after(WAIT):
        if sniffio.current_async_library() == "trio":
            expected_error = rf"tool '{fn.__name__}' \(call '7'\) needs asyncio.*Run the agent"
            with pytest.raises(RuntimeError, match=expected_error) as caught:
                await node.ainvoke(calls)
            assert "asyncio" in str(caught.value.__cause__) or "event loop" in str(caught.value.__cause__)
        elif fn is uses_asyncio:
            await node.ainvoke(calls)


class Unspeakable:
    def __str__(self) -> str:
        raise LookupError("no words")

    __repr__ = __str__


async def pay() -> object:
    """Pay."""
    return Unspeakable()


@pytest.mark.parametrize("options", [{}, {"handle_tool_errors": True}])
async def test_a_result_that_cannot_be_a_text_is_told_as_a_tool_that_has_run(options: Any) -> None:
    """The error has a note with the tool and the call; a model that read only an error would call again."""
    with anyio.fail_after(WAIT):
        with pytest.raises(LookupError, match="no words") as caught:
            await ToolNode([pay], handle_tool_errors=False).ainvoke([tool_call("pay", "7")])
        (answer,) = (await ToolNode([pay], **options).ainvoke([tool_call("pay")]))["messages"]

    (note,) = caught.value.__notes__
    assert "the tool 'pay' returned for the call '7'" in note
    assert "Unspeakable" in note
    assert answer.status == "error"
    assert "The tool 'pay' has run and finished, but its result is lost" in str(answer.content)
    assert "Do not assume that it had no effect" in str(answer.content)
    assert "mistakes" not in str(answer.content)


def test_retry_says_when_a_node_is_built_that_it_does_nothing() -> None:
    """The warning comes when the node is built, and not only when the tool first fails."""
    tools = [Recorder().tool("search"), Recorder().tool("fetch")]
    with pytest.warns(IdleMiddlewareWarning, match=r"run 'fetch', 'search' again.*idempotent=True.*any_tool=True"):
        ToolNode(tools, middleware=[Retry()])


@pytest.mark.parametrize(
    "retry", [Retry(any_tool=True), Retry(1), Retry(on=CallRejectedError)], ids=["any", "once", "rejected"]
)
def test_retry_says_nothing_where_it_does_what_is_meant(retry: Retry) -> None:
    """Calls that were refused a place are made again for every tool. A warning would fail this test."""
    ToolNode([search], middleware=[retry])


async def test_retry_says_once_of_each_tool_that_it_does_nothing_for_it() -> None:
    """The warning names each tool without any retry, even if other tools of the node have one."""
    recorder = Recorder()
    tools = [recorder.tool(name, raises=ValueError("no")) for name in ("again", "never")]
    policies = {"again": CallPolicy(idempotent=True)}
    node = ToolNode(tools, middleware=[Retry(2, initial=0.1)], policies=policies, handle_tool_errors=True)
    with (
        anyio.fail_after(WAIT),
        pytest.warns(IdleMiddlewareWarning, match="does not run 'never' again") as caught_warnings,
    ):
        for turn in "12":
            await node.ainvoke([tool_call("again", f"a{turn}", query="a"), tool_call("never", f"b{turn}", query="b")])

    assert len(caught_warnings) == 1
    assert recorder.count("started") == 6


async def failing() -> str:
    """Fail."""
    raise LookupError("nothing there")


@pytest.mark.parametrize("handling", [True, (Exception,), TimeoutError])
async def test_a_timeout_is_not_told_as_a_mistake_of_the_model(handling: Any) -> None:
    """A timeout is not the model's mistake, so the message does not ask it to fix its arguments."""
    node = ToolNode([Recorder().tool("search", hang=True)], timeout=1, handle_tool_errors=handling)
    with anyio.fail_after(WAIT):
        (answer,) = (await node.ainvoke([tool_call("search")]))["messages"]
    assert answer.content == "Error: Tool 'search' did not finish within its timeout of 1 s."


def by_user(call: Any) -> Any:
    return call["args"]["user"]


def by_user_of_config(call: Any, context: CallContext) -> Any:
    return context.config["configurable"]["user"]


@pytest.mark.every_variant
@pytest.mark.parametrize("function", [by_user, by_user_of_config])
@pytest.mark.parametrize(("option", "shared"), [("key", False), ("key", True), ("tenant", True)])
async def test_a_key_of_a_limit_that_fails_names_limit_tool_and_call(option: str, function: Any, shared: bool) -> None:
    """A bare `KeyError` would say neither where it comes from nor what to do. It is no message for the model."""
    options: Any = {option: function, "shared": Store(1) if shared else None}
    search = Recorder().tool("search")
    for node, of in (
        (ToolNode([search], limit=Limit(concurrency=1, **options), name="desk"), "node 'desk'"),
        (ToolNode([search], policies={"search": CallPolicy(limit=Limit(1, **options))}), "tool 'search'"),
    ):
        with anyio.fail_after(WAIT), pytest.raises(KeyError, match="user") as caught:
            await node.ainvoke([tool_call("search", "c7")])
        note = caught.value.__notes__[0]
        assert note.startswith(f"Raised by Limit({option}=...) of {of}, asked for the key of the tool call 'search'")
        assert "(call 'c7')" in note
        assert "Return a key for every call" in note


async def test_each_error_of_a_group_has_a_note_of_its_own() -> None:
    """With `on_error="finish"` several errors are raised together, and each has its own note."""
    with anyio.fail_after(WAIT), pytest.raises(ExceptionGroup) as caught:
        await ToolNode([failing], on_error="finish").ainvoke([tool_call("failing", f"c{n}") for n in range(2)])
    assert [error.__notes__ for error in caught.value.exceptions] == [
        [f"In tool 'failing' (call 'c{n}')."] for n in range(2)
    ]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda tool: ToolNode([tool], timeout=30000), "ToolNode(timeout=...)"),
        (lambda tool: ToolNode([tool], policies={"t": CallPolicy(budget=5000)}), "CallPolicy(budget=...)"),
        (lambda tool: ToolNode([tool], policies={"t": CallPolicy(idle_timeout=1e4)}), "CallPolicy(idle_timeout=...)"),
        (lambda tool: create_react_agent(ScriptedModel(["x"]), [tool], budget=60000), "create_react_agent(budget=...)"),
    ],
)
def test_a_number_of_seconds_that_looks_like_milliseconds_is_asked_about(build: Any, name: str) -> None:
    """A timeout of 30000 was probably meant in milliseconds: it would be more than eight hours."""
    with pytest.warns(CallboardWarning, match="hours; for .* ms write") as caught:
        build(Recorder().tool("t"))
    (text,) = [str(warning.message) for warning in caught if issubclass(warning.category, CallboardWarning)]
    assert name in text


@pytest.mark.parametrize("seconds", [0.5, 30, 999, 1000, 3600, 7200, 86400, 604800, 4500])
def test_a_long_time_that_somebody_may_mean_is_taken(seconds: float) -> None:
    """A plausible long timeout causes no warning, which would be an error in tests."""
    ToolNode([Recorder().tool("t")], timeout=seconds, policies={"t": CallPolicy(timeout=seconds, budget=seconds)})


def test_a_timeout_that_is_longer_than_the_budget_is_told_of() -> None:
    """A timeout above the budget can never end a call, so one of the numbers is wrong."""
    with pytest.warns(CallboardWarning, match=r"timeout=10 s, but the whole call has budget=1 s.*larger budget"):
        ToolNode([Recorder().tool("t")], policies={"t": CallPolicy(timeout=10, budget=1)})
    ToolNode(
        [Recorder().tool("t")], timeout=10, policies={"t": CallPolicy(budget=1)}
    )  # the node's applies to all tools


@pytest.mark.real_clock
async def test_a_coroutine_that_a_sync_function_returns_is_awaited() -> None:
    """A decorator that is a plain function hides that the tool is async; the model read the text of an object."""
    node = ToolNode([StructuredTool.from_function(lambda: aquery("tea"), name="search", description="Search.")])
    (answer,) = (await node.ainvoke([tool_call("search", "1")]))["messages"]

    assert answer.content == await aquery("tea")


@pytest.mark.parametrize(
    "result",
    [
        [],
        ToolMessage([], tool_call_id="1"),
        [Command(update={"messages": [{"role": "tool", "content": "[]", "tool_call_id": "1"}]}), Command(update={})],
        Command(update={"messages": ToolMessage("[]", tool_call_id="1")}),
    ],
    ids=["an empty list", "a message without content", "a list of commands with a dict", "a command with a message"],
)
def test_a_result_in_an_unusual_form_is_one_message_with_a_text(result: Any) -> None:
    """Providers refuse empty content, and LangGraph counts only messages in a list as answers."""
    node = ToolNode([StructuredTool.from_function(lambda: result, name="search", description="Search.")])
    outputs = node.invoke({"messages": [AIMessage("", tool_calls=[tool_call("search", "1")])]})
    assert "'[]'" in repr(outputs)
