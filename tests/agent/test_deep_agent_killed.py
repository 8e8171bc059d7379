"""An agent of the library deepagents, with files, a shell and a sub-agent, is killed at more than 40 points.

deepagents is no dependency of the tests. `docs/reference/other-suites.md` has the command that runs them with it.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ._forks import Forks
from ._savers import shape
from .test_create_agent_killed import check_nothing_runs_again
from .test_killed_agent import Story, stories

pytestmark = [
    pytest.mark.hangs_after(200),
    pytest.mark.real_clock,
    pytest.mark.exhaustive,
    pytest.mark.skipif(find_spec("deepagents") is None, reason="deepagents is not installed"),
]

RUN = "tool:<no output>\n[Command succeeded with exit code 0]"
CONVERSATION = [
    *("human:go", "ai:", "tool:Updated file /state/one", RUN, "tool:tea is found", "tool:pot is found"),
    *("ai:", "tool:Successfully replaced 1 instance(s) of the string in '/state/one'", RUN, "tool:1  tea"),
    *("ai:", RUN, "ai:done"),
]
COMMANDS = {"c1", "c2", "c3", "tea-1", "tea-3", "pot-1", "pot-3"}
CALLS = {"w1", "r1", "r2", "e1", "f1", "tea-2", "pot-2", *COMMANDS}


def check(story: Story) -> None:
    check_nothing_runs_again(story, CALLS, COMMANDS)
    assert shape(story.conversation) == CONVERSATION
    assert story.log[-2] == ["files", {"/one": "11", "/pot": "pot", "/tea": "tea"}]


@pytest.mark.parametrize(("entry", "backend"), [("ainvoke", "asyncio"), ("invoke", "trio")])
def test_a_killed_deep_agent_ends_as_if_nobody_had_killed_it(
    forks: Forks, entry: str, backend: str, tmp_path: Path
) -> None:
    """Async tools of deepagents need asyncio. A sync run uses the sync tools, so it works in a program on trio, too."""
    told = stories(forks, tmp_path, entry, backend, "async", 8000, 40, module="agent._crash_deep_agent")

    assert sum(story.killed for story in told) >= 40
    for story in told:
        check(story)
