"""Tools run as with `BaseTool.ainvoke`: same events, results, errors and context.

Each case is run by langchain-core itself on asyncio, and by a `ToolNode` on every backend. A release of
langchain-core that changes how tools run is noticed here.
"""

import asyncio
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any
from uuid import UUID, uuid4

import anyio
import pytest
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    AsyncCallbackManager,
    AsyncCallbackManagerForToolRun,
    BaseCallbackHandler,
    CallbackManagerForToolRun,
    Callbacks,
)
from langchain_core.callbacks.manager import adispatch_custom_event, dispatch_custom_event
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt
from pydantic import BaseModel
from sniffio import current_async_library

from callboard import ToolInvocationError, ToolNode, msg_content_output, tool_call
from tests.helpers import make, make_sync
from tests.parity.test_outputs import OUTPUTS, Point
from tests.parity.test_tool_kinds import ASYNC_AND_SYNC, ASYNC_ONLY, DICT_SCHEMA, SCHEMAS, SIGNATURES, ArgsV1

pytestmark = pytest.mark.real_clock

PARENT = UUID(int=7)


class Notes:
    """Record of the present run, as seen by callback handlers and by the tool body."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.saw: list[Any] = []

    def clear(self) -> None:
        self.events, self.saw = [], []


NOTES = Notes()


@pytest.fixture(autouse=True)
def _no_notes() -> None:
    NOTES.clear()


def note(*values: Any) -> str:
    """Record what a body sees; return its result."""
    NOTES.saw.append(values)
    return "done"


def plain(value: Any, runs: dict[Any, str]) -> Any:
    """Return a value without the ids and addresses that differ between runs."""
    if isinstance(value, UUID):
        return "parent" if value == PARENT else runs.setdefault(value, f"run {len(runs)}")
    if isinstance(value, BaseException):
        error = value.source if isinstance(value, ToolInvocationError) else value
        return type(error).__name__, str(error)
    if isinstance(value, dict):
        # The namespace is set by the runner: each call of a node has its own, for its questions.
        return {key: plain(item, runs) for key, item in value.items() if key != "checkpoint_ns"}
    if isinstance(value, (list, tuple)):
        return [plain(item, runs) for item in value]
    if isinstance(value, BaseModel):
        return type(value).__name__, {name: plain(item, runs) for name, item in value}
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


class _Recording:
    """Methods of a recording callback handler, sync or async."""

    def __init__(self, name: str, *, fails: str | None = None, of_tool: bool = False) -> None:
        super().__init__()
        self.name = name
        self.fails = fails
        # langchain-core may call a handler after its run has returned; the next run must not have that event.
        self.events = None if of_tool else NOTES.events

    def note(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Copied now, because messages may be changed later.
        now = [arg.model_copy() if isinstance(arg, BaseModel) else arg for arg in args]
        events = NOTES.events if self.events is None else self.events
        events.append((self.name, event, {**dict(enumerate(now)), **kwargs}))
        if event == self.fails:
            raise ZeroDivisionError(f"{self.name} {event}")


def _noting(event: str, *, skip: int = 0) -> Any:
    """Return a method of a sync handler that records an event."""
    return lambda self, *args, **kwargs: self.note(event, args[skip:], kwargs)


def _anoting(event: str) -> Any:
    """Return a method of an async handler that records an event."""

    async def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        self.note(event, args, kwargs)

    return noting


class SyncHandler(_Recording, BaseCallbackHandler):
    on_tool_start, on_tool_end, on_tool_error = map(_noting, ("start", "end", "error"))
    on_custom_event = _noting("custom")
    on_chain_start, on_chain_end = _noting("chain start", skip=1), _noting("chain end")


class AsyncHandler(_Recording, AsyncCallbackHandler):
    on_tool_start, on_tool_end, on_tool_error = map(_anoting, ("start", "end", "error"))
    on_custom_event = _anoting("custom")


class InlineHandler(SyncHandler):
    run_inline = True


class InlineAsyncHandler(AsyncHandler):
    run_inline = True


Handlers = Callable[[], list[BaseCallbackHandler]]
HANDLERS: dict[str, Handlers] = {
    "none": list,
    "all": lambda: [
        *(SyncHandler("sync"), AsyncHandler("async"), InlineHandler("inline")),
        *(InlineAsyncHandler("inline async"), InlineHandler("inline 2")),
    ],
    "sync": lambda: [SyncHandler("sync")],
    "async": lambda: [AsyncHandler("async")],
    "inline": lambda: [InlineHandler("inline"), InlineHandler("inline 2")],
}

CASES: dict[str, tuple[BaseTool, dict[str, Any]]] = {}


def case(case_tool: BaseTool, args: dict[str, Any] | None = None, name: str | None = None) -> None:
    """Declare a case: a tool, and the arguments of the call."""
    CASES[name or case_tool.name] = (case_tool, {"x": 1} if args is None else args)


def call_with(**args: Any) -> Callable[[Callable[..., Any]], None]:
    """Declare a case of a function that becomes a tool, and the arguments of the call; a decorator."""
    return lambda fn: case(StructuredTool.from_function(**_half(fn), name=fn.__name__, description="Do."), args)


def _half(fn: Callable[..., Any]) -> dict[str, Any]:
    return {"coroutine": fn} if asyncio.iscoroutinefunction(fn) else {"func": fn}


def visible(config: RunnableConfig) -> dict[str, Any]:
    """Return the part of a config that does not depend on the runner."""
    configurable = {
        key: value
        for key, value in config.get("configurable", {}).items()
        if not key.startswith("__pregel") and key != "checkpoint_ns"
    }
    callbacks = config.get("callbacks")
    inherited = [h.name for h in getattr(callbacks, "inheritable_handlers", callbacks or [])]
    return {
        "tags": sorted(config.get("tags") or []),
        "metadata": config.get("metadata"),
        "configurable": configurable,
        "run_name": config.get("run_name"),
        "has run_id": "run_id" in config,
        "max_concurrency": config.get("max_concurrency"),
        "recursion_limit": config.get("recursion_limit"),
        "handlers": inherited,
        "parent": getattr(callbacks, "parent_run_id", None),
    }


def child(config: RunnableConfig) -> dict[str, Any]:
    """Return what a runnable inside the body inherits."""
    callbacks: Any = config["callbacks"]
    return {
        **visible(config),
        "inheritable tags": sorted(callbacks.inheritable_tags),
        "inheritable metadata": callbacks.inheritable_metadata,
        "own tags": sorted(callbacks.tags),
        "is async": isinstance(callbacks, AsyncCallbackManager),
    }


def child_of_context() -> dict[str, Any]:
    config = var_child_runnable_config.get()
    assert config is not None
    return child(config)


@call_with(x=1)
async def async_function(x: int, y: str = "why") -> str:
    note(x, y, child_of_context())
    return f"{x}{y}"


@call_with(x=1)
def sync_function(x: int, y: str = "why") -> str:
    note(x, y, child_of_context())
    return f"{x}{y}"


async def noting(**kwargs: Any) -> str:
    return note(kwargs)


def of_parity() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Return labels, tools and arguments, most of which the tool shows in its result."""
    # A runnable runs its function by asyncio's executor, so it cannot run on trio.
    kinds = {label: build for label, build in ASYNC_AND_SYNC.items() if label != "a runnable as tool"}
    for label, build in {**kinds, **ASYNC_ONLY}.items():
        for args in ({"x": "3", "extra": 2}, {"x": "no"}):
            yield label, build(), args
    for function, argument_sets in SIGNATURES:
        for args in argument_sets:
            yield function.__name__, function, args
    for schema in (*SCHEMAS, ArgsV1, DICT_SCHEMA):
        for args in ({"x": 1, "extra": 2}, {"theX": 1}):
            yield str(schema), StructuredTool(name="f", description="Do.", coroutine=noting, args_schema=schema), args
    two = {"one": 1, "two": 2}
    yield "a Tool with two arguments", Tool(name="f", description="Do.", func=lambda query: "never"), two


