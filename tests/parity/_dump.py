"""Conversion of outcomes to plain data: random values are masked, and values that must be equal are kept."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Command, Send
from pydantic import BaseModel

RANDOM = re.compile(
    r"(lc_run-+|run-+)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-\d+)?"
    r"|\b[0-9a-f]{32}\b|0x[0-9a-f]+"
)
PLAIN = (str, int, float, bool, type(None))


def mask(text: str) -> str:
    return RANDOM.sub("<random>", text)


def dump(value: Any) -> Any:
    """Return a value as nested plain data that can be compared between two runs."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, BaseException):
        return _dump_error(value)
    if isinstance(value, type):
        return f"<class {value.__name__}>"
    if isinstance(value, Mapping):
        return {dump(key): dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(dump, value)]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(repr, value))]
    return _dump_object(value)


def _dump_error(error: BaseException) -> Any:
    """Return type, text and base classes of an error, so that `except` clauses of users keep their meaning."""
    bases = [base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"]
    return {"error": type(error).__name__, "text": mask(str(error)), "bases": bases}


def _dump_object(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return _dump_message(value)
    if isinstance(value, BaseModel):
        return {
            "model": type(value).__name__,
            **{name: dump(getattr(value, name)) for name in type(value).model_fields},
        }
    if isinstance(value, Send):
        return {"send": value.node, "arg": dump(value.arg)}
    if isinstance(value, Command) or dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {"dataclass": type(value).__name__, **{name: dump(getattr(value, name)) for name in names}}
    return mask(repr(value))


def _dump_message(message: BaseMessage) -> Any:
    return {
        "message": type(message).__name__,
        **{name: dump(getattr(message, name)) for name in type(message).model_fields},
    }
