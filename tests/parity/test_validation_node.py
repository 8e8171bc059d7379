"""ValidationNode checks calls without running them."""

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import BaseModel, field_validator
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import validator

from ._dump import dump
from ._harness import DIRECT_MODES, Case, MessageList, asks, call, table_test, wants
from ._prebuilt import candidate, reference


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


def describe(error: BaseException, a_call: Any, schema: Any) -> str:
    return f"{type(error).__name__} {a_call['name']} {a_call['args']} {schema.__name__}"


class Bare(BaseTool):
    name: str = "bare"
    description: str = "Bare."

    def _run(self) -> str:
        return ""


DICT_SCHEMA = StructuredTool.from_function(
    func=lambda: "", name="d", description="d", args_schema={"title": "d", "type": "object", "properties": {}}
)


def checks(input: Any, schemas: Any = (Pick, PickV1), **case_options: Any) -> Any:
    options = {name: case_options.pop(name) for name in ("format_error",) if name in case_options}
    return lambda ns: Case(ns.ValidationNode([*schemas], **options), input, **case_options)


MANY = [call("Pick", {"a": 37 if n % 2 else n}, f"c{n}") for n in range(6)]
THREE = asks(call("Pick", {"a": 37}, "1"), call("Pick", {"a": 1}, "2"), call("PickV1", {"a": 1}, "3"))
CHECKED: dict[str, Any] = {
    **{f"{name} and {args}": checks(wants(name, args), [SCHEMAS[name]]) for name in SCHEMAS for args in ARGS},
    "a message list": checks([THREE], state=MessageList),
    "many calls, in their order": checks({"messages": [asks(*MANY)]}),
    "an own text for errors": checks({"messages": [THREE]}, format_error=describe),
    "an unknown name": (checks(wants("Other", {})), "KeyError"),
    "no calls": checks({"messages": [AIMessage("done", id="a")]}),
    "no messages": (checks({"messages": []}), "ValueError"),
    "a message of a human": (checks({"messages": [HumanMessage("q")]}), "ValueError"),
    "a message of a human at the end": (checks({"messages": [asks(call("Pick")), HumanMessage("q")]}), "ValueError"),
}
test_calls_are_checked_alike = table_test(CHECKED)
test_a_wrong_use_is_refused_alike = table_test(
    {
        "a list that ends with a human": (checks([HumanMessage("q")]), "ValueError"),
        **{
            f"a schema that is {label}": (checks({}, [wrong]), "ValueError")
            for label, wrong in (("none", Bare()), ("a dict", DICT_SCHEMA), ("an int", 7), ("a text", "text"))
        },
    },
    modes=DIRECT_MODES,
)


def test_schemas_are_listed_by_name() -> None:
    expected, actual = (ns.ValidationNode(list(SCHEMAS.values())).schemas_by_name for ns in (reference(), candidate()))
    assert list(actual) == list(expected)
    assert [dump(sorted(field for field in fields(schema))) for schema in actual.values()] == [
        dump(sorted(field for field in fields(schema))) for schema in expected.values()
    ]


def fields(schema: Any) -> Any:
    return schema.model_fields if issubclass(schema, BaseModel) else schema.__fields__
