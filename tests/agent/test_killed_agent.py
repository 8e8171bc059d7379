"""Promise 10: an agent is killed at any point, again and again; no finished result is lost, and no call is repeated.

With each durability, a call whose result was not stored when the process died runs again. In addition:

- "sync": all messages of a model request are stored before the request, so no call in them runs twice.
- "async": a call with a stored result never runs again; a model request may contain results that are not stored.
- "exit": nothing is stored before the run stops.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage, messages_from_dict

from ._forks import Forks
from ._savers import complaint, shape

pytestmark = [pytest.mark.timeout(200), pytest.mark.exhaustive]

KILLS = 40
"""Kills for each of four configurations, in addition to those at each point in turn; more than 200 in all."""
CONVERSATION = [
    *("human:first", "ai:", "tool:a1 is done", "tool:a2 is done", "tool:a3 is fine"),
    *("ai:", "tool:b1 is done", "tool:b2 is done", "ai:done"),
    *("human:second", "ai:", "tool:c1 is done", "tool:c2 is done", "ai:all done"),
]


@dataclass
class Story:
    """All lives of one thread, from its log."""

    seed: int
    killed: int
    failed: bool
    log: list[list[Any]]

    def after(self, *first: Any) -> list[list[Any]]:
        """Return the events after the first occurrence of an event."""
        places = [place for place, line in enumerate(self.log) if line == list(first)]
        return self.log[places[0] + 1 :] if places else []

    def names(self, kind: str) -> list[str]:
        return [line[1] for line in self.log if line[0] == kind]

    @property
    def lives(self) -> list[list[list[Any]]]:
        starts = [place for place, line in enumerate(self.log) if line == ["born"]]
        return [self.log[start:end] for start, end in zip(starts, [*starts[1:], len(self.log)], strict=True)]

    @property
    def conversation(self) -> list[BaseMessage]:
        return messages_from_dict(self.log[-1][1])


def stories(forks: Forks, directory: Path, *world: object, module: str = "agent._crash_agent") -> list[Story]:
    forks.begin(module, str(directory), *world)
    told: list[Story] = []
    while isinstance(answer := forks.answer(), dict):
        told.append(Story(**answer))
    forks.tell()
    assert answer == 0
    assert not [story.seed for story in told if story.failed]
    return told


def check(story: Story) -> None:
    """Check the properties that hold for every durability."""
    for how in ("stored", "found"):
        for call in {*story.names(how)}:
            assert ["started", call] not in story.after(how, call), f"{call} had finished, and ran again"
        for reply in {*story.names(f"{how} reply")}:
            again = [line for line in story.after(f"{how} reply", reply) if line[:2] == ["asked", reply]]
            assert not again, f"the reply {reply!r} was there, and the model was asked for it again"
    for asked in (line for line in story.log if line[0] == "asked"):
        assert complaint(messages_from_dict(asked[2])) is None
    assert complaint(story.conversation) is None
    assert shape(story.conversation) == CONVERSATION
    for life in story.lives:
        # A call that asks starts again with its answer.
        most = Counter(name for kind, name, *_ in (line for line in life if len(line) > 1) if kind == "started")
        assert all(times <= (2 if name == "a3" else 1) for name, times in most.items()), most
    assert set(story.names("ended")) == {"a1", "a2", "a3", "b1", "b2", "c1", "c2"}


def check_asked_with_what_is_stored(story: Story) -> None:
    stored: set[str] = set()
    for line in story.log:
        if line[0] in ("stored", "found"):  # a process that is killed after a write may not have logged it
            stored.add(line[1])
        elif line[0] == "asked":
            results = [message for message in messages_from_dict(line[2]) if isinstance(message, ToolMessage)]
            assert {result.tool_call_id for result in results} <= stored


@pytest.mark.parametrize(("saver", "backend"), [("sqlite", "trio"), ("aiosqlite", "asyncio")])
def test_killed_at_each_point_in_turn_nothing_is_lost_and_nothing_is_doubled(
    forks: Forks, saver: str, backend: str, tmp_path: Path
) -> None:
    """Each story has one kill, at one point after the other, until all points are covered."""
    told = stories(forks, tmp_path, saver, backend, "sync", 1, 1000, 1)

    assert len(told) > 25
    for story in told:
        check(story)
        check_asked_with_what_is_stored(story)
    where = {name for story in told for name in story.names("killed")}
    assert where >= {"before write", "after write", "before checkpoint", "after checkpoint", "in body", "after body"}


@pytest.mark.parametrize(
    ("saver", "backend", "durability", "seed"),
    [
        ("sqlite", "asyncio", "async", 1000),
        ("sqlite", "trio", "sync", 2000),
        ("aiosqlite", "asyncio", "sync", 3000),
        ("aiosqlite", "trio", "async", 4000),
    ],
)
def test_killed_anywhere_nothing_is_lost_and_nothing_is_doubled(
    forks: Forks, saver: str, backend: str, durability: str, seed: int, tmp_path: Path
) -> None:
    """Two hundred kills with SIGKILL and `os._exit`, before and after writes and in bodies."""
    told = stories(forks, tmp_path, saver, backend, durability, seed, KILLS)

    assert sum(story.killed for story in told) >= KILLS
    for story in told:
        check(story)
        if durability == "sync":
            check_asked_with_what_is_stored(story)


def test_with_durability_exit_a_killed_run_starts_anew_and_leaves_no_trace(forks: Forks, tmp_path: Path) -> None:
    """With "exit", data is stored only when a run stops, and kept from then on."""
    told = stories(forks, tmp_path, "sqlite", "asyncio", "exit", 5000, 12)

    for story in told:
        check(story)
        for life in story.lives:
            asked = [place for place, line in enumerate(life) if line[0] == "asked"]
            stored = [place for place, line in enumerate(life) if line[0] == "stored"]
            # The run stops at the question, and at the end of each turn.
            assert not stored or asked[0] < stored[0]
