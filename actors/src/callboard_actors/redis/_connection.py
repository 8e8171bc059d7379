"""A connection to Redis: its options, its errors, and a channel on which this process is told."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 (that of Redis)
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,  # noqa: A004 (that of Redis)
)

from callboard import StorageError
from callboard_actors._clerk import AwayError

_LEAST = (6, 2)
"""The oldest Redis that will do."""
_PATIENCE = 2.0
"""Seconds for a connection or an answer."""
_OURS = {"protocol", "decode_responses", "encoding_errors", "max_connections", "retry_on_error", "retry_on_timeout"}
"""Options of a connection that are no user's business: with others, nothing here would work."""


_NOT_NOW = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    OSError,
)
"""What passes, with time or where somebody sees to it."""


class RedisConnection:
    """A connection to a server, of one process.

    Args:
        url: of the server.
        where: the same, without a password.
        prefix: of all keys and channels.
    """

    what: str
    """What is kept there, for errors."""
    whose: str
    """The class that a user has written, for errors."""

    def __init__(self, url: str, where: str, prefix: str) -> None:
        # Nothing is tried again below us: what was said twice would count twice.
        self._url = url
        self._redis: Any = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            encoding_errors="replace",  # whoever has written there
            protocol=2,  # with 3, a server that wants a password says so in words only
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
        )
        self._where = where
        self._prefix = prefix
        self._client = ""
        self._pubsub: Any = None

    def check(self) -> None:
        """Raise ValueError for an option in the URL that cannot be had."""
        pool = self._redis.connection_pool
        if ours := sorted(_OURS & parse_url(self._url).keys()):
            raise ValueError(f"{self.whose}(url): {ours[0]!r} is not to be had; leave it out of the URL")
        try:
            pool.connection_class(**pool.connection_kwargs)
        except TypeError as error:
            raise ValueError(f"{self.whose}(url) has an option that Redis does not know: {error}") from error

    async def _open(self, client: str, *channels: str) -> dict[str, Any]:
        """Connect, and subscribe; returns what the server says of itself."""
        self._client = client
        server = await self._redis.info("server")
        self._check_version(str(server["redis_version"]))
        self._pubsub = self._redis.pubsub()
        await self._pubsub.subscribe(*channels)
        for _ in channels:
            if await self._pubsub.get_message(timeout=5.0) is None:
                raise AwayError("it does not answer")
        return dict(server)

    def _check_version(self, version: str) -> None:
        if tuple(int(part) for part in version.split(".")[:2]) < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise StorageError(self._where, f"is Redis {version}; {self.what} need {least} or later.")

    async def _told(self) -> Any:
        """What is said next on a channel."""
        while True:
            with self._errors():
                message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
            if message is not None:
                return message["data"]

    async def close(self) -> None:
        """Let it go; raises nothing."""
        for one in (self._pubsub, self._redis):
            if one is not None:
                with suppress(RedisError, OSError):
                    await one.aclose()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (AuthenticationError, AuthorizationError) as error:
            raise StorageError(self._where, f"refuses us: {error}. Give the URL a user and a password.") from error
        except _NOT_NOW as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except RedisError as error:
            raise StorageError(self._where, f"cannot keep {self.what}: {error}") from error
