"""Tools with good and bad behaviours, by name. `test_compositions` wraps them in middleware."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
import anyio.from_thread
import sniffio
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.types import Command, interrupt

from callboard import cleanup
from callboard._calls._call import current_call

SECRET = "write to ann@example.org, \x1b[31mkey sk-ant-api03-" + "a1B2" * 24


class Failure(Exception):
    """Error that a tool or a middleware raises on purpose."""


class Exit(BaseException):
    """A wish to end the program."""


@dataclass
class World:
    """State and clock of one example. Times are multiples of `unit` seconds."""

    unit: float = 1.0
    may_hang: bool = False
    """Whether a tool or middleware may never end by itself."""
    over: set[str | None] = field(default_factory=set)
    """The ids of the calls whose batches have ended."""
    started: list[str | None] = field(default_factory=list)
    """The ids of the calls whose bodies have started."""
    late: list[str | None] = field(default_factory=list)
    """Ids of the calls whose bodies started after the end of their batch."""
    running: int = 0
    peak: int = 0
    """Maximum number of bodies that ran at once."""
    kept: list[Callable[[], Awaitable[Any]]] = field(default_factory=list)
    """Each `call_next` that a middleware kept, to call it after the end of the batch."""
    failed: set[str | None] = field(default_factory=set)
    """Ids of the calls that have failed once."""
    signalled: set[str | None] = field(default_factory=set)
    """Ids of the calls whose bodies raised control flow."""
    ends: dict[str | None, float] = field(default_factory=dict)
    """For each call id, the time when its caller gives up. No body starts later."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_real(self) -> bool:
        """Return whether the example runs on the real clock."""
        return self.unit < 1

    async def sleep(self, times: float) -> None:
        await anyio.sleep(times * self.unit)

    @contextmanager
    def body(self) -> Iterator[str]:
        call = current_call()
        assert call is not None
        assert call.id is not None
        with self._lock:
            self.started.append(call.id)
            if call.id in self.over or (not self.is_real and anyio.current_time() > self.ends[call.id] + 1e-6):
                self.late.append(call.id)
            self.running += 1
            self.peak = max(self.peak, self.running)
        try:
            yield call.id
        except GraphBubbleUp:
            self.signalled.add(call.id)
            raise
        finally:
            with self._lock:
                self.running -= 1


# Tools


async def text(world: World, call_id: str, query: str) -> str:
    return query


async def slow(world: World, call_id: str, query: str) -> str:
    await world.sleep(1)
    return query


async def error(world: World, call_id: str, query: str) -> str:
    raise Failure(call_id)


async def error_once(world: World, call_id: str, query: str) -> str:
    await world.sleep(0.25)
    if call_id not in world.failed:
        world.failed.add(call_id)
        raise Failure(call_id)
    return query


async def group(world: World, call_id: str, query: str) -> str:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(error, world, call_id, query)
        tasks.start_soon(error, world, call_id, query)
    return query


async def leave_program(world: World, call_id: str, query: str) -> str:
    raise Exit(call_id)


async def hang(world: World, call_id: str, query: str) -> str:
    await anyio.sleep_forever()
    return query


