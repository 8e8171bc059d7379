"""Runs that compete for one thread, in forks."""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import trio  # noqa: F401 (imported before the forks, not in each of them)
from anyio import to_thread
from langchain_core.messages import AIMessage, BaseMessage

from callboard import create_react_agent, tool_call
from callboard.exceptions import ThreadBusyError
from callboard.testing import ScriptedModel, calls

from ._forks import read_line, tell
from ._savers import saver_of


def thread(number: int) -> Any:
    return {"configurable": {"thread_id": f"round {number}"}}


def agent_in(log: Path, saver: Any, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Return the agent; each of its bodies adds a line to the log, and may run again after a kill."""

    async def work(name: str) -> str:
        """Work."""
        with log.open("a") as file:
            file.write(f"{name} in {os.getpid()}\n")
        if meanwhile is not None:
            await meanwhile()
        return f"{name} is done"

    def reply(messages: list[BaseMessage]) -> AIMessage:
        if any(isinstance(message, AIMessage) for message in messages):
            return AIMessage("done")
        return calls(tool_call("work", "w1", name="w1"), tool_call("work", "w2", name="w2"))

    return create_react_agent(ScriptedModel([reply], loop=True), [work], checkpointer=saver, on_unknown="rerun")


async def answer(agent: Any, config: Any) -> dict[str, Any]:
    try:
        result = await agent.ainvoke(None, config)
    except ThreadBusyError as error:
        return {"busy": error.holder}
    return {"said": [message.content for message in result["messages"]]}


async def do(mode: str, directory: Path, kind: str, number: int, start_time: float) -> None:
    """Continue the thread of a round with `None`, not before a time, and wait for a line.

    With "hold", report when a body runs; it runs until the next line.
    """
    holds = [True] * (mode == "hold")

    async def meanwhile() -> None:
        if holds:
            holds.clear()
            tell("held")
            await to_thread.run_sync(read_line)

    async with saver_of(kind, directory / "db") as saver:
        agent = agent_in(directory / f"log {number}", saver, meanwhile)
        while time.monotonic() < start_time:
            pass  # the processes start at the same time by the machine's clock
        tell(await answer(agent, thread(number)))
        await to_thread.run_sync(read_line)


def in_fork(mode: str, directory: str, kind: str, backend: str, number: int, start_time: float) -> None:
    anyio.run(do, mode, Path(directory), kind, number, start_time, backend=backend)
