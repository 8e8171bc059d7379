"""Metadata of calls (`_meta`), and the server's progress and log messages."""

import json
import logging
import math
from contextlib import suppress
from contextvars import Context
from typing import cast

from mcp_types import LoggingMessageNotificationParams, RequestParamsMeta

from callboard import idempotency_key
from callboard import progress as tell_progress
from callboard.telemetry import carrier

_log = logging.getLogger("callboard.mcp")

IDEMPOTENCY_KEY = "callboard/idempotency-key"
"""Key in `_meta`. The protocol reserves names with a prefix for extensions."""

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}
_MOST = 2000
"""Maximum characters of one log message."""


def meta_of_call() -> RequestParamsMeta:
    """Return the metadata of the current call: its trace context and its idempotency key."""
    told: dict[str, object] = {**carrier()}
    with suppress(RuntimeError, ValueError):  # not called by a tool, or with arguments that have no JSON form
        told[IDEMPOTENCY_KEY] = idempotency_key()
    return cast("RequestParamsMeta", told)


async def told_progress(context: Context, progress: float, total: float | None, message: str | None) -> None:
    """Report the server's progress to its call. The SDK calls this in another task, so the context is passed along."""
    # A copy, because a context can be entered only once at a time, and reports may overlap with the call.
    context.copy().run(tell_progress, message or "", done=_amount(progress), total=_amount(total))


def _amount(value: float | None) -> float | None:
    """Return an amount that `progress` accepts, or `None`: the server's value may be negative or not finite."""
    return value if value is not None and 0 <= value < math.inf else None


async def log_message(server: str, params: LoggingMessageNotificationParams) -> None:
    """Log a message of the server to the logger `callboard.mcp`."""
    level = _LEVELS.get(params.level, logging.INFO)
    if _log.isEnabledFor(level):
        text = params.data if isinstance(params.data, str) else json.dumps(params.data, default=str)
        where = f"{server}.{params.logger}" if params.logger else server
        _log.log(level, "%s: %s", where, text[:_MOST])
