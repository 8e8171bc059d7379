"""handle_tool_errors in all its forms, and errors that tools handle themselves."""

from typing import Any, Union

from langchain_core.tools import StructuredTool, ToolException

from ._harness import Case, asks, call, table_test, wants


class Custom(ValueError):
    pass


def fails(error: Exception, **options: Any) -> StructuredTool:
    def body(x: int = 0) -> str:
        raise error

    return StructuredTool.from_function(func=body, name="fails", description="Fail.", **options)


def failing(error: Exception, args: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a scenario of a tool that fails."""
    return lambda ns: Case(ns.ToolNode([fails(error)], **options), wants("fails", args))


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


def without_annotation(e):  # type: ignore[no-untyped-def]
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
    "a handler without annotation": without_annotation,
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


def only_tool_exceptions(error: ToolException) -> str:
    return f"handled: {error}"


def of_tool(error: Exception, args: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a scenario of a tool with its own error handling."""
    return lambda ns: Case(ns.ToolNode([fails(error, **options)]), wants("fails", args))


def fine(x: int) -> int:
    """Fine."""
    return x


CALLS = asks(call("fails", id="1"), call("fine", {"x": 1}, "2"), call("fine", {}, "3"), call("none", id="4"))
NO, BAD = ToolException("no"), ValueError("bad")
HANDLED: dict[str, Any] = {
    **{
        f"{error!r} {label}": (failing(error, **options), raised)
        for error in (BAD, KeyError("k"), ToolException("tool says no"), Custom("mine"), ValueError())
        for label, options, raised in (
            ("by default", {}, type(error).__name__),
            ("and True", {"handle_tool_errors": True}, None),
        )
    },
    **{
        f"{kind} and {label}": (failing(error, args, handle_tool_errors=handling), raised if label in passing else None)
        for kind, (error, args, passing, raised) in PROVOKED.items()
        for label, handling in HANDLERS.items()
    },
    **{
        label: (failing(error, args, handle_tool_errors=handling), raised)
        for label, (handling, error, args, raised) in RAISING.items()
    },
    "an exception by its default text": of_tool(NO, handle_tool_error=True),
    "an exception by an own text": of_tool(NO, handle_tool_error="own text"),
    "an exception by a function": of_tool(NO, handle_tool_error=only_tool_exceptions),
    "an exception by blocks": of_tool(NO, handle_tool_error=lambda _: [{"type": "text", "text": "sorry"}]),
    "an exception without text": of_tool(ToolException(), handle_tool_error=True),
    "no other error": (of_tool(BAD, handle_tool_error=True), "ValueError"),
    "wrong arguments by True": of_tool(BAD, {"x": "no"}, handle_validation_error=True),
    "wrong arguments by a text": of_tool(BAD, {"x": "no"}, handle_validation_error="own text"),
    "wrong arguments by a function": of_tool(
        BAD, {"x": "no"}, handle_validation_error=lambda error: f"{len(error.errors())} wrong"
    ),
    "an error that the tool handles before the node": lambda ns: Case(
        ns.ToolNode([fails(NO, handle_tool_error="own text")], handle_tool_errors=True), wants("fails")
    ),
    "errors beside results, in order": lambda ns: Case(
        ns.ToolNode([fails(BAD), fine], handle_tool_errors=True), {"messages": [CALLS]}
    ),
    "a group": (failing(ExceptionGroup("several", [ValueError("a"), KeyError("b")])), "ExceptionGroup"),
    "a subclass of a type in a tuple": failing(LookupError("x"), handle_tool_errors=(KeyError, LookupError)),
}
test_an_error_is_handled_or_raised_alike = table_test(HANDLED)
