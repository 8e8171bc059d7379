"""Connections to PostgreSQL for limits: a function applies steps, and a channel announces permits."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

from callboard_actors._server.limits._transport import Answer, Step
from callboard_actors.postgres._server import PostgresConnection

_STEP = "SELECT callboard_limits_step_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
# Gates have no expiry of their own in PostgreSQL: each process that connects deletes the gates that nobody uses.
_FORGET = """
WITH gone AS (
    DELETE FROM callboard_limits_gates WHERE until < extract(epoch FROM clock_timestamp()) * 1000000 RETURNING gate
), clients AS (DELETE FROM callboard_limits_clients USING gone WHERE callboard_limits_clients.gate = gone.gate
), queue AS (DELETE FROM callboard_limits_queue USING gone WHERE callboard_limits_queue.gate = gone.gate
), held AS (DELETE FROM callboard_limits_held USING gone WHERE callboard_limits_held.gate = gone.gate
), lanes AS (DELETE FROM callboard_limits_lanes USING gone WHERE callboard_limits_lanes.gate = gone.gate
) DELETE FROM callboard_limits_starts USING gone WHERE callboard_limits_starts.gate = gone.gate
"""


class PostgresLimitsTransport(PostgresConnection):
    """Two connections of one process to a server of limits."""

    what = "limits"
    whose = "PostgresLimits"
    script = files("callboard_actors.postgres").joinpath("_step.sql")
    last = "callboard_limits_step_1"  # the last function of the script

    async def open(self, client: str) -> None:
        """Connect, create missing tables and functions, and listen for permits of this client."""
        with self._errors():
            await self._open(client, f"callboard_{client}")
            await self._saying.execute(_FORGET)

    async def say(self, steps: Sequence[Step]) -> Sequence[Answer]:
        """Send steps to the server, and return its answer to each; see `LimitsTransport`."""
        with self._errors():
            # One transaction each: a step holds its gate's lock, and two processes must not wait for each other.
            return [await self._take(step) for step in steps]

    async def _take(self, step: Step) -> Answer:
        numbers = step.numbers
        counts = [numbers.concurrency, numbers.queue, numbers.calls]
        times = [numbers.per, numbers.lease, numbers.silence]
        ops = json.dumps([op.written for op in step.ops])
        gate = f"{self._prefix}:{step.gate}"
        arguments = [gate, self._client, step.epoch, numbers.text, *counts, *times, step.asks_all, ops]
        # Half a lease, and at least a second: a step that hangs is given up while the lease can still be renewed.
        async with asyncio.timeout(max(1.0, numbers.lease / 2e6)):
            cursor = await self._saying.execute(_STEP, arguments, prepare=True)
            [found] = await cursor.fetchone()
        return _read(found)

    async def heard(self) -> AsyncIterator[tuple[str, str, int]]:
        """Yield permits that were granted after the answer to their request: gate, permit id and token."""
        async for said in self._told():
            gate, stay, token = said.rsplit(" ", 2)  # from the right: a gate's name may have spaces
            yield gate.removeprefix(f"{self._prefix}:"), stay, int(token)


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
