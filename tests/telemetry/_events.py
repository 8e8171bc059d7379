"""Random sequences of call events: each call begins and ends, with its attempts in any order in between."""

from asyncio import CancelledError
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt

from callboard import CallEvent
from callboard._cli._call_counts import CallCounts
from callboard.exceptions import CallRejectedError, CallTimeoutError, DeadlineExceededError

ENDS: dict[str, dict[str, Any]] = {
    "ok": {},
    "timeout": {"error": CallTimeoutError("fetch", "1", 1.0)},
    "deadline": {"error": DeadlineExceededError("fetch", "1", 1.0, started=True)},
    "rejected": {"error": CallRejectedError("fetch", "1", "full")},
    "error": {"error": ValueError()},
    "interrupted": {"error": GraphInterrupt()},
    "cancelled": {"error": CancelledError()},
}
REFUSED = {"result": ToolMessage("there is no such tool", tool_call_id="1", status="error")}


def event(phase: Any, number: int = 1, time: float = 0.0, *, tool: str = "fetch", **fields: Any) -> CallEvent:
    return CallEvent(phase=phase, tool=tool, call_id="same", number=number, time=time, **fields)


def counts_of(*events: CallEvent, tools: tuple[str, ...] = ("fetch",)) -> CallCounts:
    counts = CallCounts(tools)
    for call_event in events:
        counts(call_event)
    return counts


@dataclass
class Script:
    """Planned events of one call."""

    number: int
    tool: str
    end: str
    lanes: list[list[str]]
    """Phases of each attempt. A middleware may run several attempts at once."""
    leaves: bool
    """Whether the call ends before its attempts do."""
    begun: bool = False
    ended: bool = False
    attempts: int = 0
    running: dict[int, int] = field(default_factory=dict)
    """Current attempt of each lane."""

    @property
    def over(self) -> bool:
        return self.ended and not any(self.lanes)

    def step(self, random: Random) -> dict[str, Any]:
        """Return the next event of the call."""
        if not self.begun:
            self.begun = True
            return {"phase": "begun"}
        open_lanes = [index for index, lane in enumerate(self.lanes) if lane]
        may_end = not self.ended and (not open_lanes or self.leaves)
        if may_end and (not open_lanes or random.random() < 0.3):
            self.ended = True
            # Waiting and planned attempts end with the call. Only a running body may outlive it.
            self.lanes = [["attempt_ended"] if index in self.running else [] for index in range(len(self.lanes))]
            return {"phase": "ended", **ENDS[self.end]}
        index = random.choice(open_lanes)
        phase = self.lanes[index].pop(0)
        if phase == "started":
            self.attempts += 1
            self.running[index] = self.attempts
        attempt = self.running.pop(index) if phase == "attempt_ended" else self.attempts
        return {"phase": phase, "attempt": attempt}


_LANES = st.sampled_from(
    [
        ["started", "attempt_ended"],
        ["queued", "started", "attempt_ended"],
        ["queued", "gave_up"],
        ["noted", "queued", "started", "noted", "attempt_ended", "noted", "queued", "started", "attempt_ended"],
    ]
)
# All attempts of a tool queue, or none.
_QUEUED = _LANES.filter(lambda lane: "queued" in lane)
_UNQUEUED = _LANES.filter(lambda lane: "queued" not in lane)


@st.composite
def scripts(draw: st.DrawFn) -> list[Script]:
    number = draw(st.integers(0, 8))
    return [
        Script(
            number=index,
            tool=draw(st.sampled_from(["fetch", "query", "made up"])),
            end=draw(st.sampled_from(sorted(ENDS))),
            lanes=[list(lane) for lane in draw(st.lists(_QUEUED, max_size=3) | st.lists(_UNQUEUED, max_size=3))],
            leaves=draw(st.booleans()),
        )
        for index in range(number)
    ]


def play_calls(calls: list[Script], random: Random) -> Iterator[CallEvent]:
    """Draw all events of the calls in a possible order."""
    time = 0.0
    while open_calls := [call for call in calls if not call.over]:
        call = random.choice(open_calls)
        time += random.choice((0.0, 0.01, 1.0))
        yield event(number=call.number, tool=call.tool, time=time, **call.step(random))
