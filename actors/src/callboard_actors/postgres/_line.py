"""Two connections to PostgreSQL: one has a function take steps, the other hears of places that were given."""

import asyncio
import json
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from callboard import StorageError
from callboard_actors._places._line import Answer, AwayError, Step

_SCRIPT = files("callboard_actors.postgres").joinpath("_step.sql")
_LEAST = 13
"""The oldest PostgreSQL that will do."""
_STEP = "SELECT callboard_limits_step_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_FORGET = """
WITH gone AS (
    DELETE FROM callboard_limits_gates WHERE until < extract(epoch FROM clock_timestamp()) * 1000000 RETURNING gate
), clients AS (DELETE FROM callboard_limits_clients USING gone WHERE callboard_limits_clients.gate = gone.gate
), queue AS (DELETE FROM callboard_limits_queue USING gone WHERE callboard_limits_queue.gate = gone.gate
), held AS (DELETE FROM callboard_limits_held USING gone WHERE callboard_limits_held.gate = gone.gate
), lanes AS (DELETE FROM callboard_limits_lanes USING gone WHERE callboard_limits_lanes.gate = gone.gate
) DELETE FROM callboard_limits_starts USING gone WHERE callboard_limits_starts.gate = gone.gate
"""
_NOT_NOW = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    OSError,
    TimeoutError,
)
_NEVER = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)


def check_url(url: str) -> None:
    """Raise ValueError for a URL that PostgreSQL does not read; what else it says may be a password."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        said = str(error).strip() if "URI query parameter:" in str(error) else "is there a '%' or ':' to be quoted?"
        raise ValueError(f"PostgresLimits(url) cannot be read: {said}") from None


class PostgresLine:
    """Two connections to a server, of one process.

    Args:
        url: of the database.
        where: the same, without a password.
        prefix: of all limits.
    """

    def __init__(self, url: str, where: str, prefix: str) -> None:
        self._url = url
        self._where = where
        self._prefix = prefix
        self._client = ""
        self._saying: Any = None
        self._hearing: Any = None

    async def open(self, client: str) -> None:
        """Connect, and listen.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if it can, and will not do.
        """
        self._client = client
        with self._errors():
            self._saying = await self._connect()
            await self._make()
            self._hearing = await self._connect()
            await self._hearing.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"callboard_{client}")))
            await self._saying.execute(_FORGET)

    async def _connect(self) -> Any:
        try:
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=5, application_name="callboard limits"
            )
        except psycopg.OperationalError as error:
            # What is wrong with a password or a name is said in words only, before there is a connection.
            if any(text in str(error) for text in ("authentication failed", "does not exist", "no password supplied")):
                raise StorageError(self._where, f"refuses us: {error}") from error
            raise

    async def _make(self) -> None:
        """Have the tables and functions there.

        Raises:
            StorageError: if the server is too old, or they cannot be made.
        """
        if self._saying.info.server_version < _LEAST * 10_000:
            version = self._saying.info.server_version // 10_000
            raise StorageError(self._where, f"is PostgreSQL {version}; limits need {_LEAST} or later.")
        if await self._is_made():
            return
        try:
            async with self._saying.transaction():
                await self._saying.execute("SELECT pg_advisory_xact_lock(hashtextextended('callboard_limits', 0))")
                if not await self._is_made():  # by another process, meanwhile
                    await self._saying.execute(_SCRIPT.read_text())
        except errors.InsufficientPrivilege as error:
            remedy = "Have somebody who may CREATE in the schema open PostgresLimits once, or grant it."
            raise StorageError(
                self._where, f"has no tables for limits, and we may not make them: {error} {remedy}"
            ) from error

    async def _is_made(self) -> bool:
        found = await self._saying.execute("SELECT to_regproc('callboard_limits_step_1') IS NOT NULL")
        return bool((await found.fetchone())[0])

    async def say(self, steps: Sequence[Step]) -> Sequence[Answer]:
        """Have the server do what is said of each gate, and its answers.

        Raises:
            AwayError: if the server cannot be reached; whether it has heard is unknown.
            StorageError: if it refuses.
        """
        with self._errors():
            # One by one: each holds the lock of its gate, and two processes must not wait for each other's.
            return [await self._take(step) for step in steps]

    async def _take(self, step: Step) -> Answer:
        numbers = step.numbers
        counts = [numbers.concurrency, numbers.queue, numbers.calls]
        times = [numbers.per, numbers.lease, numbers.silence]
        ops = json.dumps([op.written for op in step.ops])
        gate = f"{self._prefix}:{step.gate}"
        arguments = [gate, self._client, step.epoch, numbers.text, *counts, *times, step.asks_all, ops]
        async with asyncio.timeout(max(1.0, numbers.lease / 2e6)):
            cursor = await self._saying.execute(_STEP, arguments, prepare=True)
            [found] = await cursor.fetchone()
        return _read(found)

    async def heard(self) -> AsyncIterator[tuple[str, str, int]]:
        """Places that were given since they were asked for: gate, stay and token."""
        with self._errors():
            async for notice in self._hearing.notifies():
                gate, stay, token = notice.payload.rsplit(" ", 2)
                yield gate.removeprefix(f"{self._prefix}:"), stay, int(token)

    async def close(self) -> None:
        """Let it go; raises nothing."""
        for one in (self._saying, self._hearing):
            if one is not None:
                with suppress(psycopg.Error, OSError):
                    await one.close()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except _NEVER as error:
            raise StorageError(self._where, f"refuses us: {error}") from error
        except _NOT_NOW as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except psycopg.Error as error:
            raise StorageError(self._where, f"cannot keep limits: {error}") from error


def _read(found: dict[str, Any]) -> Answer:
    if "epoch" not in found:
        return Answer(other=found.get("other", ""))
    opens_in = found["opens_in"]
    return Answer(
        epoch=found["epoch"],
        opens_in=None if opens_in is None or opens_in < 0 else opens_in / 1e6,
        granted=found["granted"],
        queued=found["queued"],
        full={stay: (running, waiting) for stay, (running, waiting) in found["full"].items()},
    )
