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


def parameters(named: Any) -> Any:
    """Return the parameters of the constructor itself, because `@deprecated` hides those of the class."""
    return inspect.signature(named.__init__ if inspect.isclass(named) else named).parameters


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
    theirs, ours = (parameters(getattr(ns, name)) for ns in both())

    positional = [p.name for p in theirs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD][: len(positional)] == positional
    accepts_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values())
    for key, parameter in theirs.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            assert accepts_anything
            continue
        assert key in ours
        assert ours[key].kind == parameter.kind
        if not callable(parameter.default):
            assert ours[key].default == parameter.default


def test_a_node_is_named_tools_and_can_be_renamed() -> None:
    theirs, ours = both()
    assert ours.ToolNode([]).name == theirs.ToolNode([]).name == "tools"
    assert ours.ToolNode([], name="doers", tags=["a"]).name == "doers"
    assert ours.ValidationNode([]).name == theirs.ValidationNode([]).name == "validation"


def test_tools_by_name_lists_tools_in_their_order_and_wraps_functions() -> None:
    def plain(x: int) -> str:
        """A function."""
        return str(x)

    theirs, ours = ([(n, type(t).__name__) for n, t in ns.ToolNode([plain]).tools_by_name.items()] for ns in both())
    assert ours == theirs


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name.startswith(("AgentState", "Human", "Action"))])
def test_schemas_and_records_have_the_same_keys(name: str) -> None:
    theirs, ours = (list(get_type_hints(getattr(ns, name))) for ns in both())
    assert ours == theirs


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
        assert [one.tool_call_id for one in run.tool_calls] == ["1"]
