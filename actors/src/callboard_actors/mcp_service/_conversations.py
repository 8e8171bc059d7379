"""Detection of tools with a state per conversation: handlers of actors with a key that depends on the thread."""

from collections.abc import Hashable, Mapping
from typing import Any, Final, Protocol, cast

from langchain_core.tools import BaseTool

from callboard import CallContext


class _Key(Protocol):
    """Key function of an actor, attached by the node to the actor's tools."""

    takes_context: bool

    def of(self, call: object, context: Any) -> Hashable: ...


_SOME, _OTHER = (CallContext(config={"configurable": {"thread_id": name}}) for name in ("some", "other"))
_NO_KEY: Final = object()


def keeps_conversations(tool: BaseTool, arguments: Mapping[str, Any]) -> bool:
    """Return whether calls of a tool with these arguments reach different actors in different threads."""
    key = cast("_Key | None", getattr(getattr(tool, "coroutine", None), "__callboard_key__", None))
    if key is None or not key.takes_context:
        return False
    # Probes with two thread ids: different keys mean that the key depends on the thread.
    call = {"name": tool.name, "args": arguments, "id": "probe"}
    return _of(key, call, _SOME) != _of(key, call, _OTHER)


def _of(key: _Key, call: object, context: CallContext) -> object:
    """Return a key, or a constant if the key function fails: such a call reaches no actor."""
    try:
        return key.of(call, lambda: context)
    except Exception:  # the user's code; the call itself will raise and report the same error
        return _NO_KEY