for _label, _subject, _args in of_parity():
    case(_subject if isinstance(_subject, BaseTool) else tool(_subject), _args, f"{_label} and {_args}")
FROM_PARITY = {*CASES} - {"async_function", "sync_function"}


def describe(manager: Any) -> list[Any]:
    """Return what a tool of a class sees of its run."""
    names = [handler.name for handler in manager.handlers]
    run = [type(manager).__name__, manager.run_id, manager.parent_run_id]
    return [*run, sorted(manager.tags), manager.metadata, names]


class Own(BaseTool):
    name: str = "own"
    description: str = "Do."

    def _run(self, x: int) -> str:
        raise NotImplementedError


class WithRun(Own):
    def _run(self, x: int, run_manager: CallbackManagerForToolRun | None = None) -> str:
        note(*describe(run_manager))
        return f"run {x}"


class WithArun(Own):
    async def _arun(self, x: int, run_manager: AsyncCallbackManagerForToolRun | None = None) -> str:
        assert run_manager is not None
        note(*describe(run_manager), run_manager.get_child("step").parent_run_id)
        return f"arun {x}"


class WithConfig(Own):
    async def _arun(self, x: int, config: RunnableConfig) -> str:
        note(visible(config), child_of_context())
        return f"arun {x}"


for _kind in (WithRun, WithArun, WithConfig):
    case(_kind(), name=f"class {_kind.__name__}")


