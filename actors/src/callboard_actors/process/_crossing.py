"""What crosses between the pool and its workers, on the pool's side: bodies out, results and exceptions back."""

import inspect
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

from callboard.engines import Body
from callboard_actors.process._errors import ResultLostError, add_output
from callboard_actors.process._frames import Kind, reason_and_details
from callboard_actors.process._main_module import HERE, NAMES, main_module
from callboard_actors.process._names import found_behind, named, way_to
from callboard_actors.process._pickles import loads


class _Pickler(pickle.Pickler):
    """Finds functions behind their decorators; refuses what is of a `__main__` that no worker could load."""

    def reducer_override(self, obj: Any) -> Any:
        # Functions and classes have a name of their own; it is by this that a worker would look for them.
        if hasattr(obj, "__qualname__") and getattr(obj, "__module__", None) in NAMES:
            _check_main(obj.__module__, obj.__qualname__)
        if isinstance(obj, FunctionType) and not _is_its_name(obj) and (way := way_to(obj)):
            return found_behind, (obj.__module__, obj.__qualname__, way)
        return NotImplemented


def _is_its_name(fn: FunctionType) -> bool:
    """Whether it is what its own name leads to, for the most common case, in which nothing has to be looked for."""
    return getattr(sys.modules.get(fn.__module__), fn.__qualname__, None) is fn


def _check_main(module: str, qualname: str) -> None:
    if main_module() is None:
        raise pickle.PicklingError(
            f"{qualname} is defined in __main__, which is no script or module that a worker could load (but a REPL, "
            "a notebook, `python -c` or the __main__.py of a package); move it into a module"
        )
    try:
        named(module, qualname)
    except AttributeError as error:
        raise pickle.PicklingError(str(error)) from error


def name_of(fn: Callable[..., Any]) -> str:
    """What errors call a function."""
    if isinstance(fn, partial):
        return name_of(fn.func)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def packed(body: Body, variables: Mapping[str, Any]) -> bytes:
    """Pickle a body, and the context variables that go with it.

    Raises:
        TypeError: it cannot be sent; says whether that is the function's doing, or which argument's.
    """
    try:
        return _pickled((body.fn, body.args, dict(body.kwargs), variables))
    except Exception as error:
        raise TypeError(_why_not(body, variables) or _refusal(body.title, "call", error)) from error


def check(fn: Callable[..., Any], title: str) -> None:
    """Raise TypeError for a function that cannot be sent, or whose result could not."""
    inner = fn.func if isinstance(fn, partial) else fn
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError(
            f"{title!r} cannot run in a worker process: it is a generator function, whose values cannot be sent one by "
            "one; have it return a list, and tell of its progress by callboard.progress()"
        )
    try:
        _pickled(fn)
    except Exception as error:
        raise TypeError(_refusal(title, "function, which has to be importable by its name,", error)) from error


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _why_not(body: Body, variables: Mapping[str, Any]) -> str | None:
    parts: list[tuple[object, str]] = [(body.fn, "function, which has to be importable by its name,")]
    parts += [(value, f"argument {place} ({_shown(value)})") for place, value in enumerate(body.args, 1)]
    parts += [(value, f"argument {name} ({_shown(value)})") for name, value in body.kwargs.items()]
    parts += [(value, f"context variable {name} ({_shown(value)})") for name, value in variables.items()]
    for value, what in parts:
        try:
            _pickled(value)
        except Exception as error:
            return _refusal(body.title, what, error)
    return None


def module_of(fn: Callable[..., Any]) -> str | None:
    """The module that a worker loads for a function."""
    if isinstance(fn, partial):
        return module_of(fn.func)
    module = getattr(fn, "__module__", None)
    return HERE if module in NAMES else module


def _refusal(title: str, what: str, error: Exception) -> str:
    return f"{title!r} cannot run in a worker process: its {what} cannot be pickled: {error}"


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # a repr of somebody else's
        return f"of type {type(value).__qualname__}"


def opened(kind: Kind, reply: bytes | bytearray, body: Body, *, output: str) -> Any:
    """Return what a call has returned, or raise what it has raised.

    Raises:
        ResultLostError: neither can be had.
    """
    if kind is Kind.LOST:
        reason, details = reason_and_details(reply)
        lost = ResultLostError(body.title, reason, call_id=body.call_id, output=output)
        if details:
            lost.add_note(details)
        raise lost
    try:
        found = loads(reply)
    except Exception as error:
        said = f"it cannot be read here: {type(error).__qualname__}({error})"
        raise ResultLostError(body.title, said, call_id=body.call_id, output=output) from error
    if kind is Kind.VALUE:
        return found
    if not isinstance(found, Exception):
        said = f"it raised an object of type {type(found).__qualname__}"
        raise ResultLostError(body.title, said, call_id=body.call_id, output=output)
    add_output(found, output)
    raise found
