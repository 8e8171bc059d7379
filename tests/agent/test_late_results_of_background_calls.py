"""A background call keeps its result however long the result waits to be stored; a drain does not wait for ever."""

import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import CallPolicy, Drained, create_react_agent
from callboard.exceptions import StorageError
from callboard.testing import ScriptedModel, calls

from ._savers import AT, FAR, QUESTION, forge
from .test_background_calls import results_in


class AwaySaver(InMemorySaver):
    """Database that refuses writes while it is away."""

    is_away = False

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        if self.is_away:
            raise StorageError("The database", "is away")
        super().put_writes(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self.put_writes(*args, **kwargs)


async def decide() -> str:
    """Decide."""
    return str(interrupt("?"))


def build_after(event: anyio.Event) -> Callable[[], Awaitable[str]]:
    """Return a tool that ends after an event."""

    async def build() -> str:
        """Build."""
        await event.wait()
        return "built"

    return build


def agent_of(saver: Any, build: Callable[[], Awaitable[str]], grace: float | None = None) -> Any:
    """Return an agent that asks a person while the tool `build` goes on in the background."""
    build_in_background = CallPolicy(background=True, grace=grace)(build)
    model = ScriptedModel([calls("build", "decide"), "done", "done"])
    return create_react_agent(model, [build_in_background, decide], checkpointer=saver)


def give_to_another_process(saver: InMemorySaver) -> None:
    """Let another process use the thread of conversation: results wait until it has left the thread."""
    forge(saver, AT, {"kind": "hold", "holder": {**FAR, "until": time.time() + 1_000.0}})


async def test_a_result_outlasts_a_wait_for_its_thread_that_is_longer_than_the_grace() -> None:
    """Nobody has cancelled the call: the model must not read that the outcome of a finished call is unknown."""
    saver, is_finished = InMemorySaver(), anyio.Event()
    async with agent_of(saver, build_after(is_finished)) as agent:
        await agent.ainvoke(QUESTION, AT)
        give_to_another_process(saver)
        is_finished.set()
        await anyio.sleep(60)
        forge(saver, AT, {"kind": "leave"})
    messages = (await agent.ainvoke(Command(resume="yes"), AT))["messages"]
    assert results_in(messages) == ["built"]


@pytest.mark.parametrize("grace", [None, 30.0])
async def test_a_drain_ends_a_call_whose_result_waits_for_its_thread_after_the_grace(
    grace: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    saver, is_finished = InMemorySaver(), anyio.Event()
    async with agent_of(saver, build_after(is_finished), grace) as agent:
        await agent.ainvoke(QUESTION, AT)
        give_to_another_process(saver)
        is_finished.set()
        start = anyio.current_time()
        assert await agent.drain(10.0) == Drained(ended=1)
        seconds = anyio.current_time() - start
    grace = grace or 5.0
    assert 10.0 + grace <= seconds <= 10.0 + grace + 3.0
    assert f"its result was not stored in its grace of {grace:g} s" in caplog.text


@pytest.mark.parametrize("seconds", [0.5, 60.0], ids=["for a moment", "for long"])
async def test_a_run_without_a_block_ends_although_the_database_is_away_where_its_call_ends(seconds: float) -> None:
    """The call waits for the run, which repeats a failed write at its end, and the run waits for the call."""

    async def build() -> str:
        """Build."""
        await anyio.sleep(1)
        saver.is_away = True
        return "built"

    async def mend() -> None:
        await anyio.sleep(1 + seconds)
        saver.is_away = False

    saver = AwaySaver()
    agent = agent_of(saver, build)
    is_lost = seconds > 1
    async with anyio.create_task_group() as group:
        group.start_soon(mend)
        with pytest.raises(StorageError) if is_lost else nullcontext():
            await agent.ainvoke(QUESTION, AT)
    messages = (await agent.ainvoke(Command(resume="yes"), AT))["messages"]
    (result,) = results_in(messages)
    assert "unknown" in result if is_lost else result == "built"
