"""State and display of running calls."""

from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, RemoveMessage, ToolMessage
from rich.console import Console

from callboard import CallEvent
from callboard._cli._screen import Calls, Screen, messages_in
from callboard.testing import tool_call


def event(phase: Any, call_id: str = "1", time: float = 0.0, **more: Any) -> CallEvent:
    return CallEvent(phase=phase, tool="fetch", call_id=call_id, number=int(call_id), time=time, **more)


def shown(calls: Calls, now: float) -> list[list[str]]:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(calls.table(now, 100))
    return [line.split() for line in capture.get().splitlines() if line]


def test_a_call_is_shown_from_its_queue_to_its_end() -> None:
    calls = Calls(["fetch"])
    calls.counts(event("begun", time=1.0, call=tool_call("fetch", "1", url="x")))
    calls.counts(event("queued", time=1.0))
    assert shown(calls, 3.0) == [["fetch(url='x')", "2.00", "s", "waiting", "2.00", "s"]]
    calls.counts(event("started", time=3.0, attempt=1))
    calls.counts(event("attempt_ended", time=4.0, attempt=1))
    calls.counts(event("noted", time=4.0, note="retry"))
    calls.counts(event("started", time=5.0, attempt=2))
    assert shown(calls, 20.0) == [["fetch(url='x')", "19.00", "s", "running", "15.00", "s", "attempt", "2,", "retry"]]
    calls.counts(event("attempt_ended", time=21.5, attempt=2))
    calls.counts(event("ended", time=21.5))

    assert shown(calls, 22.0) == []
    assert calls.took("1") == "20.50 s"  # including the queue and the pause
    assert calls.took("2") == ""


def test_of_many_calls_there_are_numbers() -> None:
    calls = Calls(["fetch"])
    for number in range(40):
        calls.counts(event("begun", str(number)))
        calls.counts(event("started", str(number), attempt=1))
    calls.counts(event("attempt_ended", "0", attempt=1))
    calls.counts(event("ended", "0"))

    heading, row = shown(calls, 1.0)
    assert heading == ["tool", "running", "waiting", "done", "failed", "p50", "p95", "longest", "wait"]
    assert row[:5] == ["fetch", "39", "0", "1", "0"]


def test_messages_are_found_wherever_a_node_puts_them() -> None:
    """A node may return one message, several, several state updates, or no message."""
    one, two = AIMessage("1"), ToolMessage("2", tool_call_id="1")

    assert list(messages_in({"messages": one})) == [one]
    assert list(messages_in([{"messages": [one]}, {"other": 1}, {"messages": [two, RemoveMessage("3")]}]))[:2] == [
        one,
        two,
    ]
    for nothing in (None, {}, "text", {"messages": None}, {"messages": ["text"]}, [None]):
        assert list(messages_in(nothing)) == []


def test_what_a_hook_writes_again_is_not_said_again() -> None:
    """A hook that trims the conversation returns the remaining messages again, and they must not be printed twice."""
    console = Console(width=100)
    screen = Screen(console, Calls([]), shown_ids=["old"])
    with console.capture() as capture:
        screen.take("messages", (AIMessageChunk("ne", id="new"), {"langgraph_node": "agent"}))
        screen.take("messages", (AIMessageChunk("w", id="new"), {"langgraph_node": "agent"}))
        screen.take("updates", {"agent": {"messages": [AIMessage("new", id="new")]}})
        screen.take("updates", {"hook": {"messages": [AIMessage("old", id="old"), AIMessage("new", id="new")]}})
        screen.take("updates", {"agent": None, "__interrupt__": ()})
        screen.take("updates", {"agent": {"messages": [AIMessage("Sorry.", id="other")]}})
        screen.close()

    assert capture.get() == "new\nSorry.\n"