@call_with(x=1)
async def config_parameter(x: int, config: RunnableConfig) -> str:
    return note(visible(config), child_of_context())


@call_with(x=1)
def sync_config_parameter(x: int, config: RunnableConfig) -> str:
    return note(visible(config), child_of_context())


@call_with(x=1)
async def callbacks_parameter(x: int, callbacks: Callbacks) -> str:
    manager: Any = callbacks
    return note(manager.parent_run_id, [h.name for h in manager.handlers], sorted(manager.tags))


@call_with(x=1)
async def call_id_parameter(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
    return note(tool_call_id)


@call_with(x=1)
async def call_id_under_another_name(x: int, mine: Annotated[str, InjectedToolCallId]) -> str:
    return note(mine)


@call_with(x=1)
async def private_parameter(x: int, private: Annotated[str, InjectedToolArg] = "mine") -> str:
    return note(private)


def returning(name: str, value: Any, *, sync: bool = False, **options: Any) -> None:
    async def f(x: int) -> Any:
        return value() if callable(value) else value

    def sync_f(x: int) -> Any:
        return value

    case_tool = StructuredTool.from_function(**_half(sync_f if sync else f), name=name, description="Do.", **options)
    case(case_tool, name=f"returns {name}")


PAIR: Any = {"response_format": "content_and_artifact"}
for _label, _value in OUTPUTS.items():
    returning(_label, _value)
returning("a model", lambda: Point())
returning("a message", lambda: ToolMessage("own", tool_call_id="call_1", artifact=[1], status="error"))
returning("a list of a message", lambda: [ToolMessage("own", tool_call_id="call_1")])
returning("a command", lambda: Command(update=[ToolMessage("own", tool_call_id="call_1", name="a command")]))


returning("a pair", ("text", {"rows": 1}), **PAIR)
returning("a pair in a thread", ("text", [1]), sync=True, **PAIR)
returning("no pair", "text", **PAIR)
returning("a list of two", ["text", 1], **PAIR)
returning("a triple", (1, 2, 3), **PAIR)


class Whatever(Exception):
    """An error of a tool."""


class Inner(BaseModel):
    n: int


def raising(name: str, error: Callable[[], Exception], args: dict[str, Any] | None = None, **options: Any) -> None:
    def f(x: int) -> str:
        raise error()

    async def af(x: int) -> str:
        raise error()

    for fn, suffix in ((af, ""), (f, " in a thread")):
        case_tool = StructuredTool.from_function(**_half(fn), name="f", description="Do.", **options)
        case(case_tool, args, f"raises {name}{suffix}")


def invalid() -> Exception:
    try:
        Inner(n="x")  # type: ignore[arg-type]
    except ValueError as error:
        return error
    raise AssertionError


def make_interrupt() -> Exception:
    return GraphInterrupt((Interrupt(value="why?", id="0" * 32),))


raising("an error", lambda: Whatever("no"))
raising("StopAsyncIteration", lambda: StopAsyncIteration("no"))
raising("a ToolException", lambda: ToolException("no"))
raising("a ToolException, True", lambda: ToolException("no"), handle_tool_error=True)
raising("an empty ToolException, True", ToolException, handle_tool_error=True)
raising("a ToolException, text", lambda: ToolException("no"), handle_tool_error="sorry")
raising("a ToolException, function", lambda: ToolException("no"), handle_tool_error=lambda e: f"handled {e}")
raising(
    "a ToolException, blocks",
    lambda: ToolException("no"),
    handle_tool_error=lambda e: [{"type": "text", "text": f"{e}"}],
)
raising("an error, True", lambda: Whatever("no"), handle_tool_error=True)
raising("a validation error inside", invalid)
raising("a validation error inside, handled", invalid, handle_validation_error="inside")
raising("missing arguments", lambda: Whatever("never"), {})
for _name, _handling in (
    ("invalid arguments", False),
    ("invalid arguments, True", True),
    ("invalid arguments, text", "try again"),
    ("invalid arguments, function", lambda e: f"{len(e.errors())} mistakes"),
):
    raising(_name, lambda: Whatever("never"), {"x": "one"}, handle_validation_error=_handling)


@tool
async def tags_metadata_and_callbacks_of_the_tool(x: int) -> str:
    """Do."""
    return note(child_of_context())


tags_metadata_and_callbacks_of_the_tool.tags = ["of the tool"]
tags_metadata_and_callbacks_of_the_tool.metadata = {"tool": 1, "both": "tool"}
tags_metadata_and_callbacks_of_the_tool.callbacks = [InlineHandler("of the tool", of_tool=True)]
case(tags_metadata_and_callbacks_of_the_tool)


@tool("another name", return_direct=True, parse_docstring=True)
async def described_at_length(x: int) -> str:
    """Do what has to be done.

    Args:
        x: a number
    """
    return "done"


case(described_at_length)


def config_for(kind: str, **options: Any) -> RunnableConfig:
    return {
        "callbacks": HANDLERS[kind]() or None,
        "tags": ["of the config"],
        "metadata": {"config": 1, "both": "config"},
        "configurable": {"user": "me"},
        **options,
    }  # type: ignore[typeddict-item]


Result = dict[str, Any]


def record_of_run(outcome: Any) -> Result:
    """Return the record of the run in a form that can be compared with another run."""
    runs: dict[Any, str] = {}
    by_handler: dict[str, list[Any]] = defaultdict(list)
    for name, event, content in NOTES.events:
        by_handler[name].append((event, plain(content, runs)))
    # Compared among sync handlers only: for sync tools, langchain-core calls async handlers at the end.
    inline = [(name, event) for name, event, _ in NOTES.events if name in {"inline", "inline 2"}]
    # A list of one message is returned as that message, as by LangGraph's node.
    plain_outcome = plain(outcome[0] if isinstance(outcome, list) and len(outcome) == 1 else outcome, runs)
    result = {
        "outcome": plain_outcome,
        "events": dict(by_handler),
        "inline order": inline,
        "saw": plain(NOTES.saw, runs),
    }
    NOTES.clear()
    return result


def call_of(args: dict[str, Any], name: str) -> Any:
    return tool_call(name, "call_1", **args)


async def by_langchain(case_tool: BaseTool, args: dict[str, Any], config: RunnableConfig) -> Result:
    try:
        outcome = await case_tool.ainvoke(call_of(args, case_tool.name), config)
        if isinstance(outcome, ToolMessage):  # as LangGraph's ToolNode treats it
            outcome.content = msg_content_output(outcome.content)
    except Exception as error:
        outcome = error
    return record_of_run(outcome)


async def by_us(case_tool: BaseTool, args: dict[str, Any], config: RunnableConfig) -> Result:
    node, outcome = ToolNode([case_tool], handle_tool_errors=False), None
    try:
        (outcome,) = await node.ainvoke([AIMessage("", tool_calls=[call_of(args, case_tool.name)])], config)
    except Exception as error:
        outcome = error
    return record_of_run(outcome)


async def both(
    case_tool: BaseTool, args: dict[str, Any], config: Callable[[], RunnableConfig]
) -> tuple[Result, Result]:
    """Run a tool by langchain-core in its own asyncio loop, because the test may run on trio, and by a node."""
    expected = await anyio.to_thread.run_sync(lambda: asyncio.run(by_langchain(case_tool, args, config())))
    with anyio.fail_after(10):
        return expected, await by_us(case_tool, args, config())


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in CASES for kind in (["all"] if name in FROM_PARITY else HANDLERS)]
)
async def test_a_tool_is_run_as_langchain_runs_it(name: str, kind: str) -> None:
    """Promise 12: the events, their order and contents, the result or error, and the body's context are the same."""
    expected, actual = await both(*CASES[name], lambda: config_for(kind))
    assert actual == expected


