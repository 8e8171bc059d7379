"""Pickling on the pool's side: encodes calls for workers, and decodes workers' replies to results and exceptions."""

import inspect
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import callboard
from callboard import CallboardWarning, cleanup
from callboard.extend import Body
from callboard_actors._engine._errors import ResultLostError, add_output_note
from callboard_actors._engine._frames import Kind, decode_loss
from callboard_actors._engine._main_module import MAIN_NAME, MAIN_NAMES, main_module
from callboard_actors._engine._pickles import attribute_path_to, find_by_attributes, find_object, loads

_IN_WORKER = "in a worker process"
_FUNCTION_PART = "function, which has to be importable by its name,"


class _Pickler(pickle.Pickler):
    """Pickler for calls: stores decorated functions by name; rejects objects of `__main__` that workers cannot find."""

    def reducer_override(self, obj: Any) -> Any:
        # Functions and classes are pickled by module and name. So a name that is missing in the worker's main module is
        # detected here, not after the call was sent.
        if hasattr(obj, "__qualname__") and getattr(obj, "__module__", None) in MAIN_NAMES:
            if main_module() is None:
                raise pickle.PicklingError(
                    f"{obj.__qualname__} is defined in __main__, which is no script or module that a worker could load "
                    "(but a REPL, a notebook, `python -c` or the __main__.py of a package); move it into a module"
                )
            try:
                find_object(obj.__module__, obj.__qualname__)
            except AttributeError as error:
                raise pickle.PicklingError(str(error)) from error
        # The name of a decorated function leads to the decorator's result; the worker follows the same attributes.
        if isinstance(obj, FunctionType):
            # Usually the name leads to the function itself, and this check is cheap.
            is_found_by_name = getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is obj
            if not is_found_by_name and (attributes := attribute_path_to(obj)):
                return find_by_attributes, (obj.__module__, obj.__qualname__, attributes)
        return NotImplemented


def function_name(fn: Callable[..., Any]) -> str:
    """Return the name of a function for error texts."""
    if isinstance(fn, partial):
        return function_name(fn.func)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _pickle(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def pack_call(
    body: Body,
    dumps: Callable[[object], bytes] = _pickle,
    location: str = _IN_WORKER,
    function_part: str = _FUNCTION_PART,
) -> bytes:
    """Pickle a call; if this fails, raise a `TypeError` that names the unpicklable part."""
    try:
        return dumps((body.fn, body.args, dict(body.kwargs)))
    except Exception as error:
        # Parts are pickled one by one only after a failure, to name the part.
        parts: list[tuple[object, str]] = [(body.fn, function_part)]
        parts += [(value, f"argument {position} ({_text_of(value)})") for position, value in enumerate(body.args, 1)]
        parts += [(value, f"argument {name} ({_text_of(value)})") for name, value in body.kwargs.items()]
        for value, part in parts:
            try:
                dumps(value)
            except Exception as cause:
                raise TypeError(refusal_text(body.title, part, cause, location)) from error
        raise TypeError(refusal_text(body.title, "call", error, location)) from error


def check_function(fn: Callable[..., Any], title: str) -> None:
    """Raise `TypeError` if `fn` is a generator function or cannot be pickled; warn if `fn` uses `cleanup()`."""
    inner = fn.func if isinstance(fn, partial) else fn
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError(
            f"{title!r} cannot run in a worker process: it is a generator function, whose values cannot be sent one by "
            "one; have it return a list, and tell of its progress by callboard.progress()"
        )
    try:
        _pickle(fn)
    except Exception as error:
        raise TypeError(refusal_text(title, _FUNCTION_PART, error)) from error
    function = inspect.unwrap(fn)
    if not inspect.iscoroutinefunction(function):
        return
    # If a worker is killed, no clean-up runs in it.
    names = function.__globals__
    if any(
        names.get(name) is cleanup or (names.get(name) is callboard and "cleanup" in code.co_names)
        for code in _code_objects(function.__code__)
        for name in code.co_names
    ):
        warnings.warn(
            f"{title!r} uses cleanup(), and where it runs its process is killed when its call is cancelled or its time "
            "is over: what is within cleanup() is not run then, nor is any finally. Undo from here what has to be "
            "undone, such as in a middleware, or have the tool run here (no runs_in)",
            CallboardWarning,
            stacklevel=3,
        )


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of all functions and classes within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_objects(constant)


def module_name_of(fn: Callable[..., Any]) -> str | None:
    """Return the name of the module that a worker has to load for a function."""
    if isinstance(fn, partial):
        return module_name_of(fn.func)
    module = getattr(fn, "__module__", None)
    return MAIN_NAME if module in MAIN_NAMES else module


def refusal_text(title: str, part: str, error: Exception, location: str = _IN_WORKER) -> str:
    """Return the error text for a part of a call that cannot be pickled."""
    return f"{title!r} cannot run {location}: its {part} cannot be pickled: {error}"


def _text_of(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # user-defined `__repr__`
        return f"of type {type(value).__qualname__}"


def decode_reply(kind: Kind, reply: bytes, body: Body, *, output: str) -> Any:
    """Decode the reply of a trusted worker: return the result of the call, or raise its exception."""
    if kind is Kind.LOST:
        reason, details = decode_loss(reply)
        lost = ResultLostError(body.title, reason, call_id=body.call_id, output=output)
        if details:
            lost.add_note(details)
        raise lost
    try:
        value = loads(reply)
    except Exception as error:
        problem = f"it cannot be read here: {type(error).__qualname__}({error})"
        raise ResultLostError(body.title, problem, call_id=body.call_id, output=output) from error
    if kind is Kind.VALUE:
        return value
    # Raising a `BaseException` such as `KeyboardInterrupt` or a cancellation here would act on the caller's task.
    if not isinstance(value, Exception):
        problem = f"it raised an object of type {type(value).__qualname__}"
        raise ResultLostError(body.title, problem, call_id=body.call_id, output=output)
    add_output_note(value, output)
    raise value
