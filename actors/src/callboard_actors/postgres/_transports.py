"""Connections of one process to PostgreSQL, for limits and fleets; each operation is an SQL function."""

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
from callboard_actors._server._client import UnreachableError, error_text
from callboard_actors._server._limits import Step, StepAnswer
from callboard_actors._server.fleet._client import FleetSettings, KeyOwner, OwnerAddress

_OLDEST_VERSION = 13
"""Oldest supported version of PostgreSQL."""
# Errors that may pass: trying again may help. A read-only transaction means a standby that may be promoted.
_PASSING_ERRORS = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.ReadOnlySqlTransaction,
    OSError,
    TimeoutError,
)
# Some of these are subclasses of OperationalError, so they are caught before `_PASSING_ERRORS`.
_FINAL_ERRORS = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)


def check_url(store_name: str, url: str) -> None:
    """Raise ValueError for a URL that PostgreSQL cannot parse."""
    # Most texts of the parser are left out of the error, because they may contain a password.
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        text = str(error).strip() if "URI query parameter:" in str(error) else "is there a '%' or ':' to be quoted?"
        raise ValueError(f"{store_name}(url) cannot be read: {text}") from None


class PostgresConnection:
    """Two connections of one process to PostgreSQL: for statements, and for notifications."""

    data_noun: str
    """Noun for the stored data in error texts."""
    store_name: str
    """Name of the store class that the user has created, for error texts."""
    script: str
    """File of the script that creates the tables and functions."""
    last_function: str
    """Function that the script creates last: if it exists, so does everything else."""
    channel: str
    """Name of this client's notification channel, without the client's id at its end."""

    def __init__(self, url: str, server_address: str, prefix: str) -> None:
        self._url = url
        self._server_address = server_address
        self._prefix = prefix
        self._client_id = ""
        # Two connections, because waiting for notifications would block the statements.
        self._statement_connection: Any = None
        self._notification_connection: Any = None

    async def open(self, client_id: str) -> None:
        """Connect to the server as `client_id`, create missing tables and functions, and listen on its channel."""
        self._client_id = client_id
        with self._translate_errors():
            self._statement_connection = await self._connect()
            await self._create_schema()
            self._notification_connection = await self._connect()
            # Composed as an identifier: LISTEN takes no parameters, and the name contains the client's id.
            await self._notification_connection.execute(
                sql.SQL("LISTEN {}").format(sql.Identifier(self.channel + client_id))
            )

    async def _connect(self) -> Any:
        name = f"callboard {self.data_noun.rpartition(' ')[2]}"
        try:
            # Autocommit: each function call is one transaction, so no lock outlives it.
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=5, application_name=name
            )
        except psycopg.OperationalError as error:
            # Before there is a connection, a wrong password or name has no error code: only the text tells it.
            if any(text in str(error) for text in ("authentication failed", "does not exist", "no password supplied")):
                raise StorageError(self._server_address, f"refuses us: {error}") from error
            raise

    async def _create_schema(self) -> None:
        """Create the tables and functions by the SQL script `self.script`, unless they exist."""
        connection = self._statement_connection
        if connection.info.server_version < _OLDEST_VERSION * 10_000:
            version = connection.info.server_version // 10_000
            raise StorageError(
                self._server_address, f"is PostgreSQL {version}; {self.data_noun} need {_OLDEST_VERSION} or later."
            )
        if await self._has_schema():
            return
        try:
            async with connection.transaction():
                # CREATE ... IF NOT EXISTS is not safe against itself: two processes at once can both fail.
                await connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self.last_function[:16]]
                )
                if not await self._has_schema():  # another process may have created them meanwhile
                    await connection.execute(files("callboard_actors.postgres").joinpath(self.script).read_text())
        except errors.InsufficientPrivilege as error:
            remedy = f"Have somebody who may CREATE in the schema open {self.store_name} once, or grant it."
            raise StorageError(
                self._server_address, f"has no tables for {self.data_noun}, and we may not make them: {error} {remedy}"
            ) from error

    async def _has_schema(self) -> bool:
        cursor = await self._statement_connection.execute("SELECT to_regproc(%s) IS NOT NULL", [self.last_function])
        return bool((await cursor.fetchone())[0])

    async def _execute(self, statement: str, *arguments: object, seconds: float | None) -> list[Any]:
        """Execute a statement and return its rows. After an `UnreachableError`, it may have been executed."""
        with self._translate_errors():
            # A timeout becomes `UnreachableError`, and the connection is closed with whatever it was doing.
            async with asyncio.timeout(seconds):
                cursor = await self._statement_connection.execute(statement, arguments, prepare=True)
                return await cursor.fetchall() if cursor.description else []

    async def _notifications(self) -> AsyncIterator[str]:
        """Yield the texts of the notifications."""
        with self._translate_errors():
            async for notice in self._notification_connection.notifies():
                yield notice.payload

    async def close(self) -> None:
        """Close both connections in whatever state they are; never raises."""
        for connection in (self._statement_connection, self._notification_connection):
            if connection is not None:
                with suppress(psycopg.Error, OSError):
                    await connection.close()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        """Translate the driver's errors in a block: `UnreachableError` if a retry may help, or `StorageError`."""
        try:
            yield
        except _FINAL_ERRORS as error:
            raise StorageError(self._server_address, f"refuses us: {error}") from error
        except _PASSING_ERRORS as error:
            raise UnreachableError(error_text(error)) from error
        except psycopg.Error as error:
            raise StorageError(self._server_address, f"cannot keep {self.data_noun}: {error}") from error


