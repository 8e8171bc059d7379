"""Pickles of functions, calls and replies on their way to a Ray actor and back, made by Ray's cloudpickle."""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from inspect import iscoroutinefunction
from types import FunctionType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from ray import cloudpickle

from callboard.extend import Body
from callboard_actors._engine import _codec
from callboard_actors._engine._codec import refusal_text
from callboard_actors._engine._frames import Kind
from callboard_actors._engine._main_module import MAIN_NAMES
from callboard_actors._engine._pickles import attribute_path_to, find_by_attributes, loads


# Ray has no types for its cloudpickle.
class _Pickler(cast("type[Any]", cloudpickle.Pickler)):  # type: ignore[misc]
    """Pickler that stores a decorated function of an importable module by its name, not by its code."""

    def reducer_override(self, obj: Any) -> Any:
        # By value, it would be sent with all globals that it refers to.
        if (
            isinstance(obj, FunctionType)
            and obj.__module__ not in MAIN_NAMES
            and (attributes := attribute_path_to(obj))
        ):
            return find_by_attributes, (obj.__module__, obj.__qualname__, attributes)
        return super().reducer_override(obj)


def dumps(value: object) -> bytes:
    """Return a value as a pickle, made by cloudpickle."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


# Functions.


class PickledFunction(NamedTuple):
    """Pickle of a function, and its digest, by which calls name the function."""

    digest: bytes
    data: bytes


_pickled_functions: "WeakKeyDictionary[FunctionType, PickledFunction]" = WeakKeyDictionary()
"""Pickles of functions that are stored by their names; those of other functions change with what they refer to."""


def pickle_function(function: Callable[..., Any]) -> PickledFunction:
    """Return the pickle of a function with its digest."""
    if isinstance(function, FunctionType) and (stored_pickle := _pickled_functions.get(function)) is not None:
        return stored_pickle
    data = dumps(function)
    pickled = PickledFunction(blake2b(data, digest_size=16).digest(), data)
    if isinstance(function, FunctionType) and function.__module__ not in MAIN_NAMES:
        object_of_that_name = getattr(sys.modules.get(function.__module__), function.__qualname__, None)
        if object_of_that_name is function or attribute_path_to(function):
            _pickled_functions[function] = pickled
    return pickled


class _FunctionReference(NamedTuple):
    """Argument of a call that stands for a function which the Ray actor has."""

    digest: bytes


# Calls.


class PickledBody(NamedTuple):
    """Body as it is sent to a Ray actor."""

    functions: tuple[PickledFunction, ...]
    data: bytes


def pickle_body(body: Body) -> PickledBody:
    """Pickle a function call; if this fails, raise a `TypeError` that names the unpicklable part."""
    try:
        function = pickle_function(body.fn)
        if body.subject is None or body.subject is body.fn:
            return PickledBody((function,), dumps((function.digest, body.args, dict(body.kwargs))))
        # The user's function is an argument of a wrapper of callboard.
        subject = pickle_function(body.subject)
        subject_reference = _FunctionReference(subject.digest)
        args = tuple(subject_reference if argument is body.subject else argument for argument in body.args)
        return PickledBody((function, subject), dumps((function.digest, args, dict(body.kwargs))))
    except Exception:
        _codec.pack_call(body, dumps, "on Ray", "function")  # raises an error that names the part
        raise


class ReceivedFunctions:
    """Functions that a Ray actor has received, each unpickled when it is called for the first time."""

    def __init__(self) -> None:
        self._pickles_by_digest: dict[bytes, bytes] = {}
        self._functions_by_digest: dict[bytes, Callable[..., Any]] = {}

    def add(self, pickles_by_digest: Mapping[bytes, bytes]) -> None:
        """Store pickles of functions, by digest."""
        self._pickles_by_digest.update(pickles_by_digest)

    def forget(self, digests: Sequence[bytes]) -> None:
        """Remove functions; later requests send them again before they are called."""
        for digest in digests:
            self._pickles_by_digest.pop(digest, None)
            self._functions_by_digest.pop(digest, None)

    def load_call(self, data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Unpickle a call: its function and its arguments. Any error may be raised, such as a missing module."""
        digest, args, kwargs = loads(data)
        arguments = (
            self._load_function(value.digest) if type(value) is _FunctionReference else value for value in args
        )
        return self._load_function(digest), tuple(arguments), kwargs

    def _load_function(self, digest: bytes) -> Callable[..., Any]:
        if (function := self._functions_by_digest.get(digest)) is None:
            # Users of the cluster may run code on it anyway. After an error, the next call tries again.
            function = self._functions_by_digest[digest] = cast(
                "Callable[..., Any]", loads(self._pickles_by_digest[digest])
            )
        return function


def is_sync_body(body: Body) -> bool:
    """Return whether the body runs in a thread, where only the death of the process ends it."""
    return not iscoroutinefunction(body.fn)


def check_picklable(fn: Callable[..., Any], title: str) -> None:
    """Raise `TypeError` for a function or class that cannot be pickled; `title` names it in the error."""
    try:
        dumps(fn)
    except Exception as error:
        kind = "class" if isinstance(fn, type) else "function"
        hint = "; move it into a module that the cluster has" if getattr(fn, "__module__", None) in MAIN_NAMES else ""
        raise TypeError(refusal_text(title, kind, error, "on Ray") + hint) from error


def decode_reply(kind: Kind, data: bytes, body: Body) -> Any:
    """Decode the reply of a Ray actor to a function call: return the call's result, or raise its exception."""
    if kind is Kind.REFUSE:
        raise TypeError(
            f"{body.title!r} cannot run on Ray: its workers cannot load it: {data.decode(errors='replace')}; "
            "install it on the cluster, or have Ray do so by RayEngine(runtime_env={'working_dir': ..., 'pip': [...]})"
        )
    return _codec.decode_reply(kind, data, body, output="")  # the cluster is trusted: it runs our code
