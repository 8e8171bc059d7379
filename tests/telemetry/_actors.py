"""Scenarios with actors that produce spans."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from callboard import Actor, ActorError, Supervisor, handler, keyed

from ._traces import WAIT, Traces, record_traces


class Desk(Actor):
    """Actor that breaks or never starts."""

    fatal = (ZeroDivisionError,)

    def __init__(self, *, starts: bool = True) -> None:
        self._starts = starts

    async def start(self) -> None:
        if not self._starts:
            raise OSError("no such desk")

    async def stop(self) -> None:
        await anyio.sleep(0.05)

    @handler
    async def work(self, seconds: float) -> float:
        await anyio.sleep(seconds)
        return 1 / seconds


async def an_actor_that_breaks() -> Traces:
    with record_traces() as traces, anyio.fail_after(WAIT):
        async with Supervisor([Desk]) as tree:
            async with anyio.create_task_group() as group:
                group.start_soon(tree[Desk].work, 0.1)
                await anyio.sleep(0.05)
                group.start_soon(expect_refusal, tree[Desk].work, 0)
                group.start_soon(tree[Desk].work, 0.1)
    return traces


async def actors_that_want_room() -> Traces:
    with record_traces(capture=True, redact=False) as traces, anyio.fail_after(WAIT):
        async with keyed(Desk, cap=1) as desks:
            await desks["a"].work(0.1)
            async with anyio.create_task_group() as group:
                group.start_soon(desks["b"].work, 0.1)
                await anyio.sleep(0.02)
                group.start_soon(desks["a"].work, 0.1)  # the actor is about to stop
    return traces


async def an_actor_that_never_starts() -> Traces:
    with record_traces() as traces, anyio.fail_after(WAIT):
        async with keyed(Desk(starts=False)) as desks:
            await expect_refusal(desks["a"].work, 0.1)
    return traces


async def expect_refusal(ask: Callable[[float], Awaitable[object]], seconds: float) -> None:
    with pytest.raises(ActorError):
        await ask(seconds)
