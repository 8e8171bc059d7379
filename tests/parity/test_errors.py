"""handle_tool_errors in all its forms, and errors that tools handle themselves."""

from typing import Any, Union

import pytest
from langchain_core.tools import StructuredTool, ToolException

from ._harness import Case, asks, call, wants
from .conftest import Same


class Custom(ValueError):
    pass


def fails(error: Exception, **options: Any) -> StructuredTool:
    def body(x: int = 0) -> str:
        raise error

    return StructuredTool.from_function(func=body, name="fails", description="Fail.", **options)


def failing(ns: Any, error: Exception, args: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(ns.ToolNode([fails(error)], **options), wants("fails", args))


ERRORS = [ValueError("bad"), KeyError("k"), ToolException("tool says no"), Custom("mine"), ValueError()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_by_default_an_error_of_the_body_is_raised(error: Exception, same: Same) -> None:
    same(lambda ns: failing(ns, error), raises=type(error).__name__)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_true_turns_every_error_into_a_message(error: Exception, same: Same) -> None:
    same(lambda ns: failing(ns, error, handle_tool_errors=True))


@pytest.mark.parametrize("flag", [False, None, "", ()], ids=repr)
def test_a_false_value_raises(flag: Any, same: Same) -> None:
    same(lambda ns: failing(ns, ValueError("bad"), handle_tool_errors=flag), raises="ValueError")


def test_false_raises_also_for_invalid_arguments(same: Same) -> None:
    bad = {"x": "no"}
    same(lambda ns: failing(ns, ValueError("bad"), bad, handle_tool_errors=False), raises="ToolInvocationError")


class Handler:
    def method(self, e: ValueError) -> str:
        return f"method: {e}"

    @classmethod
    def of_class(cls, e: ValueError) -> str:
        return f"class: {e}"

    @staticmethod
    def static(e: ValueError) -> str:
        return f"static: {e}"


def one_type(e: ValueError) -> str:
    return f"one: {e!r}"


def union(e: Union[ValueError, KeyError]) -> str:
    return f"union: {e!r}"


def bar(e: ValueError | KeyError) -> str:
    return f"bar: {e!r}"


def anything(e: Exception) -> str:
    return f"anything: {e!r}"


def unannotated(e):  # type: ignore[no-untyped-def]
    return f"unannotated: {e!r}"


def gives_blocks(e: Exception) -> Any:
    return [{"type": "text", "text": str(e)}]


def reraises(e: ValueError) -> str:
    raise RuntimeError("from the handler") from e


def optional_second(e: ValueError, prefix: str = "oops") -> str:
    return f"{prefix}: {e}"


HANDLERS: dict[str, Any] = {
    "a text": "my own text",
    "a type": ValueError,
    "a base type": Exception,
    "a tuple": (ValueError, KeyError),
    "a handler of one type": one_type,
    "a handler of a Union": union,
    "a handler of a | union": bar,
    "a handler of Exception": anything,
    "a handler without annotation": unannotated,
    "a lambda": lambda e: f"lambda: {e}",
    "a bound method": Handler().method,
    "a class method": Handler.of_class,
    "a static method": Handler.static,
    "a handler with a default": optional_second,
    "a handler that gives blocks": gives_blocks,
}


@pytest.mark.parametrize("label", HANDLERS)
def test_a_value_error_is_told_by(label: str, same: Same) -> None:
    same(lambda ns: failing(ns, ValueError("bad"), handle_tool_errors=HANDLERS[label]))


@pytest.mark.parametrize("label", HANDLERS)
def test_a_subclass_is_told_by(label: str, same: Same) -> None:
    same(lambda ns: failing(ns, Custom("bad"), handle_tool_errors=HANDLERS[label]))


NARROW = ["a type", "a handler of one type", "a bound method", "a class method", "a static method"]


@pytest.mark.parametrize("label", NARROW)
def test_another_type_is_raised_past(label: str, same: Same) -> None:
    same(lambda ns: failing(ns, KeyError("k"), handle_tool_errors=HANDLERS[label]), raises="KeyError")


WIDE = ["a text", "a base type", "a tuple", "a handler of a Union", "a handler of a | union", "a lambda"]


@pytest.mark.parametrize("label", WIDE)
def test_another_type_is_told_by(label: str, same: Same) -> None:
    same(lambda ns: failing(ns, KeyError("k"), handle_tool_errors=HANDLERS[label]))


@pytest.mark.parametrize("label", ["a text", "a base type", "a lambda", "a handler of Exception"])
def test_invalid_arguments_are_told_by(label: str, same: Same) -> None:
    same(lambda ns: failing(ns, ValueError("bad"), {"x": "no"}, handle_tool_errors=HANDLERS[label]))


@pytest.mark.parametrize("label", ["a type", "a tuple", "a handler of one type"])
def test_invalid_arguments_are_raised_past(label: str, same: Same) -> None:
    same(
        lambda ns: failing(ns, ValueError("bad"), {"x": "no"}, handle_tool_errors=HANDLERS[label]),
        raises="ToolInvocationError",
    )


def test_an_error_of_the_handler_is_raised(same: Same) -> None:
    same(lambda ns: failing(ns, ValueError("bad"), handle_tool_errors=reraises), raises="RuntimeError")


def not_an_error(e: int) -> str:
    return "never"


def union_with_int(e: ValueError | int) -> str:
    return "never"


def old_union_with_int(e: Union[ValueError, int]) -> str:
    return "never"


def base_exception(e: BaseException) -> str:
    return "never"


@pytest.mark.parametrize("handler", [not_an_error, union_with_int, old_union_with_int, base_exception])
def test_a_handler_annotated_with_no_exception_is_a_value_error(handler: Any, same: Same) -> None:
    same(lambda ns: failing(ns, ValueError("bad"), handle_tool_errors=handler), raises="ValueError")


@pytest.mark.parametrize("flag", [7, ["a"]], ids=repr)
def test_a_flag_of_a_strange_type_is_a_value_error(flag: Any, same: Same) -> None:
    same(lambda ns: failing(ns, KeyError("k"), handle_tool_errors=flag), raises="ValueError")


def only_tool_exceptions(error: ToolException) -> str:
    return f"handled: {error}"


@pytest.mark.parametrize("flag", [True, "own text", only_tool_exceptions], ids=["true", "text", "function"])
def test_the_tool_handles_its_own_tool_exception_first(flag: Any, same: Same) -> None:
    def scenario(ns: Any) -> Case:
        node = ns.ToolNode([fails(ToolException("no"), handle_tool_error=flag)], handle_tool_errors=True)
        return Case(node, wants("fails"))

    same(scenario)


def test_a_tool_exception_without_text_has_a_text_of_its_own(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([fails(ToolException(), handle_tool_error=True)]), wants("fails")))


def test_the_handler_of_the_tool_may_give_blocks(same: Same) -> None:
    blocks = [{"type": "text", "text": "sorry"}]
    tool = fails(ToolException("no"), handle_tool_error=lambda _: blocks)
    same(lambda ns: Case(ns.ToolNode([tool]), wants("fails")))


def test_the_tool_handles_no_other_error(same: Same) -> None:
    tool = fails(ValueError("bad"), handle_tool_error=True)
    same(lambda ns: Case(ns.ToolNode([tool]), wants("fails")), raises="ValueError")


@pytest.mark.parametrize(
    "flag", [True, "own text", lambda e: f"{len(e.errors())} wrong"], ids=["true", "text", "function"]
)
def test_the_tool_handles_its_own_validation_error_first(flag: Any, same: Same) -> None:
    tool = fails(ValueError("bad"), handle_validation_error=flag)
    same(lambda ns: Case(ns.ToolNode([tool]), wants("fails", {"x": "no"})))


def test_handled_errors_stand_beside_results_in_order(same: Same) -> None:
    def fine(x: int) -> int:
        """Fine."""
        return x

    calls = asks(call("fails", id="1"), call("fine", {"x": 1}, "2"), call("fine", {}, "3"), call("none", id="4"))
    same(lambda ns: Case(ns.ToolNode([fails(ValueError("bad")), fine], handle_tool_errors=True), {"messages": [calls]}))


def test_an_error_in_a_group_keeps_its_shape(same: Same) -> None:
    group = ExceptionGroup("several", [ValueError("a"), KeyError("b")])
    same(lambda ns: failing(ns, group), raises="ExceptionGroup")


def test_a_tuple_covers_its_subclasses(same_direct: Same) -> None:
    def scenario(ns: Any) -> Case:
        return failing(ns, LookupError("x"), handle_tool_errors=(KeyError, LookupError))

    same_direct(scenario)