async def ignore_cancel(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return "too late"
    return query


async def tidy_up(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        with cleanup():
            await world.sleep(1)
    return query


async def tidy_up_plainly(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        await world.sleep(1)
    return query


async def tidy_up_badly(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        raise Failure(call_id)


async def ask(world: World, call_id: str, query: str) -> str:
    return str(interrupt(f"{call_id}: sure?"))


async def ask_late(world: World, call_id: str, query: str) -> str:
    await world.sleep(0.5)
    return str(interrupt(f"{call_id}: sure?"))


async def ask_twice(world: World, call_id: str, query: str) -> str:
    return f"{interrupt(f'{call_id}: sure?')} {interrupt(f'{call_id}: quite sure?')}"


async def ask_and_fail(world: World, call_id: str, query: str) -> str:
    interrupt(f"{call_id}: sure?")
    raise Failure(call_id)


async def leave_graph(world: World, call_id: str, query: str) -> str:
    raise ParentCommand(Command(graph=Command.PARENT, update={"seen": call_id}))


async def cancel_itself(world: World, call_id: str, query: str) -> str:
    raise asyncio.CancelledError


async def cancel_task(world: World, call_id: str, query: str) -> str:
    if sniffio.current_async_library() == "asyncio":
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await world.sleep(1)
    return query


async def large(world: World, call_id: str, query: str) -> str:
    return "0123456789\n" * 500


async def secret(world: World, call_id: str, query: str) -> str:
    return SECRET


async def secret_error(world: World, call_id: str, query: str) -> str:
    raise Failure(SECRET)


async def command(world: World, call_id: str, query: str) -> Command[Any]:
    return Command(update={"messages": [ToolMessage(query, tool_call_id=call_id)], "seen": 1})


async def several(world: World, call_id: str, query: str) -> list[Any]:
    return [Command(update={"seen": 1}), ToolMessage(query, tool_call_id=call_id)]


async def forget_message(world: World, call_id: str, query: str) -> Command[Any]:
    return Command(update={"messages": []})


def sync_text(world: World, call_id: str, query: str) -> str:
    return query


def sync_slow(world: World, call_id: str, query: str) -> str:
    time.sleep(world.unit)
    return query


def sync_error(world: World, call_id: str, query: str) -> str:
    raise Failure(call_id)


def sync_ask(world: World, call_id: str, query: str) -> str:
    return str(interrupt(f"{call_id}: sure?"))


def sync_hang(world: World, call_id: str, query: str) -> str:
    """Until somebody asks it to stop."""
    while True:
        anyio.from_thread.check_cancelled()
        time.sleep(world.unit / 10)


def sync_exit(world: World, call_id: str, query: str) -> str:
    raise Exit(call_id)


Behaviour = Callable[[World, str, str], Any]


def _named(*some: Any) -> dict[str, Any]:
    return {one.__name__: one for one in some}


WITH_ID = _named(command, several, forget_message)
"""Behaviours of tools that receive the call id."""
PLAIN = _named(
    *(text, slow, large, secret),
    *(error, error_once, group, secret_error, leave_program),
    *(hang, ignore_cancel, tidy_up, tidy_up_plainly, tidy_up_badly),
    *(ask, ask_late, ask_twice, ask_and_fail, leave_graph),
    *(cancel_itself, cancel_task),
)
BEHAVIOURS: dict[str, Behaviour] = {**PLAIN, **WITH_ID}
IN_THREADS: dict[str, Behaviour] = _named(sync_text, sync_slow, sync_error, sync_ask, sync_hang, sync_exit)


the_world: ContextVar[World] = ContextVar("the_world")
"""World of the running example."""


def _tools() -> Iterator[BaseTool]:
    """Return a tool for each behaviour, and `count`, whose argument is a number."""

    def plain(behaviour: Behaviour) -> Any:
        async def body(query: str) -> object:
            world = the_world.get()
            with world.body() as call_id:
                return await behaviour(world, call_id, query)

        return body

    def with_id(behaviour: Behaviour) -> Any:
        async def body(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> object:
            world = the_world.get()
            with world.body():
                return await behaviour(world, tool_call_id, query)

        return body

    def in_thread(behaviour: Behaviour) -> Any:
        def body(query: str) -> object:
            world = the_world.get()
            with world.body() as call_id:
                return behaviour(world, call_id, query)

        return body

    async def count(number: int) -> str:
        with the_world.get().body():
            return str(number)

    bodies = {name: plain(one) for name, one in PLAIN.items()}
    bodies |= {name: with_id(one) for name, one in WITH_ID.items()} | {"count": count}
    for name, body in bodies.items():
        yield StructuredTool.from_function(coroutine=body, name=name, description=".")
    for name, behaviour in IN_THREADS.items():
        yield StructuredTool.from_function(func=in_thread(behaviour), name=name, description=".")


TOOLS = list(_tools())
