"""Invalid arguments: the message for the model names only arguments that the model controls."""

from typing import Annotated, Any, Literal

import pytest
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, StructuredTool, tool
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, Field, field_validator, model_validator

from ._harness import Case, alike, asks, call, wants
from .conftest import Same


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

    @model_validator(mode="after")
    def tea_stays(self) -> "Order":
        if self.item == "tea" and self.to.number == 13:
            raise ValueError("no tea for 13")
        return self


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
    "a model validator that objects": {"item": "tea", "to": {"street": "Main", "number": 13}},
    "an extra field": {"item": "tea", "to": HOME, "colour": "red"},
    "a null": {"item": None, "to": None},
}


@pytest.mark.parametrize("label", ARGUMENTS)
def test_the_model_is_told_the_same_about(label: str, same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([order_tool()]), wants("order", ARGUMENTS[label])))


def injected(ns: Any) -> Any:
    @tool
    def work(
        x: int,
        y: Annotated[int, Field(ge=0)],
        state: Annotated[dict, ns.InjectedState],
        foo: Annotated[str, ns.InjectedState("foo")],
        store: Annotated[Any, ns.InjectedStore()],
        runtime: ns.ToolRuntime,
        call_id: Annotated[str, InjectedToolCallId],
    ) -> str:
        """Work."""
        return f"{x} {y} {sorted(state)} {foo} {call_id}"

    return work


@pytest.mark.parametrize("args", [{}, {"x": "a"}, {"x": 1, "y": -1}, {"x": "a", "y": "b"}, {"x": 1, "y": 2}], ids=repr)
def test_injected_arguments_are_not_named(args: dict[str, Any], same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([injected(ns)]), wants("work", args, foo="f"), store=InMemoryStore()))


def test_forged_injected_arguments_are_told_as_the_model_gave_them(same: Same) -> None:
    args = {"x": "a", "y": 1, "foo": "forged", "store": "forged"}
    same(lambda ns: Case(ns.ToolNode([injected(ns)]), wants("work", args, foo="f"), store=InMemoryStore()))


@alike
def test_injected_state_of_the_wrong_type_is_not_the_models_fault(ns: Any) -> Case:
    @tool
    def work(x: int, foo: Annotated[int, ns.InjectedState("foo")]) -> str:
        """Work."""
        return str(foo)

    return Case(ns.ToolNode([work]), wants("work", {"x": 1}, foo="no number"))


@alike
def test_injected_state_of_the_wrong_type_beside_a_wrong_argument(ns: Any) -> Case:
    @tool
    def work(x: int, foo: Annotated[int, ns.InjectedState("foo")]) -> str:
        """Work."""
        return str(foo)

    return Case(ns.ToolNode([work]), wants("work", {"x": "a"}, foo="no number"))


@alike
def test_a_missing_custom_injected_argument_is_named(ns: Any) -> Case:
    @tool
    def work(x: int, secret: Annotated[str, InjectedToolArg]) -> str:
        """Work."""
        return secret

    return Case(ns.ToolNode([work]), wants("work", {"x": 1}))


def test_a_validation_error_inside_the_body_looks_like_a_wrong_argument(same: Same) -> None:
    def work(x: int) -> str:
        """Work."""
        return str(Address.model_validate({"street": "Main", "number": x}))

    same(lambda ns: Case(ns.ToolNode([work]), wants("work", {"x": -1})))


def test_each_wrong_call_of_a_batch_is_told_by_itself(same: Same) -> None:
    calls = [call("order", args, label) for label, args in ARGUMENTS.items()]
    same(lambda ns: Case(ns.ToolNode([order_tool()]), {"messages": [asks(*calls)]}))


@alike(raises="ToolInvocationError")
def test_the_error_is_raised_with_its_facts_when_not_handled(ns: Any) -> Case:
    return Case(ns.ToolNode([order_tool()], handle_tool_errors=False), wants("order", {}))


@alike
def test_a_handler_sees_the_filtered_errors(ns: Any) -> Case:
    log: list[Any] = []

    def note(error: Exception) -> str:
        log.append((type(error).__name__, getattr(error, "filtered_errors", None), getattr(error, "tool_kwargs", None)))
        return "noted"

    return Case(
        ns.ToolNode([injected(ns)], handle_tool_errors=note),
        wants("work", {}, foo="f"),
        store=InMemoryStore(),
        log=log,
    )


def test_an_own_validation_handler_comes_before_the_node(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([order_tool(handle_validation_error="fix it")]), wants("order", {})))
