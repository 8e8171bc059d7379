"""Tools run as with `BaseTool.ainvoke`: same events, results, errors and context.

Each case is run by langchain-core itself on asyncio, and by a `ToolNode` on every backend. A release of
langchain-core that changes how tools run is noticed here.
"""

import asyncio
import pickle
import re
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
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
from pydantic import BaseModel, ConfigDict, Field, field_serializer
from pydantic.v1 import BaseModel as BaseModelV1
from sniffio import current_async_library

from callboard import ToolInvocationError, ToolNode, msg_content_output
from callboard.testing import tool_call

pytestmark = pytest.mark.real_clock

PARENT = UUID(int=7)


@dataclass
class Notes:
    """Record of one run, as seen by callback handlers and by the tool body."""

    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    saw: list[Any] = field(default_factory=list)


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

    def __init__(self, name: str, notes: Notes, *, fails: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.notes = notes
        self.fails = fails

    def note(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Copied now, because messages may be changed later.
        now = [arg.model_copy() if isinstance(arg, BaseModel) else arg for arg in args]
        self.notes.events.append((self.name, event, {**dict(enumerate(now)), **kwargs}))
        if event == self.fails:
            raise ZeroDivisionError(f"{self.name} {event}")


class SyncHandler(_Recording, BaseCallbackHandler):
    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        self.note("start", args, kwargs)

    def on_tool_end(self, *args: Any, **kwargs: Any) -> None:
        self.note("end", args, kwargs)

    def on_tool_error(self, *args: Any, **kwargs: Any) -> None:
        self.note("error", args, kwargs)

    def on_custom_event(self, *args: Any, **kwargs: Any) -> None:
        self.note("custom", args, kwargs)

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self.note("chain start", args[1:], kwargs)

    def on_chain_end(self, *args: Any, **kwargs: Any) -> None:
        self.note("chain end", args, kwargs)


class AsyncHandler(_Recording, AsyncCallbackHandler):
    async def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        self.note("start", args, kwargs)

    async def on_tool_end(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        self.note("end", args, kwargs)

    async def on_tool_error(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        self.note("error", args, kwargs)

    async def on_custom_event(self, *args: Any, **kwargs: Any) -> None:
        self.note("custom", args, kwargs)


class InlineHandler(SyncHandler):
    run_inline = True


class InlineAsyncHandler(AsyncHandler):
    run_inline = True


def handlers(notes: Notes) -> list[BaseCallbackHandler]:
    return [
        SyncHandler("sync", notes),
        AsyncHandler("async", notes),
        InlineHandler("inline", notes),
        InlineAsyncHandler("inline async", notes),
        InlineHandler("inline 2", notes),
    ]


HANDLERS: dict[str, Callable[[Notes], list[BaseCallbackHandler]]] = {
    "none": lambda notes: [],
    "all": handlers,
    "sync": lambda notes: [SyncHandler("sync", notes)],
    "async": lambda notes: [AsyncHandler("async", notes)],
    "inline": lambda notes: [InlineHandler("inline", notes), InlineHandler("inline 2", notes)],
}

Make = Callable[[Notes], BaseTool]
CASES: dict[str, tuple[Make, dict[str, Any]]] = {}


def case(args: dict[str, Any] | None = None, name: str | None = None) -> Callable[[Make], Make]:
    """Declare a case: a function from notes to a tool, and the arguments of the call."""

    def declare(make: Make) -> Make:
        CASES[name or make.__name__] = (make, {"x": 1} if args is None else args)
        return make

    return declare


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


def inherited() -> dict[str, Any]:
    config = var_child_runnable_config.get()
    assert config is not None
    return child(config)


# --- functions, sync and async


@case()
def async_function(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, y: str = "why") -> str:
        """Do."""
        notes.saw.append((x, y, inherited()))
        return f"{x}{y}"

    return f


@case()
def sync_function(notes: Notes) -> BaseTool:
    @tool
    def f(x: int, y: str = "why") -> str:
        """Do."""
        notes.saw.append((x, y, inherited()))
        return f"{x}{y}"

    return f


@case()
def both_functions(notes: Notes) -> BaseTool:
    def f(x: int) -> str:
        return f"sync {x}"

    async def af(x: int) -> str:
        return f"async {x}"

    return StructuredTool.from_function(func=f, coroutine=af, name="f", description="Do.")


@case({})
def no_arguments(notes: Notes) -> BaseTool:
    @tool
    async def f() -> str:
        """Do."""
        return "done"

    return f


@case({"x": "3", "extra": "ignored"})
def coerced_and_extra(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, y: float = 2) -> str:
        """Do."""
        notes.saw.append((x, y))
        return "done"

    return f


class Deep(BaseModel):
    a: int
    b: list[int] = Field(default_factory=lambda: [1])


@case({"x": {"a": "1"}, "more": [{"a": 2, "b": [3]}]})
def nested_models(notes: Notes) -> BaseTool:
    @tool
    async def f(x: Deep, more: list[Deep]) -> str:
        """Do."""
        notes.saw.append((x, more))
        return "done"

    return f


@case({"query": "tea"})
def single_input(notes: Notes) -> BaseTool:
    return Tool(name="f", description="Do.", func=lambda query: f"sync {query}")


@case({"query": "tea"})
def single_input_async(notes: Notes) -> BaseTool:
    async def f(query: str) -> str:
        return f"async {query}"

    return Tool(name="f", description="Do.", func=None, coroutine=f)


@case({"one": 1, "two": 2})
def single_input_with_two(notes: Notes) -> BaseTool:
    return Tool(name="f", description="Do.", func=lambda query: "never")


# --- schemas


class Two(BaseModel):
    x: int
    y: int


class Aliased(BaseModel):
    x: int = Field(alias="ex")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Serialized(BaseModel):
    x: int
    y: int = Field(exclude=True)

    @field_serializer("x")
    def as_text(self, x: int) -> str:
        return f"<{x}>"


class Pydantic1(BaseModelV1):
    x: int
    y: int = 4


def schema(name: str, given: Any, args: dict[str, Any]) -> None:
    def make(notes: Notes) -> BaseTool:
        async def f(**kwargs: Any) -> str:
            notes.saw.append(kwargs)
            return "done"

        return StructuredTool(name="f", description="Do.", coroutine=f, args_schema=given)

    case(args, name=f"schema: {name}")(make)


as_json = {"title": "f", "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
schema("variable arguments", Two, {"x": 1, "y": 2})
schema("a dict", as_json, {"x": 1, "free": "yes"})
schema("aliases", Aliased, {"ex": 5})
schema("extra allowed", Open, {"x": 1, "y": 2})
schema("serializer and excluded", Serialized, {"x": 1, "y": 2})
schema("pydantic 1", Pydantic1, {"x": 1})


# --- classes


def described(manager: Any) -> list[Any]:
    """Return what a tool of a class sees of its run."""
    names = [handler.name for handler in manager.handlers]
    return [
        type(manager).__name__,
        manager.run_id,
        manager.parent_run_id,
        sorted(manager.tags),
        manager.metadata,
        names,
    ]


class Own(BaseTool):
    name: str = "own"
    description: str = "Do."
    notes: Notes

    def _run(self, x: int) -> str:
        raise NotImplementedError


class WithRun(Own):
    def _run(self, x: int, run_manager: CallbackManagerForToolRun | None = None) -> str:
        self.notes.saw.append(described(run_manager))
        return f"run {x}"


class WithArun(Own):
    async def _arun(self, x: int, run_manager: AsyncCallbackManagerForToolRun | None = None) -> str:
        assert run_manager is not None
        self.notes.saw += [described(run_manager), run_manager.get_child("step").parent_run_id]
        return f"arun {x}"


class WithConfig(Own):
    async def _arun(self, x: int, config: RunnableConfig) -> str:
        self.notes.saw.append((visible(config), inherited()))
        return f"arun {x}"


class WithItsOwnAinvoke(WithRun):
    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        message = await super().ainvoke(input, config, **kwargs)
        message.content += " marked"
        return message


for kind in (WithRun, WithArun, WithConfig, WithItsOwnAinvoke):
    case(name=f"class {kind.__name__}")(lambda notes, kind=kind: kind(notes=notes))  # type: ignore[misc]


# --- parameters that langchain-core fills


@case()
def config_parameter(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, config: RunnableConfig) -> str:
        """Do."""
        notes.saw.append((visible(config), inherited()))
        return "done"

    return f


@case()
def sync_config_parameter(notes: Notes) -> BaseTool:
    @tool
    def f(x: int, config: RunnableConfig) -> str:
        """Do."""
        notes.saw.append((visible(config), inherited()))
        return "done"

    return f


@case()
def callbacks_parameter(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, callbacks: Callbacks) -> str:
        """Do."""
        manager: Any = callbacks
        notes.saw.append((manager.parent_run_id, [h.name for h in manager.handlers], sorted(manager.tags)))
        return "done"

    return f


@case()
def call_id_parameter(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Do."""
        notes.saw.append(tool_call_id)
        return tool_call_id

    return f


@case()
def call_id_under_another_name(notes: Notes) -> BaseTool:
    class Args(BaseModel):
        x: int
        mine: Annotated[str, InjectedToolCallId]

    @tool(args_schema=Args)
    async def f(x: int, mine: Annotated[str, InjectedToolCallId]) -> str:
        """Do."""
        notes.saw.append(mine)
        return mine

    return f


@case()
def private_parameter(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, private: Annotated[str, InjectedToolArg] = "mine") -> str:
        """Do."""
        notes.saw.append(private)
        return "done"

    return f


# --- results


def returning(name: str, value: Any) -> None:
    def make(notes: Notes) -> BaseTool:
        @tool
        async def f(x: int) -> Any:
            """Do."""
            return value() if callable(value) else value

        return f

    case(name=f"returns {name}")(make)


returning("a number", 3)
returning("None", None)
returning("a dict", {"a": [1, None], "b": "ü"})
returning("a set", {1})
returning("a list of texts", ["a", "b"])
returning("an empty list", [])
returning("content blocks", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
returning("a model", lambda: Deep(a=1))
returning("an object", object())
returning("a message", lambda: ToolMessage("own", tool_call_id="call_1", artifact=[1], status="error"))
returning("a list of a message", lambda: [ToolMessage("own", tool_call_id="call_1")])
returning("a command", lambda: Command(update=[ToolMessage("own", tool_call_id="call_1", name="f")]))


def artifact(name: str, value: Any, *, sync: bool = False) -> None:
    def make(notes: Notes) -> BaseTool:
        async def f(x: int) -> Any:
            """Do."""
            return value

        def sync_f(x: int) -> Any:
            """Do."""
            return value

        return tool(response_format="content_and_artifact")(sync_f if sync else f)

    case(name=f"artifact: {name}")(make)


artifact("a pair", ("text", {"rows": 1}))
artifact("a pair in a thread", ("text", [1]), sync=True)
artifact("no pair", "text")
artifact("a list of two", ["text", 1])
artifact("a triple", (1, 2, 3))


# --- errors


class Whatever(Exception):
    """An error of a tool."""


class Inner(BaseModel):
    n: int


def raising(name: str, error: Callable[[], Exception], args: dict[str, Any] | None = None, **options: Any) -> None:
    def make(sync: bool, notes: Notes) -> BaseTool:
        def f(x: int) -> str:
            raise error()

        async def af(x: int) -> str:
            raise error()

        if sync:
            return StructuredTool.from_function(func=f, name="f", description="Do.", **options)
        return StructuredTool.from_function(coroutine=af, name="f", description="Do.", **options)

    case(args, name=f"raises {name}")(lambda notes: make(False, notes))
    case(args, name=f"raises {name} in a thread")(lambda notes: make(True, notes))


def invalid() -> Exception:
    try:
        Inner(n="x")  # type: ignore[arg-type]
    except ValueError as error:
        return error
    raise AssertionError


def interrupted() -> Exception:
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
    handle_tool_error=lambda e: [{"type": "text", "text": str(e)}],
)
raising("an error, True", lambda: Whatever("no"), handle_tool_error=True)
raising("a validation error inside", invalid)
raising("a validation error inside, handled", invalid, handle_validation_error="inside")
raising("invalid arguments", lambda: Whatever("never"), {"x": "one"})
raising("missing arguments", lambda: Whatever("never"), {})
raising("invalid arguments, True", lambda: Whatever("never"), {"x": "one"}, handle_validation_error=True)
raising("invalid arguments, text", lambda: Whatever("never"), {"x": "one"}, handle_validation_error="try again")
raising(
    "invalid arguments, function",
    lambda: Whatever("never"),
    {"x": "one"},
    handle_validation_error=lambda e: f"{len(e.errors())} mistakes",
)


# --- attributes of tools


@case()
def tags_metadata_and_callbacks_of_the_tool(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int) -> str:
        """Do."""
        notes.saw.append(inherited())
        return "done"

    f.tags, f.metadata = ["of the tool"], {"tool": 1, "both": "tool"}
    f.callbacks = [InlineHandler("of the tool", notes)]
    return f


@case()
def described_at_length(notes: Notes) -> BaseTool:
    @tool("another name", return_direct=True, parse_docstring=True)
    async def f(x: int) -> str:
        """Do what has to be done.

        Args:
            x: a number
        """
        return "done"

    return f


# --- running each case with both runners


def config_for(kind: str, notes: Notes, **more: Any) -> RunnableConfig:
    return {
        "callbacks": HANDLERS[kind](notes) or None,
        "tags": ["of the config"],
        "metadata": {"config": 1, "both": "config"},
        "configurable": {"user": "me"},
        **more,
    }  # type: ignore[typeddict-item]


Result = dict[str, Any]


def shown(notes: Notes, outcome: Any) -> Result:
    """Return the record of one run in a form that can be compared with another run."""
    runs: dict[Any, str] = {}
    by_handler: dict[str, list[Any]] = defaultdict(list)
    for name, event, content in notes.events:
        by_handler[name].append((event, plain(content, runs)))
    # Compared among sync handlers only: for sync tools, langchain-core calls async handlers at the end.
    inline = [(name, event) for name, event, _ in notes.events if name in {"inline", "inline 2"}]
    return {
        "outcome": plain(outcome, runs),
        "events": dict(by_handler),
        "inline order": inline,
        "saw": plain(notes.saw, runs),
    }


def call_of(args: dict[str, Any], name: str) -> Any:
    return tool_call(name, "call_1", **args)


async def by_langchain(make: Make, args: dict[str, Any], kind: str, **more: Any) -> Result:
    notes, outcome = Notes(), None
    one = make(notes)
    try:
        outcome = await one.ainvoke(call_of(args, one.name), config_for(kind, notes, **more))
        if isinstance(outcome, ToolMessage):  # as LangGraph's ToolNode treats it
            outcome.content = msg_content_output(outcome.content)
    except Exception as error:
        outcome = error
    return shown(notes, outcome)


async def by_us(make: Make, args: dict[str, Any], kind: str, **more: Any) -> Result:
    notes, outcome = Notes(), None
    one = make(notes)
    call = call_of(args, one.name)
    node = ToolNode([one], handle_tool_errors=False)
    try:
        (output,) = await node.ainvoke([AIMessage("", tool_calls=[call])], config_for(kind, notes, **more))
        outcome = output
    except Exception as error:
        outcome = error
    return shown(notes, outcome)


def expected_of(make: Make, args: dict[str, Any], kind: str, **more: Any) -> Result:
    """Return the result of langchain-core, run in its own asyncio loop because the test may run on trio."""
    expected = asyncio.run(by_langchain(make, args, kind, **more))
    return normalised(expected)


def normalised(result: Result) -> Result:
    """Return a record without the intended differences of a `ToolNode`, which LangGraph's node has, too."""
    outcome = result["outcome"]
    if isinstance(outcome, list) and len(outcome) == 1:
        result["outcome"] = outcome[0]  # a list of one message is returned as that message
    return result


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize("name", CASES)
async def test_a_tool_is_run_as_langchain_runs_it(name: str, kind: str) -> None:
    """Promise 12: the events, their order and contents, the result or error, and the body's context are the same."""
    make, args = CASES[name]
    expected = await anyio.to_thread.run_sync(expected_of, make, args, kind)
    with anyio.fail_after(10):
        actual = normalised(await by_us(make, args, kind))
    assert actual == expected


@pytest.mark.parametrize("name", ["async_function", "sync_function", "class WithArun", "raises an error"])
async def test_names_ids_and_limits_of_the_run(name: str) -> None:
    """Promise 12: `run_name`, `run_id`, `max_concurrency` and `recursion_limit` of the config have the same effect."""
    make, args = CASES[name]
    more = {"run_name": "a name", "run_id": uuid4(), "max_concurrency": 3, "recursion_limit": 11}
    expected = await anyio.to_thread.run_sync(lambda: expected_of(make, args, "all", **more))
    actual = normalised(await by_us(make, args, "all", **more))
    assert actual == expected
    assert expected["events"]["sync"][0][1]["name"] == "'a name'"


async def test_the_run_id_of_the_config_is_that_of_the_run() -> None:
    notes, run_id = Notes(), uuid4()
    node = ToolNode([CASES["async_function"][0](notes)])
    await node.ainvoke([call_of({"x": 1}, "f")], config_for("all", notes, run_id=run_id))
    assert {content["run_id"] for _, _, content in notes.events} == {run_id}


@pytest.mark.parametrize("name", ["async_function", "sync_function", "config_parameter", "class WithRun"])
async def test_the_parent_run_is_passed_on(name: str) -> None:
    """Promise 12: a callback manager keeps its parent run, own and inheritable handlers, tags and metadata."""
    make, args = CASES[name]

    def manager(notes: Notes) -> AsyncCallbackManager:
        inheritable = [SyncHandler("sync", notes), AsyncHandler("async", notes)]
        return AsyncCallbackManager(
            handlers=[*inheritable, InlineHandler("inline local", notes)],
            inheritable_handlers=inheritable,
            parent_run_id=PARENT,
            tags=["local"],
            inheritable_tags=["inheritable"],
            metadata={"local": 1},
            inheritable_metadata={"inheritable": 1},
        )

    async def run(how: Callable[..., Any]) -> Result:
        notes = Notes()
        one = make(notes)
        config: RunnableConfig = {"callbacks": manager(notes), "tags": ["of the config"], "metadata": {"config": 1}}
        return shown(notes, await how(one, config))

    async def langchains(one: BaseTool, config: RunnableConfig) -> Any:
        return await one.ainvoke(call_of(args, one.name), config)

    async def ours(one: BaseTool, config: RunnableConfig) -> Any:
        (message,) = await ToolNode([one]).ainvoke([AIMessage("", tool_calls=[call_of(args, one.name)])], config)
        return message

    expected = await anyio.to_thread.run_sync(lambda: asyncio.run(run(langchains)))
    actual = await run(ours)
    assert actual == expected
    assert expected["events"]["sync"][0][1]["parent_run_id"] == "parent"


async def test_the_input_of_handlers_has_no_injected_arguments() -> None:
    """Promise 9: as in langchain-core, handlers do not see injected arguments."""
    notes = Notes()
    make, _ = CASES["call_id_parameter"]
    await ToolNode([make(notes)]).ainvoke([call_of({"x": 1}, "f")], config_for("sync", notes))
    start = notes.events[0][2]
    assert (start["inputs"], start[1], start["tool_call_id"]) == ({"x": 1}, "{'x': 1}", "call_1")


position: ContextVar[str] = ContextVar("position", default="outside")


class Positioned(InlineHandler):
    """Handler that sets a context variable in the body's context, like LangGraph's stream handler."""

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        position.set(f"inside {kwargs['tool_call_id']}")


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_what_an_inline_handler_sets_is_seen_by_the_body_of_its_call(sync: bool) -> None:
    """Promise 12: inline handlers run in the context of the call, and calls do not share a context."""

    async def body() -> str:
        return position.get()

    def sync_body() -> str:
        return position.get()

    functions: Any = {"func": sync_body} if sync else {"coroutine": body}
    one = StructuredTool.from_function(**functions, name="f", description="Do.")
    node = ToolNode([one])
    asked = [tool_call("f", "a"), tool_call("f", "b")]
    output = await node.ainvoke(asked, {"callbacks": [Positioned("inline", Notes())]})
    assert [message.content for message in output["messages"]] == ["inside a", "inside b"]
    assert position.get() == "outside"


def sends_events(notes: Notes) -> BaseTool:
    @tool
    async def f(x: int, config: RunnableConfig) -> str:
        """Do."""
        await adispatch_custom_event("progress", {"done": x})
        return "done"

    return f


def sends_events_in_a_thread(notes: Notes) -> BaseTool:
    @tool
    def f(x: int) -> str:
        """Do."""
        dispatch_custom_event("progress", {"done": x})
        return "done"

    return f


@pytest.mark.parametrize("make", [sends_events, sends_events_in_a_thread])
async def test_custom_events_are_sent_below_the_run_of_the_tool(make: Make) -> None:
    """Promise 12: custom events need a parent run, whether or not the tool has handlers."""
    if make is sends_events and current_async_library() == "trio":
        pytest.skip("langchain-core cannot dispatch them on trio")
    for kind in ("none", "sync", "inline"):
        expected = await anyio.to_thread.run_sync(expected_of, make, {"x": 1}, kind)
        assert normalised(await by_us(make, {"x": 1}, kind)) == expected


@pytest.mark.parametrize("explicit", [False, True], ids=["from the context", "handed over"])
async def test_a_runnable_in_a_sync_body_is_a_child_of_the_tool(explicit: bool) -> None:
    """Promise 12: the runnable's run has the tool's run as parent, with inherited tags and metadata."""

    def make(notes: Notes) -> BaseTool:
        inner = RunnableLambda(lambda x: x + 1, name="inner")

        @tool
        def f(x: int, config: RunnableConfig) -> str:
            """Do."""
            return str(inner.invoke(x, {"tags": ["explicit"]} if explicit else None))

        return f

    for kind in ("sync", "inline"):
        expected = await anyio.to_thread.run_sync(expected_of, make, {"x": 1}, kind)
        actual = normalised(await by_us(make, {"x": 1}, kind))
        assert actual == expected


@pytest.mark.parametrize("event", ["start", "end", "error"])
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "raise_error"])
@pytest.mark.parametrize("kind", ["sync", "async", "inline"])
async def test_a_handler_that_fails(kind: str, strict: bool, event: str) -> None:
    """Promise 12: a handler's error is logged, or raised if the handler asks for it. Other handlers still run."""
    make, args = CASES["raises an error" if event == "error" else "async_function"]

    def failing(notes: Notes) -> list[BaseCallbackHandler]:
        cls: Any = {"sync": SyncHandler, "async": AsyncHandler, "inline": InlineHandler}[kind]
        broken = cls("broken", notes, fails=event)
        broken.raise_error = strict
        return [broken, SyncHandler("sync", notes), InlineHandler("inline", notes)]

    HANDLERS["failing"] = failing
    try:
        expected = await anyio.to_thread.run_sync(expected_of, make, args, "failing")
        actual = normalised(await by_us(make, args, "failing"))
    finally:
        del HANDLERS["failing"]
    assert actual["outcome"] == expected["outcome"]
    # langchain-core may return before all handlers were called. A node waits for them.
    told = [name for name, _ in actual["events"].get("sync", ())]
    whole = ["start", "error" if event == "error" else "end"]
    if strict and kind == "inline":
        assert told == whole[: whole.index(event)]  # an inline handler comes first
    else:
        assert told == (["start"] if strict and event == "start" else whole)


async def test_a_handler_that_ignores_agents_hears_nothing() -> None:
    notes = Notes()

    class Ignoring(SyncHandler):
        ignore_agent = True

    config: RunnableConfig = {"callbacks": [Ignoring("ignoring", notes), SyncHandler("sync", notes)]}
    await ToolNode([CASES["async_function"][0](notes)]).ainvoke([call_of({"x": 1}, "f")], config)
    assert {name for name, _, _ in notes.events} == {"sync"}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_an_error_of_the_tools_own_error_handler_ends_the_run(sync: bool) -> None:
    """langchain-core does not report this error, so handlers never see the end of the run. A node reports it."""

    def body() -> str:
        raise ToolException("no")

    async def abody() -> str:
        raise ToolException("no")

    functions: Any = {"func": body} if sync else {"coroutine": abody}
    one = StructuredTool.from_function(**functions, name="f", description="Do.", handle_tool_error=lambda _: 1 // 0)
    notes = Notes()
    with pytest.raises(ZeroDivisionError):
        await ToolNode([one]).ainvoke([call_of({}, "f")], config_for("sync", notes))
    assert [event for _, event, _ in notes.events] == ["start", "error"]


async def test_stop_iteration_in_a_thread_becomes_a_runtime_error() -> None:
    """The error is the same as in langchain-core, apart from its text, which is empty there."""

    def body() -> str:
        raise StopIteration("no")

    one = StructuredTool.from_function(func=body, name="f", description="Do.")
    notes = Notes()
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await ToolNode([one]).ainvoke([call_of({}, "f")], config_for("sync", notes))
    assert isinstance(caught.value.__cause__, StopIteration)
    assert [event for _, event, _ in notes.events] == ["start", "error"]


async def test_the_config_of_the_caller_stays_as_it_is() -> None:
    """Promise 12: neither the batch nor a body that changes its config modifies the caller's object."""

    def make(notes: Notes) -> BaseTool:
        @tool
        async def f(x: int, config: RunnableConfig) -> str:
            """Do."""
            for one in (config, ensure_config()):
                one["tags"].append("changed")
                one["metadata"]["changed"] = 1
                one["configurable"]["changed"] = 1
            return "done"

        return f

    notes = Notes()
    config = config_for("none", notes)
    node = ToolNode([make(notes)])
    await node.ainvoke([tool_call("f", "a", x=1), tool_call("f", "b", x=1)], config)
    assert config == config_for("none", notes)


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


async def test_the_context_of_the_caller_stays_as_it_is() -> None:
    before = var_child_runnable_config.get()
    notes = Notes()
    await ToolNode([CASES["async_function"][0](notes)]).ainvoke([call_of({"x": 1}, "f")], config_for("all", notes))
    assert var_child_runnable_config.get() is before


async def test_the_message_of_a_text_is_the_one_that_pydantic_would_validate() -> None:
    """It is a copy of a template: nothing of it may differ, and two messages share no dict."""

    @tool(response_format="content_and_artifact")
    async def f(x: int) -> tuple[str, list[int]]:
        """Do."""
        return f"text {x}", [x]

    with anyio.fail_after(30):
        one, other = (await ToolNode([f]).ainvoke([tool_call("f", "a", x=1), tool_call("f", "b", x=2)]))["messages"]
    expected = ToolMessage("text 1", artifact=[1], tool_call_id="a", name="f", status="success")
    assert one == expected
    assert list(one.__dict__) == list(expected.__dict__)
    assert one.model_fields_set == expected.model_fields_set
    assert one.model_dump_json() == expected.model_dump_json()
    assert dumps(one) == dumps(expected)
    assert pickle.loads(pickle.dumps(one)) == expected
    one.additional_kwargs["changed"] = one.response_metadata["changed"] = True
    one.model_fields_set.add("changed")
    assert other == ToolMessage("text 2", artifact=[2], tool_call_id="b", name="f", status="success")
    assert other.model_fields_set == expected.model_fields_set
