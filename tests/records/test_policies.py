"""The two forms of a key function: the form is detected once, when the function is given."""

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import pytest

from callboard import Backoff, CallContext, CallPolicy, Limit, Rate, ToolNode
from callboard._records._policies import key_function
from callboard.middleware import Retry
from callboard_actors.mcp import McpBounds

CALL: dict[str, Any] = {"name": "fetch", "args": {"host": "a.org"}, "id": "1"}
CONTEXT = CallContext({"configurable": {"user": "Ann"}}, {"team": "red"}, "the context")


class Method:
    def one(self, call: Any) -> Any:
        return call["name"]

    def two(self, call: Any, context: CallContext) -> Any:
        return call["name"], context.context

    def __call__(self, call: Any) -> Any:
        return self.one(call)


def with_a_default(call: Any, separator: str = "/") -> str:
    return f"{call['name']}{separator}"


def with_two_and_a_default(call: Any, context: CallContext, separator: str = "/") -> str:
    return f"{call['name']}{separator}{context.context}"


def with_the_rest(call: Any, *extra_arguments: Any, **options: Any) -> Any:
    return call["name"], len(extra_arguments), len(options)


def pass_on(key: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(key)
    def call_key(*args: Any, **options: Any) -> Any:
        return key(*args, **options)

    return call_key


FORMS: dict[str, tuple[Any, object]] = {
    "one": (lambda call: call["name"], "fetch"),
    "two": (lambda call, context: (call["name"], context.context), ("fetch", "the context")),
    "one and a default": (with_a_default, "fetch/"),
    "two and a default": (with_two_and_a_default, "fetch/the context"),
    "any number": (lambda *args: len(args), 1),
    "one and any number": (with_the_rest, ("fetch", 0, 0)),
    "a default": (lambda call=None: call["name"], "fetch"),
    "a method": (Method().one, "fetch"),
    "a method of two": (Method().two, ("fetch", "the context")),
    "an object": (Method(), "fetch"),
    "a builtin": (operator.itemgetter("name"), "fetch"),
    "a builtin class": (str, str(CALL)),
    "part of a function": (functools.partial(with_two_and_a_default, separator="-"), "fetch-the context"),
    "a function whose context is given": (
        functools.partial(with_two_and_a_default, context=CONTEXT),
        "fetch/the context",
    ),
    "a decorated function of two": (pass_on(Method().two), ("fetch", "the context")),
}


@pytest.mark.parametrize(("key", "expected"), FORMS.values(), ids=FORMS.keys())
def test_a_key_function_gets_the_context_where_it_cannot_do_without(key: Any, expected: object) -> None:
    """A function written for the call alone keeps working, even if it has further optional parameters."""
    assert key_function("key", key).of(CALL, lambda: CONTEXT) == expected


def test_the_context_is_not_made_for_a_key_of_the_call() -> None:
    """Creating the context costs time, so calls whose key function does not use it do not create it."""

    def context() -> CallContext:
        raise AssertionError("nobody looks at it")

    assert key_function("key", lambda call: call["name"]).of(CALL, context) == "fetch"


def test_what_cannot_be_hashed_is_no_key() -> None:
    for key in (lambda call: call["args"], lambda call, context: context.state):
        with pytest.raises(TypeError, match="unhashable"):
            key_function("key", key).of(CALL, lambda: CONTEXT)


HUGE = 10**400
TOO_LARGE: list[tuple[str, Callable[[Any], object]]] = [
    *(
        (f"CallPolicy({name}=...)", lambda value, name=name: CallPolicy(**{name: value}))
        for name in ("timeout", "idle_timeout", "budget", "grace", "background")
    ),
    ("Rate(per=...)", lambda value: Rate(1, per=value)),
    ("timeout", lambda value: ToolNode([], timeout=value)),
    ("grace", lambda value: ToolNode([], grace=value)),
    ("Retry(initial=...)", lambda value: Retry(3, initial=value)),
    ("Retry(factor=...)", lambda value: Retry(3, factor=value)),
    ("Backoff(first=...)", lambda value: Backoff(first=value)),
    ("Backoff(factor=...)", lambda value: Backoff(factor=value)),
]


@pytest.mark.parametrize(("option", "make"), TOO_LARGE, ids=[option for option, _ in TOO_LARGE])
def test_a_time_that_no_float_holds_is_refused_with_its_name(option: str, make: Callable[[Any], object]) -> None:
    """A model or a file of settings may name any number, and the error of a calculation says nothing of the option."""
    for value in (HUGE, 10**5_000):
        with pytest.raises(ValueError, match=r"too large, a whole number of [0-9,]+ bits; math.inf is") as caught:
            make(value)
        assert option in str(caught.value)
    with pytest.raises(ValueError, match="got nan"):
        make(math.nan)


COUNTS: list[tuple[str, Callable[[Any], object]]] = [
    ("Limit(concurrency=...)", lambda value: Limit(concurrency=value)),
    ("Limit(queue=...)", lambda value: Limit(1, queue=value)),
    ("Rate(calls=...)", lambda value: Rate(value)),
    ("Retry(attempts=...)", lambda value: Retry(value)),
    ("ToolNode(max_calls=...)", lambda value: ToolNode([], max_calls=value)),
    ("McpBounds(parallel=...)", lambda value: McpBounds(parallel=value)),
]


@pytest.mark.parametrize(("option", "make"), COUNTS, ids=[option for option, _ in COUNTS])
def test_a_count_that_no_machine_reaches_is_refused_with_its_name(option: str, make: Callable[[Any], object]) -> None:
    """It is a mistake of the program, and a server of shared limits would be the first to say so, in a call."""
    for value in (sys.maxsize + 1, HUGE, 10**5_000, -(10**5_000)):
        with pytest.raises(ValueError, match=r" is at most [0-9,]+, got .*[0-9,]+ bits") as caught:
            make(value)
        assert option in str(caught.value)
    make(sys.maxsize)