def _answer_timeout(lease_us: int) -> float:
    """Return the seconds to wait for an answer of the server: half of the lease, and at least one second."""
    # After this time, the lease can still be renewed.
    return max(1.0, lease_us / 2e6)


# Limits.

_STEP = "SELECT callboard_limits_step_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
# Gates have no expiry of their own in PostgreSQL: each process that connects deletes the gates that nobody uses.
_DELETE_UNUSED_GATES = """
WITH gone AS (
    DELETE FROM callboard_limits_gates WHERE until < extract(epoch FROM clock_timestamp()) * 1000000 RETURNING gate
), clients AS (DELETE FROM callboard_limits_clients USING gone WHERE callboard_limits_clients.gate = gone.gate
), queue AS (DELETE FROM callboard_limits_queue USING gone WHERE callboard_limits_queue.gate = gone.gate
), held AS (DELETE FROM callboard_limits_held USING gone WHERE callboard_limits_held.gate = gone.gate
), lanes AS (DELETE FROM callboard_limits_lanes USING gone WHERE callboard_limits_lanes.gate = gone.gate
) DELETE FROM callboard_limits_starts USING gone WHERE callboard_limits_starts.gate = gone.gate
"""


class PostgresLimitsTransport(PostgresConnection):
    """Two connections of one process to a PostgreSQL server that keeps limits."""

    data_noun = "limits"
    store_name = "PostgresLimits"
    script = "_step.sql"
    last_function = "callboard_limits_step_1"
    channel = "callboard_"

    async def open(self, client_id: str) -> None:
        """Open both connections, and delete the stored state of limits that no process uses."""
        await super().open(client_id)
        with self._translate_errors():
            await self._statement_connection.execute(_DELETE_UNUSED_GATES)

    async def send_steps(self, steps: Sequence[Step]) -> Sequence[StepAnswer]:
        # One transaction each: a step holds its gate's lock, and two processes must not wait for each other.
        return [await self._send_step(step) for step in steps]

    async def _send_step(self, step: Step) -> StepAnswer:
        settings = step.settings
        counts = [settings.concurrency, settings.max_waiting, settings.rate_calls]
        times = [settings.rate_period_us, settings.lease_us, settings.restart_pause_us]
        changes = json.dumps([change.fields for change in step.changes])
        gate = f"{self._prefix}:{step.gate_name}"
        arguments = [gate, self._client_id, step.epoch, settings.text, *counts, *times, step.wants_all_permits, changes]
        # One row with one column, a JSON object.
        [[answer]] = await self._execute(_STEP, *arguments, seconds=_answer_timeout(settings.lease_us))
        if "epoch" not in answer:
            return StepAnswer(other_settings=answer.get("other", ""))
        opens_in = answer["opens_in"]
        return StepAnswer(
            epoch=answer["epoch"],
            opens_in=None if opens_in is None or opens_in < 0 else opens_in / 1e6,  # below 0: it is open
            granted_tokens=answer["granted"],
            queue_positions=answer["queued"],
            refusal_counts={permit_id: (running, waiting) for permit_id, (running, waiting) in answer["full"].items()},
        )

    async def grants(self) -> AsyncIterator[tuple[str, str, int]]:
        async for text in self._notifications():
            gate, permit_id, token = text.rsplit(" ", 2)  # from the right: a gate's name may have spaces
            yield gate.removeprefix(f"{self._prefix}:"), permit_id, int(token)


# Fleets.

_READ_INTERVAL = 1.0
"""Seconds after which the mail to this member is read even without a notification."""
_MAIL_BATCH = 500
"""Largest number of messages in one batch of mail to this member."""


