"""Facts about tools are computed once for each tool, until the tool changes."""

import gc
from typing import Annotated, Any
from weakref import ref

import anyio
import pytest
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel

from callboard import Actor, ToolNode, ToolRuntime, child, handler, tool_call
from callboard._langchain import _plan
from callboard.extend import actor_behind
from callboard.middleware import injected_args
from callboard.testing import Recorder, calls


def search() -> StructuredTool:
    return Recorder().tool("search")


async def test_a_tool_that_middleware_makes_for_one_call_is_not_kept() -> None:
    """A tool may hold a connection, and there may be one tool for each call."""
    tool_refs: list[ref[BaseTool]] = []

    async def with_own_tool(request: Any, call_next: Any) -> Any:
        tool = search()
        tool_refs.append(ref(tool))
        return await call_next(request.override(tool=tool))

    node = ToolNode([search()], middleware=[with_own_tool])
    for _ in range(5):
        await node.ainvoke([tool_call("search", "1", query="a")])
    gc.collect()
    assert [tool_ref() for tool_ref in tool_refs] == [None] * 5


def in_state(state: Annotated[dict[str, Any], InjectedState], query: str) -> str:
    """Look something up."""
    return query


def test_many_nodes_with_the_same_tools_read_their_annotations_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may be made for each request, and annotations take longer than the rest of its making."""
    read: list[object] = []
    read_args = _plan.langgraph_injected_args
    monkeypatch.setattr(
        _plan, "langgraph_injected_args", lambda schema, hints: read.append(schema) or read_args(schema, hints)
    )
    tool = StructuredTool.from_function(in_state)
    for _ in range(3):
        ToolNode([tool])
    assert read == [tool.args_schema]


def test_a_node_knows_the_injected_arguments_of_a_function_that_was_assigned() -> None:
    """Otherwise the model could write an argument that is not its own."""
    tool = StructuredTool.from_function(lambda query: query, name="search", description="Search.")
    assert injected_args(tool).forbidden == set()
    tool.func = in_state
    assert injected_args(tool).forbidden == {"state"}
    tool.func, tool.args_schema = None, StructuredTool.from_function(in_state).args_schema
    assert injected_args(tool).forbidden == {"state"}


def test_a_schema_that_is_completed_later_is_read_again() -> None:
    """pydantic completes a schema when the names in its annotations are known."""

    class Query(BaseModel):
        state: "Later"

    tool = StructuredTool.from_function(lambda state: state, name="search", description="Search.", args_schema=Query)
    assert injected_args(tool).forbidden == set()
    Later = Annotated[dict[str, Any], InjectedState]
    Query.model_rebuild(_types_namespace={"Later": Later})
    assert injected_args(tool).forbidden == {"state"}


def test_injected_arguments_do_not_keep_a_function_alive() -> None:
    """A tool that is made for a request may hold the request's connection."""

    def make_and_drop() -> list[ref[Any]]:
        def look(query: str) -> str:
            """Look something up."""
            return query

        tool = StructuredTool.from_function(look)
        ToolNode([tool])
        return [ref(look), ref(tool)]

    alive = make_and_drop()
    gc.collect()
    assert [function_ref() for function_ref in alive] == [None, None]


def test_the_actor_that_a_tool_asks_is_known() -> None:
    """Engines refuse such functions, and servers of tools keep one actor for each of their conversations."""

    class Notes(Actor):
        @handler
        async def read(self) -> str:
            """Read."""
            return ""

    node = ToolNode([child(Notes, key=lambda call, context: context.config["configurable"]["thread_id"]), search()])
    read: Any = node.tools_by_name["read"]
    actor = actor_behind(read.coroutine)
    assert actor is not None
    assert (actor.name, actor.key is not None and actor.key.takes_context) == ("Notes", True)
    assert actor_behind(search().coroutine) is None
    assert actor_behind(None) is None


async def test_a_schema_with_its_own_validation_keeps_it() -> None:
    """The compiled validator replaces pydantic's `model_validate`, and no method of a user's schema."""

    class Doubled(BaseModel):
        number: int

        @classmethod
        def model_validate(cls, obj: Any, **_: Any) -> Any:
            return cls.model_construct(number=2 * obj["number"])

    async def count(number: int) -> str:
        return str(number)

    tool = StructuredTool.from_function(coroutine=count, name="count", description="Count.", args_schema=Doubled)
    with anyio.fail_after(20):
        result = await ToolNode([tool]).ainvoke([tool_call("count", number=2)])
    assert result["messages"][0].content == "4"


class Query(BaseModel):
    query: str


def test_a_name_that_only_type_checkers_import_hides_no_injected_parameter() -> None:
    """With a schema, no other annotation of the function is needed."""

    def price(query: str, runtime: ToolRuntime, currency: Any = None, /) -> str:
        return f"{query} {runtime.tool_call_id} {currency}"

    def pay(query: str, account: Any = None) -> str:
        return query

    price.__annotations__["currency"] = "OnlyForTypeCheckers"
    pay.__annotations__["account"] = "Annotated[OnlyForTypeCheckers, InjectedToolArg]"
    tools = [StructuredTool.from_function(fn, description="d", args_schema=Query) for fn in (price, pay)]
    (answer,) = ToolNode(tools[:1]).invoke([tool_call("price", "1", query="tea")])["messages"]

    assert answer.content == "tea 1 None"
    with pytest.raises(NameError):
        ToolNode(tools[1:])


def test_a_field_that_the_state_lacks_is_none_or_named() -> None:
    def greet(name: Annotated[str | None, InjectedState("name")]) -> str:
        """Greet a person."""
        return f"hello {name}"

    def pay(account: Annotated[str, InjectedState("account")]) -> str:
        """Pay."""
        return account

    def run(tool: Any) -> str:
        message = calls((tool.__name__, {}))
        return str(ToolNode([tool]).invoke({"messages": [message]})["messages"][0].content)

    assert run(greet) == "hello None"
    with pytest.raises(KeyError, match="The tool 'pay' gets 'account' from the field 'account' of the state"):
        run(pay)
