"""An agent that is killed repeatedly, each time at a point that a seed determines, until its work is done.

Each life of the agent is a fork. A life continues where the one before was
killed: it answers open questions, sends the next user message, or continues with `None`. Each story has a database
and a log, to which every body and every write adds a line. For each story, the output has one line of JSON: the seed
or the point, the number of kills, and the log, which ends with the conversation.
"""

import gc
import json
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import trio  # noqa: F401 (imported before the forks, not in each of them)
import uvloop  # noqa: F401
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, message_to_dict
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt

from callboard import create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors._engine._kernel import adopt_orphans
from tests.process._processes import descendants

from ._savers import saver_of

CONFIG: Any = {"configurable": {"thread_id": "t"}}
QUESTIONS = ("first", "second")
SCRIPT = (
    calls(
        tool_call("quick", "a1", name="a1"), tool_call("blocking", "a2", name="a2"), tool_call("ask", "a3", name="a3")
    ),
    calls(tool_call("quick", "b1", name="b1"), tool_call("quick", "b2", name="b2")),
    AIMessage("done"),
    calls(tool_call("blocking", "c1", name="c1"), tool_call("quick", "c2", name="c2")),
    AIMessage("all done"),
)
FAR = 16
"""Maximum number of points that a life may pass before it is killed."""
MOST_LIVES = 60
WAIT = 20
"""Timeout in seconds for the end of the processes that a life has started."""


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


def note_stored(writes: Iterable[Any], how: str = "stored") -> None:
    for message in messages_in(list(writes)):
        if isinstance(message, ToolMessage):
            fate.note(how, message.tool_call_id)
        elif isinstance(message, AIMessage):
            fate.note(f"{how} reply", message.content or message.tool_calls[0]["id"])


def note_found(found: CheckpointTuple | None) -> CheckpointTuple | None:
    """Log read values as stored, even if their writer died before it could log them."""
    if found is not None:
        note_stored([found.checkpoint["channel_values"], found.pending_writes], "found")
    return found


class Deadly(BaseCheckpointSaver[Any]):
    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        return note_found(super().get_tuple(config))

    def put(self, *args: Any) -> Any:
        fate.point("before checkpoint")
        stored = super().put(*args)
        fate.point("after checkpoint")
        return stored

    def put_writes(self, config: Any, writes: Any, *rest: Any) -> None:
        fate.point("before write")
        super().put_writes(config, writes, *rest)
        note_stored(writes)
        fate.point("after write")


class DeadlySqliteSaver(Deadly, SqliteSaver):
    pass


class DeadlyAsyncSqliteSaver(AsyncSqliteSaver):
    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return note_found(await super().aget_tuple(config))

    async def aput(self, *args: Any) -> Any:
        fate.point("before checkpoint")
        stored = await super().aput(*args)
        fate.point("after checkpoint")
        return stored

    async def aput_writes(self, config: Any, writes: Any, *rest: Any) -> None:
        fate.point("before write")
        await super().aput_writes(config, writes, *rest)
        note_stored(writes)
        fate.point("after write")


async def quick(name: str) -> str:
    fate.point("before body")
    fate.note("started", name)
    await anyio.lowlevel.checkpoint()
    fate.point("in body")
    fate.note("ended", name)
    fate.point("after body")
    return f"{name} is done"


def blocking(name: str) -> str:
    fate.point("before body")
    fate.note("started", name)
    fate.point("in body")
    fate.note("ended", name)
    fate.point("after body")
    return f"{name} is done"


async def ask(name: str) -> str:
    fate.note("started", name)
    answer = interrupt(f"{name}?")
    fate.point("after answer")
    fate.note("ended", name)
    return f"{name} is {answer}"


def reply(messages: list[BaseMessage]) -> AIMessage:
    said = SCRIPT[sum(isinstance(message, AIMessage) for message in messages)]
    fate.note("asked", said.content or said.tool_calls[0]["id"], [message_to_dict(message) for message in messages])
    fate.point("in the model")
    return said


