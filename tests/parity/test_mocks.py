"""Mocks in place of tools, models and methods, as tests of other projects use them."""

import warnings
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec, patch

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import BaseModel

from callboard import ToolNode

from ._harness import ASYNC_MODES, DIRECT_MODES, SYNC, Case, alike, asks, assert_same, call, wants
from ._model import ReplayModel


class Empty(BaseModel):
    """A tool without arguments."""


def mock_tool(kind: Any = BaseTool) -> Any:
    """A mock with the interface of a tool, for both `invoke` and `ainvoke`."""
    mock = MagicMock(spec=kind)
    mock.name = "search"
    mock.get_input_schema.return_value = Empty
    answer = ToolMessage("mocked", tool_call_id="call-1")
    mock.invoke, mock.ainvoke = MagicMock(return_value=answer), AsyncMock(return_value=answer)
    return mock


@pytest.mark.parametrize("kind", [BaseTool, StructuredTool])
@alike
def test_a_mock_that_passes_for_a_tool_is_called(ns: Any, kind: Any) -> Case:
    """The mock's class tells nothing; only the attributes that a test has set do."""
    return Case(ns.ToolNode([mock_tool(kind)]), wants("search", {"q": "x"}))


@alike
def test_a_mock_that_raises_is_handled_like_a_tool(ns: Any) -> Case:
    """Tests of error handling use `side_effect`."""
    mock = mock_tool()
    mock.invoke.side_effect = mock.ainvoke.side_effect = ValueError("down")
    return Case(ns.ToolNode([mock], handle_tool_errors=True), wants("search", {"q": "x"}))


@alike
def test_a_mock_made_of_a_tool_is_called(ns: Any) -> Case:
    """`create_autospec(tool)` copies the signatures of a real tool."""
    with warnings.catch_warnings(action="ignore"):  # it reads every attribute, deprecated ones too
        mock = create_autospec(Search(), instance=True)
    mock.name = "search"
    mock.get_input_schema.return_value = Empty
    answer = ToolMessage("mocked", tool_call_id="call-1")
    mock.invoke.return_value, mock.ainvoke = answer, AsyncMock(return_value=answer)
    return Case(ns.ToolNode([mock]), wants("search", {"q": "x"}))


class Search(BaseTool):
    """A tool class whose methods are replaced by tests."""

    name: str = "search"
    description: str = "Search."

    def _run(self, q: str) -> str:
        raise AssertionError("the real tool was run")


REPLACED = {
    "_run": lambda self, q: f"replaced {q}",
    "invoke": MagicMock(return_value=ToolMessage("replaced", tool_call_id="call-1")),
    "ainvoke": AsyncMock(return_value=ToolMessage("replaced", tool_call_id="call-1")),
}


@pytest.mark.parametrize("name", REPLACED)
@alike
def test_a_method_that_is_replaced_on_the_class_is_called(ns: Any, name: str) -> Case:
    """This includes a node that has run the tool before, so its cached results must be dropped."""

    class Own(Search):
        def _run(self, q: str) -> str:
            return f"real {q}"

    def join_messages(*messages: Any) -> ToolMessage:
        return ToolMessage(", ".join(message.content for message in messages), tool_call_id="call-1")

    def wrap(request: Any, execute: Any) -> Any:
        first = execute(request)
        with patch.object(Own, name, REPLACED[name]):
            second = execute(request)
        return join_messages(first, second, execute(request))

    async def awrap(request: Any, execute: Any) -> Any:
        first = await execute(request)
        with patch.object(Own, name, REPLACED[name]):
            second = await execute(request)
        return join_messages(first, second, await execute(request))

    node = ns.ToolNode([Own()], wrap_tool_call=wrap, awrap_tool_call=awrap)
    return Case(node, wants("search", {"q": "x"}))


@alike(modes=ASYNC_MODES)
def test_a_coroutine_that_was_replaced_by_a_mock_is_awaited(ns: Any) -> Case:
    """A mock is not a function, and has no annotations."""

    @tool
    async def search(q: str) -> str:
        """Search."""
        raise AssertionError("the real tool was run")

    node = ns.ToolNode([search])
    search.coroutine = AsyncMock(return_value="mocked")  # type: ignore[attr-defined]
    return Case(node, wants("search", {"q": "x"}))


@alike(modes=DIRECT_MODES)
def test_a_mock_that_passes_for_a_model_is_asked(ns: Any) -> Case:
    """`invoke` calls the mock's `invoke`, and `ainvoke` its `ainvoke`."""
    replies = [asks(call("search", {"q": "x"})), AIMessage("done", id="2")]
    model = MagicMock(spec=BaseChatModel)
    model.bind_tools.return_value = model
    model.invoke.side_effect, model.ainvoke = list(replies), AsyncMock(side_effect=list(replies))
    mock = mock_tool()
    mock.return_direct = False
    agent = ns.create_react_agent(model, [mock])
    return Case(agent, {"messages": [("user", "go")]}, own_runtime=True)


def test_a_node_that_was_replaced_by_a_mock_is_called_by_the_agent() -> None:
    """The test assigns the mock to a method of one node."""

    def scenario(ns: Any) -> Case:
        node = ns.ToolNode([Search()])
        node.invoke = MagicMock(return_value={"messages": [ToolMessage("mocked", tool_call_id="call-1", id="t")]})
        model = ReplayModel(asks(call("search", {"q": "x"})), AIMessage("done", id="2"))
        return Case(ns.create_react_agent(model, node), {"messages": [("user", "go")]}, own_runtime=True)

    assert_same(scenario, SYNC)


@pytest.mark.parametrize("kind", [Mock, MagicMock])
def test_a_mock_that_passes_for_nothing_is_refused(kind: Any) -> None:
    """A plain mock has every attribute, including a toolkit's, and must not be taken for an empty toolkit."""
    with pytest.raises(TypeError, match=r"get_tools\(\) of a toolkit returns a list of tools"):
        ToolNode([kind()])
