"""Lives of an agent that is killed repeatedly, each time at a point that a seed determines, until its work is done.

Each life of the agent is a fork. A life continues where the one before was
killed: it answers open questions, sends the next user message, or continues with `None`. Each story has a database
and a log, to which every body and every write adds a line. For each story, the output has one line of JSON: the seed
or the point, the number of kills, and the log, which ends with the conversation. `_lives` reads it.
"""

import gc
import json
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import anyio
import psycopg
import trio  # noqa: F401 (imported before the forks, not in each of them)
import uvloop  # noqa: F401
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, message_to_dict
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard.conversations._database import LazySaver
from callboard.testing import ScriptedModel
from callboard_actors._engine._kernel import adopt_orphans
from tests.process._processes import descendants

from ._savers import AT, Tells, saver_of, savers_that_tell, say

MOST_LIVES = 60
WAIT = 20
"""Timeout in seconds for the end of the processes that a life has started."""


@dataclass(frozen=True)
class World:
    """An agent, and the conversation that it has to finish."""

    make: Callable[[Path, Any], Any]
    """Returns the agent of one life, for the directory of its story and a checkpointer."""
    questions: tuple[str, ...] = ("go",)
    far: int = 40
    """Maximum number of points that a life may pass before it is killed."""
    resumes: bool = False
    """`True` if each life resumes its thread first: it may have messages that nobody has read, and nothing else to do.
    """


@dataclass(frozen=True)
class Way:
    """How the lives of a story run."""

    saver: str
    """Kind of checkpointer, as in `_savers`; "url" for the agent's own SQLite database, named by URL; or the URL of a
    PostgreSQL server, at which each story has a database of its own."""
    backend: str
    durability: Any
    entry: str = "ainvoke"
    """Method that runs the agent: "ainvoke", or "invoke" in a thread."""


class Fate:
    """The point where this life ends, and its log.

    Args:
        log: a file.
        end: the number of the point; 0 for none.
        signalled: whether it dies by SIGKILL, or by `os._exit`.
    """

    def __init__(self, log: Path, end: int, *, signalled: bool) -> None:
        self._log = os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        self._end = end
        self._signalled = signalled
        self._passed = 0
        self._lock = threading.Lock()

    def note(self, *words: object) -> None:
        os.write(self._log, (json.dumps(words) + "\n").encode())

    def point(self, name: str) -> None:
        """Register a point at which a life may end, and end it there."""
        with self._lock:
            self._passed += 1
            if self._passed != self._end:
                return
            self.note("killed", name)
            if self._signalled:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(9)


fate: Fate


def messages_in(value: Any) -> Iterator[BaseMessage]:
    """Return all messages in a stored value, at any depth."""
    if isinstance(value, BaseMessage):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from messages_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from messages_in(item)


def note_stored(writes: Iterable[Any], kind: str = "stored") -> None:
    for message in messages_in(list(writes)):
        if isinstance(message, ToolMessage):
            fate.note(kind, message.tool_call_id)
        elif isinstance(message, AIMessage):
            fate.note(f"{kind} reply", message.content or message.tool_calls[0]["id"])


def hear(event: str, value: Any) -> None:
    """Log what a saver stores; a life may end before and after each write."""
    if event == "found":  # stored, even if its writer died before it could log that
        note_stored([value.checkpoint["channel_values"], value.pending_writes] if value is not None else [], "found")
        return
    if event == "after write":
        note_stored(value)
    fate.point(event)


class DeadlyLazySaver(Tells, LazySaver):
    """Saver whose writes count as stored when their transaction is committed, not before."""

    joined: list[Any] | None = None
    """Writes of the transaction that is open; `None` without one."""

    def hear(self, event: str, value: Any) -> None:
        if event == "after write" and self.joined is not None:
            self.joined.append(value)
            fate.point(event)
        elif event != "before write":  # `write_in_transaction` is such a point
            hear(event, value)

    def write_in_transaction(self, work: Callable[[], None]) -> None:
        stored: list[Any] = []

        def work_and_collect() -> None:
            # Here, where the lock of the connection is held: the agent and its sub-agent write from several threads.
            self.joined = stored
            work()
            self.joined = None

        fate.point("before write")
        super().write_in_transaction(work_and_collect)
        for writes in stored:
            note_stored(writes)
        fate.point("after commit")


@contextmanager
def note_body(call_id: str) -> Iterator[None]:
    """Note the start and the end of a body; a life may end before, in and after the body."""
    fate.point("before body")
    fate.note("started", call_id)
    yield
    fate.note("ended", call_id)
    fate.point("after body")


def next_reply(script: Sequence[AIMessage], messages: list[BaseMessage]) -> AIMessage:
    reply = script[sum(isinstance(message, AIMessage) for message in messages)]
    fate.note("asked", reply.content or reply.tool_calls[0]["id"], [message_to_dict(message) for message in messages])
    fate.point("in the model")
    return reply


def replies(script: Sequence[AIMessage]) -> ScriptedModel:
    """Return a model whose next reply depends on the conversation only, and not on the process."""
    return ScriptedModel([partial(next_reply, script)], loop=True)


