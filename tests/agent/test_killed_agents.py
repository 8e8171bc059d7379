"""Promise 10: an agent is killed at any point, again and again; no finished result is lost, and no call is repeated.

`_lives` says what holds with each durability, and checks it for each story. deepagents is no dependency of the tests;
`docs/reference/other-suites.md` has the command that runs them with it.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import create_agent
from callboard.testing import ScriptedModel, calls

from ._crash_create_agent import DONE, TODOS
from ._forks import Forks
from ._graphs import delegate
from ._lives import Story, stories
from ._savers import AT, QUESTION, shape

pytestmark = [pytest.mark.hangs_after(200), pytest.mark.real_clock]
exhaustive = pytest.mark.exhaustive


def check_two_turns(story: Story) -> None:
    assert shape(story.conversation) == [
        *("human:first", "ai:", "tool:a1 is done", "tool:a2 is done", "tool:a3 is fine"),
        *("ai:", "tool:b1 is done", "tool:b2 is done", "ai:done"),
        *("human:second", "ai:", "tool:c1 is done", "tool:c2 is done", "ai:all done"),
    ]
    assert {*story.names("ended")} == {"a1", "a2", "a3", "b1", "b2", "c1", "c2"}


@pytest.mark.parametrize(("saver", "backend"), [("sqlite", "trio"), ("aiosqlite", "asyncio")])
@exhaustive
def test_killed_at_each_point_in_turn_nothing_is_lost_and_nothing_is_doubled(
    forks: Forks, saver: str, backend: str, tmp_path: Path
) -> None:
    all_stories = stories(forks, "_crash_agent", tmp_path, [saver, backend, "sync"], 1, 1000, 1)
    assert len(all_stories) > 25
    for story in all_stories:
        check_two_turns(story)
    kill_points = {name for story in all_stories for name in story.names("killed")}
    assert kill_points >= {
        "before write",
        "after write",
        "before checkpoint",
        "after checkpoint",
        "in body",
        "after body",
    }


@pytest.mark.parametrize(
    ("saver", "backend", "durability", "seed"),
    [
        ("sqlite", "asyncio", "async", 1000),
        ("sqlite", "trio", "sync", 2000),
        ("aiosqlite", "asyncio", "sync", 3000),
        ("aiosqlite", "trio", "async", 4000),
    ],
)
@exhaustive
def test_killed_anywhere_nothing_is_lost_and_nothing_is_doubled(
    forks: Forks, saver: str, backend: str, durability: str, seed: int, tmp_path: Path
) -> None:
    """160 kills with SIGKILL and `os._exit`, before and after writes and in bodies; more than 200 with those above."""
    all_stories = stories(forks, "_crash_agent", tmp_path, [saver, backend, durability], seed, 40)
    assert sum(story.killed for story in all_stories) >= 40
    for story in all_stories:
        check_two_turns(story)


@exhaustive
def test_with_durability_exit_a_killed_run_starts_anew_and_leaves_no_trace(forks: Forks, tmp_path: Path) -> None:
    """With "exit", data is stored only when a run stops, and kept from then on."""
    for story in stories(forks, "_crash_agent", tmp_path, ["sqlite", "asyncio", "exit"], 5000, 12):
        check_two_turns(story)
        for life in story.lives:
            request_positions = [position for position, line in enumerate(life) if line[0] == "asked"]
            stored = [position for position, line in enumerate(life) if line[0] == "stored"]
            # The run stops at the question, and at the end of each turn.
            assert not stored or request_positions[0] < stored[0]


VARYING = re.compile(r"(?<=after )\d+\.\d|(?<=job[ (])\d+", re.IGNORECASE)
"""Seconds of a command, and the id of a job, which depends on the commands before it."""
RUN = "tool:Exit code 0."
COMMANDS = {"c1", "c2", "h1"}


@exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_killed_agent_ends_as_if_nobody_had_killed_it(forks: Forks, backend: str, tmp_path: Path) -> None:
    all_stories = stories(forks, "_crash_create_agent", tmp_path, ["url", backend, "async"], 7000, 20)
    assert sum(story.killed for story in all_stories) >= 20
    for story in all_stories:
        assert [VARYING.sub("N", line) for line in shape(story.conversation)] == [
            *("human:go", "ai:", f"tool:Updated todo list to {TODOS}"),
            *("ai:", "tool:one is written", RUN, "tool:found", "tool:two is written"),
            *("ai:", f"tool:Updated todo list to {DONE}", RUN, "tool:three is written", "ai:done"),
        ]
        assert {*story.names("ended")} == {"t1", "t2", "w1", "w2", "w3", "r1", "s1", "s2", *COMMANDS}
        assert {*story.names("ran")} == COMMANDS
        assert story.names("state") == [{"todos": DONE}]
        files = tmp_path / str(story.seed)
        assert [(files / name).read_text() for name in ("one", "two", "three")] == ["1", "2", "3"]


async def test_a_sub_agent_whose_first_message_was_not_stored_starts_with_it_again() -> None:
    """A process may die between the first checkpoint of the sub-agent's thread and its input."""

    class Fails(InMemorySaver):
        is_full = False
        may_be_full = True

        def put_writes(self, config: Any, *args: Any) -> None:
            self.is_full = self.may_be_full and (self.is_full or bool(config["configurable"]["checkpoint_ns"]))
            if self.is_full:  # from now on: nothing is stored, as after a kill
                raise OSError("the disk is full")
            super().put_writes(config, *args)

    helper = create_agent(ScriptedModel(["found"]), [])
    model = ScriptedModel([calls("research"), "done"])
    saver = Fails()
    agent = create_agent(model, [delegate(helper, "research")], checkpointer=saver, on_unknown="rerun")
    with pytest.raises(OSError, match="full"):
        await agent.ainvoke(QUESTION, AT)
    saver.may_be_full = False
    result = await agent.ainvoke(None, AT)
    assert shape(result) == ["human:go", "ai:", "tool:found", "ai:done"]


DEEP_RUN = "tool:<no output>\n[Command succeeded with exit code 0]"
DEEP_COMMANDS = {"c1", "c2", "c3", "tea-1", "tea-3", "pot-1", "pot-3"}


@pytest.mark.skipif(find_spec("deepagents") is None, reason="deepagents is not installed")
@pytest.mark.parametrize(("entry", "backend"), [("ainvoke", "asyncio"), ("invoke", "trio")])
@exhaustive
def test_a_killed_deep_agent_ends_as_if_nobody_had_killed_it(
    forks: Forks, entry: str, backend: str, tmp_path: Path
) -> None:
    """Async tools of deepagents need asyncio. A sync run uses the sync tools, so it works in a program on trio, too."""
    all_stories = stories(forks, "_crash_deep_agent", tmp_path, ["url", backend, "async", entry], 8000, 40)
    assert sum(story.killed for story in all_stories) >= 40
    for story in all_stories:
        assert shape(story.conversation) == [
            *("human:go", "ai:", "tool:Updated file /state/one", DEEP_RUN, "tool:tea is found", "tool:pot is found"),
            *("ai:", "tool:Successfully replaced 1 instance(s) of the string in '/state/one'"),
            *(DEEP_RUN, "tool:1  tea", "ai:", DEEP_RUN, "ai:done"),
        ]
        assert {*story.names("ended")} == {"w1", "r1", "r2", "e1", "f1", "tea-2", "pot-2", *DEEP_COMMANDS}
        assert {*story.names("ran")} == DEEP_COMMANDS
        (state,) = story.names("state")
        files = {name: file["content"] for name, file in state["files"].items()}
        assert files == {"/one": "11", "/pot": "pot", "/tea": "tea"}
