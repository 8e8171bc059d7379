"""Connection to Redis with a notification channel for this process."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from importlib.resources.abc import Traversable
from typing import Any

from redis.exceptions import RedisError

from callboard_actors._server._client import AwayError
from callboard_actors.redis._server import RedisServer


class RedisConnection:
    """Connection of one process to a server.

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
