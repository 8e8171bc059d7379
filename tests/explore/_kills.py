"""Kills: an agent on a database file, killed at any points of its lives, until its conversation is done.

A fork of `tests.agent._forks` plays a plan, and answers with the log of events of `tests.agent._crash_agent`.
"""

import atexit
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

from langchain_core.messages import AIMessage, messages_from_dict

from tests.agent._forks import Forks
from tests.agent._savers import complaint

from ._plans import written
from ._watch import Complaint

TOOLS = ("quick", "blocking", "ask", "once")
Log = list[list[Any]]


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
        return [f"{reply}-{place}" for reply, tools in enumerate(self.replies) for place in range(len(tools))]

    def tool(self, call: str) -> str:
        reply, place = map(int, call.split("-"))
        return self.replies[reply][place]


def draw(chance: Random) -> Lives:
    """Draw the lives of an agent."""
    return Lives(
        tuple(tuple(chance.choice(TOOLS) for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 3))),
        tuple(Kill(chance.randint(1, 16), chance.random() < 0.5) for _ in range(chance.randint(1, 5))),
        chance.choice(("sqlite", "aiosqlite")),
        chance.choice(("sync", "async")),
    )


def what_is_stored_never_runs_again(plan: Lives, log: Log) -> list[str]:
    """Promise 10: a call with a stored result never runs again."""
    stored: set[str] = set()
    again = []
    for line in log:
        if line[0] in ("stored", "found"):
            stored.add(line[1])
        elif line[0] == "started" and line[1] in stored:
            again.append(f"{line[1]} had been stored, and ran again")
    return again


def what_must_not_run_twice_does_not(plan: Lives, log: Log) -> list[str]:
    """Promise 10: a call runs at most once, if its policy says so."""
    begun = [line[1] for line in log if line[0] == "started" and plan.tool(line[1]) == "once"]
    return [f"{call} ran {begun.count(call)} times" for call in sorted(set(begun)) if begun.count(call) > 1]


def nothing_runs_twice_in_one_life(plan: Lives, log: Log) -> list[str]:
    """In one life no call runs twice, except a call that asks: it starts again with its answer."""
    found, begun = [], set()
    for line in log:
        if line == ["born"]:
            begun = set()
        elif line[0] == "started" and plan.tool(line[1]) != "ask":
            found += [f"{line[1]} ran twice in one life"] if line[1] in begun else []
            begun.add(line[1])
    return found


def the_model_is_asked_with_answered_calls(plan: Lives, log: Log) -> list[str]:
    """Promise 2: each request to the model has an answer for each call."""
    asked = (messages_from_dict(line[2]) for line in log if line[0] == "asked")
    return [wrong for messages in asked if (wrong := complaint(messages))][:1]


def the_model_is_asked_with_what_is_stored(plan: Lives, log: Log) -> list[str]:
    """With durability "sync", each message that the model was sent is stored before, and survives a kill."""
    stored: set[str] = set()
    for line in log if plan.durability == "sync" else []:
        if line[0] in ("stored", "found"):
            stored.add(line[1])
        elif line[0] == "asked":
            known = {str(one.tool_call_id) for one in messages_from_dict(line[2]) if one.type == "tool"}
            if known - stored:
                return [f"{sorted(known - stored)} were not stored"]
    return []


def the_conversation_ends_whole(plan: Lives, log: Log) -> list[str]:
    """Every call has its message, and each call that began did its work, unless its policy forbids a second start."""
    if not log or log[-1][0] != "conversation":
        return [f"it does not end: {log[-1:]}"]
    messages = messages_from_dict(log[-1][1])
    if wrong := complaint(messages):
        return [wrong]
    answered = [one.tool_call_id for one in messages if one.type == "tool"]
    return [] if answered == plan.calls() else [f"{answered} for {plan.calls()}"]


def nothing_is_lost(plan: Lives, log: Log) -> list[str]:
    """In the end each call has done its work."""
    ended = {line[1] for line in log if line[0] == "ended"}
    missing = [call for call in plan.calls() if call not in ended and plan.tool(call) != "once"]
    return [f"{missing} never ended"] if missing else []


PROMISES = (
    the_conversation_ends_whole,
    what_is_stored_never_runs_again,
    what_must_not_run_twice_does_not,
    nothing_runs_twice_in_one_life,
    the_model_is_asked_with_answered_calls,
    the_model_is_asked_with_what_is_stored,
    nothing_is_lost,
)


def play(plan: Lives, backend: str) -> list[Complaint]:
    """Play all lives; return the broken promises."""
    told = _lived(plan, backend)
    if told["failed"]:
        return [Complaint("a_life_ends_by_a_kill_only", f"{told['failed']}")]
    return [Complaint(promise.__name__, what) for promise in PROMISES for what in promise(plan, told["log"])]


@cache
def _forks() -> Forks:
    made = Forks()
    atexit.register(made.__exit__)
    return made


def _lived(plan: Lives, backend: str) -> dict[str, Any]:
    forks = _forks()
    forks.begin("explore._kills", written(plan).replace("\n", " "), backend)
    told: dict[str, Any] = forks.answer()
    assert forks.answer() == 0
    forks.tell()
    return told


def in_fork(told: str, backend: str) -> None:
    """Play a plan in forks of this process."""
    import anyio
    from langchain_core.tools import StructuredTool
    from langgraph.checkpoint.memory import InMemorySaver

    from callboard import CallPolicy, ToolNode, create_react_agent
    from callboard.testing import ScriptedModel, calls, tool_call
    from tests.agent import _crash_agent as crash

    once = StructuredTool.from_function(coroutine=crash.quick, name="once", description="At most once.")
    node = ToolNode([*crash.TOOLS, once], on_unknown="rerun", policies={"once": CallPolicy(on_unknown="fail")})
    crash.AGENT = create_react_agent(ScriptedModel([crash.reply], loop=True), node)
    crash.QUESTIONS = ("first",)

    def script(plan: Lives) -> tuple[AIMessage, ...]:
        def one(place: int, tools: tuple[str, ...]) -> AIMessage:
            named = [(tool, f"{place}-{number}") for number, tool in enumerate(tools)]
            return calls(*(tool_call(tool, name, name=name) for tool, name in named))

        return (*(one(place, tools) for place, tools in enumerate(plan.replies)), AIMessage("done"))

    plan: Lives = eval(told, {"Lives": Lives, "Kill": Kill})
    with tempfile.TemporaryDirectory() as folder:
        # Fill caches before the first life.
        crash.fate = crash.Fate(Path(folder, "rehearsal"), 0, signalled=False)
        crash.SCRIPT = script(Lives((("quick", "blocking"),)))
        anyio.run(crash.play, InMemorySaver(), "sync")
        crash.SCRIPT = script(plan)
        ends = chain([(kill.point, kill.signalled) for kill in plan.kills], repeat((0, False)))
        crash.story(Path(folder, "story"), (plan.saver, backend, plan.durability), 0, ends)
