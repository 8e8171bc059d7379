"""What goes along with calls: `_meta`; and what a server says besides answers: how far it is, and what it logs."""

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
"""In `_meta`, a name with a prefix of our own, as the protocol has it for what is not in it."""

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
"""Characters of one message."""


def meta_of_call() -> RequestParamsMeta:
    """What a server is told of the call that is made here: which trace it is part of, and its idempotency key."""
    told: dict[str, object] = {**carrier()}
    with suppress(RuntimeError, ValueError):  # it is no tool's call, or one with arguments that nobody can name
        told[IDEMPOTENCY_KEY] = idempotency_key()
    return cast("RequestParamsMeta", told)


async def told_progress(context: Context, progress: float, total: float | None, message: str | None) -> None:
    """Pass on to a call how far it is; the SDK says so in a task of its own.

    Args:
        context: the variables of the call.
        progress: how much is done.
        total: how much there is to do, if the server knows.
        message: in words.
    """
    context.copy().run(tell_progress, message or "", done=_amount(progress), total=_amount(total))


def _amount(value: float | None) -> float | None:
    """An amount as `progress` takes it; what a server says may be anything."""
    return value if value is not None and 0 <= value < math.inf else None


async def log_message(server: str, params: LoggingMessageNotificationParams) -> None:
    """Log what a server logs, under the name `callboard.mcp`."""
    level = _LEVELS.get(params.level, logging.INFO)
    if _log.isEnabledFor(level):
        text = params.data if isinstance(params.data, str) else json.dumps(params.data, default=str)
        where = f"{server}.{params.logger}" if params.logger else server
        _log.log(level, "%s: %s", where, text[:_MOST])
