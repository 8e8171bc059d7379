"""Tools that keep a state for each conversation: handlers of actors whose key depends on the thread."""

from collections.abc import Hashable, Mapping
from typing import Any, Final, Protocol, cast

from langchain_core.tools import BaseTool

from callboard import CallContext


class _Key(Protocol):
    """The key function of an actor, as the node marks the actor's tools with it."""

    takes_context: bool

    def of(self, call: object, context: Any) -> Hashable: ...


_SOME, _OTHER = (CallContext(config={"configurable": {"thread_id": name}}) for name in ("some", "other"))
_NO_KEY: Final = object()


def keeps_conversations(tool: BaseTool, arguments: Mapping[str, Any]) -> bool:
    """Return whether calls of a tool with these arguments reach another actor in another thread."""
    key = cast("_Key | None", getattr(getattr(tool, "coroutine", None), "__callboard_key__", None))
    if key is None or not key.takes_context:
        return False
    call = {"name": tool.name, "args": arguments, "id": "probe"}
    return _of(key, call, _SOME) != _of(key, call, _OTHER)


def _of(key: _Key, call: object, context: CallContext) -> object:
    """Return a key, or a constant if there is none: a call whose key cannot be found reaches no actor at all."""
    try:
        return key.of(call, lambda: context)
    except Exception:  # the user's code; the call raises the same error, and names it
        return _NO_KEY
