"""Context of a call for key functions: config, state and context of the run."""

from collections.abc import Mapping
from typing import Any, cast

from callboard._records._policies import CallContext
from callboard.tools._vocabulary import ToolCallRequest


def context_of(request: ToolCallRequest) -> CallContext:
    """Return the context of a request for key functions: the tool's own view, with changes by middleware."""
    runtime = request.runtime
    return call_context(runtime.config, runtime.state, runtime.context)


def call_context(config: object, state: object, context: object) -> CallContext:
    """Return the context for key functions.

    Tools get an empty dict where there is no state; key functions get `None`.
    """
    return CallContext(
        cast("Mapping[str, Any]", config), None if isinstance(state, dict) and not state else state, context
    )
