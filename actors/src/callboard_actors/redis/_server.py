"""A Redis server, as one process speaks to it: which one it is, since when, and what its errors mean."""

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


def check_options(whose: str, url: str) -> None:
    """Raise ValueError for an option in a URL that cannot be had."""
    if ours := sorted(_OURS & parse_url(url).keys()):
        raise ValueError(f"{whose}(url): {ours[0]!r} is not to be had; leave it out of the URL")
    pool: Any = redis.asyncio.Redis.from_url(url).connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ValueError(f"{whose}(url) has an option that Redis does not know: {error}") from error


class RedisServer:
    """Connections to a server, of one process.

    Args:
        noun: what is kept there, for errors.
        url: of the server.
        where: the same, without a password.
        decodes: whether it answers in texts, and not in bytes.
    """

    def __init__(self, noun: str, url: str, where: str, *, decodes: bool) -> None:
        # Nothing is tried again below us: a step that was said twice would count twice.
        self.client: Any = redis.asyncio.Redis.from_url(
            url,
            decode_responses=decodes,
            encoding_errors="replace",  # whoever has written there
            protocol=2,  # with 3, a server that wants a password says so in words only
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
        )
        self._noun = noun
        self._where = where
        self.run = ""
        """Which of its starts this is."""
        self.began = 0
        """When that was, or up to a second later, in microseconds of its own clock."""

    async def meet(self) -> None:
        """Connect, and find out which server it is; within `errors`.

        Raises:
            StorageError: if it is too old.
        """
        server = await self.client.info("server")
        self._check_version(str(server["redis_version"]))
        now, _ = await self.client.time()
        # Uptime is told in whole seconds, rounded down: this is when it began, or up to a second later.
        self.run, self.began = server["run_id"], (now + 1 - int(server["uptime_in_seconds"])) * 1_000_000

    def _check_version(self, version: str) -> None:
        if tuple(int(part) for part in version.split(".")[:2]) < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise StorageError(self._where, f"is Redis {version}; {self._noun} need {least} or later.")

    async def close(self) -> None:
        """Give its connections up, in whatever state they are; raises nothing."""
        with suppress(RedisError, OSError):
            await self.client.aclose()

    @contextmanager
    def errors(self) -> Generator[None]:
        """Say what errors of the client mean: that it is away, or that it refuses."""
        try:
            yield
        except (AuthenticationError, AuthorizationError) as error:
            raise StorageError(self._where, f"refuses us: {error}. Give the URL a user and a password.") from error
        except _NOT_NOW as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except RedisError as error:
            raise StorageError(self._where, f"cannot keep {self._noun}: {error}") from error
