"""A connection to Redis: a script that takes steps, and a channel on which places are announced."""

from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
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
    NoScriptError,
    RedisError,
    TimeoutError,  # noqa: A004 (that of Redis)
)

from callboard import StorageError
from callboard_actors._places._line import Answer, AwayError, Step

_SCRIPT = files("callboard_actors.redis").joinpath("_step.lua")
_LEAST = (6, 2)
"""The oldest Redis that will do."""
_PATIENCE = 2.0
"""Seconds for a connection or an answer."""
_OURS = {"protocol", "decode_responses", "max_connections", "retry_on_error", "retry_on_timeout"}
"""Options of a connection that are no user's business: with others, nothing here would work."""
_PARTS = ("meta", "queue", "held", "clients", "lanes", "starts")


class RedisLine:
    """A connection to a server, of one process.

    Args:
        url: of the server.
        where: the same, without a password.
        prefix: of all keys and channels.
    """

    def __init__(self, url: str, where: str, prefix: str) -> None:
        # Nothing is tried again below us: a step that was said twice would count twice.
        self._url = url
        self._redis: Any = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            protocol=2,  # with 3, a server that wants a password says so in words only
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
        )
        self._where = where
        self._prefix = prefix
        self._channel = f"{prefix}:to:"
        self._client = self._sha = self._run = ""
        self._began = 0
        self._pubsub: Any = None

    def check(self) -> None:
        """Raise ValueError for an option in the URL that cannot be had."""
        pool = self._redis.connection_pool
        if ours := sorted(_OURS & parse_url(self._url).keys()):
            raise ValueError(f"RedisLimits(url): {ours[0]!r} is not to be had; leave it out of the URL")
        try:
            pool.connection_class(**pool.connection_kwargs)
        except TypeError as error:
            raise ValueError(f"RedisLimits(url) has an option that Redis does not know: {error}") from error

    async def open(self, client: str) -> None:
        """Connect, and listen.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if it can, and will not do.
        """
        self._client = client
        with self._errors():
            server = await self._redis.info("server")
            self._check_version(str(server["redis_version"]))
            now, _ = await self._redis.time()
            # Uptime is told in whole seconds, rounded down: this is when it began, or up to a second later.
            self._run, self._began = server["run_id"], (now + 1 - int(server["uptime_in_seconds"])) * 1_000_000
            self._sha = await self._redis.script_load(_SCRIPT.read_text())
            self._pubsub = self._redis.pubsub()
            await self._pubsub.subscribe(self._channel + client)
            if await self._pubsub.get_message(timeout=5.0) is None:
                raise AwayError("it does not answer")

    def _check_version(self, version: str) -> None:
        if tuple(int(part) for part in version.split(".")[:2]) < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise StorageError(self._where, f"is Redis {version}; limits need {least} or later.")

    async def say(self, steps: Sequence[Step]) -> Sequence[Answer]:
        """Have the server do what is said of each gate, and its answers.

        Raises:
            AwayError: if the server cannot be reached; whether it has heard is unknown.
            StorageError: if it refuses.
        """
        with self._errors():
            if len(steps) == 1:
                return [_read(await self._redis.evalsha(self._sha, len(_PARTS), *self._arguments(steps[0])))]
            async with self._redis.pipeline(transaction=False) as pipeline:
                for step in steps:
                    pipeline.evalsha(self._sha, len(_PARTS), *self._arguments(step))
                return [_read(found) for found in await pipeline.execute()]

    def _arguments(self, step: Step) -> list[object]:
        numbers = step.numbers
        keys = [f"{self._prefix}:{{{step.gate}}}:{part}" for part in _PARTS]
        counts = [-1 if one is None else one for one in (numbers.concurrency, numbers.queue, numbers.calls)]
        times = [numbers.per, numbers.lease, numbers.silence]
        server = [self._run, self._began, int(step.asks_all), self._channel, step.gate]
        ops = [part for op in step.ops for part in op.written]
        return [*keys, self._client, step.epoch, numbers.text, *counts, *times, *server, *ops]

    async def heard(self) -> AsyncIterator[tuple[str, str, int]]:
        """Places that were given since they were asked for: gate, stay and token."""
        while True:
            with self._errors():
                message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
            if message is not None:
                gate, stay, token = message["data"].rsplit(" ", 2)
                yield gate, stay, int(token)

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
        except (ConnectionError, TimeoutError, BusyLoadingError, NoScriptError, OSError) as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except RedisError as error:
            raise StorageError(self._where, f"cannot keep limits: {error}") from error


def _read(found: list[Any]) -> Answer:
    match found[0]:
        case "ok":
            _, epoch, opens_in, granted, queued, full = found
            return Answer(
                epoch=epoch,
                opens_in=None if opens_in < 0 else opens_in / 1e6,
                granted={stay: int(token) for stay, token in zip(granted[::2], granted[1::2], strict=True)},
                queued=dict(zip(queued[::2], queued[1::2], strict=True)),
                full={
                    stay: (running, waiting)
                    for stay, running, waiting in zip(full[::3], full[1::3], full[2::3], strict=True)
                },
            )
        case "other":
            return Answer(other=found[1])
        case _:
            return Answer()
