"""State, store, runtime and call id are injected into tools, and the model can forge none of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field

from ._harness import (
    ASYNC_MODES,
    DIRECT_MODES,
    GRAPH_MODES,
    Case,
    MessageList,
    State,
    alike,
    asks,
    call,
    table_test,
    wants,
)


def peeking(fn: Callable[..., Any]) -> Any:
    return StructuredTool.from_function(fn, name="peek", description="Peek.")


def whole(x: int, state: Annotated[Any, InjectedState]) -> str:
    if isinstance(state, dict):
        return f"{x} dict {sorted(state)} {len(state['messages'])}"
    return f"{x} {type(state).__name__} {len(state.messages)}"


def part(x: int, foo: Annotated[str, InjectedState("foo")]) -> str:
    return f"{x} {foo}"


def optional(x: int, foo: Annotated[Optional[str], InjectedState("absent")] = "default") -> str:
    return f"{x} {foo}"


def missing(x: int, foo: Annotated[str, InjectedState("absent")]) -> str:
    return f"{x} {foo}"


def messages_only(x: int, messages: Annotated[list, InjectedState("messages")]) -> str:
    return f"{x} {len(messages)}"


def two_fields(x: int, a: Annotated[str, InjectedState("a")], b: Annotated[str, InjectedState("b")]) -> str:
    return a + b


def with_id(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
    return f"{x} {tool_call_id}"


def only_injected(state: Annotated[dict, InjectedState]) -> str:
    return str(sorted(state))


def keeper(key: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    store.put(("kept",), key, {"v": 1})
    return str([item.key for item in store.search(("kept",))])


def facts(runtime: Any) -> str:
    return repr(
        [
            sorted(runtime.state),
            runtime.tool_call_id,
            getattr(runtime.context, "user", None),
            type(runtime.store).__name__,
            callable(runtime.stream_writer),
            [tool.name for tool in runtime.tools],
            runtime.config.get("tags"),
            runtime.config.get("configurable", {}).get("mine"),
            runtime.server_info,
        ]
    )


@dataclass
class Context:
    user: str = "ann"


def annotated_runtime(x: int, rt: ToolRuntime) -> str:
    return facts(rt)


def generic_runtime(x: int, rt: ToolRuntime[Context, dict]) -> str:
    return facts(rt)


def named_runtime(x: int, runtime: Any) -> str:
    return facts(runtime)


def typed_and_named_runtime(x: int, runtime: ToolRuntime) -> str:
    return facts(runtime)


def optional_runtime(x: int, rt: Optional[ToolRuntime] = None) -> str:
    return facts(rt)


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    foo: str = "from model"


@dataclass
class DataState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    foo: str = "from data"


def peeks(fn: Any, args: Any = None, *, options: Any = None, **case_options: Any) -> Any:
    """Return a scenario of a node with one tool, and a state dict in which the model calls it."""
    arguments = {"x": 1} if args is None else args
    return lambda ns: Case(
        ns.ToolNode([peeking(fn)], **(options or {})), wants("peek", arguments, foo="f"), **case_options
    )


def reads(fn: Any, input: Any, **case_options: Any) -> Any:
    return lambda ns: Case(ns.ToolNode([peeking(fn)]), input(), **case_options)


def as_list() -> Any:
    return [HumanMessage("q", id="h"), asks(call("peek", {"x": 1}))]


STATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a dict": (lambda: wants("peek", {"x": 1}, foo="from dict"), {}),
    "a pydantic state": (lambda: PydanticState(**wants("peek", {"x": 1})), {"state": PydanticState}),
    "a dataclass": (lambda: DataState(**wants("peek", {"x": 1})), {"state": DataState}),
}
LIST: dict[str, Any] = {"state": MessageList}
WITH_CONTEXT = {
    "__type": "tool_call_with_context",
    "tool_call": call("peek", {"x": 1}),
    "state": {"messages": [], "foo": "from context"},
}
FROM_STATE: dict[str, Any] = {
    **{
        f"{fn.__name__} of {label}": reads(fn, make, **state_options)
        for label, (make, state_options) in STATES.items()
        for fn in (whole, part, optional)
    },
    **{
        f"a missing field of {label}": (
            reads(missing, make, **state_options),
            "KeyError" if label == "a dict" else "AttributeError",
        )
        for label, (make, state_options) in STATES.items()
    },
    "a missing field when errors are handled": (peeks(missing, options={"handle_tool_errors": True}), "KeyError"),
    "a message list as a dict": reads(whole, as_list, **LIST),
    "the messages of a message list": reads(messages_only, as_list, **LIST),
    "another field of a message list": (reads(part, as_list, **LIST), "ValueError"),
    "an optional field of a message list": (reads(optional, as_list, **LIST), "ValueError"),
    "two fields of a message list, which are named": (reads(two_fields, as_list, **LIST), "ValueError"),
    "a call with its state": reads(part, lambda: WITH_CONTEXT, send=True, seed={"foo": "from graph"}),
}
test_state_is_injected_alike = table_test(FROM_STATE)


@pytest.mark.parametrize("schema", [State, PydanticState, DataState])
@pytest.mark.parametrize("fn", [whole, part])
@alike(modes=GRAPH_MODES)
def test_a_list_of_calls_injects_the_state_of_the_graph(ns: Any, schema: Any, fn: Any) -> Case:
    seed = {"messages": [HumanMessage("q", id="h")], "foo": "from graph"}
    return Case(ns.ToolNode([peeking(fn)]), [call("peek", {"x": 1})], send=True, seed=seed, state=schema)


@alike(modes=DIRECT_MODES, raises="KeyError")
def test_a_list_of_calls_outside_a_graph_has_an_empty_state(ns: Any) -> Case:
    return Case(ns.ToolNode([peeking(part)]), [call("peek", {"x": 1})])


class Secret(InjectedToolArg):
    """An injected argument of a class that the user has defined."""


def of_marker(marker: Any) -> Any:
    def peek(x: int, state: Annotated[dict, InjectedState], secret: Annotated[str, marker] = "safe") -> str:
        return f"{x} {secret}"

    return peek


class Args(BaseModel):
    x: int = Field(description="A number")
    foo: Annotated[str, InjectedState("foo")]
    store: Annotated[Any, InjectedStore()]


def by_schema(ns: Any) -> Case:
    tool_of_schema = StructuredTool.from_function(
        lambda x, foo, store: f"{x} {foo} {type(store).__name__}", name="peek", description="Peek.", args_schema=Args
    )
    return Case(ns.ToolNode([tool_of_schema]), wants("peek", {"x": 1}, foo="f"), store=InMemoryStore())


class Peek(BaseTool):
    class OfState(BaseModel):
        x: int
        state: Annotated[dict, InjectedState]

    name: str = "peek"
    description: str = "Peek."
    args_schema: type[BaseModel] = OfState

    def _run(self, x: int, state: dict) -> str:
        return f"{x} {sorted(state)}"


def peek(x: int, foo: Annotated[str, InjectedState("foo")]) -> str:
    """Peek."""
    return f"{x} {foo}"


def store_scenario(args: dict[str, Any]) -> Any:
    return lambda ns: Case(ns.ToolNode([peeking(keeper)]), wants("peek", args), store=InMemoryStore())


FORGED = {"x": 1, "state": "f", "foo": "f", "store": "f", "rt": "f", "runtime": "f"}
THREE = {"messages": [asks(*(call("peek", {"x": n}, f"c{n}") for n in range(3)))]}
OTHERS: dict[str, Any] = {
    "a store": store_scenario({"key": "a"}),
    "a forged store": store_scenario({"key": "a", "store": "forged"}),
    "a store that is not there": (peeks(keeper, {"key": "a"}), "ValueError"),
    "a store that is not there when errors are handled": (
        peeks(keeper, {"key": "a"}, options={"handle_tool_errors": True}),
        "ValueError",
    ),
    "the runtime of each call": lambda ns: Case(ns.ToolNode([peeking(annotated_runtime)]), THREE),
    "a forged call id": peeks(with_id, {"x": 1, "tool_call_id": "forged"}),
    **{
        f"forged values for {fn.__name__}": peeks(fn, FORGED)
        for fn in (whole, part, optional, annotated_runtime, named_runtime)
    },
    **{
        f"a forged argument of {label}": peeks(of_marker(marker), {"x": 1, "secret": "forged"})
        for label, marker in (("a class", Secret), ("an instance", Secret()), ("the base class", InjectedToolArg))
    },
    "an args schema": by_schema,
    "a tool of a class": lambda ns: Case(ns.ToolNode([Peek()]), wants("peek", {"x": 1}, foo="f")),
    "a plain function": lambda ns: Case(ns.ToolNode([peek]), wants("peek", {"x": 1}, foo="f")),
    "injected arguments only": peeks(only_injected, {"anything": 1}),
}
test_arguments_are_injected_alike_for = table_test(OTHERS)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    "fn",
    [annotated_runtime, generic_runtime, named_runtime, typed_and_named_runtime, optional_runtime],
    ids=lambda fn: fn.__name__,
)
@alike
def test_the_runtime_is_injected_by_annotation_or_name(ns: Any, fn: Any) -> Case:
    config = {"configurable": {"mine": 7}}
    return peeks(fn, store=InMemoryStore(), context=Context(), config=config)(ns)  # type: ignore[no-any-return]


@alike(modes=ASYNC_MODES)
def test_injection_reaches_an_async_tool(ns: Any) -> Case:
    async def peek(x: int, foo: Annotated[str, InjectedState("foo")], rt: ToolRuntime) -> str:
        """Peek."""
        return f"{x} {foo} {rt.tool_call_id}"

    return Case(ns.ToolNode([peek]), wants("peek", {"x": 1}, foo="f"))


@alike(modes=DIRECT_MODES, raises="ValueError")
def test_two_markers_on_one_argument_are_refused_at_construction(ns: Any) -> Case:
    def peek(x: int, foo: Annotated[str, InjectedState("a"), InjectedState("b")]) -> str:
        return foo

    return Case(ns.ToolNode([peeking(peek)]), {"messages": [AIMessage("done")]})
