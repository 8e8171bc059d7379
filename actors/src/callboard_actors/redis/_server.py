"""Redis server as one process sees it: URLs, connections, its version and its start, and the meaning of errors."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.resources.abc import Traversable
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
from callboard_actors._server._client import AwayError

_LEAST = (6, 2)
"""Oldest supported version of Redis."""
_PATIENCE = 2.0
"""Seconds for a connection or an answer."""
_OURS = {"protocol", "decode_responses", "encoding_errors", "max_connections", "retry_on_error", "retry_on_timeout"}
"""Options of the URL that users may not set, because the code here depends on its own values."""
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
"""Errors that pass with time, or when an operator repairs the server: the client tries again."""


def check_options(whose: str, url: str) -> None:
    """Raise ValueError for an option in a URL that may not be set or that Redis does not know."""
    if ours := sorted(_OURS & parse_url(url).keys()):
        raise ValueError(f"{whose}(url): {ours[0]!r} is not to be had; leave it out of the URL")
    # Makes an unconnected connection, because only its constructor checks the options.
    pool: Any = redis.asyncio.Redis.from_url(url).connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ValueError(f"{whose}(url) has an option that Redis does not know: {error}") from error


class RedisServer:
    """Connections of one process to a server.

    Args:
        noun: name of the stored data, for errors.
        url: of the server.
        where: the same, without a password.
        decodes: whether answers are texts instead of bytes.
    """

    def __init__(self, noun: str, url: str, where: str, *, decodes: bool) -> None:
        # The Redis client must not retry by itself: a step that arrived twice would count twice.
        self.client: Any = redis.asyncio.Redis.from_url(
            url,
            decode_responses=decodes,
            encoding_errors="replace",  # others may have written bytes under our keys
            protocol=2,  # with 3, a missing password is an error in words only, without a type
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
        )
        self._noun = noun
        self._where = where
        self.run = ""
        """Id of this run of the server; another one after each restart."""
        self.began = 0
        """Server time of its start in microseconds, up to a second late."""

    async def meet(self) -> None:
        """Connect, within `errors`, and read version, run and start; raise StorageError if the server is too old."""
        server = await self.client.info("server")
        self._check_version(str(server["redis_version"]))
        now, _ = await self.client.time()
        # The uptime is rounded down to whole seconds. Plus one second, the result is never earlier than the real start,
        # so the time in which a restarted server gives nothing away is never too short.
        self.run, self.began = server["run_id"], (now + 1 - int(server["uptime_in_seconds"])) * 1_000_000

    def _check_version(self, version: str) -> None:
        if tuple(int(part) for part in version.split(".")[:2]) < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise StorageError(self._where, f"is Redis {version}; {self._noun} need {least} or later.")

    async def close(self) -> None:
        """Close the connections in whatever state they are; never raises."""
        with suppress(RedisError, OSError):
            await self.client.aclose()

    @contextmanager
    def errors(self) -> Generator[None]:
        """Translate errors of the Redis client: `AwayError` if trying again may help, otherwise `StorageError`."""
        try:
            yield
        # Before `_NOT_NOW`: AuthenticationError is a ConnectionError, but trying again would not help.
        except (AuthenticationError, AuthorizationError) as error:
            raise StorageError(self._where, f"refuses us: {error}. Give the URL a user and a password.") from error
        except _NOT_NOW as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except RedisError as error:
            raise StorageError(self._where, f"cannot keep {self._noun}: {error}") from error


class RedisConnection:
    """Connection of one process to a server, with a notification channel for this process.

    Args:
        url: of the server.
        where: the same, without a password.
        prefix: of all keys and channels.
    """

    what: str
    """Noun for the stored data, for errors."""
    script: Traversable
    """Lua script with all operations; Redis runs each call of it atomically."""

    def __init__(self, url: str, where: str, prefix: str) -> None:
        self._server = RedisServer(self.what, url, where, decodes=True)
        self._redis = self._server.client
        self._where = where
        self._prefix = prefix
        # `_sha` is asked for anew on each connection: a restarted server has forgotten its scripts.
        self._client = self._sha = ""
        self._pubsub: Any = None

    async def _open(self, client: str, *channels: str) -> None:
        """Connect, check the server's version, subscribe to the channels, and load the script."""
        self._client = client
        await self._server.meet()
        self._pubsub = self._redis.pubsub()
        await self._pubsub.subscribe(*channels)
        # Wait for each confirmation: a notification sent before the subscription would be lost without a trace.
        for _ in channels:
            if await self._pubsub.get_message(timeout=5.0) is None:
                raise AwayError("it does not answer")
        # Last: by now this process receives the notifications that the script causes.
        self._sha = await self._redis.script_load(self.script.read_text())

    async def _run(self, calls: Sequence[Sequence[object]]) -> list[Any]:
        """Run the script once for each call in one round trip; each run is atomic by itself.

        A call is the number of keys, the keys, and other arguments. After an `AwayError`, the runs may have happened.
        """
        with self._errors():
            if len(calls) == 1:
                return [await self._redis.evalsha(self._sha, *calls[0])]
            # No transaction: the keys of one run share a hash slot, those of several runs need not.
            async with self._redis.pipeline(transaction=False) as pipeline:
                for call in calls:
                    pipeline.evalsha(self._sha, *call)
                return list(await pipeline.execute())

    async def _told(self) -> Any:
        """Wait for the next notification, and return its text."""
        while True:
            with self._errors():
                message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
            if message is not None:
                return message["data"]

    async def close(self) -> None:
        """Close the connection in whatever state it is; never raises."""
        if self._pubsub is not None:
            with suppress(RedisError, OSError):
                await self._pubsub.aclose()
        await self._server.close()

    def _errors(self) -> AbstractContextManager[None]:
        return self._server.errors()
