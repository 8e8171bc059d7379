"""Facts about tools are computed once for each tool, until the tool changes."""

import gc
from typing import Annotated, Any
from weakref import ref

import anyio
import pytest
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel

from callboard import Actor, ToolNode, child, handler
from callboard.extend import actor_behind
from callboard.testing import Recorder, tool_call
from callboard.tools import _plan
from callboard.tools._plan import ToolFacts, injected_args


class Looks:
    """Counter of inspections."""

    def __init__(self) -> None:
        self.at: list[str] = []

    def __call__(self, tool: BaseTool) -> str:
        self.at.append(tool.name)
        return f"fact {len(self.at)}"


def search() -> StructuredTool:
    return Recorder().tool("search")


def test_each_tool_is_looked_at_once() -> None:
    """Inspecting a signature takes longer than a call; nodes may share a middleware, and have tools of one name."""
    one, other, look = search(), search(), Looks()
    facts = ToolFacts(look)
    assert [facts.of(tool) for tool in (one, one, other, one, other)] == [f"fact {n}" for n in (1, 1, 2, 1, 2)]
    assert look.at == ["search"] * 2


def test_what_cannot_be_found_out_is_asked_for_again() -> None:
    """A failed inspection is not cached."""
    tool, errors = search(), [ValueError("not yet")]

    def look(tool: BaseTool) -> str:
        if errors:
            raise errors.pop()
        return tool.name

    facts = ToolFacts(look)
    with pytest.raises(ValueError, match="not yet"):
        facts.of(tool)
    assert facts.of(tool) == "search"


def test_tools_are_not_kept_alive() -> None:
    """A middleware may outlive the tools of a run."""
    facts = ToolFacts(Looks())
    for _ in range(3):
        facts.of(search())
    gc.collect()
    assert len(facts) == 0


def test_facts_that_lead_to_their_tools_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound, tools made for each run would stay in memory."""
    monkeypatch.setattr(_plan, "_MOST", 3)
    facts = ToolFacts(lambda tool: tool)
    for _ in range(10):
        facts.of(search())
    assert len(facts) == 4
    for number in range(10):
        facts.of(Recorder().tool(f"tool {number}"))
    assert len(facts) <= 6


class Client:
    """Client whose `__eq__` ignores its connection."""

    def __call__(self, query: str) -> str:
        return query

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client)

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize("field", ["coroutine", "func"])
def test_a_tool_whose_function_was_assigned_is_looked_at_again(field: str) -> None:
    """Users wrap `tool.func` and `tool.coroutine` by assignment; functions are compared by identity."""
    tool, facts = search(), ToolFacts(Looks())
    assert facts.of(tool) == "fact 1"
    for number in (2, 3):
        setattr(tool, field, Client())
        assert facts.of(tool) == f"fact {number}"


async def test_a_tool_that_middleware_makes_for_one_call_is_not_kept() -> None:
    """A tool may hold a connection, and there may be one tool for each call."""
    made: list[ref[BaseTool]] = []

    async def with_own_tool(request: Any, call_next: Any) -> Any:
        tool = search()
        made.append(ref(tool))
        return await call_next(request.override(tool=tool))

    node = ToolNode([search()], middleware=[with_own_tool])
    for _ in range(5):
        await node.ainvoke([tool_call("search", "1", query="a")])
    gc.collect()
    assert [one() for one in made] == [None] * 5


def in_state(state: Annotated[dict[str, Any], InjectedState], query: str) -> str:
    """Look something up."""
    return query


def test_many_nodes_with_the_same_tools_read_their_annotations_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may be made for each request, and annotations take longer than the rest of its making."""
    read: list[object] = []
    read_args = _plan.injected_args_of
    monkeypatch.setattr(_plan, "injected_args_of", lambda schema, fn: read.append(fn) or read_args(schema, fn))
    tool = StructuredTool.from_function(in_state)
    for _ in range(3):
        ToolNode([tool])
    assert read == [in_state]


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

    def made() -> list[ref[Any]]:
        def look(query: str) -> str:
            """Look something up."""
            return query

        tool = StructuredTool.from_function(look)
        ToolNode([tool])
        return [ref(look), ref(tool)]

    alive = made()
    gc.collect()
    assert [one() for one in alive] == [None, None]


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
