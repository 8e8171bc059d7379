"""Promise 10: what the log of an agent must show that was killed at any points of its lives, and went on each time.

The lives are those of `_crashes`. With each durability, a call whose result was not stored when the process died runs
again. In addition:

- "sync": all messages of a model request are stored before the request, so no call in them runs twice.
- "async": a call with a stored result never runs again; a model request may contain results that are not stored.
- "exit": nothing is stored before the run stops.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, messages_from_dict

from ._forks import Forks
from ._savers import complaint


@dataclass(frozen=True)
class Story:
    """All lives of one thread, from its log."""

    seed: int
    killed: int
    failed: bool
    durability: str
    log: list[list[Any]]

    def names(self, kind: str) -> list[str]:
        return [line[1] for line in self.log if line[0] == kind]

    @property
    def lives(self) -> list[list[list[Any]]]:
        starts = [position for position, line in enumerate(self.log) if line == ["born"]]
        return [self.log[start:end] for start, end in zip(starts, [*starts[1:], len(self.log)], strict=True)]

    @property
    def conversation(self) -> list[BaseMessage]:
        """The messages at the end; none if the last life did not end its work."""
        return messages_from_dict(self.log[-1][1]) if self.log[-1][0] == "conversation" else []

    @property
    def asking(self) -> set[str | None]:
        """Ids of the calls that ask: such a call starts again with its answer."""
        replies = [message for message in self.conversation if isinstance(message, AIMessage)]
        return {call["id"] for reply in replies for call in reply.tool_calls if call["name"] == "ask"}


def what_is_stored_never_runs_again(story: Story) -> Iterator[str]:
    """Neither the body of a call with a stored result, nor its command; no model is asked for a stored reply."""
    calls, replies = set[str](), set[str]()
    for kind, name, *_ in (line for line in story.log if len(line) > 1):
        if kind in ("stored", "found"):
            calls.add(name)
        elif kind in ("stored reply", "found reply"):
            replies.add(name)
        elif (kind in ("started", "ran") and name in calls) or (kind == "asked" and name in replies):
            yield f"{name} had been stored, and was {kind} again"


def nothing_runs_twice_in_one_life(story: Story) -> Iterator[str]:
    """A call that asks starts again with its answer."""
    for life in story.lives:
        for event in ("started", "ran"):
            often = Counter(line[1] for line in life if line[0] == event)
            yield from (
                f"{name} {event} {times} times in one life"
                for name, times in often.items()
                if times > (2 if name in story.asking else 1)
            )


def the_model_is_asked_with_answered_calls(story: Story) -> Iterator[str]:
    """Promise 2: each request to the model has an answer for each call."""
    requests = [messages_from_dict(line[2]) for line in story.log if line[0] == "asked"]
    yield from (wrong for messages in requests if (wrong := complaint(messages)))


def the_model_is_asked_with_what_is_stored(story: Story) -> Iterator[str]:
    """With durability "sync", each message that the model was sent is stored before, and survives a kill."""
    stored = set[str]()
    for line in story.log if story.durability == "sync" else []:
        if line[0] in ("stored", "found"):  # a process that is killed after a write may not have logged it
            stored.add(line[1])
        elif line[0] == "asked":
            results = [message for message in messages_from_dict(line[2]) if isinstance(message, ToolMessage)]
            if unknown := {result.tool_call_id for result in results} - stored:
                yield f"{sorted(unknown)} were not stored"


def the_conversation_ends_whole(story: Story) -> Iterator[str]:
    """The last life ends the work, and each call of the conversation has its message."""
    if not story.conversation:
        yield f"it does not end: {story.log[-1:]}"
    elif wrong := complaint(story.conversation):
        yield wrong


PROMISES = (
    the_conversation_ends_whole,
    what_is_stored_never_runs_again,
    nothing_runs_twice_in_one_life,
    the_model_is_asked_with_answered_calls,
    the_model_is_asked_with_what_is_stored,
)


def stories(forks: Forks, module: str, directory: Path, way: list[str], *until: int) -> list[Story]:
    """Return the stories that `_crashes.in_fork` plays, which keep all promises."""
    forks.begin("agent._crashes", module, str(directory), way, *until)
    all_stories = list[Story]()
    while isinstance(answer := forks.answer(), dict):
        all_stories.append(Story(**answer))
    forks.tell()
    assert answer == 0
    assert not [story.seed for story in all_stories if story.failed]
    assert not [(story.seed, wrong) for story in all_stories for promise in PROMISES for wrong in promise(story)]
    return all_stories
