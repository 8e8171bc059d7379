"""Names, texts and signatures that must survive a changed import."""

import inspect
import warnings
from typing import Any, get_type_hints

import langgraph.prebuilt
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from ._dump import dump
from ._harness import asks, call
from ._prebuilt import ALL_NAMES, candidate, reference


def both() -> tuple[Any, Any]:
    return reference(), candidate()


def parameters(named: Any) -> Any:
    """Return the parameters of the constructor itself, because `@deprecated` hides those of the class."""
    return inspect.signature(named.__init__ if inspect.isclass(named) else named).parameters


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_prebuilt_name_is_exported(name: str) -> None:
    assert getattr(candidate(), name) is not None


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name.endswith("_TEMPLATE")])
def test_message_templates_are_the_same(name: str) -> None:
    theirs, ours = both()

    assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize(
    "name", ["ToolNode", "ValidationNode", "tools_condition", "create_react_agent", "InjectedState"]
)
def test_every_parameter_of_langgraph_is_accepted_with_its_default(name: str) -> None:
    theirs, ours = (parameters(getattr(ns, name)) for ns in both())

    accepts_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values())
    for key, parameter in theirs.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            assert accepts_anything
            continue
        assert key in ours
        assert ours[key].kind == parameter.kind
        if not callable(parameter.default):
            assert ours[key].default == parameter.default


def test_positional_parameters_stand_in_the_same_order() -> None:
    for name in ("ToolNode", "ValidationNode", "tools_condition", "create_react_agent"):
        theirs, ours = (parameters(getattr(ns, name)).values() for ns in both())
        positional = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]

        assert [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD][: len(positional)] == positional


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


@pytest.mark.parametrize(
    "name",
    [
        "AgentState",
        "AgentStatePydantic",
        "AgentStateWithStructuredResponse",
        "AgentStateWithStructuredResponsePydantic",
    ],
)
def test_state_schemas_have_the_same_keys(name: str) -> None:
    theirs, ours = (list(get_type_hints(getattr(ns, name))) for ns in both())

    assert ours == theirs


@pytest.mark.parametrize("name", ["HumanInterrupt", "HumanInterruptConfig", "HumanResponse", "ActionRequest"])
def test_approval_records_have_the_same_keys(name: str) -> None:
    theirs, ours = (set(get_type_hints(getattr(ns, name))) for ns in both())

    assert ours == theirs


class Shows:
    def __str__(self) -> str:
        return "shown"


@pytest.mark.parametrize(
    "output",
    [
        "text",
        "",
        7,
        None,
        {"a": 1},
        [1, 2],
        [],
        ["a", "b"],
        [{"type": "text", "text": "hi"}],
        [{"type": "image_url", "image_url": {"url": "data:"}}],
        [{"type": "text", "text": "hi"}, {"type": "mystery"}],
        {"ü": "ß"},
        Shows(),
        {1, 2},
    ],
)
def test_msg_content_output_gives_the_same_content(output: Any) -> None:
    theirs, ours = both()

    assert ours.msg_content_output(output) == theirs.msg_content_output(output)


def request(ns: Any) -> Any:
    call = {"name": "t", "args": {"x": 1}, "id": "1", "type": "tool_call"}
    return ns.ToolCallRequest(tool_call=call, tool=None, state={"a": 1}, runtime=None)


def test_a_request_is_built_by_keyword_and_overridden_as_a_copy() -> None:
    for ns in both():
        original = request(ns)
        changed = original.override(state={"a": 2})

        assert (original.state, changed.state) == ({"a": 1}, {"a": 2})
        assert changed.tool_call is original.tool_call
        assert isinstance(changed, ns.ToolCallRequest)


def test_building_and_overriding_a_request_warns_of_nothing() -> None:
    for ns in both():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            request(ns).override(tool_call={"name": "u", "args": {}, "id": "2", "type": "tool_call"})


@pytest.mark.parametrize("attribute", ["tool_call", "tool", "state", "runtime"])
def test_assigning_to_a_request_warns_and_still_sets(attribute: str) -> None:
    texts = []
    for ns in both():
        one = request(ns)
        with pytest.warns(DeprecationWarning, match="deprecated") as caught:
            setattr(one, attribute, "new")
        texts.append([str(warning.message) for warning in caught])

        assert getattr(one, attribute) == "new"

    assert texts[1] == texts[0]


def test_an_unknown_override_is_a_type_error() -> None:
    for ns in both():
        with pytest.raises(TypeError):
            request(ns).override(nonsense=1)


def test_an_invocation_error_carries_the_same_facts() -> None:
    from langchain_core.tools import ToolException
    from pydantic import BaseModel, ValidationError

    class Args(BaseModel):
        x: int

    try:
        Args(x="no")  # type: ignore[arg-type]
    except ValidationError as error:
        source = error
    dumps = []
    for ns in both():
        for filtered in (None, [], [{"loc": ("x",), "msg": "bad"}, {"loc": ("y", 0), "msg": "worse"}, {}]):
            error = ns.ToolInvocationError("t", source, {"x": "no"}, filtered)
            dumps.append((ns, [str(error), error.message, error.tool_name, error.tool_kwargs, error.filtered_errors]))

            assert error.source is source
            assert isinstance(error, ToolException)
    half = len(dumps) // 2

    assert [dump(facts) for _, facts in dumps[half:]] == [dump(facts) for _, facts in dumps[:half]]


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
