"""Promise 4: control flow is not an error: it passes error handling and middleware, whatever those catch."""

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.errors import GraphBubbleUp, GraphDrained, GraphInterrupt, ParentCommand, is_invalid_resume
from langgraph.types import Command, Interrupt, interrupt
from pydantic import BaseModel, ValidationError

from callboard import CallsInterrupted, ToolNode, cleanup
from callboard.testing import Recorder, calls
from tests.helpers import make, until

HANDLING: dict[str, Any] = {
    "True": True,
    "False": False,
    "text": "never mind",
    "Exception": Exception,
    "GraphBubbleUp": GraphBubbleUp,
    "types": (ValueError, Exception),
    "function": lambda error: f"handled {error!r}",
}


def raising(error: Exception, *, sync: bool = False) -> StructuredTool:
    """A tool `signal` that raises an error, on its event loop or in a thread."""

    async def signal() -> str:
        raise error

    def sync_signal() -> str:
        raise error

    if sync:
        return StructuredTool.from_function(func=sync_signal, name="signal", description="Raises.")
    return make(signal)


def message_for(request: Any) -> ToolMessage:
    return ToolMessage("swallowed", tool_call_id=request.tool_call["id"], name=request.tool_call["name"])


class Swallow:
    """Wrappers that catch every exception, answer with a message, and record the exception."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def sync(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        try:
            return execute(request)
        except Exception as error:
            self.errors.append(error)
            return message_for(request)

    async def asynchronous(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        try:
            return await execute(request)
        except Exception as error:
            self.errors.append(error)
            return message_for(request)

    async def translating(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        try:
            return await execute(request)
        except Exception as error:
            self.errors.append(error)
            raise RuntimeError("something went wrong") from error

    async def retrying(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        for _ in range(3):
            try:
                return await execute(request)
            except Exception as error:
                self.errors.append(error)
        return message_for(request)


def options_of(kind: str, swallow: Swallow) -> dict[str, Any]:
    return {
        "none": {},
        "wrap_tool_call": {"wrap_tool_call": swallow.sync},
        "awrap_tool_call": {"awrap_tool_call": swallow.asynchronous},
        "translating": {"awrap_tool_call": swallow.translating},
        "retrying": {"awrap_tool_call": swallow.retrying},
        "middleware": {"middleware": [swallow.asynchronous, swallow.sync]},
        "both": {"middleware": [swallow.translating], "wrap_tool_call": swallow.sync},
    }[kind]


WRAPPERS = ["none", "wrap_tool_call", "awrap_tool_call", "translating", "retrying", "middleware", "both"]


def signals() -> list[GraphBubbleUp]:
    return [
        GraphInterrupt((Interrupt(value="why?", id="0" * 32),)),
        ParentCommand(Command(goto="elsewhere", graph=Command.PARENT)),
        GraphDrained("shutdown"),
        GraphBubbleUp("something of tomorrow"),
    ]


@pytest.mark.real_clock
@pytest.mark.parametrize("sync", [False, True], ids=["async tool", "sync tool"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("handling", HANDLING)
async def test_a_signal_of_the_graph_passes_error_handling_and_wrappers(
    handling: str, wrapper: str, sync: bool
) -> None:
    for signal in signals():
        swallow = Swallow()
        node = ToolNode(
            [raising(signal, sync=sync)], handle_tool_errors=HANDLING[handling], **options_of(wrapper, swallow)
        )
        with anyio.fail_after(10), pytest.raises(GraphBubbleUp) as caught:
            await node.ainvoke([calls("signal")])
        if isinstance(signal, GraphInterrupt):
            assert isinstance(caught.value, CallsInterrupted)
            assert caught.value.interrupts == signal.args[0]
        elif isinstance(signal, ParentCommand):
            assert type(caught.value) is ParentCommand
            assert caught.value.args == signal.args
        else:
            assert caught.value is signal


@pytest.mark.real_clock
@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_an_interrupt_reaches_the_caller_and_its_answer_the_tool(wrapper: str) -> None:
    """Promise 4: `interrupt()` passes through every wrapper, which cannot run the body again; so does its answer."""
    ran = 0

    async def ask() -> str:
        nonlocal ran
        ran += 1
        return f"because {interrupt('why?')}"

    swallow = Swallow()
    node = ToolNode([make(ask)], handle_tool_errors=True, **options_of(wrapper, swallow))
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke([calls("ask")])
    assert [question.value for question in caught.value.interrupts] == ["why?"]
    assert ran == 1
    (message,) = await node.ainvoke([calls("ask")], ledger=caught.value.ledger, resume="I say so")
    assert (message.content, message.status) == ("because I say so", "success")


@pytest.mark.parametrize("late", ["it tidies up behind a shield", "it catches the question and waits"])
@pytest.mark.parametrize("outside", [False, True])
async def test_a_question_is_not_lost_to_middleware_that_takes_too_long(late: str, outside: bool) -> None:
    async def slow(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except GraphInterrupt:
            if late == "it catches the question and waits":
                await anyio.sleep(20)
                return ToolMessage("made up", tool_call_id=request.tool_call["id"])
            raise
        finally:
            with cleanup():
                await anyio.sleep(3)

    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def ask() -> str:
        """Ask."""
        return f"they said {interrupt('which?')}"

    node = ToolNode([make(ask)], timeout=2, middleware=[passing, slow] if outside else [slow])
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke([calls("ask")])
    [question] = caught.value.interrupts
    answered = await node.ainvoke([calls("ask")], ledger=caught.value.ledger, resume={question.id: "this"})
    assert question.value == "which?"
    assert [message.content for message in answered] == ["they said this"]


@pytest.mark.real_clock
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_wrapper_may_ask_itself(sync: bool) -> None:
    rec = Recorder()

    def approve(request: Any, execute: Callable[[Any], Any]) -> Any:
        return execute(request) if interrupt("may I?") == "yes" else message_for(request)

    async def aapprove(request: Any, execute: Callable[[Any], Any]) -> Any:
        return await execute(request) if interrupt("may I?") == "yes" else message_for(request)

    wrapper = {"wrap_tool_call": approve} if sync else {"awrap_tool_call": aapprove}
    node = ToolNode([rec.tool("act")], handle_tool_errors=True, **wrapper)
    for answer, result, runs in (("no", "swallowed", 0), ("yes", "act", 1)):
        with pytest.raises(CallsInterrupted) as caught:
            await node.ainvoke([calls("act")])
        assert rec.events == []
        (message,) = await node.ainvoke([calls("act")], ledger=caught.value.ledger, resume=answer)
        assert (message.content, rec.count("started")) == (result, runs)


class Answer(BaseModel):
    ok: bool


@pytest.mark.real_clock
@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_a_wrong_answer_is_told_to_who_gave_it(wrapper: str) -> None:
    async def ask() -> str:
        return str(interrupt("ok?", response_schema=Answer).ok)

    swallow = Swallow()
    node = ToolNode([make(ask)], handle_tool_errors=True, **options_of(wrapper, swallow))
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke([calls("ask")])
    ledger = caught.value.ledger
    with pytest.raises(ValidationError) as wrong:
        await node.ainvoke([calls("ask")], ledger=ledger, resume={"ok": "perhaps"})
    assert is_invalid_resume(wrong.value)
    (message,) = await node.ainvoke([calls("ask")], ledger=ledger, resume={"ok": True})
    assert message.content == "True"


@pytest.mark.parametrize("handling", HANDLING)
@pytest.mark.parametrize("wrapper", ["none", "awrap_tool_call", "translating", "retrying"])
async def test_cancellation_passes_error_handling_and_wrappers(handling: str, wrapper: str) -> None:
    rec = Recorder()
    swallow = Swallow()
    node = ToolNode(
        [rec.tool("slow", seconds=100)], handle_tool_errors=HANDLING[handling], **options_of(wrapper, swallow)
    )
    finished = False
    with anyio.move_on_after(3) as scope:
        await node.ainvoke([calls("slow", "slow")])
        finished = True
    assert scope.cancelled_caught
    assert not finished
    assert swallow.errors == []
    assert (rec.count("started"), rec.count("cancelled"), rec.running) == (2, 2, 0)


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", ["wrap_tool_call", "middleware"])
async def test_cancellation_passes_sync_wrappers(kind: str) -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("slow", seconds=100)], handle_tool_errors=True, **options_of(kind, Swallow()))
    began, finished = 0.0, False

    async def cancel_when_it_runs() -> None:
        nonlocal began
        await until(lambda: rec.running)
        began = time.monotonic()
        scope.cancel()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_it_runs)
            await node.ainvoke([calls("slow")])
            finished = True
    assert scope.cancelled_caught
    assert not finished
    assert time.monotonic() - began < 5
    assert (rec.count("cancelled"), rec.running) == (1, 0)
