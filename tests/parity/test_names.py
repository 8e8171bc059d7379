"""Names, texts and signatures that must survive a changed import."""

import inspect
import warnings
from typing import Any, get_type_hints

import langgraph.prebuilt
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from ._harness import asks, call
from ._prebuilt import ALL_NAMES, candidate, reference


def both() -> tuple[Any, Any]:
    return reference(), candidate()


def parameters(value: Any) -> Any:
    """Return the parameters of the constructor itself, because `@deprecated` hides those of the class."""
    return inspect.signature(value.__init__ if inspect.isclass(value) else value).parameters


OF_OURS = {
    "ToolNode",
    "ValidationNode",
    "tools_condition",
    "create_react_agent",
    *(name for name in ALL_NAMES if name.startswith(("AgentState", "Human", "Action"))),
}


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name not in OF_OURS])
def test_all_other_names_are_langgraphs_own_objects(name: str) -> None:
    """Requests, errors, markers and templates that others have made for LangGraph are recognised."""
    assert getattr(candidate(), name) is getattr(reference(), name)


@pytest.mark.parametrize(
    "name", ["ToolNode", "ValidationNode", "tools_condition", "create_react_agent", "InjectedState"]
)
def test_every_parameter_of_langgraph_is_accepted_in_its_place_with_its_default(name: str) -> None:
    expected, actual = (parameters(getattr(ns, name)) for ns in both())

    positional = [p.name for p in expected.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in actual.values() if p.kind is p.POSITIONAL_OR_KEYWORD][: len(positional)] == positional
    accepts_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in actual.values())
    for key, parameter in expected.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            assert accepts_anything
            continue
        assert key in actual
        assert actual[key].kind == parameter.kind
        if not callable(parameter.default):
            assert actual[key].default == parameter.default


def test_a_node_is_named_tools_and_can_be_renamed() -> None:
    expected, actual = both()
    assert actual.ToolNode([]).name == expected.ToolNode([]).name == "tools"
    assert actual.ToolNode([], name="doers", tags=["a"]).name == "doers"
    assert actual.ValidationNode([]).name == expected.ValidationNode([]).name == "validation"


def test_tools_by_name_lists_tools_in_their_order_and_wraps_functions() -> None:
    def plain(x: int) -> str:
        """A function."""
        return str(x)

    expected, actual = ([(n, type(t).__name__) for n, t in ns.ToolNode([plain]).tools_by_name.items()] for ns in both())
    assert actual == expected


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name.startswith(("AgentState", "Human", "Action"))])
def test_schemas_and_records_have_the_same_keys(name: str) -> None:
    expected, actual = (list(get_type_hints(getattr(ns, name))) for ns in both())
    assert actual == expected


def test_every_name_of_the_package_is_exported_as_it_is_now() -> None:
    """A name that a new version of LangGraph adds makes this test fail."""
    import callboard

    assert set(langgraph.prebuilt.__all__) <= set(callboard.__all__)


def test_the_transformer_of_event_streams_sees_the_calls_of_our_node() -> None:
    """The transformer is LangGraph's own class."""

    def f(x: int) -> int:
        """F."""
        return x

    graph = StateGraph(MessagesState)
    graph.add_node("tools", candidate().ToolNode([f]))
    graph.add_edge(START, "tools")
    compiled = graph.compile(transformers=[candidate().ToolCallTransformer])
    with warnings.catch_warnings(action="ignore"):
        run = compiled.stream_events({"messages": [asks(call("f", {"x": 1}, "1"))]}, version="v3")
        assert [streamed_call.tool_call_id for streamed_call in run.tool_calls] == ["1"]
