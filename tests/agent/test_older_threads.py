"""Promise 10: a database that an earlier version has written is read by this one, and one of this by an earlier one."""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from ._older_threads import agent_of, config, load
from ._savers import shape

pytestmark = pytest.mark.real_clock

WAIT = 20


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[SqliteSaver]:
    """A database of threads that were written before calls had typed records."""
    with closing(load(tmp_path / "db")) as connection:
        yield SqliteSaver(connection)


async def answered(agent: Any, thread: str, answer: object) -> Any:
    """What becomes of a thread when its only question is answered."""
    (question,) = (await agent.aget_state(config(thread))).interrupts
    return await agent.ainvoke(Command(resume={question.id: answer}), config(thread))


async def test_what_had_finished_stays_finished_and_what_was_asked_is_answered(saver: SqliteSaver) -> None:
    """Half of its answers were given to the earlier version, half are given to this one."""
    with anyio.fail_after(WAIT):
        result = await answered(agent_of(saver), "waits", "two")

    assert shape(result["messages"]) == ["human:waits", "ai:", "tool:w1 is done", "tool:w2: one, two", "ai:done"]


async def test_a_call_that_raised_runs_again_and_its_neighbour_does_not(saver: SqliteSaver) -> None:
    """The error is shown until then."""
    agent = agent_of(saver)

    with anyio.fail_after(WAIT):
        state = await agent.aget_state(config("failed"))
        result = await agent.ainvoke(None, config("failed"))

    assert [task.error for task in state.tasks] == [None, "OSError('broken')"]
    assert shape(result["messages"])[2:] == ["tool:f1 is done", "tool:f2 is whole", "ai:done"]


async def test_a_call_that_was_begun_is_asked_about_and_keeps_its_approval(saver: SqliteSaver) -> None:
    """The earlier version was killed in its body; what a person had agreed to is not asked again."""
    agent = agent_of(saver)

    with anyio.fail_after(WAIT):
        waiting = await agent.ainvoke(None, config("killed"))
        result = await answered(agent, "killed", {"type": "accept"})

    (question,) = waiting["__interrupt__"]
    assert "whether it had any effect is unknown" in question.value[0]["description"]
    assert shape(result["messages"])[2:] == ["tool:k1 is done", "tool:k2 is paid", "ai:done"]


async def test_calls_that_were_sent_go_on(saver: SqliteSaver) -> None:
    """They have records beside those of the conversation's calls."""
    with anyio.fail_after(WAIT):
        result = await answered(agent_of(saver), "sent", "two")

    assert shape(result["messages"])[2:] == ["tool:sent", "ai:done", "tool:s2: one, two", "ai:done"]


async def test_every_place_of_an_older_thread_can_be_shown(saver: SqliteSaver) -> None:
    """The history is made of the entries that the earlier version wrote."""
    with anyio.fail_after(WAIT):
        places = [place async for place in agent_of(saver).aget_state_history(config("done"))]

    assert [place.next for place in reversed(places)] == [
        ("__start__",),
        ("agent",),
        ("tools",),
        ("agent",),
        (),
        ("__start__",),
        ("agent",),
        ("tools",),
        ("agent",),
        (),
    ]
