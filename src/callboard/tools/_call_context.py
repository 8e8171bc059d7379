"""What key functions may look at besides a call: config, state and context of the run."""

from collections.abc import Mapping
from typing import Any, cast

from callboard._types import CallContext
from callboard.tools._vocabulary import ToolCallRequest


def context_of(request: ToolCallRequest) -> CallContext:
    """What keys may look at of a request: what its tool would be given, whoever has changed that on the way."""
    runtime = request.runtime
    return call_context(runtime.config, runtime.state, runtime.context)


def call_context(config: object, state: object, context: object) -> CallContext:
    """What keys may look at.

    Args:
        config: complete.
        state: as tools are given it; an empty one where there is none.
        context: that of the run.
    """
    return CallContext(
        cast("Mapping[str, Any]", config), None if isinstance(state, dict) and not state else state, context
    )
