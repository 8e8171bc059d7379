"""An agent that is killed at one chosen point in the life of a call, and the log of its bodies."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import StructuredTool
from langgraph.types import Command, interrupt

from callboard import CallPolicy, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

from ._savers import AT, QUESTION, saver_of, savers_that_tell

ENTRIES = "__callboard__"

Batch = Literal["one", "many", "asking", "beside"]
BATCHES = {
    "one": calls(tool_call("pay", "p1", name="p1")),
    "many": calls(
        tool_call("quick", "a1", name="a1"),
        tool_call("pay", "p1", name="p1"),
        tool_call("ask", "q1", name="q1"),
        tool_call("pay", "p2", name="p2"),
        tool_call("safe", "s1", name="s1"),
    ),
    "asking": calls(tool_call("careful", "c1", name="c1")),
    "beside": calls(tool_call("careful", "c1", name="c1"), tool_call("pay", "p1", name="p1")),
}


@dataclass(frozen=True)
class Case:
    """One database, and the point at which its agent was killed."""

    saver: str
    point: str
    batch: Batch = "one"
    durability: Literal["sync", "async", "exit"] = "async"
    policy: Literal["rerun", "ask", "default"] = "ask"

    def __str__(self) -> str:
        return "-".join([self.saver, self.batch, self.durability, self.policy, *self.point.split()])


class Log:
    """Lines in a file, which remain after their writer is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{line}\n")

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


class Life:
    """Record the events of bodies and savers; kill the process at the chosen event.

    Args:
        log: events of its bodies.
        end: the point at which it is killed, and the call, such as `("in body", "p1")`.
    """

    def __init__(self, log: Log, end: tuple[str, str] | None = None) -> None:
        self.log = log
        self.stored: set[str] = set()
        self._end = end

    @property
    def is_doomed(self) -> bool:
        return self._end is not None

    def point(self, name: str, task: str) -> None:
        if self._end == (name, task):
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event: str, value: Any) -> None:
        when, _, subject = event.partition(" ")
        for channel, entries in value if subject == "write" else ():
            if channel != ENTRIES:
                continue
            for entry in entries:
                if entry["kind"] == "claim":
                    self.point(f"{when} claim", entry["task"])
                elif entry["kind"] == "task":
                    self.point(f"{when} write", entry["task"])
                if when == "after" and entry["kind"] in ("task", "asked"):
                    self.stored |= entry.get("records", {entry.get("task"): None}).keys()


def agent_in(life: Life, saver: Any, batch: Batch, policy: Any, **options: Any) -> Any:
    """Return the agent, whose model depends on the conversation only."""

    async def pay(name: str) -> str:
        """Pay; once is enough."""
        life.log.note(f"pay {name}")
        if life.is_doomed and batch == "many":
            await _until(lambda: "pay p2" in life.log.lines and {"a1", "q1"} <= life.stored)
        if life.is_doomed and batch == "beside":
            with anyio.move_on_after(1):
                await _until(lambda: "c1" in life.stored)
        if life.is_doomed and name == "p2":
            await anyio.sleep_forever()
        life.point("in body", name)
        return f"{name} is paid"

    async def quick(name: str) -> str:
        """Be quick."""
        life.log.note(f"quick {name}")
        return f"{name} is done"

    async def safe(name: str) -> str:
        """Harmless, however often."""
        life.log.note(f"safe {name}")
        if life.is_doomed:
            await anyio.sleep_forever()
        return f"{name} is safe"

    async def ask(name: str) -> str:
        """Ask."""
        return f"{name}: {interrupt('may I?')}"

    async def careful(name: str) -> str:
        """Ask, then pay."""
        answer = interrupt("may I pay?")
        life.log.note(f"careful {name}")
        life.point("in body", name)
        return f"{name}: {answer}"

    def reply(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage("done") if any(isinstance(m, AIMessage) and m.tool_calls for m in messages) else BATCHES[batch]

    policy = None if policy == "default" else policy
    terms = CallPolicy(on_unknown=policy)
    node = ToolNode(
        [StructuredTool.from_function(coroutine=function) for function in (pay, quick, safe, ask, careful)],
        policies={"pay": terms, "careful": terms, "safe": CallPolicy(on_unknown=policy, idempotent=True)},
    )
    return create_react_agent(ScriptedModel([reply], loop=True), node, checkpointer=saver, **options)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.sleep(0.001)


async def live(directory: Path, case: Case) -> None:
    life = Life(Log(directory / "log"), (case.point, "c1" if case.batch == "asking" else "p1"))
    savers = savers_that_tell(life.hear)
    async with saver_of(case.saver, directory / "db", **savers) as saver:
        agent = agent_in(life, saver, case.batch, case.policy)
        with anyio.fail_after(20):
            await agent.ainvoke(QUESTION, AT, durability=case.durability)
            if case.batch == "asking":
                await agent.ainvoke(Command(resume="yes"), AT, durability=case.durability)


def in_fork(directory: str, *case: Any) -> None:
    anyio.run(live, Path(directory), Case(*case))
