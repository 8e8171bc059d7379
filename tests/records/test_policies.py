"""The two forms of a key function: the form is detected once, when the function is given."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._records._policies import CallContext, key_function

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


def with_the_rest(call: Any, *rest: Any, **options: Any) -> Any:
    return call["name"], len(rest), len(options)


def passed_on(key: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(key)
    def decorated(*args: Any, **options: Any) -> Any:
        return key(*args, **options)

    return decorated


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
    "a decorated function of two": (passed_on(Method().two), ("fetch", "the context")),
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


@st.composite
def signatures(draw: st.DrawFn) -> str:
    """Strategy for the parameters of any function, as source text."""
    needed, optional = draw(st.integers(0, 4)), draw(st.integers(0, 2))
    by_place = [f"a{n}" for n in range(needed)] + [f"b{n}=0" for n in range(optional)]
    if by_place and draw(st.booleans()):
        by_place.insert(draw(st.integers(1, len(by_place))), "/")
    keywords = draw(st.lists(st.sampled_from(["c0", "c1=0"]), max_size=2, unique=True))
    star = draw(st.sampled_from(["*rest", "*"] if keywords else ["*rest", None]))
    options = draw(st.sampled_from(["**options", None]))
    return ", ".join(part for part in (*by_place, star, *keywords, options) if part)


@given(signatures())
def test_whatever_its_parameters_a_key_function_runs_or_is_refused_when_it_is_given(parameters: str) -> None:
    """A function that cannot be called with these arguments is refused at once, and not in the middle of a run."""
    function = eval(f"lambda {parameters}: 'key'")
    accepted = [count for count in (1, 2) if binds(function, count)]
    if accepted:
        key = key_function("Limit(key=...)", function)
        assert key.of(CALL, lambda: CONTEXT) == "key"
        assert key.takes_context == (accepted == [2])
    else:
        with pytest.raises(TypeError, match=r"^Limit\(key=\.\.\.\) takes a function of the tool call") as refused:
            key_function("Limit(key=...)", function)
        assert str(inspect.signature(function)) in str(refused.value)


def binds(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True
