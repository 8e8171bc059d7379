"""Serializers for untrusted databases: they create only values of allowed types, and call no other code."""

import copy
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from typing import Any

import ormsgpack
from langchain_core.load.load import Reviver
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_METHOD_SINGLE_ARG,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from callboard.exceptions import StorageError

Name = tuple[str, ...]
"""Module and name of a type."""

Unknown = Callable[[Name, Any], Any]
"""Function that makes the replacement for a value of a forbidden type, from the type's name and the value's content."""

_KINDS = frozenset(("null", "bytes", "bytearray", "json", "msgpack"))

_UNVALIDATED = {EXT_PYDANTIC_V1: "construct", EXT_PYDANTIC_V2: "model_construct"}
"""Methods that create a stored pydantic model without validation, by msgpack extension; the same as LangGraph's."""


class StrictSerializer(JsonPlusSerializer):
    """Serializer in LangGraph's format that refuses unknown types; for databases that other programs may change.

    LangGraph's own serializer imports and calls whatever the stored bytes name, or silently returns something else for
    a forbidden type. This one raises an error when it reads a forbidden type, and already when it writes one, unless
    `unknown` makes a replacement. `types` are allowed in addition to LangGraph's and LangChain's own.
    """

    def __init__(self, database: str, types: Iterable[type] = (), *, unknown: Unknown | None = None) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self._database = database
        self._types = _types_by_name(types)
        self._unknown = unknown

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Name | type]) -> "StrictSerializer":
        """Return a copy of the serializer that allows further types, given as types or names. Called by LangGraph."""
        allowed_types = [item if isinstance(item, type) else _import_type(tuple(item)) for item in extra_allowlist]
        serializer = copy.copy(self)
        serializer._types = {**self._types, **_types_by_name(item for item in allowed_types if isinstance(item, type))}
        return serializer

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        if kind == "msgpack":
            # On the packed bytes, not on the value: exactly what is written is checked, whatever packed it.
            self._read(_Reading(self, creates_values=False), data)
        return kind, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        if kind not in _KINDS:
            raise StorageError(
                self._database,
                f"holds a value that was stored as {kind!r}, which is not read from a database. Hand over a saver of "
                "LangGraph's with the serializer that has written it",
            )
        if kind == "msgpack":
            return self._read(_Reading(self, creates_values=True), stored)
        if kind != "json":
            return super().loads_typed(data)
        try:
            return json.loads(stored, object_hook=self._revive)
        except Exception as error:
            raise self._damage_error(error) from error

    def _read(self, reading: "_Reading", data: bytes) -> Any:
        try:
            return reading.unpack(data)
        except Exception as error:
            problem = reading.problem or error
            # Ctrl-C inside of a hook arrives as an error of the library: raise it again.
            if not isinstance(problem, Exception):
                raise problem from None
            raise self._damage_error(problem) from problem

    def _damage_error(self, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        return StorageError(self._database, f"holds a value that cannot be read: {error_text(error)}. {MEND}")

    def allowed_type(self, name: Name) -> Any:
        """Return the type with this module and name, or `None` if stored values must not have this type."""
        # Only names in LangGraph's fixed list are imported. Other types must exist already: a stored name imports none.
        return _import_type(name) if name in SAFE_MSGPACK_TYPES else self._types.get(name)

    def refuse(self, name: Name, content: Any = None, *, writes: bool = False) -> Any:
        """Return the replacement for a value of a forbidden type; raise `StorageError` if there is none."""
        if self._unknown is not None:
            return self._unknown(name, content)
        problem = (
            "cannot keep a value of the type {}, which it could not read again"
            if writes
            else "holds a value of the type {}, and to make it again would be to run what the database names"
        )
        raise StorageError(
            self._database,
            f"{problem.format('.'.join(name))}. Allowed are the types of LangGraph, of LangChain's messages, and those "
            "that the agent's schemas name. If it is yours, name it in one of them, or in "
            f"the agent's stored_types=[{name[-1]}]",
        )

    def _revive(self, value: dict[str, Any]) -> Any:
        """Return the object that a dict describes in LangChain's JSON format, which LangGraph used before msgpack."""
        if value.get("type") != "constructor" or value.get("lc") not in (1, 2) or not value.get("id"):
            return _messages_only()(value)
        *module, class_name = map(str, value["id"])
        name = (".".join(module), class_name)
        if value["lc"] == 2:
            make = self.allowed_type(name)
            if make is None:
                return self.refuse(name, value.get("kwargs") or value.get("args"))
            return make(*(value.get("args") or ()), **(value.get("kwargs") or {}))
        if tuple(value["id"]) not in (_messages_only().allowed_class_paths or ()):
            return self.refuse(name, value.get("kwargs"))
        return _messages_only()(value)


class _Reading:
    """Reader of the packed bytes of one value.

    It creates the value, or, without `creates_values`, only checks the names of the types in it.
    """

    def __init__(self, owner: StrictSerializer, *, creates_values: bool) -> None:
        self._owner = owner
        self._creates_values = creates_values
        self.problem: BaseException | None = None  # first error of a hook, which ormsgpack replaces by its own

    def unpack(self, data: bytes) -> Any:
        return ormsgpack.unpackb(data, ext_hook=self._unpack_extension, option=ormsgpack.OPT_NON_STR_KEYS)

    def _unpack_extension(self, code: int, data: bytes) -> Any:
        try:
            content = self.unpack(data)
            if code == EXT_DELTA_SNAPSHOT:
                return _DeltaSnapshot(content) if self._creates_values else None
            if code == EXT_NUMPY_ARRAY:
                return _array(*content) if self._creates_values else None
            name, value = (str(content[0]), str(content[1])), content[2]
            make = self._owner.allowed_type(name)
            if make is None or (code == EXT_METHOD_SINGLE_ARG and not _is_time(make, content[3:])):
                return self._owner.refuse(name, value, writes=not self._creates_values)
            return _create(code, make, value) if self._creates_values else None
        except BaseException as error:
            self.problem = self.problem or error
            raise


def _create(code: int, make: Any, content: Any) -> Any:
    """Return the object of the type `make` that a msgpack extension describes by its `code` and `content`."""
    if code == EXT_METHOD_SINGLE_ARG:
        return make.fromisoformat(content)
    if code == EXT_CONSTRUCTOR_SINGLE_ARG:
        return make(content)
    if code == EXT_CONSTRUCTOR_POS_ARGS:
        return _send(*content) if make is Send else make(*content)
    if code == EXT_CONSTRUCTOR_KW_ARGS:
        return make(**content)
    if code not in _UNVALIDATED:
        raise ValueError(f"{code} is no kind of value that is known")
    try:
        return make(**content)
    except Exception:  # as in LangGraph: the content no longer passes validation, so create the model without it
        return getattr(make, _UNVALIDATED[code])(**content)


class OutlineSerializer(JsonPlusSerializer):
    """Serializer that reads plain data only, with `None` in place of every object."""

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=None, __unpack_ext_hook__=lambda _code, _data: None)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        return json.loads(stored) if kind == "json" else super().loads_typed(data)