def next_input(state: Any, questions: Sequence[str]) -> Any:
    """Return the next input for a thread in this state; an empty string if the thread is finished."""
    messages = state.values.get("messages", [])
    if state.interrupts:
        return Command(resume={question.id: "fine" for question in state.interrupts})
    if state.tasks:  # `next` may be empty although the step has not ended
        return None
    turns = sum(isinstance(message, HumanMessage) and message.content in questions for message in messages)
    return say(questions[turns]) if turns < len(questions) else ""


async def play(agent: Any, questions: Sequence[str], way: Way) -> Any:
    """Do the remaining work; return the state at the end."""
    while (agent_input := next_input(state := await agent.aget_state(AT), questions)) != "":
        note_stored([state.values, [task.result for task in state.tasks]], "found")
        if way.entry == "invoke":
            await anyio.to_thread.run_sync(partial(agent.invoke, agent_input, AT, durability=way.durability))
        else:
            await agent.ainvoke(agent_input, AT, durability=way.durability)
    return state


def rehearse(world: World, directory: Path, way: Way) -> None:
    """Fill caches before the forks. Not on trio, where this would start a thread that no fork has."""
    global fate
    fate = Fate(directory / "rehearsal", 0, signalled=False)
    anyio.run(play, world.make(directory, InMemorySaver()), world.questions, way)


def database_at(server: str, name: str) -> str:
    """Return the URL of a database of this name at a server, and create it if it does not exist."""
    with psycopg.connect(server, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return f"{server.rpartition('/')[0]}/{name}"


@asynccontextmanager
async def open_agent(world: World, directory: Path, kind: str) -> AsyncGenerator[Any]:
    """Yield the agent of a life, with a saver that may kill its process."""
    if kind == "url" or kind.startswith("postgresql:"):
        url = f"sqlite:///{directory / 'db'}" if kind == "url" else database_at(kind, f"story_{directory.name}")
        async with world.make(directory, url) as agent:
            agent.checkpointer.__class__ = DeadlyLazySaver
            yield agent
    else:
        async with saver_of(kind, directory / "db", **savers_that_tell(hear)) as saver:
            yield world.make(directory, saver)


async def live(world: World, directory: Path, way: Way) -> None:
    async with open_agent(world, directory, way.saver) as agent:
        with anyio.fail_after(60):
            if world.resumes and (await agent.aget_state(AT)).values.get("messages"):
                await agent.ainvoke(None, AT, durability=way.durability)
            state = await play(agent, world.questions, way)
    fate.note("state", {name: value for name, value in state.values.items() if name in ("todos", "files")})
    fate.note("conversation", [message_to_dict(message) for message in state.values["messages"]])


def life(world: World, directory: Path, way: Way, end: int, *, signalled: bool) -> int:
    """One life, in a process of its own; returns its wait status."""
    global fate
    if child := os.fork():
        status = os.waitpid(child, 0)[1]
        wait_for_orphans()
        return status
    try:
        fate = Fate(directory / "log", end, signalled=signalled)
        fate.note("born")
        anyio.run(live, world, directory, way, backend=way.backend)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_for_orphans() -> None:
    """Wait for the processes that a life has started: a command in them may not run beside the next life."""
    until = time.monotonic() + WAIT
    while orphans := descendants(os.getpid()):
        if time.monotonic() > until:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            raise RuntimeError(f"processes of a life are left over: {orphans}")
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.002)


End = tuple[int, bool]
"""The number of the point at which a life ends, and whether it is ended by a signal."""


def story(world: World, directory: Path, way: Way, number: int, ends: Iterable[End]) -> int:
    """All lives of one thread; return the number of kills."""
    directory.mkdir()
    for killed, (end, signalled) in enumerate(ends):
        status = life(world, directory, way, end, signalled=signalled)
        if status == 0 or os.waitstatus_to_exitcode(status) not in (9, -signal.SIGKILL):
            lines = [json.loads(line) for line in (directory / "log").read_text().splitlines()]
            report = {
                "seed": number,
                "killed": killed,
                "failed": status != 0,
                "durability": way.durability,
                "log": lines,
            }
            print(json.dumps(report), flush=True)
            return killed
    raise RuntimeError(f"story {number} has no end")


def by_chance(seed: int, far: int) -> Iterator[End]:
    chance = random.Random(seed)
    for _ in range(MOST_LIVES):
        yield chance.randint(1, far), chance.random() < 0.5


def in_fork(module: str, folder: str, way_fields: list[str], first: int, kills: int, step: int = 0) -> None:
    """Play stories of the world of a module from a seed on, until there were this many kills.

    With a step, each story has one kill: at the points `first`, `first + step` and so on, until the last point.
    """
    world, directory, way = import_module(f"tests.agent.{module}").WORLD, Path(folder), Way(*way_fields)
    rehearse(world, directory, way)
    gc.freeze()
    adopt_orphans()
    for number in count(first, step or 1):
        ends = chain([(number, number % 4 < 2)], repeat((0, False))) if step else by_chance(number, world.far)
        killed = story(world, directory / str(number), way, number, ends)
        kills -= killed
        if kills <= 0 or (step and not killed):
            return
