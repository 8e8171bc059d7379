"""What the graph around a node hears of the progress of its calls."""

import logging
from typing import Any

from langgraph.runtime import Runtime

from callboard._calls._progress import OnProgress, Progress
from callboard._langgraph import NO_RUNTIME
from callboard._types import ToolCallLike

_log = logging.getLogger("callboard")


class ProgressChunks:
    """Writes progress to the stream of a graph, and keeps its node alive where that has an idle timeout.

    A stream that fails is logged once, and changes nothing for the call.

    Args:
        runtime: the graph's.
    """

    __slots__ = ("_failed", "_runtime")

    def __init__(self, runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._failed = False

    def __call__(self, call: ToolCallLike, progress: Progress) -> None:
        """Write how far a call is."""
        about = {"type": "progress", "tool": call["name"], "tool_call_id": call.get("id")}
        try:
            self._runtime.stream_writer({**about, **progress._asdict()})
            self._runtime.heartbeat()
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("the stream of a graph could not be told of the progress of a call")


def chunks_for(runtime: Runtime[Any]) -> OnProgress | None:
    """What is told of progress, where a graph runs us."""
    return None if runtime is NO_RUNTIME else ProgressChunks(runtime)