TOOLS = [
    StructuredTool.from_function(coroutine=quick, name="quick", description="Quick."),
    StructuredTool.from_function(func=blocking, name="blocking", description="Blocking."),
    StructuredTool.from_function(coroutine=ask, name="ask", description="Ask."),
]


def next_input(state: Any) -> Any:
    """Return the next input for a thread in this state; an empty string if the thread is finished."""
    messages = state.values.get("messages", [])
    if state.interrupts:
        return Command(resume={question.id: "fine" for question in state.interrupts})
    if state.tasks:  # `next` may be empty although the step has not ended
        return None
    turns = sum(isinstance(message, HumanMessage) for message in messages)
    return {"messages": [("user", QUESTIONS[turns])]} if turns < len(QUESTIONS) else ""


AGENT = create_react_agent(ScriptedModel([reply], loop=True), TOOLS, on_unknown="rerun")


async def play(saver: Any, durability: Any) -> Any:
    """Do the remaining work; return the state at the end."""
    AGENT.checkpointer = saver
    while (given := next_input(state := await AGENT.aget_state(CONFIG))) != "":
        await AGENT.ainvoke(given, CONFIG, durability=durability)
    return state


async def live(database: Path, saver: str, durability: Any) -> None:
    async with saver_of(saver, database, sync=DeadlySqliteSaver, aio=DeadlyAsyncSqliteSaver) as kept:
        with anyio.fail_after(60):
            state = await play(kept, durability)
        fate.note("conversation", [message_to_dict(message) for message in state.values["messages"]])


def life(directory: Path, saver: str, backend: str, durability: str, end: int, *, signalled: bool) -> int:
    """One life, in a process of its own; returns its wait status."""
    global fate
    if child := os.fork():
        status = os.waitpid(child, 0)[1]
        wait_for_orphans()
        return status
    try:
        fate = Fate(directory / "log", end, signalled=signalled)
        fate.note("born")
        anyio.run(live, directory / "db", saver, durability, backend=backend)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_for_orphans() -> None:
    """Wait for the processes that a life has started: a command in them may not run beside the next life."""
    until = time.monotonic() + WAIT
    while left := descendants(os.getpid()):
        if time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise RuntimeError(f"processes of a life are left over: {left}")
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.002)


End = tuple[int, bool]
"""The number of the point at which a life ends, and whether it is ended by a signal."""


def story(directory: Path, world: tuple[str, str, str], number: int, ends: Iterable[End]) -> int:
    """All lives of one thread; return the number of kills."""
    directory.mkdir()
    for killed, (end, signalled) in enumerate(ends):
        status = life(directory, *world, end, signalled=signalled)
        if status == 0 or os.waitstatus_to_exitcode(status) not in (9, -signal.SIGKILL):
            lines = [json.loads(line) for line in (directory / "log").read_text().splitlines()]
            print(json.dumps({"seed": number, "killed": killed, "failed": status != 0, "log": lines}), flush=True)
            return killed
    raise RuntimeError(f"story {number} has no end")


def by_chance(seed: int) -> Iterator[End]:
    chance = random.Random(seed)
    for _ in range(MOST_LIVES):
        yield chance.randint(1, FAR), chance.random() < 0.5


def in_fork(where: str, saver: str, backend: str, durability: str, first: int, kills: int, step: int = 0) -> None:
    """Play stories from a seed on, until there were this many kills.

    With a step, each story has one kill: at the points `first`, `first + step` and so on, until the last point.
    """
    global fate
    directory, world = Path(where), (saver, backend, durability)
    # Fill caches before the forks. Not on trio, where this would start a thread that no fork has.
    fate = Fate(directory / "rehearsal", 0, signalled=False)
    anyio.run(play, InMemorySaver(), durability)
    gc.freeze()
    adopt_orphans()
    for number in count(first, step or 1):
        ends = chain([(number, number % 4 < 2)], repeat((0, False))) if step else by_chance(number)
        killed = story(directory / str(number), world, number, ends)
        kills -= killed
        if kills <= 0 or (step and not killed):
            return
