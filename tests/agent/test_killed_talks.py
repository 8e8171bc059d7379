"""A message that `say` has acknowledged is read exactly once, wherever the process is killed."""

from collections import Counter
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage, ToolMessage

from ._forks import Forks
from ._lives import Story, stories
from ._postgres import Server

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive, pytest.mark.hangs_after(600)]


def check_words(story: Story) -> None:
    """Check that each acknowledged word is read once, any other at most once, and that each call has one end."""
    read = Counter(message.text for message in story.conversation if isinstance(message, HumanMessage))
    assert {word: read[word] for word in story.names("said")} == dict.fromkeys(story.names("said"), 1), story.seed
    assert [word for word in story.names("saying") if read[word] > 1] == [], story.seed
    handles = [
        message.additional_kwargs["callboard"]["background"]
        for message in story.conversation
        if isinstance(message, ToolMessage) and "background" in message.additional_kwargs.get("callboard", {})
    ]
    ends = Counter(message.id for message in story.conversation)
    assert {handle: ends[handle] for handle in handles} == dict.fromkeys(handles, 1), story.seed


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("saver", ["url", "sqlite"])
def test_killed_anywhere_an_acknowledged_message_is_read_once(
    forks: Forks, backend: str, saver: str, tmp_path: Path
) -> None:
    all_stories = stories(forks, "_crash_talker", tmp_path, [saver, backend, "async"], 9000, 40)
    assert sum(story.killed for story in all_stories) >= 40
    for story in all_stories:
        check_words(story)
    assert {name for story in all_stories for name in story.names("killed")} >= {
        "before say",
        "after say",
        "before write",
    }
    assert any(story.names("said") for story in all_stories if story.killed)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_killed_anywhere_on_a_server_an_acknowledged_message_is_read_once(
    forks: Forks, backend: str, postgres_server: Server, tmp_path: Path
) -> None:
    all_stories = stories(forks, "_crash_talker", tmp_path, [postgres_server.url(), backend, "sync"], 9500, 20)
    assert sum(story.killed for story in all_stories) >= 20
    for story in all_stories:
        check_words(story)
