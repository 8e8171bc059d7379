"""Names of tools and arguments that a middleware takes must exist."""

from typing import Annotated, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import StructuredTool, tool
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel, Field

from callboard import ToolNode, create_react_agent
from callboard.guards import Redact, Results, Sanitize, Text, Url
from callboard.middleware import Cache, Fallback, OutputBudget, RequireApproval, Value
from callboard.testing import ScriptedModel


@tool
def delete(path: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Delete a file."""
    return path


@tool
def search(query: str) -> str:
    """Search."""
    return query


NAMING: dict[str, Any] = {
    "RequireApproval": lambda name: RequireApproval([name]),
    "RequireApproval by name": lambda name: RequireApproval({name: False}),
    "Cache": lambda name: Cache([name]),
    "Redact": lambda name: Redact(reveal=[name]),
    "Redact by name": lambda name: Redact(reveal={name: ["path"]}),
    "OutputBudget": lambda name: OutputBudget(tools=[name]),
    "OutputBudget exclude": lambda name: OutputBudget(exclude=[name]),
    "Sanitize": lambda name: Sanitize(tools={name: {"path": Text()}}),
    "Results": lambda name: Sanitize(results=Results(fence=[name])),
    "Fallback": lambda name: Fallback({name: Value("stale")}),
}

naming = pytest.mark.parametrize("make", NAMING.values(), ids=NAMING.keys())


@naming
def test_a_tool_that_does_not_exist_is_an_error_where_the_node_is_built(make: Any) -> None:
    """With a typo such as `delet`, calls of `delete` would run without approval."""
    with pytest.raises(ValueError, match=r"no tool 'delet', only \['delete'.*did you mean 'delete'\?"):
        ToolNode([delete, search], middleware=[make("delet")])
    with pytest.raises(ValueError, match="did you mean 'delete'"):
        create_react_agent(ScriptedModel([]), [delete, search], middleware=[make("delet")])


@pytest.mark.parametrize("option", [{"tools": {"delete": {"path": Text()}}}, {"results": Results(fence=["delete"])}])
def test_rules_that_several_nodes_share_say_that_names_may_be_missing(option: Any) -> None:
    """Shared rules may name tools that not every node has, so their check can be turned off."""
    sanitize = Sanitize(**option, missing="ignore")
    ToolNode([delete], middleware=[sanitize])
    ToolNode([search], middleware=[sanitize])
    with pytest.raises(ValueError, match=r"no tool 'delete'.*\(missing='ignore' is for tools of other nodes\)"):
        ToolNode([search], middleware=[Sanitize(**option)])
    with pytest.raises(ValueError, match=r"\(missing=...\) is 'error' or 'ignore', got 'warn'"):
        Sanitize(**option, missing="warn")  # type: ignore[arg-type]


@naming
def test_the_method_of_a_middleware_is_checked_as_the_middleware(make: Any) -> None:
    """LangGraph users pass `awrap_tool_call` instead of the middleware object."""
    wrap = make("delet").awrap_tool_call
    with pytest.raises(ValueError, match="did you mean 'delete'"):
        ToolNode([delete], middleware=[wrap])
    with pytest.raises(ValueError, match="did you mean 'delete'"):
        ToolNode([delete], awrap_tool_call=wrap)


MISSPELT = [
    *(Redact(reveal={"delete": ["pth"]}), Sanitize(tools={"delete": {"pth": Text()}})),
    *(Sanitize({"pth": Text()}), Sanitize({"pth[].x": Text()})),
]
INJECTED = [Redact(reveal={"delete": ["state"]}), Sanitize(tools={"delete": {"state": Text()}})]


@pytest.mark.parametrize(
    ("middleware", "says"),
    [
        *((instance, r"'pth', only \['path'.*\]; did you mean 'path'\?") for instance in MISSPELT),
        *((instance, r"'state', only \['path'\]") for instance in INJECTED),
    ],
)
def test_an_argument_that_the_model_does_not_write_is_an_error_where_the_node_is_built(
    middleware: Any, says: str
) -> None:
    """With a typo in its name, the argument `path` would not be checked. Injected arguments cannot be treated."""
    with pytest.raises(ValueError, match=f"no argument {says}"):
        ToolNode([delete], middleware=[middleware])


def test_an_argument_may_be_named_as_the_model_writes_it() -> None:
    """The model writes an argument under its alias, so the alias is accepted."""

    class Arguments(BaseModel):
        url: str = Field(alias="middleware")

    fetch = StructuredTool(name="fetch", description="Fetch.", func=lambda url: url, args_schema=Arguments)

    ToolNode(
        [fetch], middleware=[Sanitize(tools={"fetch": {"middleware": Url()}}), Redact(reveal={"fetch": ["middleware"]})]
    )


@pytest.mark.parametrize("schema_options", [{}, {"additionalProperties": True}])
def test_the_arguments_of_a_tool_with_a_json_schema_are_known(schema_options: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, **schema_options}
    remote = StructuredTool(name="remote", description="Remote.", func=lambda path: path, args_schema=schema)
    middleware = Redact(reveal={"remote": ["pth"]})
    if schema_options:
        ToolNode([remote], middleware=[middleware])
    else:
        with pytest.raises(ValueError, match="did you mean 'path'"):
            ToolNode([remote], middleware=[middleware])


def test_the_names_of_langchains_middleware_are_checked_too() -> None:
    """LangChain's approval middleware takes tool names, which must exist, too."""
    human = HumanInTheLoopMiddleware({"delet": True}, interrupt_mode="per_call")
    with pytest.raises(ValueError, match=r"interrupt_on=...\): there is no tool 'delet'.*did you mean 'delete'"):
        ToolNode([delete], middleware=[human])


def test_a_cache_cannot_forget_what_it_does_not_keep() -> None:
    """A wrong tool name in `invalidate` would leave stale results in the cache."""
    with pytest.raises(ValueError, match=r"no tool 'serach', only .*did you mean 'search'"):
        Cache(["search"]).invalidate("serach")


@given(st.text(), st.lists(st.text(), max_size=5))
def test_whatever_the_names_are_there_is_one_sentence(name: str, tool_names: list[str]) -> None:
    """Names may contain line breaks, which must not forge a log line: the error is one sentence."""
    assume(name not in tool_names)
    with pytest.raises(ValueError) as caught:
        Cache([*tool_names, "search"]).invalidate(name)
    assert len(str(caught.value).splitlines()) == 1
