"""Runs that compete for one thread: a process that reads commands from stdin and executes each in a fork.

python -m tests.agent._rival_agent

It answers each line with lines of JSON: the id of the fork, the fork's result, and "gone". The lines:

    run DIRECTORY SAVER BACKEND ROUND TIME    continue the thread of that round with `None`, not before that time
    hold DIRECTORY SAVER BACKEND ROUND TIME   the same, and report "held" when a body runs; it runs until the next line

The fork lives until one more line of any content arrives; after a further line, its parent reaps it.
"""

import json
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import trio  # noqa: F401 (imported before the forks, not in each of them)
from anyio import to_thread
from langchain_core.messages import AIMessage, BaseMessage

from callboard import create_react_agent
from callboard.exceptions import ThreadBusyError
from callboard.testing import ScriptedModel, calls, tool_call

from ._savers import saver_of


def thread(number: str) -> Any:
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


def told() -> str:
    """Return the next line. It is read byte by byte, because forks share the unread input."""
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(0, 1)):
        line += letter
    return line.decode()


def tell(what: object) -> None:
    print(json.dumps(what), flush=True)


async def answer(agent: Any, config: Any) -> dict[str, Any]:
    try:
        result = await agent.ainvoke(None, config)
    except ThreadBusyError as error:
        return {"busy": error.holder}
    return {"said": [message.content for message in result["messages"]]}


async def do(what: str, directory: Path, kind: str, number: str, at: float) -> None:
    holds = [True] * (what == "hold")

    async def meanwhile() -> None:
        if holds:
            holds.clear()
            tell("held")
            await to_thread.run_sync(told)

    async with saver_of(kind, directory / "db") as saver:
        agent = agent_in(directory / f"log {number}", saver, meanwhile)
        while time.monotonic() < at:
            pass  # the processes start at the same time by the machine's clock
        tell(await answer(agent, thread(number)))
        await to_thread.run_sync(told)


def main() -> None:
    tell("ready")
    while line := told():
        what, directory, kind, backend, number, at = line.split()
        if child := os.fork():
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            tell("gone")
            told()  # until then the fork is a zombie
            os.waitpid(child, 0)
            continue
        try:
            tell(os.getpid())
            anyio.run(do, what, Path(directory), kind, number, float(at), backend=backend)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


if __name__ == "__main__":
    main()
