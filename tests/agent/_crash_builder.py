"""Agent with background calls, which the tests kill: ten threads, each with a reply of a hundred calls."""

import os
import random
from pathlib import Path
from typing import Any

import anyio
from langchain_core.messages import AIMessage, BaseMessage

from callboard import CallPolicy, create_react_agent, tool_call
from callboard.testing import ScriptedModel

from ._savers import saver_of

THREADS, CALLS = 10, 100


def thread(number: int) -> Any:
    return {"configurable": {"thread_id": str(number)}}


def builder_in(log: Path, saver: Any) -> Any:
    """Return an agent whose calls write their ids to a file when they begin and when they end."""

    async def work(call_id: str, seconds: float, event: str) -> str:
        for line in (f"begun {call_id}\n", f"ended {call_id}\n"):
            await anyio.sleep(seconds)
            with log.open("a") as file:
                file.write(line)
        return f"{event} {call_id}"

    @CallPolicy(background=True)
    async def build(call_id: str, seconds: float) -> str:
        """Build once."""
        return await work(call_id, seconds, "built")

    @CallPolicy(background=True, idempotent=True)
    async def check(call_id: str, seconds: float) -> str:
        """Check, as often as needed."""
        return await work(call_id, seconds, "checked")

    return create_react_agent(ScriptedModel([_reply], loop=True), [build, check], checkpointer=saver)


def _reply(messages: list[BaseMessage]) -> Any:
    if any(isinstance(message, AIMessage) for message in messages):
        return "I see"
    name, chance = messages[0].text, random.Random(messages[0].text)
    ids = [f"{name}-{number}" for number in range(CALLS)]
    return AIMessage(
        "",
        tool_calls=[
            tool_call(chance.choice(("build", "check")), call_id, call_id=call_id, seconds=chance.uniform(0.0, 1.5))
            for call_id in ids
        ],
    )


def in_fork(folder: str, saver: str, backend: str, seconds: float) -> None:
    """Run the threads to their ends; after some seconds, kill this process."""
    anyio.run(_build, Path(folder), saver, seconds, backend=backend)


async def _build(folder: Path, kind: str, seconds: float) -> None:
    async with saver_of(kind, folder / "db") as saver, anyio.create_task_group() as group:

        async def die() -> None:
            await anyio.sleep(seconds)
            os.kill(os.getpid(), 9)

        if seconds:
            group.start_soon(die)
        async with builder_in(folder / "log", saver) as agent:
            async with anyio.create_task_group() as runs:
                for number in range(THREADS):
                    runs.start_soon(_run, agent, number)
        group.cancel_scope.cancel()


async def _run(agent: Any, number: int) -> None:
    state = await agent.aget_state(thread(number))
    has_begun = bool(state.values.get("messages"))
    await agent.ainvoke(None if has_begun else {"messages": [("user", f"t{number}")]}, thread(number))
