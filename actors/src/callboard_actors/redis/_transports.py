"""Connections of one process to Redis, for limits: a script executes operations atomically."""

from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from redis import exceptions as errors
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from callboard import StorageError
from callboard_actors._server._client import UnreachableError, error_text
from callboard_actors._server._limits import Step, StepAnswer

_OLDEST_VERSION = (6, 2)
"""Oldest supported version of Redis."""
_PATIENCE = 2.0
"""Seconds to wait for a connection to the server, or for its answer."""
_FIXED_OPTIONS = {
    "protocol",
    "decode_responses",
    "encoding_errors",
    "max_connections",
    "retry_on_error",
    "retry_on_timeout",
}
"""Options of the URL that users may not set, because the code here depends on its own values."""
_PASSING_ERRORS = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.BusyLoadingError,
    errors.MasterDownError,
    errors.NoScriptError,
    errors.OutOfMemoryError,
    errors.ReadOnlyError,
    OSError,
)
"""Errors that pass with time, or when an operator repairs the server: the client tries again."""


def check_url(store_name: str, url: str) -> None:
    """Raise ValueError for a URL with a database that is no number, or with an unknown or forbidden option."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise ValueError(
            f"{store_name}(url): databases of Redis are numbers, got {database!r}; leave it out, or give it one"
        )
    if fixed_options := sorted(_FIXED_OPTIONS & parse_url(url).keys()):
        raise ValueError(f"{store_name}(url): {fixed_options[0]!r} is not to be had; leave it out of the URL")
    # Makes an unconnected connection, because only its constructor checks the options.
    pool: Any = redis.asyncio.Redis.from_url(url).connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ValueError(f"{store_name}(url) has an option that Redis does not know: {error}") from error


# The order of KEYS in `_step.lua`.
_KEY_PARTS = ("meta", "queue", "held", "clients", "lanes", "starts")


class RedisLimitsTransport:
    """Connection of one process to a Redis server that keeps limits."""

    def __init__(self, url: str, server_address: str, prefix: str) -> None:
        # The Redis client must not retry by itself: a step that arrived twice would count twice.
        self._redis: Any = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            encoding_errors="replace",  # others may have written bytes under our keys
            protocol=2,  # with 3, a missing password is an error in words only, without a type
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
        )
        self._server_address = server_address
        self._prefix = prefix
        self._channel = f"{prefix}:to:"
        # `_script_hash` is asked for anew on each connection: a restarted server has forgotten its scripts.
        self._client_id = self._script_hash = ""
        self._run_id = ""
        """Id of the server's present run, which changes with each restart."""
        self._server_started_at = 0
        """Time at which the server started, in microseconds on its own clock; up to a second too late."""
        self._pubsub: Any = None

    async def open(self, client_id: str) -> None:
        """Connect as `client_id`, check the server's version, subscribe to its channel, and load the Lua script."""
        self._client_id = client_id
        with self._translate_errors():
            server = await self._redis.info("server")
            version = str(server["redis_version"])
            if tuple(int(key_part) for key_part in version.split(".")[:2]) < _OLDEST_VERSION:
                oldest_version = ".".join(map(str, _OLDEST_VERSION))
                raise StorageError(self._server_address, f"is Redis {version}; limits need {oldest_version} or later.")
            now, _ = await self._redis.time()
            # The uptime is rounded down to whole seconds. Plus one second, the result is never earlier than the real
            # start, so the time in which a restarted server gives nothing away is never too short.
            self._server_started_at = (now + 1 - int(server["uptime_in_seconds"])) * 1_000_000
            self._run_id = server["run_id"]
            self._pubsub = self._redis.pubsub()
            await self._pubsub.subscribe(self._channel + client_id)
            # Wait for the confirmation: a notification sent before the subscription would be lost without a trace.
            if await self._pubsub.get_message(timeout=5.0) is None:
                raise UnreachableError("it does not answer")
            # Last: by now this process receives the notifications that the script causes.
            script = files("callboard_actors.redis").joinpath("_step.lua")
            self._script_hash = await self._redis.script_load(script.read_text())

    async def send_steps(self, steps: Sequence[Step]) -> Sequence[StepAnswer]:
        # Each run of the script is atomic by itself.
        with self._translate_errors():
            if len(steps) == 1:
                return [_decode_answer(await self._redis.evalsha(self._script_hash, *self._arguments(steps[0])))]
            # No transaction: the keys of one run share a hash slot, those of several runs need not.
            async with self._redis.pipeline(transaction=False) as pipeline:
                for step in steps:
                    pipeline.evalsha(self._script_hash, *self._arguments(step))
                return [_decode_answer(answer) for answer in await pipeline.execute()]

    def _arguments(self, step: Step) -> list[object]:
        settings = step.settings
        # The braces put all keys of a gate into one hash slot, as a script in a Redis cluster needs.
        keys = [f"{self._prefix}:{{{step.gate_name}}}:{key_part}" for key_part in _KEY_PARTS]
        # Lua has no `None` among its arguments: -1 stands for "no limit".
        counts = [
            -1 if number is None else number
            for number in (settings.concurrency, settings.max_waiting, settings.rate_calls)
        ]
        times = [settings.rate_period_us, settings.lease_us, settings.restart_pause_us]
        server = [self._run_id, self._server_started_at, int(step.wants_all_permits), self._channel, step.gate_name]
        changes = [key_part for change in step.changes for key_part in change.fields]
        # In the order in which `_step.lua` reads ARGV.
        return [len(keys), *keys, self._client_id, step.epoch, settings.text, *counts, *times, *server, *changes]

    async def grants(self) -> AsyncIterator[tuple[str, str, int]]:
        while True:
            with self._translate_errors():
                message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
            if message is not None:
                # From the right: the name of a gate may have spaces.
                gate, permit_id, token = message["data"].rsplit(" ", 2)
                yield gate, permit_id, int(token)

    async def close(self) -> None:
        """Close the connection in whatever state it is; never raises."""
        for connection in (self._pubsub, self._redis):
            if connection is not None:
                with suppress(errors.RedisError, OSError):
                    await connection.aclose()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        """Translate Redis errors in a `with` block: `UnreachableError` if a retry may help, or `StorageError`."""
        try:
            yield
        # Before `_PASSING_ERRORS`: AuthenticationError is a ConnectionError, but trying again would not help.
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            raise StorageError(
                self._server_address, f"refuses us: {error}. Give the URL a user and a password."
            ) from error
        except _PASSING_ERRORS as error:
            raise UnreachableError(error_text(error)) from error
        except errors.RedisError as error:
            raise StorageError(self._server_address, f"cannot keep limits: {error}") from error


def _decode_answer(answer: list[Any]) -> StepAnswer:
    match answer[0]:
        case "ok":
            _, epoch, opens_in, granted, queued, full = answer
            return StepAnswer(
                epoch=epoch,
                opens_in=None if opens_in < 0 else opens_in / 1e6,
                granted_tokens={
                    permit_id: int(token) for permit_id, token in zip(granted[::2], granted[1::2], strict=True)
                },
                queue_positions=dict(zip(queued[::2], queued[1::2], strict=True)),
                refusal_counts={
                    permit_id: (running, waiting)
                    for permit_id, running, waiting in zip(full[::3], full[1::3], full[2::3], strict=True)
                },
            )
        case "other":
            return StepAnswer(other_settings=answer[1])
        case _:
            return StepAnswer()
