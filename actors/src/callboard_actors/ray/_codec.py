"""Transfer of bodies, results and exceptions to and from Ray actors, by Ray's cloudpickle.

Functions and classes of importable modules are sent by name. Definitions of a script, a notebook or another function
are sent by value.
"""

import io
import os
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, cast

from ray import cloudpickle

from callboard.extend import Body, EngineError
from callboard_actors._engine._main_module import NAMES
from callboard_actors._engine._names import found_behind, way_to
from callboard_actors._engine._pickles import loads
from callboard_actors._engine._replies import pickled, survives_pickle

Reply = tuple[Literal["value", "raised", "lost", "unread"], bytes]
"""Encoded outcome of a body: a pickle, or the reason why there is none."""

_TRACEBACK_BOUND = 16 * 1024


class _Pickler(cast("type[Any]", cloudpickle.Pickler)):  # type: ignore[misc]
    """Pickler that sends a decorated function of a module by name.

    cloudpickle would send it by value, with all globals that it refers to.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType) and obj.__module__ not in NAMES and (way := way_to(obj)):
            return found_behind, (obj.__module__, obj.__qualname__, way)
        return super().reducer_override(obj)


def _dumps(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def packed(body: Body) -> bytes:
    """Pickle the function and arguments of a body; raise `TypeError` that names the part that cannot be pickled."""
    try:
        return _dumps((body.fn, body.args, dict(body.kwargs)))
    except Exception as error:
        raise TypeError(_why_not(body) or _refusal(body.title, "call", error)) from error


def check(fn: Callable[..., Any], title: str) -> None:
    """Raise `TypeError` for a function that cannot be pickled."""
    try:
        _dumps(fn)
    except Exception as error:
        what = "class" if isinstance(fn, type) else "function"
        hint = "; move it into a module that the cluster has" if getattr(fn, "__module__", None) in NAMES else ""
        raise TypeError(_refusal(title, what, error) + hint) from error


def _why_not(body: Body) -> str | None:
    parts: list[tuple[object, str]] = [(body.fn, "function")]
    parts += [(value, f"argument {place}") for place, value in enumerate(body.args, 1)]
    parts += [(value, f"argument {name}") for name, value in body.kwargs.items()]
    for value, what in parts:
        try:
            _dumps(value)
        except Exception as error:
            return _refusal(body.title, f"{what} (of type {type(value).__qualname__})", error)
    return None


def _refusal(title: str, what: str, error: Exception) -> str:
    return f"{title!r} cannot run on Ray: its {what} cannot be pickled: {error}"


def returned(value: object, most: int) -> Reply:
    """Return the reply for a result; called in a Ray actor."""
    try:
        return _bounded("value", _dumps(value), most)
    except Exception as error:
        return _lost(f"it returned an object of type {type(value).__qualname__}, which cannot be pickled: {error}")


def raised(error: Exception, most: int) -> Reply:
    """Return the reply for an exception, with its traceback as a note; called in a Ray actor."""
    told = "".join(traceback.format_exception(error))[-_TRACEBACK_BOUND:]
    try:
        error.add_note(f"In Ray's worker process {os.getpid()}:\n{told}")
        # Exceptions that would not survive a pickle are sent in parts; others by value, with classes of a script.
        return _bounded("raised", pickled(error) if not survives_pickle(error) else _dumps(error), most)
    except Exception as problem:
        return _lost(f"it raised {type(error).__qualname__}({error}), which cannot be pickled: {problem}")


def unread(error: Exception) -> Reply:
    """Return the reply for a body that cannot be unpickled in the Ray actor; it has not begun."""
    return "unread", f"{type(error).__name__}: {error}".encode(errors="replace")


def _bounded(kind: Literal["value", "raised"], data: bytes, most: int) -> Reply:
    if len(data) > most:
        return _lost(f"what it {kind.replace('value', 'returned')} has {len(data)} bytes, and max_result is {most}")
    return kind, data


def _lost(reason: str) -> Reply:
    return "lost", reason.encode(errors="replace")


def opened(reply: Reply, body: Body) -> Any:
    """Return the result of a body, or raise its exception.

    Raise `EngineError` if the body has finished, but its outcome was lost. Raise `TypeError` if the Ray actor could not
    unpickle the body, which then has not begun.
    """
    kind, data = reply
    if kind == "unread":
        raise TypeError(
            f"{body.title!r} cannot run on Ray: its workers cannot load it: {data.decode(errors='replace')}; "
            "install it on the cluster, or have Ray do so by RayEngine(runtime_env={'working_dir': ..., 'pip': [...]})"
        )
    if kind == "lost":
        raise EngineError(body.title, body.call_id, data.decode(errors="replace"), ended="finished")
    try:
        found = loads(data)  # the cluster is trusted: it runs our code
    except Exception as error:
        said = f"what it ended with cannot be read here: {type(error).__qualname__}({error})"
        raise EngineError(body.title, body.call_id, said, ended="finished") from error
    if kind == "raised":
        raise cast("Exception", found)
    return found
