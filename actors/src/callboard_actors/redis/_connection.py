"""A connection to Redis, and a channel on which this process is told."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from importlib.resources.abc import Traversable
from typing import Any

from redis.exceptions import RedisError

from callboard_actors._clerk import AwayError
from callboard_actors.redis._server import RedisServer


class RedisConnection:
    """A connection to a server, of one process.

    Args:
        url: of the server.
        where: the same, without a password.
        prefix: of all keys and channels.
    """

    what: str
    """What is kept there, for errors."""
    script: Traversable
    """In Lua; does what is said, each time all or nothing."""

    def __init__(self, url: str, where: str, prefix: str) -> None:
        self._server = RedisServer(self.what, url, where, decodes=True)
        self._redis = self._server.client
        self._where = where
        self._prefix = prefix
        self._client = self._sha = ""
        self._pubsub: Any = None

    async def _open(self, client: str, *channels: str) -> None:
        """Connect, check the version of the server, subscribe to these channels, and load the script."""
        self._client = client
        await self._server.meet()
        self._pubsub = self._redis.pubsub()
        await self._pubsub.subscribe(*channels)
        for _ in channels:
            if await self._pubsub.get_message(timeout=5.0) is None:
                raise AwayError("it does not answer")
        self._sha = await self._redis.script_load(self.script.read_text())

    async def _run(self, calls: Sequence[Sequence[object]]) -> list[Any]:
        """Run the script several times in one round trip; each is all or nothing by itself.

        Args:
            calls: for each, the number of keys, the keys, and what else the script is given.

        Raises:
            AwayError: if the server cannot be reached; whether it has heard is unknown.
            StorageError: if it refuses.
        """
        with self._errors():
            if len(calls) == 1:
                return [await self._redis.evalsha(self._sha, *calls[0])]
            async with self._redis.pipeline(transaction=False) as pipeline:
                for call in calls:
                    pipeline.evalsha(self._sha, *call)
                return list(await pipeline.execute())

    async def _told(self) -> Any:
        """What is said next on a channel."""
        while True:
            with self._errors():
                message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
            if message is not None:
                return message["data"]

    async def close(self) -> None:
        """Give the connection up, in whatever state it is; raises nothing."""
        if self._pubsub is not None:
            with suppress(RedisError, OSError):
                await self._pubsub.aclose()
        await self._server.close()

    def _errors(self) -> AbstractContextManager[None]:
        return self._server.errors()
