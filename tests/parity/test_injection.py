"""State, store, runtime and call id are injected into tools, and the model can forge none of them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool, tool
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field

from ._harness import ASYNC_MODES, DIRECT_MODES, Case, MessageList, alike, asks, call, wants
from .conftest import Same


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    foo: str = "from model"


@dataclass
class DataState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    foo: str = "from data"


def whole(ns: Any) -> Any:
    @tool
    def peek(x: int, state: Annotated[Any, ns.InjectedState]) -> str:
        """Peek."""
        if isinstance(state, dict):
            return f"{x} dict {sorted(state)} {len(state['messages'])}"
        return f"{x} {type(state).__name__} {len(state.messages)}"

    return peek


def part(ns: Any) -> Any:
    @tool
    def peek(x: int, foo: Annotated[str, ns.InjectedState("foo")]) -> str:
        """Peek."""
        return f"{x} {foo}"

    return peek


def optional(ns: Any) -> Any:
    @tool
    def peek(x: int, foo: Annotated[Optional[str], ns.InjectedState("absent")] = "default") -> str:
        """Peek."""
        return f"{x} {foo}"

    return peek


def missing(ns: Any) -> Any:
    @tool
    def peek(x: int, foo: Annotated[str, ns.InjectedState("absent")]) -> str:
        """Peek."""
        return f"{x} {foo}"

    return peek


STATES: dict[str, tuple[Any, Any]] = {
    "a dict": (lambda: wants("peek", {"x": 1}, foo="from dict"), None),
    "a pydantic state": (lambda: PydanticState(**wants("peek", {"x": 1})), PydanticState),
    "a dataclass": (lambda: DataState(**wants("peek", {"x": 1})), DataState),
}


def around(label: str, node: Any, **case: Any) -> Case:
    make, schema = STATES[label]
    return Case(node, make(), **({"state": schema} if schema else {}), **case)


@pytest.mark.parametrize("make", [whole, part, optional], ids=["the whole", "a field", "an optional field"])
@pytest.mark.parametrize("label", STATES)
def test_state_is_injected_from(label: str, make: Any, same: Same) -> None:
    same(lambda ns: around(label, ns.ToolNode([make(ns)])))


@pytest.mark.parametrize("label", STATES)
def test_a_missing_required_field_is_an_error_in(label: str, same: Same) -> None:
    error = "KeyError" if label == "a dict" else "AttributeError"
    same(lambda ns: around(label, ns.ToolNode([missing(ns)])), raises=error)


def test_a_missing_required_field_is_an_error_also_when_errors_are_handled(same: Same) -> None:
    same(lambda ns: around("a dict", ns.ToolNode([missing(ns)], handle_tool_errors=True)), raises="KeyError")


def as_list(node: Any) -> Case:
    return Case(node, [HumanMessage("q", id="h"), asks(call("peek", {"x": 1}))], state=MessageList)


def test_a_message_list_is_injected_as_a_dict(same: Same) -> None:
    same(lambda ns: as_list(ns.ToolNode([whole(ns)])))


@alike
def test_the_messages_field_is_injected_from_a_message_list(ns: Any) -> Case:
    @tool
    def peek(x: int, messages: Annotated[list, ns.InjectedState("messages")]) -> str:
        """Peek."""
        return f"{x} {len(messages)}"

    return as_list(ns.ToolNode([peek]))


@pytest.mark.parametrize("make", [part, optional], ids=["required", "optional"])
def test_another_field_of_a_message_list_is_an_error(make: Any, same: Same) -> None:
    same(lambda ns: as_list(ns.ToolNode([make(ns)])), raises="ValueError")


@alike(raises="ValueError")
def test_two_fields_of_a_message_list_are_an_error_that_names_them(ns: Any) -> Case:
    @tool
    def peek(x: int, a: Annotated[str, ns.InjectedState("a")], b: Annotated[str, ns.InjectedState("b")]) -> str:
        """Peek."""
        return a + b

    return as_list(ns.ToolNode([peek]))


@alike
def test_a_call_with_context_injects_its_state(ns: Any) -> Case:
    payload = {
        "__type": "tool_call_with_context",
        "tool_call": call("peek", {"x": 1}),
        "state": {"messages": [], "foo": "from context"},
    }
    return Case(ns.ToolNode([part(ns)]), payload, send=True, seed={"foo": "from graph"})


def test_a_list_of_calls_injects_the_state_of_the_graph(same_graph: Same) -> None:
    seed = {"messages": [HumanMessage("q", id="h")], "foo": "from graph"}
    same_graph(lambda ns: Case(ns.ToolNode([part(ns)]), [call("peek", {"x": 1})], send=True, seed=seed))


def test_a_list_of_calls_outside_a_graph_has_an_empty_state(same_direct: Same) -> None:
    same_direct(lambda ns: Case(ns.ToolNode([part(ns)]), [call("peek", {"x": 1})]), raises="KeyError")


def keeper(ns: Any) -> Any:
    @tool
    def keep(key: str, store: Annotated[BaseStore, ns.InjectedStore()]) -> str:
        """Keep."""
        store.put(("kept",), key, {"v": 1})
        return str([item.key for item in store.search(("kept",))])

    return keep


def test_the_store_is_injected(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([keeper(ns)]), wants("keep", {"key": "a"}), store=InMemoryStore()))


@pytest.mark.parametrize("handled", [True, False])
def test_a_tool_that_wants_a_store_fails_without_one(handled: bool, same: Same) -> None:
    same(
        lambda ns: Case(ns.ToolNode([keeper(ns)], handle_tool_errors=handled), wants("keep", {"key": "a"})),
        raises="ValueError",
    )


@dataclass
class Context:
    user: str = "ann"


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


def annotated_runtime(ns: Any) -> Any:
    @tool
    def peek(x: int, rt: ns.ToolRuntime) -> str:
        """Peek."""
        return facts(rt)

    return peek


def generic_runtime(ns: Any) -> Any:
    @tool
    def peek(x: int, rt: ns.ToolRuntime[Context, dict]) -> str:
        """Peek."""
        return facts(rt)

    return peek


def named_runtime(ns: Any) -> Any:
    @tool
    def peek(x: int, runtime: Any) -> str:
        """Peek."""
        return facts(runtime)

    return peek


def typed_and_named_runtime(ns: Any) -> Any:
    @tool
    def peek(x: int, runtime: ns.ToolRuntime) -> str:
        """Peek."""
        return facts(runtime)

    return peek


def optional_runtime(ns: Any) -> Any:
    @tool
    def peek(x: int, rt: Optional[ns.ToolRuntime] = None) -> str:
        """Peek."""
        return facts(rt)

    return peek


RUNTIMES = [annotated_runtime, generic_runtime, named_runtime, typed_and_named_runtime, optional_runtime]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("make", RUNTIMES, ids=lambda make: make.__name__)
@alike
def test_the_runtime_is_injected_by_annotation_or_name(ns: Any, make: Any) -> Case:
    return Case(
        ns.ToolNode([make(ns)]),
        wants("peek", {"x": 1}, foo="f"),
        store=InMemoryStore(),
        context=Context(),
        config={"configurable": {"mine": 7}},
    )


def test_the_runtime_of_each_call_has_its_own_id(same: Same) -> None:
    calls = [call("peek", {"x": n}, f"c{n}") for n in range(3)]
    same(lambda ns: Case(ns.ToolNode([annotated_runtime(ns)]), {"messages": [asks(*calls)]}))


def test_the_call_id_is_injected(same: Same) -> None:
    @tool
    def peek(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Peek."""
        return f"{x} {tool_call_id}"

    same(lambda ns: Case(ns.ToolNode([peek]), wants("peek", {"x": 1, "tool_call_id": "forged"})))