@pytest.mark.parametrize("name", ["async_function", "sync_function", "class WithArun", "raises an error"])
async def test_names_ids_and_limits_of_the_run(name: str) -> None:
    """Promise 12: `run_name`, `run_id`, `max_concurrency` and `recursion_limit` of the config have the same effect."""
    options = {"run_name": "a name", "run_id": uuid4(), "max_concurrency": 3, "recursion_limit": 11}
    expected, actual = await both(*CASES[name], lambda: config_for("all", **options))
    assert actual == expected
    assert expected["events"]["sync"][0][1]["name"] == "'a name'"


async def run_by_us(name: str, config: RunnableConfig) -> None:
    case_tool, args = CASES[name]
    await ToolNode([case_tool]).ainvoke([call_of(args, case_tool.name)], config)


def with_parent() -> RunnableConfig:
    inheritable = [SyncHandler("sync"), AsyncHandler("async")]
    local: Any = {"tags": ["local"], "metadata": {"local": 1}, "parent_run_id": PARENT}
    manager = AsyncCallbackManager(
        handlers=[*inheritable, InlineHandler("inline local")],
        inheritable_handlers=inheritable,
        inheritable_tags=["inheritable"],
        inheritable_metadata={"inheritable": 1},
        **local,
    )
    return {"callbacks": manager, "tags": ["of the config"], "metadata": {"config": 1}}