def can_be_outlined(serde: object) -> bool:
    """Return whether `OutlineSerializer` can read the values that another serializer has stored."""
    # A pickle cannot be read in part.
    if isinstance(serde, StrictSerializer) or not isinstance(serde, JsonPlusSerializer):
        return isinstance(serde, StrictSerializer)
    return type(serde).loads_typed is JsonPlusSerializer.loads_typed and not serde.pickle_fallback


MEND = "Bring back a copy, or go on in another thread"
"""Remedy for damaged data, for error texts."""


def error_text(error: BaseException) -> str:
    """Return the type and text of an error in one line."""
    text = " ".join(str(error).split()).rstrip(".")[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _types_by_name(types: Iterable[type]) -> dict[Name, type]:
    """Return a dict of types by module and name."""
    types_by_name: dict[Name, set[type]] = {}
    for type_ in types:
        types_by_name.setdefault((type_.__module__, type_.__name__), set()).add(type_)
    # If several types share a name, only the one that an import of the name would find, if any.
    return {
        name: type_
        for name, namesakes in types_by_name.items()
        for type_ in namesakes
        if len(namesakes) == 1 or getattr(sys.modules.get(name[0]), name[-1], None) is type_
    }


@cache
def _import_type(name: Name) -> Any:
    return getattr(importlib.import_module(name[0]), name[-1])


def _is_time(type_: Any, method_and_options: list[Any]) -> bool:
    """Return whether a stored method call is a call of `datetime.fromisoformat`, the only allowed method."""
    return method_and_options == ["fromisoformat"] and isinstance(type_, type) and issubclass(type_, datetime)


def _send(node: str, arg: Any, timeout: Any = None) -> Send:
    return Send(node, arg) if timeout is None else Send(node, arg, timeout=timeout)


def _array(dtype: str, shape: Any, order: Any, data: bytes) -> Any:
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(shape, order=order)


@cache
def _messages_only() -> Reviver:
    """Return a reader of LangChain's JSON format that creates messages and documents only, no runnable objects."""
    return Reviver(
        allowed_objects=[_import_type(name) for name in SAFE_MSGPACK_TYPES if name[0].startswith("langchain")]
    )
