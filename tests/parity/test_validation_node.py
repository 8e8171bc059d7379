"""ValidationNode checks calls without running them."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import BaseModel, field_validator
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import validator

from ._dump import dump
from ._harness import Case, MessageList, asks, call, wants
from ._prebuilt import candidate, reference
from .conftest import Same


class Pick(BaseModel):
    """Pick a number."""

    a: int
    note: str = "none"

    @field_validator("a")
    @classmethod
    def meaningful(cls, value: int) -> int:
        if value != 37:
            raise ValueError("Only 37 is allowed")
        return value


class PickV1(BaseModelV1):
    a: int

    @validator("a")
    def meaningful(cls, value: int) -> int:
        if value != 37:
            raise ValueError("Only 37 is allowed")
        return value


@tool
def pick_tool(a: int, note: str = "none") -> str:
    """Pick."""
    raise AssertionError("is not run")


def pick_function(a: int, note: str = "none") -> str:
    """Pick."""
    raise AssertionError("is not run")


class PickBase(BaseTool):
    name: str = "pick_base"
    description: str = "Pick."
    args_schema: type[BaseModel] = Pick

    def _run(self, a: int) -> str:
        raise AssertionError("is not run")


SCHEMAS = {
    "Pick": Pick,
    "PickV1": PickV1,
    "pick_tool": pick_tool,
    "pick_function": pick_function,
    "pick_base": PickBase(),
}
ARGS = [{"a": 37}, {"a": "37"}, {"a": 1}, {"a": "no"}, {}, {"a": 37, "extra": 1}, {"a": 37, "note": 7}]


@pytest.mark.parametrize("args", ARGS, ids=repr)
@pytest.mark.parametrize("name", SCHEMAS)
def test_arguments_are_checked_against(name: str, args: dict[str, Any], same: Same) -> None:
    same(lambda ns: Case(ns.ValidationNode([SCHEMAS[name]]), wants(name, args)))


def test_a_message_list_is_answered_with_a_list(same: Same) -> None:
    calls = asks(call("Pick", {"a": 37}, "1"), call("Pick", {"a": 1}, "2"), call("PickV1", {"a": 1}, "3"))
    same(lambda ns: Case(ns.ValidationNode([Pick, PickV1]), [calls], state=MessageList))


def test_many_calls_are_answered_in_their_order(same: Same) -> None:
    calls = [call("Pick", {"a": 37 if n % 2 else n}, f"c{n}") for n in range(6)]
    same(lambda ns: Case(ns.ValidationNode([Pick]), {"messages": [asks(*calls)]}))


def test_format_error_writes_the_text(same: Same) -> None:
    def describe(error: BaseException, a_call: Any, schema: Any) -> str:
        return f"{type(error).__name__} {a_call['name']} {a_call['args']} {schema.__name__}"

    calls = asks(call("Pick", {"a": 1}, "1"), call("PickV1", {"a": 1}, "2"))
    same(lambda ns: Case(ns.ValidationNode([Pick, PickV1], format_error=describe), {"messages": [calls]}))


def test_an_unknown_name_is_a_key_error(same: Same) -> None:
    same(lambda ns: Case(ns.ValidationNode([Pick]), wants("Other", {})), raises="KeyError")


def test_no_calls_give_no_messages(same: Same) -> None:
    same(lambda ns: Case(ns.ValidationNode([Pick]), {"messages": [AIMessage("done", id="a")]}))


@pytest.mark.parametrize(
    "messages", [[], [HumanMessage("q")], [asks(call("Pick")), HumanMessage("q")]], ids=["none", "human", "human last"]
)
def test_a_dict_that_does_not_end_with_an_ai_message_is_refused(messages: list[Any], same: Same) -> None:
    same(lambda ns: Case(ns.ValidationNode([Pick]), {"messages": messages}), raises="ValueError")


def test_a_list_that_does_not_end_with_an_ai_message_is_refused(same_direct: Same) -> None:
    same_direct(lambda ns: Case(ns.ValidationNode([Pick]), [HumanMessage("q")]), raises="ValueError")


def schemaless() -> Any:
    class Bare(BaseTool):
        name: str = "bare"
        description: str = "Bare."

        def _run(self) -> str:
            return ""

    return Bare()


def dict_schema() -> Any:
    schema = {"title": "d", "type": "object", "properties": {}}
    return StructuredTool.from_function(func=lambda: "", name="d", description="d", args_schema=schema)


@pytest.mark.parametrize(
    "wrong", [schemaless(), dict_schema(), 7, "text"], ids=["no schema", "dict schema", "int", "text"]
)
def test_what_has_no_schema_is_refused_at_construction(wrong: Any, same_direct: Same) -> None:
    same_direct(lambda ns: Case(ns.ValidationNode([wrong]), {}), raises="ValueError")


def test_schemas_are_listed_by_name() -> None:
    theirs, ours = (ns.ValidationNode(list(SCHEMAS.values())).schemas_by_name for ns in (reference(), candidate()))

    assert list(ours) == list(theirs)
    assert [dump(sorted(field for field in fields(schema))) for schema in ours.values()] == [
        dump(sorted(field for field in fields(schema))) for schema in theirs.values()
    ]


def fields(schema: Any) -> Any:
    return schema.model_fields if issubclass(schema, BaseModel) else schema.__fields__
