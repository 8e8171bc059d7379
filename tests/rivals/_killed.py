"""Time until a killed run goes on: from the call that continues it, in another process, to the next model request."""

import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import callboard
from tests.benchmark._agent import Parrot
from tests.benchmark._contestants import LOOK_UP, langgraph_agent
from tests.benchmark._measure import Samples, Table, measure_in_turns

OURS, THEIRS = "callboard", "LangGraph `create_react_agent`"
TURNS = 5
_CONFIG: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 100}


class Deadly(Parrot):
    """Model that kills its process at a request."""

    deadly_turn: int

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if sum(isinstance(message, AIMessage) for message in messages) == self.deadly_turn:
            signal.raise_signal(signal.SIGKILL)
        return super()._generate(messages, *args, **kwargs)


class Asked(Parrot):
    """Model that records the time of its first request."""

    first: float = 0.0

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.first = self.first or perf_counter()
        return super()._generate(messages, *args, **kwargs)


def _agent(name: str, model: Parrot, saver: Any) -> Any:
    if name == OURS:
        return callboard.create_react_agent(model, [LOOK_UP], checkpointer=saver)
    return langgraph_agent(model, saver=saver)


async def _begin(name: str, path: str) -> None:
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        agent = _agent(name, Deadly(turns=TURNS, calls=1, deadly_turn=TURNS - 1), saver)
        await agent.ainvoke({"messages": [HumanMessage("go", id="question")]}, _CONFIG)


async def _go_on(name: str, path: str) -> float:
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        model = Asked(turns=TURNS, calls=1)
        agent = _agent(name, model, saver)
        began = perf_counter()
        state = await agent.ainvoke(None, _CONFIG)
    assert sum(isinstance(message, AIMessage) for message in state["messages"]) == TURNS + 1
    return model.first - began


def _time_to_continue(name: str, directory: Path) -> float:
    path = directory / name.strip("`").replace(" ", "-").replace("`", "")
    path.unlink(missing_ok=True)
    process = subprocess.run([sys.executable, "-m", __name__, name, str(path)], check=False, timeout=100)
    assert process.returncode == -signal.SIGKILL, process
    return anyio.run(_go_on, name, str(path))


def killed(*, repetitions: int) -> Table:
    """Measure how soon a run on SQLite goes on whose process was killed at a model request."""
    table = Table("Time until a killed run goes on", ["ms to the next model request", "median"])
    with tempfile.TemporaryDirectory() as directory:
        samples: Samples = measure_in_turns(
            {name: partial(_time_to_continue, name, Path(directory)) for name in (OURS, THEIRS)}, repetitions
        )
    for name in samples:
        table.add(name, samples[name] * 1e3)
    return table


if __name__ == "__main__":
    anyio.run(_begin, *sys.argv[1:])