class PostgresFleetTransport(PostgresConnection):
    """Connections of one fleet member to PostgreSQL; see `FleetTransport` for the operations."""

    data_noun = "the keys of a fleet"
    store_name = "PostgresFleet"
    script = "_fleet.sql"
    last_function = "callboard_fleet_leave_1"
    channel = "callboard_fleet_"

    def __init__(self, url: str, server_address: str, prefix: str, fleet_settings: FleetSettings) -> None:
        super().__init__(url, server_address, prefix)
        self._fleet_settings = fleet_settings
        self._listener: asyncio.Task[None] | None = None

    async def open(self, client_id: str) -> None:
        """Open both connections of this process (for requests and notifications), and turn synchronous commits on."""
        await super().open(client_id)
        with self._translate_errors():
            # The database may default to `off`, which can lose the last commits in a crash: a key could get two owners.
            await self._statement_connection.execute("SET synchronous_commit TO on")

    async def _call_function(self, function: str, *arguments: object) -> Any:
        placeholders = ", ".join(["%s"] * (len(arguments) + 1))
        # Not an injection: `function` is a literal of this file, and all text from outside is a parameter.
        statement = f"SELECT * FROM callboard_fleet_{function}_1({placeholders})"  # noqa: S608 (see above)
        [row] = await self._fetch(statement, self._prefix, *arguments)
        return row

    async def _fetch(self, statement: str, *arguments: object) -> list[Any]:
        return await self._execute(statement, *arguments, seconds=_answer_timeout(self._fleet_settings.lease_us))

    async def send_heartbeat(self) -> bool:
        was_member, other_settings = await self._call_function(
            "beat", self._client_id, self._fleet_settings.lease_us, self._fleet_settings.text
        )
        if other_settings is not None:  # other members have other settings
            raise self._fleet_settings.refusal_error(self._server_address, other_settings)
        return bool(was_member)

    async def acquire_key(self, server_key: str) -> KeyOwner:
        owner, token = await self._call_function("own", server_key, self._client_id)
        return KeyOwner(owner_id=owner, token=token)

    async def are_owners(self, addresses: Sequence[OwnerAddress]) -> Sequence[bool]:
        return [
            bool((await self._call_function("owns", address.server_key, address.owner_id, address.token))[0])
            for address in addresses
        ]

    async def send_ask(self, address: OwnerAddress, ask_number: int, ask_id: str, frame: bytes) -> bool:
        arguments = (address.server_key, address.owner_id, address.token, self._client_id, ask_number, ask_id, frame)
        return bool((await self._call_function("send", *arguments))[0])

    async def begin_ask(self, server_key: str, token: int, ask_id: str) -> bool:
        return bool((await self._call_function("begin", server_key, self._client_id, token, ask_id))[0])

    async def recall_ask(self, owner_id: str, ask_id: str, marker: bytes) -> bool:
        return bool((await self._call_function("recall", owner_id, ask_id, self._client_id, marker))[0])

    async def put_messages(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        # Autocommit makes each message a transaction of its own; if the connection breaks, all of them are sent again.
        for receiver_id, frame, ask_id in messages:
            await self._call_function("tell", self._client_id, receiver_id, frame, ask_id)

    async def release_key(self, server_key: str, token: int) -> None:
        await self._call_function("free", server_key, self._client_id, token)

    async def save_state(self, server_key: str, token: int, state: bytes) -> bool:
        return bool((await self._call_function("save", server_key, token, state))[0])

    async def load_state(self, server_key: str) -> bytes | None:
        statement = "SELECT state FROM callboard_fleet_keys WHERE fleet = %s AND gate = %s"
        rows = await self._fetch(statement, self._prefix, server_key)
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    async def mail_batches(self) -> AsyncIterator[Sequence[bytes]]:
        notification = asyncio.Event()
        self._listener = asyncio.ensure_future(self._listen(notification))
        # Reads everything that is there, and not from the last id on: ids are assigned before the commit, so a message
        # may become visible after one with a higher id.
        query = "SELECT id, frame FROM callboard_fleet_mail WHERE fleet = %s AND member = %s ORDER BY id LIMIT %s"
        while True:
            # Before the read: a message that comes during the read sets it again.
            notification.clear()
            # No timeout: the heartbeats use the same connection, so they notice if it hangs.
            if rows := await self._execute(query, self._prefix, self._client_id, _MAIL_BATCH, seconds=None):
                yield [bytes(frame) for _, frame in rows]
                # Reached only when the next batch is requested, so after this one was handled. If the connection breaks
                # before that, the batch is delivered again; receivers ignore repetitions.
                ids = [ask_number for ask_number, _ in rows]
                await self._execute("DELETE FROM callboard_fleet_mail WHERE id = ANY(%s)", ids, seconds=None)
                continue
            if self._listener.done():
                self._listener.result()  # raises the error that broke the second connection
            with suppress(TimeoutError):
                await asyncio.wait_for(notification.wait(), _READ_INTERVAL)

    async def _listen(self, notification: asyncio.Event) -> None:
        async for _ in self._notifications():
            notification.set()

    async def leave_fleet(self) -> None:
        await self._call_function("leave", self._client_id)

    async def close(self) -> None:
        """Close both connections in whatever state they are; never raises."""
        if self._listener is not None:
            self._listener.cancel()
            # Bounded, and never raises: psycopg sometimes swallows a cancellation.
            await asyncio.wait([self._listener], timeout=1.0)
        await super().close()
