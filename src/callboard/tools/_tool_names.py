"""Checks of tool names and argument names in options of middleware."""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, get_args

from langchain_core.tools import BaseTool
from pydantic import AliasChoices, BaseModel

from callboard._util._suggestions import no_such
from callboard.tools._inject import injected_args

Missing = Literal["error", "ignore"]
"""Meaning of a name that no tool of the node has: an error, or the name of another node's tool."""


def check_missing(owner: str, missing: object) -> None:
    """Raise ValueError for an invalid `missing` option."""
    if missing not in get_args(Missing):
        raise ValueError(f"{owner}(missing=...) is 'error' or 'ignore', got {missing!r}")


def tool_names(option: str, given: object) -> frozenset[str]:
    """Return the tool names of a middleware's option; TypeError for a single name, or for tools instead of names."""
    if not isinstance(given, str) and isinstance(given, Collection):
        names = [name for name in given if isinstance(name, str)]
        if len(names) == len(given):
            return frozenset(names)
    raise TypeError(f"{option} takes names of tools, such as ['search']; got {given!r}")


def check_tool_names(option: str, names: Iterable[str], tools: Collection[str], missing: Missing = "error") -> None:
    """Raise ValueError for the first name that no tool has."""
    if missing == "error" and (unknown := next((name for name in names if name not in tools), None)) is not None:
        raise ValueError(f"{option}: {no_such('tool', unknown, tools)} (missing='ignore' is for tools of other nodes)")


def check_argument_names(option: str, names: Iterable[str], tool: BaseTool) -> None:
    """Raise ValueError for the first name that is no argument which the model may write."""
    known = argument_names(tool)
    if known is not None and (unknown := next((name for name in names if name not in known), None)) is not None:
        raise ValueError(f"{option}: {no_such('argument', unknown, known)}")


def argument_names(tool: BaseTool) -> frozenset[str] | None:
    """Return the names of the arguments that the model may write; `None` if any name is allowed."""
    schema: object = tool.args_schema
    if isinstance(schema, dict):
        properties = schema.get("properties")
        return frozenset(properties) if properties and not schema.get("additionalProperties") else None
    model = _model(tool)
    if model is None or model.model_config.get("extra") == "allow":
        return None
    injected = injected_args(tool)
    return frozenset(spellings(tool)) - injected.names - injected.forbidden


def spellings(tool: BaseTool) -> Mapping[str, str]:
    """Return the argument for each name that the schema accepts for it, aliases included."""
    model = _model(tool)
    spelled: dict[str, str] = {}
    for name, field in model.model_fields.items() if model else ():
        choices = field.validation_alias
        others = choices.choices if isinstance(choices, AliasChoices) else [choices]
        spelled |= {other: name for other in (name, *others, field.alias) if isinstance(other, str)}
    return spelled


def _model(tool: BaseTool) -> type[BaseModel] | None:
    schema: object = tool.args_schema
    return schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None
