"""What a database holds of types that this command does not know: shown as data, and never imported."""

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
    """A value of a type that nobody has imported."""

    type: str
    content: Any
    """The plain values that it consists of."""


def foreign(name: tuple[str, ...], content: Any) -> Any:
    """A value of a type that is not known; a message is one of LangChain's, so that its conversation can be read."""
    base = _MESSAGES.get(str(content.get("type"))) if isinstance(content, Mapping) else None
    if base is not None and "content" in content:
        return base(**{key: value for key, value in content.items() if key in base.model_fields})
    return Foreign(".".join(name), content)
