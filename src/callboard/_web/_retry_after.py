"""Time after which a server allows a client to repeat a request."""

import email.utils
import time
from typing import Any


def retry_after(error: BaseException) -> float:
    """Return how many seconds to wait before the next request, as stated in an HTTP error; 0 if no time is stated.

    Reads a number from `error.retry_after`, or the header `Retry-After` from `error.response.headers` or
    `error.headers`, in seconds or as a date (RFC 9110, section 10.2.3).

    Args:
        error: an error of an HTTP client or of callboard.
    """
    try:
        value = _read_value(error)
    except Exception:  # attributes of another library's error may raise, and must not hide the error
        return 0.0
    try:
        return max(0.0, float(value)) if value is not None else 0.0
    except (TypeError, ValueError, OverflowError):
        return _seconds_until(value) if isinstance(value, str) else 0.0


def _read_value(error: BaseException) -> Any:
    value = getattr(error, "retry_after", None)
    if value is not None:
        return value
    response = getattr(error, "response", None)
    # errors of aiohttp and urllib have no response, and its headers themselves
    headers: Any = getattr(error if response is None else response, "headers", None)
    if not hasattr(headers, "get"):
        return None
    value = headers.get("Retry-After")
    return headers.get("retry-after") if value is None else value  # a plain mapping minds the case of letters


def _seconds_until(date: str) -> float:
    try:
        return max(0.0, email.utils.parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, OverflowError):  # a year or an offset with too many digits
        return 0.0
