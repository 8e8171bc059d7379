"""Promise 10: stored threads stay readable. A database of the format of 0.1.0 is kept, so that a change is noticed."""

from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, Interrupt, interrupt

from callboard import ToolNode, tool_call
from callboard.conversations._storage import CHANNEL, encode_entry, entry_of
from callboard.testing import Recorder, calls
from callboard.tools._call_record import NOT_YET, CallRecord

from ._older_threads import agent_of, config, load
from ._savers import shape

pytestmark = pytest.mark.real_clock

KINDS = {"amend", "task", "asked", "claim", "failed", "hold", "leave", "step"}


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[SqliteSaver]:
    """A copy of the stored database."""
    with closing(load(tmp_path / "db")) as connection:
        yield SqliteSaver(connection)


async def answer_question(agent: Any, thread: str, answer: object) -> Any:
    """Answer the only question of a thread, and return the result."""
    (question,) = (await agent.aget_state(config(thread))).interrupts
    return await agent.ainvoke(Command(resume={question.id: answer}), config(thread))


async def test_what_had_finished_stays_finished_and_what_was_asked_is_answered(saver: SqliteSaver) -> None:
    """Half of the answers were given to the run that wrote the thread; the others are given to this one."""
    result = await answer_question(agent_of(saver), "waits", "two")
    assert shape(result) == ["human:waits", "ai:", "tool:w1 is done", "tool:w2: one, two", "ai:done"]


async def test_a_call_that_raised_runs_again_and_its_neighbour_does_not(saver: SqliteSaver) -> None:
    """Until the call runs again, its error is shown."""
    agent = agent_of(saver)
    state = await agent.aget_state(config("failed"))
    result = await agent.ainvoke(None, config("failed"))
    assert [task.error for task in state.tasks] == [None, "OSError('broken')"]
    assert shape(result)[2:] == ["tool:f1 is done", "tool:f2 is whole", "ai:done"]


async def test_a_call_that_was_begun_is_asked_about_and_keeps_its_approval(saver: SqliteSaver) -> None:
    """The run that wrote the thread was killed in the body; an approval that a person gave is not requested again."""
    agent = agent_of(saver)
    waiting = await agent.ainvoke(None, config("killed"))
    result = await answer_question(agent, "killed", {"type": "accept"})

    (question,) = waiting["__interrupt__"]
    assert "whether it had any effect is unknown" in question.value[0]["description"]
    assert shape(result)[2:] == ["tool:k1 is done", "tool:k2 is paid", "ai:done"]


async def test_calls_that_were_sent_go_on(saver: SqliteSaver) -> None:
    """Calls of a `Send` have records in addition to those of the conversation's calls."""
    result = await answer_question(agent_of(saver), "sent", "two")
    assert shape(result)[2:] == ["tool:sent", "ai:done", "tool:s2: one, two", "ai:done"]


async def test_every_place_of_a_stored_thread_can_be_shown(saver: SqliteSaver) -> None:
    """The history is built from the stored entries."""
    snapshots = [snapshot async for snapshot in agent_of(saver).aget_state_history(config("done"))]

    turn = [("__start__",), ("agent",), ("tools",), ("agent",), ()]
    assert [snapshot.next for snapshot in reversed(snapshots)] == turn * 2


async def test_a_ledger_that_was_handed_out_is_taken_back() -> None:
    """A caller of a node stored a ledger with a result, and with a call of which half the questions are answered."""

    async def twice() -> str:
        return f"{interrupt('first?')}, {interrupt('second?')}"

    node = ToolNode([Recorder().tool("work"), StructuredTool.from_function(coroutine=twice, description="Asks.")])
    second = Interrupt(value="second?", id="b" * 32)
    records = {
        "w": {"output": ToolMessage("done before", name="work", tool_call_id="w")},
        "t": {"answers": ["one"], "pending": [second], "own": True},
    }
    ledger = {"format": "callboard/1", "keys": ["w", "t"], "calls": records}
    message = calls(tool_call("work", "w"), tool_call("twice", "t"))
    result = await node.ainvoke([message], ledger=ledger, resume={second.id: "two"})
    assert shape(result) == ["tool:done before", "tool:one, two"]


def test_each_entry_that_was_written_is_written_again_as_it_was(tmp_path: Path) -> None:
    """The stored form is the same, so versions with this format can read each other's threads."""
    serde = JsonPlusSerializer()
    with closing(load(tmp_path / "db")) as connection:
        writes = [
            write
            for checkpoint_tuple in SqliteSaver(connection).list(None)
            for write in checkpoint_tuple.pending_writes or ()
        ]
    entries: list[Any] = [entry for _, channel, value in writes if channel == CHANNEL for entry in value]
    assert {entry["kind"] for entry in entries} == KINDS
    for entry in entries:
        assert serde.loads_typed(serde.dumps_typed(encode_entry(entry_of(entry)))) == entry


QUESTIONS = st.builds(Interrupt, value=st.text(max_size=3), id=st.text("0123456789abcdef", min_size=32, max_size=32))
UNFINISHED = st.builds(
    partial(CallRecord, output=NOT_YET, parent=None),
    answers=st.lists(st.none() | st.text(max_size=3), max_size=3).map(tuple),
    digests=st.lists(st.none() | st.text(max_size=3), max_size=3).map(tuple),
    pending=st.lists(QUESTIONS, min_size=1, max_size=3).map(tuple),
    own=st.booleans(),
    mark=st.none() | st.text(max_size=3),
    claimed=st.booleans(),
    error=st.none() | st.text(max_size=3),
)
RESULTS = st.none() | st.text(max_size=3)
ENDED = RESULTS.map(lambda result: CallRecord(output=result)) | st.just(CallRecord(parent=Command(goto="a")))


@given(UNFINISHED | ENDED)
def test_a_record_that_is_stored_is_the_same_record(record: CallRecord) -> None:
    """A result may be None, and an empty text may be an answer, a mark or an error."""
    stored = record.encode()
    assert CallRecord.decode(stored) == record
    assert ("output" in stored) == (record.output is not NOT_YET)


def test_an_entry_of_an_unknown_kind_is_refused_and_an_unknown_field_is_ignored() -> None:
    """A kind that is not understood may be a result; a field is an addition."""
    with pytest.raises(ValueError, match="newer version of callboard"):
        entry_of({"kind": "of a later version"})

    assert entry_of({"kind": "leave", "of a later version": 1}) == entry_of({"kind": "leave"})
