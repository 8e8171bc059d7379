"""handle_tool_errors in all its forms, and errors that tools handle themselves."""

from typing import Any, Union

import pytest
from langchain_core.tools import StructuredTool, ToolException

from ._harness import DIRECT_MODES, Case, alike, asks, call, wants
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


NARROW = {"a type", "a handler of one type", "a bound method", "a class method", "a static method"} | {
    "a handler with a default"
}
PROVOKED: dict[str, tuple[Exception, dict[str, Any] | None, set[str], str]] = {
    # error of the body, arguments, handlings that do not handle it, and the error that they let pass
    "a ValueError": (ValueError("bad"), None, set(), ""),
    "a subclass": (Custom("bad"), None, set(), ""),
    "another type": (KeyError("k"), None, NARROW, "KeyError"),
    "invalid arguments": (
        ValueError("bad"),
        {"x": "no"},
        NARROW | {"a tuple", "a handler of a Union", "a handler of a | union"},
        "ToolInvocationError",
    ),
}


@pytest.mark.parametrize("label", HANDLERS)
@pytest.mark.parametrize("kind", PROVOKED)
def test_a_handling_handles_the_errors_of_its_types(kind: str, label: str, same: Same) -> None:
    error, args, passing, raised = PROVOKED[kind]
    raises = raised if label in passing else None
    same(lambda ns: failing(ns, error, args, handle_tool_errors=HANDLERS[label]), raises=raises)


def not_an_error(e: int) -> str:
    return "never"


def union_with_int(e: ValueError | int) -> str:
    return "never"


def old_union_with_int(e: Union[ValueError, int]) -> str:
    return "never"


def base_exception(e: BaseException) -> str:
    return "never"


RAISING: dict[str, tuple[Any, Exception, dict[str, Any] | None, str]] = {
    # handling, error of the body, arguments, and the error that is raised
    **{repr(flag): (flag, ValueError("bad"), None, "ValueError") for flag in (False, None, "", ())},
    "False and invalid arguments": (False, ValueError("bad"), {"x": "no"}, "ToolInvocationError"),
    "a handler that fails": (reraises, ValueError("bad"), None, "RuntimeError"),
    "a flag of a strange type": (7, KeyError("k"), None, "ValueError"),
    "a list": (["a"], KeyError("k"), None, "ValueError"),
    **{
        fn.__name__: (fn, ValueError("bad"), None, "ValueError")
        for fn in (not_an_error, union_with_int, old_union_with_int, base_exception)
    },
}


@pytest.mark.parametrize("label", RAISING)
def test_an_error_is_raised_with(label: str, same: Same) -> None:
    handling, error, args, raised = RAISING[label]
    same(lambda ns: failing(ns, error, args, handle_tool_errors=handling), raises=raised)


def only_tool_exceptions(error: ToolException) -> str:
    return f"handled: {error}"


OWN_HANDLING: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    # tool, arguments, and the error that is raised
    "an exception by its default text": (fails(ToolException("no"), handle_tool_error=True), {}, None),
    "an exception by an own text": (fails(ToolException("no"), handle_tool_error="own text"), {}, None),
    "an exception by a function": (fails(ToolException("no"), handle_tool_error=only_tool_exceptions), {}, None),
    "an exception by blocks": (
        fails(ToolException("no"), handle_tool_error=lambda _: [{"type": "text", "text": "sorry"}]),
        {},
        None,
    ),
    "an exception without text": (fails(ToolException(), handle_tool_error=True), {}, None),
    "no other error": (fails(ValueError("bad"), handle_tool_error=True), {}, "ValueError"),
    **{
        f"wrong arguments by {label}": (fails(ValueError("bad"), handle_validation_error=flag), {"x": "no"}, None)
        for label, flag in (
            ("true", True),
            ("text", "own text"),
            ("function", lambda error: f"{len(error.errors())} wrong"),
        )
    },
}


@pytest.mark.parametrize("label", OWN_HANDLING)
def test_the_tool_itself_handles(label: str, same: Same) -> None:
    tool, args, raised = OWN_HANDLING[label]
    same(lambda ns: Case(ns.ToolNode([tool]), wants("fails", args)), raises=raised)


def test_the_tool_handles_its_own_error_before_the_node(same: Same) -> None:
    tool = fails(ToolException("no"), handle_tool_error="own text")
    same(lambda ns: Case(ns.ToolNode([tool], handle_tool_errors=True), wants("fails")))


def test_handled_errors_stand_beside_results_in_order(same: Same) -> None:
    def fine(x: int) -> int:
        """Fine."""
        return x

    calls = asks(call("fails", id="1"), call("fine", {"x": 1}, "2"), call("fine", {}, "3"), call("none", id="4"))
    same(lambda ns: Case(ns.ToolNode([fails(ValueError("bad")), fine], handle_tool_errors=True), {"messages": [calls]}))


def test_an_error_in_a_group_keeps_its_shape(same: Same) -> None:
    group = ExceptionGroup("several", [ValueError("a"), KeyError("b")])
    same(lambda ns: failing(ns, group), raises="ExceptionGroup")


@alike(modes=DIRECT_MODES)
def test_a_tuple_covers_its_subclasses(ns: Any) -> Case:
    return failing(ns, LookupError("x"), handle_tool_errors=(KeyError, LookupError))