@pytest.mark.parametrize("name", ["async_function", "sync_function", "config_parameter", "class WithRun"])
async def test_the_parent_run_is_passed_on(name: str) -> None:
    """Promise 12: a callback manager keeps its parent run, own and inheritable handlers, tags and metadata."""
    expected, actual = await both(*CASES[name], with_parent)
    assert actual == expected
    assert expected["events"]["sync"][0][1]["parent_run_id"] == "parent"


async def test_the_input_of_handlers_has_no_injected_arguments() -> None:
    """Promise 9: as in langchain-core, handlers do not see injected arguments."""
    await run_by_us("call_id_parameter", config_for("sync"))
    start = NOTES.events[0][2]
    assert (start["inputs"], start[1], start["tool_call_id"]) == ({"x": 1}, "{'x': 1}", "call_1")


position: ContextVar[str] = ContextVar("position", default="outside")


class Positioned(InlineHandler):
    """Handler that sets a context variable in the body's context, like LangGraph's stream handler."""

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        position.set(f"inside {kwargs['tool_call_id']}")


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_what_an_inline_handler_sets_is_seen_by_the_body_of_its_call(sync: bool) -> None:
    """Promise 12: inline handlers run in the context of the call, and calls do not share a context."""

    def body() -> str:
        return position.get()

    async def abody() -> str:
        return position.get()

    node = ToolNode([make_sync(body, "f") if sync else make(abody, "f")])
    requests = [tool_call("f", "a"), tool_call("f", "b")]
    output = await node.ainvoke(requests, {"callbacks": [Positioned("inline")]})
    assert [message.content for message in output["messages"]] == ["inside a", "inside b"]
    assert position.get() == "outside"


@tool
async def sends_events(x: int, config: RunnableConfig) -> str:
    """Do."""
    await adispatch_custom_event("progress", {"done": x})
    return "done"


@tool
def sends_events_in_a_thread(x: int) -> str:
    """Do."""
    dispatch_custom_event("progress", {"done": x})
    return "done"


INNER = RunnableLambda(lambda x: x + 1, name="inner")


@tool
def runs_a_runnable(x: int) -> str:
    """Do."""
    return str(INNER.invoke(x))


@tool
def runs_a_runnable_with_a_config(x: int, config: RunnableConfig) -> str:
    """Do."""
    return str(INNER.invoke(x, {"tags": ["explicit"]}))


STARTS_OR_SENDS = [sends_events, sends_events_in_a_thread, runs_a_runnable, runs_a_runnable_with_a_config]


@pytest.mark.parametrize("kind", ["none", "sync", "inline"])
@pytest.mark.parametrize("case_tool", STARTS_OR_SENDS, ids=lambda t: t.name)
async def test_what_a_body_starts_or_sends_stands_below_the_run_of_the_tool(case_tool: BaseTool, kind: str) -> None:
    """Promise 12: custom events and runs have the tool's run as parent, with inherited tags and metadata."""
    if case_tool is sends_events and current_async_library() == "trio":
        pytest.skip("langchain-core cannot dispatch them on trio")
    expected, actual = await both(case_tool, {"x": 1}, lambda: config_for(kind))
    assert actual == expected


