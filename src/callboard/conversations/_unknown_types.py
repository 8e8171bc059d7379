"""Stored values of unknown types: shown as data. Their types are never imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

_MESSAGES: Mapping[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}


@dataclass(frozen=True, eq=False)
class Foreign:
    """Value of a type that is not imported."""

    type: str
    content: Any
    """Plain values of which it consists."""


def foreign(name: tuple[str, ...], content: Any) -> Any:
    """Return a value of an unknown type as data; return a message as one of LangChain's, so that it can be read."""
    base = _MESSAGES.get(str(content.get("type"))) if isinstance(content, Mapping) else None
    if base is not None and "content" in content:
        return base(**{key: value for key, value in content.items() if key in base.model_fields})
    return Foreign(".".join(name), content)
