"""Transfer of bodies, results and exceptions to and from Ray actors, by Ray's cloudpickle.

Functions and classes of importable modules are sent by name. Definitions of a script, a notebook or another function
are sent by value.
"""

import io
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from ray import cloudpickle

from callboard.extend import Body
from callboard_actors._engine import _codec
from callboard_actors._engine._codec import packed_by, refusal
from callboard_actors._engine._frames import Kind
from callboard_actors._engine._main_module import NAMES
from callboard_actors._engine._pickles import found_behind, way_to


class _Pickler(cast("type[Any]", cloudpickle.Pickler)):  # type: ignore[misc]
    """Pickler that sends a decorated function of a module by name."""

    def reducer_override(self, obj: Any) -> Any:
        # By value, it would be sent with all globals that it refers to.
        if isinstance(obj, FunctionType) and obj.__module__ not in NAMES and (way := way_to(obj)):
            return found_behind, (obj.__module__, obj.__qualname__, way)
        return super().reducer_override(obj)


def dumps(value: object) -> bytes:
    """Pickle a value by cloudpickle."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def packed(body: Body) -> bytes:
    """Pickle the function and arguments of a body; raise `TypeError` that names the part that cannot be pickled."""
    return packed_by(dumps, body, {}, "on Ray", "function")


def check(fn: Callable[..., Any], title: str) -> None:
    """Raise `TypeError` for a function or class that cannot be pickled; `title` names it in the error."""
    try:
        dumps(fn)
    except Exception as error:
        what = "class" if isinstance(fn, type) else "function"
        hint = "; move it into a module that the cluster has" if getattr(fn, "__module__", None) in NAMES else ""
        raise TypeError(refusal(title, what, error, "on Ray") + hint) from error


def opened(kind: Kind, data: bytes, body: Body) -> Any:
    """Decode the reply of a body: return the result, or raise the exception; see `_engine/_codec.py`."""
    if kind is Kind.REFUSE:
        raise TypeError(
            f"{body.title!r} cannot run on Ray: its workers cannot load it: {data.decode(errors='replace')}; "
            "install it on the cluster, or have Ray do so by RayEngine(runtime_env={'working_dir': ..., 'pip': [...]})"
        )
    return _codec.opened(kind, data, body, output="")  # the cluster is trusted: it runs our code