FORGED = {"x": 1, "state": "f", "foo": "f", "store": "f", "rt": "f", "runtime": "f"}


@pytest.mark.parametrize(
    "make", [whole, part, optional, annotated_runtime, named_runtime], ids=lambda make: make.__name__
)
def test_forged_values_are_replaced(make: Any, same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([make(ns)]), wants("peek", FORGED, foo="real")))


def test_a_forged_store_is_replaced(same: Same) -> None:
    forged = {"key": "a", "store": "forged"}
    same(lambda ns: Case(ns.ToolNode([keeper(ns)]), wants("keep", forged), store=InMemoryStore()))


class Secret(InjectedToolArg):
    """An injected argument of a class that the user has defined."""


@pytest.mark.parametrize("marker", [Secret, Secret(), InjectedToolArg], ids=["class", "instance", "base"])
@alike
def test_a_forged_custom_injected_argument_falls_back_to_its_default(ns: Any, marker: Any) -> Case:
    @tool
    def peek(x: int, state: Annotated[dict, ns.InjectedState], secret: Annotated[str, marker] = "safe") -> str:
        """Peek."""
        return f"{x} {secret}"

    return Case(ns.ToolNode([peek]), wants("peek", {"x": 1, "secret": "forged"}))


@alike
def test_injection_is_read_from_an_args_schema(ns: Any) -> Case:
    class Args(BaseModel):
        x: int = Field(description="A number")
        foo: Annotated[str, ns.InjectedState("foo")]
        store: Annotated[Any, ns.InjectedStore()]

    @tool(args_schema=Args)
    def peek(x: int, foo: str, store: Any) -> str:
        """Peek."""
        return f"{x} {foo} {type(store).__name__}"

    return Case(ns.ToolNode([peek]), wants("peek", {"x": 1}, foo="f"), store=InMemoryStore())


