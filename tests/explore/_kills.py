"""Kills: an agent on a database file, killed at any points of its lives, until its conversation is done.

A fork of `tests.agent._forks` plays a plan with `tests.agent._crashes`, and answers with the log of its lives.
"""

import atexit
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from random import Random

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool

from tests.agent import _lives
from tests.agent._forks import Forks
from tests.agent._lives import Story

from ._plans import written
from ._watch import Complaint

TOOLS = ("quick", "blocking", "ask", "once", "odd")
"""`once` may not run again, and `odd` returns what no database can store."""


@dataclass(frozen=True)
class Kill:
    """The end of a life: the n-th point that it passes."""

    point: int
    signalled: bool = False
    """Whether the life ends by SIGKILL, or else by an immediate exit."""


@dataclass(frozen=True)
class Lives:
    """A conversation of one turn, and the point where each life is killed; the last life is not killed."""

    replies: tuple[tuple[str, ...], ...]
    """The tools that each reply of the model calls."""
    kills: tuple[Kill, ...] = ()
    saver: str = "sqlite"
    durability: str = "sync"

    def calls(self) -> list[str]:
        return [f"{reply}-{index}" for reply, tools in enumerate(self.replies) for index in range(len(tools))]

    def tool(self, call: str) -> str:
        reply, index = map(int, call.split("-"))
        return self.replies[reply][index]


def draw(chance: Random) -> Lives:
    return Lives(
        tuple(tuple(chance.choice(TOOLS) for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 3))),
        tuple(Kill(chance.randint(1, 16), chance.random() < 0.5) for _ in range(chance.randint(1, 5))),
        chance.choice(("sqlite", "aiosqlite")),
        chance.choice(("sync", "async")),
    )


def what_must_not_run_twice_does_not(plan: Lives, story: Story) -> list[str]:
    """Promise 10: a call runs at most once, if its policy says so."""
    begun = [call for call in story.names("started") if plan.tool(call) == "once"]
    return [f"{call} ran {begun.count(call)} times" for call in sorted(set(begun)) if begun.count(call) > 1]


def each_call_has_its_message(plan: Lives, story: Story) -> list[str]:
    """The conversation has the results of all calls, in order."""
    answered = [str(message.tool_call_id) for message in story.conversation if isinstance(message, ToolMessage)]
    return [] if answered == plan.calls() else [f"{answered} for {plan.calls()}"]


def nothing_is_lost(plan: Lives, story: Story) -> list[str]:
    """Each call that began did its work, unless its policy forbids a second start."""
    ended = {*story.names("ended")}
    missing = [call for call in plan.calls() if call not in ended and plan.tool(call) != "once"]
    return [f"{missing} never ended"] if missing else []


PROMISES = (each_call_has_its_message, what_must_not_run_twice_does_not, nothing_is_lost)
"""Promises about the calls of a plan, in addition to those that hold for all killed agents."""


def play(plan: Lives, backend: str) -> list[Complaint]:
    """Play all lives; return the broken promises."""
    story = _story_of(plan, backend)
    if story.failed:
        return [Complaint("a_life_ends_by_a_kill_only", "True")]
    complaints = [Complaint(promise.__name__, detail) for promise in _lives.PROMISES for detail in promise(story)]
    return [
        *complaints,
        *(Complaint(promise.__name__, detail) for promise in PROMISES for detail in promise(plan, story)),
    ]


@cache
def _forks() -> Forks:
    new_forks = Forks()
    atexit.register(new_forks.__exit__)
    return new_forks


def _story_of(plan: Lives, backend: str) -> Story:
    forks = _forks()
    forks.begin("explore._kills", written(plan).replace("\n", " "), backend)
    story = Story(**forks.answer())
    assert forks.answer() == 0
    forks.tell()
    return story


def in_fork(plan_text: str, backend: str) -> None:
    """Play a plan in forks of this process."""
    from callboard import CallPolicy, ToolNode, create_react_agent, tool_call
    from callboard.testing import calls
    from tests.agent import _crash_agent, _crashes
    from tests.helpers import make

    async def odd(name: str) -> tuple[str, object]:
        return await _crash_agent.quick(name), object()

    tools = [*_crash_agent.TOOLS, make(_crash_agent.quick, "once")]
    tools.append(
        StructuredTool.from_function(
            coroutine=odd, name="odd", description="Odd.", response_format="content_and_artifact"
        )
    )
    node = ToolNode(tools, on_unknown="rerun", policies={"once": CallPolicy(on_unknown="fail")})

    def world(plan: Lives) -> _crashes.World:
        def asks(reply_index: int, tools: tuple[str, ...]) -> AIMessage:
            call_names = [(tool, f"{reply_index}-{number}") for number, tool in enumerate(tools)]
            return calls(*(tool_call(tool, name, name=name) for tool, name in call_names))

        script = (*(asks(index, tools) for index, tools in enumerate(plan.replies)), AIMessage("done"))
        return _crashes.World(
            lambda _, saver: create_react_agent(_crashes.replies(script), node, checkpointer=saver), ("first",)
        )

    plan: Lives = eval(plan_text, {"Lives": Lives, "Kill": Kill})
    way = _crashes.Way(plan.saver, backend, plan.durability)
    with tempfile.TemporaryDirectory() as folder:
        _crashes.rehearse(world(Lives((("quick", "blocking"),))), Path(folder), way)
        ends = chain([(kill.point, kill.signalled) for kill in plan.kills], repeat((0, False)))
        _crashes.story(world(plan), Path(folder, "story"), way, 0, ends)
