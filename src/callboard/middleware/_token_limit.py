"""`TokenLimit`: middleware that limits the number of tokens used by an agent's model requests in a time window."""

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from langchain_core.runnables.config import ensure_config

from callboard._langgraph._vocabulary import call_context
from callboard._loops._current import common_time
from callboard._records._policies import CallContext, check_count, check_seconds
from callboard._util._callers import check_plain_function
from callboard._util._suggestions import suggests_options

T = TypeVar("T")


_MIN_PAUSE = 1e-3


@dataclass(slots=True)
class _TokenUse:
    """Tokens of one model request; the limit counts them from the start of the request."""

    start: float
    tokens: int


@suggests_options()
class TokenLimit:
    """Middleware of `create_agent` that limits the tokens of model requests in any window of `per` seconds.

    A request waits while the requests of the window have used `tokens` or more. The number of tokens is the
    `usage_metadata` of the replies. A request in flight counts as many as `reserve`, because its number is not known
    yet. One object may be given to several agents, which then share the limit.

    Args:
        tokens: number of tokens, at least 1.
        per: length of the window in seconds, more than 0.
        reserve: number of tokens as which a request counts until its reply arrives, and after a failure; at least 0.
        key: function from a `CallContext` to a key, such as a user. Each key has this limit separately.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an option of the wrong type.
    """

    def __init__(
        self, tokens: int, *, per: float = 60.0, reserve: int = 0, key: Callable[[CallContext], Hashable] | None = None
    ) -> None:
        check_count("TokenLimit(tokens=...)", tokens, least=1)
        check_count("TokenLimit(reserve=...)", reserve, least=0)
        check_seconds("TokenLimit(per=...)", per, zero=False)
        if key is not None:
            check_plain_function("TokenLimit(key=...)", key, "a CallContext")
        self._max_tokens = tokens
        self._window_seconds = per
        self._reserved_tokens = reserve
        self._key = key
        # Guards the windows: agents of several event loops and threads share them.
        self._lock = threading.Lock()
        self._windows: dict[Hashable, deque[_TokenUse]] = {}

    async def awrap_model_call(self, request: Any, call_next: Callable[[Any], Awaitable[T]]) -> T:
        """Wait until the window has room, send the request, and count the tokens of its replies."""
        key = None
        if self._key is not None:
            context = getattr(request.runtime, "context", None)
            key = self._key(call_context(ensure_config(), request.state, context))
        token_use = self._try_start_request(key, common_time())
        while not isinstance(token_use, _TokenUse):
            seconds = token_use
            await anyio.sleep(seconds)
            token_use = self._try_start_request(key, common_time())
        response = await call_next(request)
        usages = [getattr(message, "usage_metadata", None) for message in getattr(response, "result", [response])]
        with self._lock:
            token_use.tokens = sum(usage["total_tokens"] for usage in usages if usage)
        return response

    def _try_start_request(self, key: Hashable, now: float) -> _TokenUse | float:
        """Return the entry of a request that may start now, or the seconds until the window may have room."""
        with self._lock:
            window = self._windows.setdefault(key, deque())
            while window and window[0].start <= now - self._window_seconds:
                window.popleft()
            if sum(token_use.tokens for token_use in window) < self._max_tokens:
                # Keys may be as many as users. One idle window is dropped for each request, so that they stay few.
                oldest_key = next(iter(self._windows))
                if oldest_key != key:
                    oldest_window = self._windows.pop(oldest_key)
                    if oldest_window and oldest_window[-1].start > now - self._window_seconds:
                        self._windows[oldest_key] = oldest_window
                window.append(token_use := _TokenUse(now, self._reserved_tokens))
                return token_use
            # The oldest use leaves next. Zero would be a loop without a pause, as sums of times are not exact.
            return max(_MIN_PAUSE, window[0].start + self._window_seconds - now)