@alike
def test_injection_reaches_a_base_tool(ns: Any) -> Case:
    class Args(BaseModel):
        x: int
        state: Annotated[dict, ns.InjectedState]

    class Peek(BaseTool):
        name: str = "peek"
        description: str = "Peek."
        args_schema: type[BaseModel] = Args

        def _run(self, x: int, state: dict) -> str:
            return f"{x} {sorted(state)}"

    return Case(ns.ToolNode([Peek()]), wants("peek", {"x": 1}, foo="f"))


@alike
def test_injection_reaches_a_plain_function(ns: Any) -> Case:
    def peek(x: int, foo: Annotated[str, ns.InjectedState("foo")]) -> str:
        """Peek."""
        return f"{x} {foo}"

    return Case(ns.ToolNode([peek]), wants("peek", {"x": 1}, foo="f"))


@alike(modes=ASYNC_MODES)
def test_injection_reaches_an_async_tool(ns: Any) -> Case:
    @tool
    async def peek(x: int, foo: Annotated[str, ns.InjectedState("foo")], rt: ns.ToolRuntime) -> str:
        """Peek."""
        return f"{x} {foo} {rt.tool_call_id}"

    return Case(ns.ToolNode([peek]), wants("peek", {"x": 1}, foo="f"))


def test_the_models_schema_hides_what_is_injected() -> None:
    from ._prebuilt import candidate, reference

    def schema(ns: Any) -> Any:
        tools = [make(ns) for make in (whole, part, optional, annotated_runtime, keeper)]
        return [(tool.tool_call_schema.model_json_schema(), sorted(tool.args)) for tool in tools]

    assert schema(candidate()) == schema(reference())


@alike(modes=DIRECT_MODES, raises="ValueError")
def test_two_markers_on_one_argument_are_refused_at_construction(ns: Any) -> Case:
    def peek(x: int, foo: Annotated[str, ns.InjectedState("a"), ns.InjectedState("b")]) -> str:
        return foo

    built = StructuredTool.from_function(func=peek, name="peek", description="d")
    return Case(ns.ToolNode([built]), {"messages": [AIMessage("done")]})


@alike
def test_a_tool_that_only_takes_injected_arguments_runs(ns: Any) -> Case:
    @tool
    def peek(state: Annotated[dict, ns.InjectedState]) -> str:
        """Peek."""
        return str(sorted(state))

    return Case(ns.ToolNode([peek]), wants("peek", {"anything": 1}, foo="f"))
