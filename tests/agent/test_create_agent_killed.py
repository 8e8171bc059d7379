"""An agent with a todo list, files, shells and a sub-agent is killed again and again; nothing runs twice."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import messages_from_dict
from langgraph.checkpoint.memory import InMemorySaver

from callboard import create_agent
from callboard.testing import ScriptedModel, calls

from ._crash_create_agent import DONE, TODOS
from ._forks import Forks
from ._savers import AT, QUESTION, complaint, shape
from .test_killed_agent import Story, stories

pytestmark = [pytest.mark.hangs_after(200), pytest.mark.real_clock]

VARYING = re.compile(r"(?<=after )\d+\.\d|(?<=job[ (])\d+", re.IGNORECASE)
"""Seconds of a command, and the id of a job, which depends on the commands before it."""
RUN = "tool:Exit code 0 after N s. No output."
STARTED = "tool:Job N is started. job(N) shows its output, stop_job(N) ends it."
CONVERSATION = [
    *("human:go", "ai:", f"tool:Updated todo list to {TODOS}"),
    *("ai:", "tool:one is written", RUN, STARTED, "tool:found", "tool:two is written"),
    *("ai:", f"tool:Updated todo list to {DONE}", RUN, "tool:three is written", "ai:done"),
]
COMMANDS = {"c1", "c2", "h1"}
CALLS = {"t1", "t2", "w1", "w2", "w3", "r1", "s1", "s2", "j1", *COMMANDS}


def check_nothing_runs_again(story: Story, ids: set[str], commands: set[str]) -> None:
    """Check that no finished call runs again, neither its body nor its command, and that each call has one message.

    Args:
        story: all lives of one agent.
        ids: of all calls.
        commands: ids of the calls whose command adds a line to the log.
    """
    for how in ("stored", "found"):
        for call in {*story.names(how)}:
            later = story.after(how, call)
            assert ["started", call] not in later, f"{call} had finished, and ran again"
            assert ["ran", call] not in later, f"the command of {call} had finished, and ran again"
        for reply in {*story.names(f"{how} reply")}:
            again = [line for line in story.after(f"{how} reply", reply) if line[:2] == ["asked", reply]]
            assert not again, f"the reply {reply!r} was there, and the model was asked for it again"
    for asked in (line for line in story.log if line[0] == "asked"):
        assert complaint(messages_from_dict(asked[2])) is None
    for life in story.lives:
        for what in ("started", "ran"):
            often = Counter(line[1] for line in life if line[0] == what)
            assert all(times == 1 for times in often.values()), often
    assert {*story.names("ended")} == ids
    assert {*story.names("ran")} == commands
    assert complaint(story.conversation) is None


def check(story: Story) -> None:
    check_nothing_runs_again(story, CALLS, COMMANDS)
    assert [VARYING.sub("N", line) for line in shape(story.conversation)] == CONVERSATION
    assert story.log[-3:-1] == [["todos", DONE], ["files", {"one": "1", "two": "2", "three": "3"}]]


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_a_killed_agent_ends_as_if_nobody_had_killed_it(forks: Forks, backend: str, kills: int, tmp_path: Path) -> None:
    told = stories(forks, tmp_path, "url", backend, "async", 7000, kills, module="agent._crash_create_agent")

    assert sum(story.killed for story in told) >= kills
    for story in told:
        check(story)


async def test_a_sub_agent_whose_first_message_was_not_stored_starts_with_it_again() -> None:
    """A process may die between the first checkpoint of the sub-agent's thread and its input."""

    class Fails(InMemorySaver):
        is_full = False
        may_be_full = True

        def put_writes(self, config: Any, *rest: Any) -> None:
            self.is_full = self.may_be_full and (self.is_full or bool(config["configurable"]["checkpoint_ns"]))
            if self.is_full:  # from now on: nothing is stored, as after a kill
                raise OSError("the disk is full")
            super().put_writes(config, *rest)

    helper = create_agent(ScriptedModel(["found"]), [])

    async def research(topic: str) -> str:
        """Find something out."""
        return str((await helper.ainvoke({"messages": [("user", topic)]}))["messages"][-1].content)

    model = ScriptedModel([calls(("research", {"topic": "tea"})), "done"])
    saver = Fails()
    agent = create_agent(model, [research], checkpointer=saver, on_unknown="rerun")
    with pytest.raises(OSError, match="full"):
        await agent.ainvoke(QUESTION, AT)
    saver.may_be_full = False
    result = await agent.ainvoke(None, AT)
    assert shape(result["messages"]) == ["human:go", "ai:", "tool:found", "ai:done"]
