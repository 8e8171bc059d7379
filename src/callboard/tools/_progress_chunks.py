"""Progress of a node's calls in the stream of the graph around the node."""

import logging
from typing import Any

from langgraph.runtime import Runtime

from callboard._calls._progress import OnProgress, Progress
from callboard._langgraph import NO_RUNTIME
from callboard._records._policies import ToolCallLike

_log = logging.getLogger("callboard")


class ProgressChunks:
    """Writes progress to a graph's stream, and sends heartbeats for a node with an idle timeout.

    An error of the stream is logged once, and does not affect the call.

    Args:
        runtime: LangGraph's runtime of the node.
    """

    __slots__ = ("_failed", "_runtime")

    def __init__(self, runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._failed = False

    def __call__(self, call: ToolCallLike, progress: Progress) -> None:
        """Write one progress report of a call to the stream."""
        about = {"type": "progress", "tool": call["name"], "tool_call_id": call.get("id")}
        try:
            self._runtime.stream_writer({**about, **progress._asdict()})
            self._runtime.heartbeat()
        except Exception:
            # Progress is only advice: a broken stream must not fail a call with an effect of its own.
            if not self._failed:
                self._failed = True
                _log.exception("the stream of a graph could not be told of the progress of a call")


def chunks_for(runtime: Runtime[Any]) -> OnProgress | None:
    """Return the receiver of progress within a graph; `None` outside of graphs."""
    return None if runtime is NO_RUNTIME else ProgressChunks(runtime)