@pytest.mark.parametrize("event", ["start", "end", "error"])
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "raise_error"])
@pytest.mark.parametrize("kind", ["sync", "async", "inline"])
async def test_a_handler_that_fails(kind: str, strict: bool, event: str) -> None:
    """Promise 12: a handler's error is logged, or raised if the handler asks for it. Other handlers still run."""

    def failing() -> RunnableConfig:
        cls: Any = {"sync": SyncHandler, "async": AsyncHandler, "inline": InlineHandler}[kind]
        broken = cls("broken", fails=event)
        broken.raise_error = strict
        return {"callbacks": [broken, SyncHandler("sync"), InlineHandler("inline")]}

    expected, actual = await both(*CASES["raises an error" if event == "error" else "async_function"], failing)
    assert actual["outcome"] == expected["outcome"]
    # langchain-core may return before all handlers were called. A node waits for them.
    event_names = [name for name, _ in actual["events"].get("sync", ())]
    all_names = ["start", "error" if event == "error" else "end"]
    if strict and kind == "inline":
        assert event_names == all_names[: all_names.index(event)]  # an inline handler comes first
    else:
        assert event_names == (["start"] if strict and event == "start" else all_names)


async def test_a_handler_that_ignores_agents_hears_nothing() -> None:
    class Ignoring(SyncHandler):
        ignore_agent = True

    await run_by_us("async_function", {"callbacks": [Ignoring("ignoring"), SyncHandler("sync")]})
    assert {name for name, _, _ in NOTES.events} == {"sync"}


@pytest.mark.parametrize("name", ["raises a ToolException", "raises a ToolException in a thread"])
async def test_an_error_of_the_tools_own_error_handler_ends_the_run(name: str) -> None:
    """langchain-core does not report this error, so handlers never see the end of the run. A node reports it."""
    failing_tool = CASES[name][0].model_copy(update={"handle_tool_error": lambda _: 1 // 0})
    with pytest.raises(ZeroDivisionError):
        await ToolNode([failing_tool]).ainvoke([call_of({"x": 1}, "f")], config_for("sync"))
    assert [event for _, event, _ in NOTES.events] == ["start", "error"]


async def test_stop_iteration_in_a_thread_becomes_a_runtime_error() -> None:
    """Promise 8: a thread cannot raise it into a coroutine. langchain-core's error is the same, with an empty text."""

    def stops() -> str:
        raise StopIteration("no")

    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        await ToolNode([make_sync(stops)]).ainvoke([call_of({}, "stops")], config_for("sync"))
    assert isinstance(caught.value.__cause__, StopIteration)
    assert [event for _, event, _ in NOTES.events] == ["start", "error"]


async def test_the_config_and_the_context_of_the_caller_stay_as_they_are() -> None:
    """Promise 12: neither the batch nor a body that changes its config modifies the caller's object."""

    async def f(x: int, config: RunnableConfig) -> str:
        """Do."""
        for caller_config in (config, ensure_config()):
            caller_config["tags"].append("changed")
            caller_config["metadata"]["changed"] = 1
            caller_config["configurable"]["changed"] = 1
        return "done"

    before, config = var_child_runnable_config.get(), config_for("none")
    await ToolNode([f]).ainvoke([tool_call("f", "a", x=1), tool_call("f", "b", x=1)], config)
    assert config == config_for("none")
    assert var_child_runnable_config.get() is before


async def test_the_arguments_of_the_message_stay_as_they_are() -> None:
    @tool
    async def f(values: list[int], options: dict[str, int]) -> str:
        """Do."""
        values.append(3)
        options["new"] = 1
        return "done"

    call = tool_call("f", "a", values=[1], options={"old": 1})
    await ToolNode([f]).ainvoke([call])
    assert call["args"] == {"values": [1], "options": {"old": 1}}


async def test_the_message_of_a_text_is_the_one_that_pydantic_would_validate() -> None:
    """It is a copy of a template: nothing of it may differ, and two messages share no dict."""

    @tool(response_format="content_and_artifact")
    async def f(x: int) -> tuple[str, list[int]]:
        """Do."""
        return f"text {x}", [x]

    message, other_message = (await ToolNode([f]).ainvoke([tool_call("f", "a", x=1), tool_call("f", "b", x=2)]))[
        "messages"
    ]
    expected = ToolMessage("text 1", artifact=[1], tool_call_id="a", name="f", status="success")
    assert message == expected
    assert list(message.__dict__) == list(expected.__dict__)
    assert message.model_fields_set == expected.model_fields_set
    assert message.model_dump_json() == expected.model_dump_json()
    assert dumps(message) == dumps(expected)
    assert pickle.loads(pickle.dumps(message)) == expected
    message.additional_kwargs["changed"] = message.response_metadata["changed"] = True
    message.model_fields_set.add("changed")
    assert other_message == ToolMessage("text 2", artifact=[2], tool_call_id="b", name="f", status="success")
    assert other_message.model_fields_set == expected.model_fields_set
