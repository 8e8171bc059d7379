"""Connection to Redis for limits: a script applies steps, and a channel announces permits."""

from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

from callboard_actors._server.limits._transport import Answer, Step
from callboard_actors.redis._server import RedisConnection

# The order of KEYS in `_step.lua`.
_PARTS = ("meta", "queue", "held", "clients", "lanes", "starts")


class RedisLimitsTransport(RedisConnection):
    """Connection of one process to a server of limits."""

    what = "limits"
    script = files("callboard_actors.redis").joinpath("_step.lua")

    def __init__(self, url: str, where: str, prefix: str) -> None:
        super().__init__(url, where, prefix)
        self._channel = f"{prefix}:to:"

    async def open(self, client: str) -> None:
        """Connect, load the script, and subscribe to the permits of this client."""
        with self._errors():
            await self._open(client, self._channel + client)

    async def say(self, steps: Sequence[Step]) -> Sequence[Answer]:
        """Send steps to the server, and return its answer to each; see `LimitsTransport`."""
        return [_read(found) for found in await self._run([self._arguments(step) for step in steps])]

    def _arguments(self, step: Step) -> list[object]:
        numbers = step.numbers
        # The braces put all keys of a gate into one hash slot, as a script in a Redis cluster needs.
        keys = [f"{self._prefix}:{{{step.gate}}}:{part}" for part in _PARTS]
        # Lua has no `None` among its arguments: -1 stands for "no limit".
        counts = [-1 if one is None else one for one in (numbers.concurrency, numbers.queue, numbers.calls)]
        times = [numbers.per, numbers.lease, numbers.silence]
        server = [self._server.run, self._server.began, int(step.asks_all), self._channel, step.gate]
        ops = [part for op in step.ops for part in op.written]
        # In the order in which `_step.lua` reads ARGV.
        return [len(keys), *keys, self._client, step.epoch, numbers.text, *counts, *times, *server, *ops]

    async def heard(self) -> AsyncIterator[tuple[str, str, int]]:
        """Yield permits that were granted after the answer to their request: gate, permit id and token."""
        while True:
            # From the right: the name of a gate may have spaces.
            gate, stay, token = (await self._told()).rsplit(" ", 2)
            yield gate, stay, int(token)


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
