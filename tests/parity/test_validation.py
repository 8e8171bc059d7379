"""Invalid arguments: the message for the model names only arguments that the model controls.

Intended differences, tested in `tests/promises/test_9_model_not_trusted.py`: LangGraph's text is empty if a validator
of the whole model objects, or if only an injected value is invalid.
"""

from typing import Annotated, Any, Literal

from langchain_core.tools import InjectedToolArg, InjectedToolCallId, StructuredTool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field, field_validator

from ._harness import Case, alike, asks, call, table_test, wants


class Address(BaseModel):
    street: str
    number: int = Field(gt=0)


class Order(BaseModel):
    """Order something."""

    item: Literal["tea", "coffee"]
    to: Address
    tags: list[int] = []

    @field_validator("tags")
    @classmethod
    def few(cls, value: list[int]) -> list[int]:
        if len(value) > 2:
            raise ValueError("at most two tags")
        return value


def order(item: str, to: Any, tags: Any = ()) -> str:
    return f"{item} to {to!r} {list(tags)}"


def order_tool(**options: Any) -> StructuredTool:
    return StructuredTool.from_function(func=order, name="order", description="d", args_schema=Order, **options)


HOME = {"street": "Main", "number": 1}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "good ones": {"item": "tea", "to": HOME},
    "numbers as text": {"item": "tea", "to": {"street": "Main", "number": "7"}, "tags": ["1"]},
    "a missing field": {"item": "tea"},
    "all fields missing": {},
    "a wrong literal": {"item": "milk", "to": HOME},
    "a wrong nested field": {"item": "tea", "to": {"street": 1, "number": -1}},
    "a wrong list item": {"item": "tea", "to": HOME, "tags": [1, "x"]},
    "a validator that objects": {"item": "tea", "to": HOME, "tags": [1, 2, 3]},
    "an extra field": {"item": "tea", "to": HOME, "colour": "red"},
    "a null": {"item": None, "to": None},
}


def with_injected(
    x: int,
    y: Annotated[int, Field(ge=0)],
    state: Annotated[dict, InjectedState],
    foo: Annotated[str, InjectedState("foo")],
    store: Annotated[Any, InjectedStore()],
    runtime: ToolRuntime,
    call_id: Annotated[str, InjectedToolCallId],
) -> str:
    """Work."""
    return f"{x} {y} {sorted(state)} {foo} {call_id}"


def of_wrong_state(x: int, foo: Annotated[int, InjectedState("foo")]) -> str:
    """Work."""
    return str(foo)


def with_secret(x: int, secret: Annotated[str, InjectedToolArg]) -> str:
    """Work."""
    return secret


def fails_inside(x: int) -> str:
    """Work."""
    return str(Address.model_validate({"street": "Main", "number": x}))


def working(fn: Any, args: dict[str, Any], **state: Any) -> Any:
    work_tool = StructuredTool.from_function(fn, name="work")
    return lambda ns: Case(
        ns.ToolNode([work_tool]), wants("work", args, **{"foo": "f", **state}), store=InMemoryStore()
    )


def ordering(args: dict[str, Any], options: Any = None, **of_tool: Any) -> Any:
    return lambda ns: Case(ns.ToolNode([order_tool(**of_tool)], **(options or {})), wants("order", args))


ALL_OF_THEM = {"messages": [asks(*(call("order", args, label) for label, args in ARGUMENTS.items()))]}
WRONG: dict[str, Any] = {
    **{label: ordering(args) for label, args in ARGUMENTS.items()},
    **{
        f"{args} beside injected arguments": working(with_injected, args)
        for args in ({}, {"x": "a"}, {"x": 1, "y": -1}, {"x": "a", "y": "b"}, {"x": 1, "y": 2})
    },
    "forged injected arguments": working(with_injected, {"x": "a", "y": 1, "foo": "forged", "store": "forged"}),
    "injected state of the wrong type beside a wrong argument": working(of_wrong_state, {"x": "a"}, foo="no number"),
    "a missing custom injected argument, which is named": working(with_secret, {"x": 1}),
    "a validation error inside of the body": working(fails_inside, {"x": -1}),
    "each call of a batch": lambda ns: Case(ns.ToolNode([order_tool()]), ALL_OF_THEM),
    "an error that is not handled": (ordering({}, {"handle_tool_errors": False}), "ToolInvocationError"),
    "an error that the tool itself handles": ordering({}, handle_validation_error="fix it"),
}
test_the_model_is_told_the_same_about = table_test(WRONG)


@alike
def test_a_handler_sees_the_filtered_errors(ns: Any) -> Case:
    log: list[Any] = []

    def note(error: Exception) -> str:
        log.append((type(error).__name__, getattr(error, "filtered_errors", None), getattr(error, "tool_kwargs", None)))
        return "noted"

    node = ns.ToolNode([StructuredTool.from_function(with_injected, name="work")], handle_tool_errors=note)
    return Case(node, wants("work", {}, foo="f"), store=InMemoryStore(), log=log)
