"""Tools that perform the steps of a plan, and the record of their executions."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

import anyio
import anyio.from_thread
import sniffio
from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.errors import ParentCommand
from langgraph.types import Command, interrupt

from callboard import ToolNode, cleanup, tool_call

SECONDS = (0.0, 0.25, 0.3, 0.5, 0.75, 1.0, 2.0)
KEYS = ("x", "y")
ASYNC, SYNC = ("a0", "a1", "a2"), ("s0", "s1")
STEPS = ("sleep", "sleep", "sleep", "fail", "ask", "ask", "leave", "exit", "tidy", "tidy_plainly", "swallow")
MORE_STEPS = ("cancel_task", "cancel_itself", "nest", "tidy_badly", "group")
SYNC_STEPS = ("sleep", "sleep", "fail", "ask", "leave", "exit")


class FailureOfTool(Exception):
    """Error that a tool raises."""


class ExitOfTool(BaseException):
    """Exit that a tool raises, such as `SystemExit`."""


@dataclass(frozen=True)
class Step:
    """One step of a body; `tidy`, `swallow` and similar kinds enclose all following steps."""

    kind: str
    seconds: float = 0.0
    inner: tuple["Call", ...] = ()
    """The calls of a node within the tool."""


@dataclass(frozen=True)
class Call:
    """One call of a batch."""

    tool: str
    steps: tuple[Step, ...] = ()
    key: str = "x"


def draw_calls(chance: Random, tools: tuple[str, ...], limit: int = 6, *, depth: int = 0) -> tuple[Call, ...]:
    """Draw some calls, most of them short."""
    return tuple(_draw_call(chance, chance.choice(tools), depth) for _ in range(chance.randint(1, limit)))


def _draw_call(chance: Random, tool: str, depth: int) -> Call:
    kinds = SYNC_STEPS if tool in SYNC else STEPS + MORE_STEPS
    return Call(
        tool,
        tuple(_draw_step(chance, chance.choice(kinds), depth) for _ in range(chance.choice((0, 1, 1, 2, 3)))),
        chance.choice(KEYS),
    )


def _draw_step(chance: Random, kind: str, depth: int) -> Step:
    if kind == "nest":
        return Step("nest", inner=draw_calls(chance, ASYNC, 3, depth=depth + 1)) if depth < 2 else Step("sleep", 0.5)
    timed = kind in ("sleep", "tidy", "tidy_plainly", "swallow", "cancel_task")
    return Step(kind, chance.choice(SECONDS) if timed else 0.0)


@dataclass
class Body:
    """One execution of a tool."""

    call: str
    tool: str
    key: str
    began: float
    late: bool
    """Whether the caller had gone when the body began."""
    ended: float | None = None
    ending: str = ""
    thread: bool = False


@dataclass
class Stage:
    """Record of a plan that is being played; seconds of a plan are multiples of `unit`."""

    unit: float = 1.0
    steps: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    """Steps by call id."""
    bodies: list[Body] = field(default_factory=list)
    raised: list[BaseException] = field(default_factory=list)
    over: set[str] = field(default_factory=set)
    """Ids of the calls whose batch has ended."""
    misled: list[str] = field(default_factory=list)
    """Answers that reached the wrong question."""
    open_questions: set[str] = field(default_factory=set)
    """Questions that bodies asked, and that are not answered yet."""
    node: Callable[[], ToolNode] = lambda: ToolNode(TOOLS)
    lock: threading.Lock = field(default_factory=threading.Lock)
    loop_time: Callable[[], float] = anyio.current_time
    kept_calls: list[Any] = field(default_factory=list)
    """Copies of `call_next` that middleware has kept."""

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds * self.unit)

    def batch(self, name: str, calls: tuple[Call, ...]) -> list[ToolCall]:
        """Return calls as a model writes them, and register their steps under their ids."""
        ids = [f"{name}{index}" for index in range(len(calls))]
        self.steps.update(zip(ids, (call.steps for call in calls), strict=True))
        return [tool_call(call.tool, call_id, key=call.key) for call_id, call in zip(ids, calls, strict=True)]

    @contextmanager
    def body(self, call: str, tool: str, key: str, *, thread: bool = False) -> Iterator[None]:
        root = call.partition("/")[0]
        body = Body(call, tool, key, self.loop_time(), root in self.over, thread=thread)
        with self.lock:
            self.bodies.append(body)
        try:
            yield
            body.ending = "returned"
        except BaseException as error:
            body.ending = type(error).__name__
            raise
        finally:
            body.ended = self.loop_time()

    def fail(self, error: BaseException) -> BaseException:
        self.raised.append(error)
        return error

    def ask(self, question: str) -> None:
        self.open_questions.add(question)
        answer = interrupt(question)
        self.open_questions.discard(question)
        if answer != f"yes, {question}":
            self.misled.append(f"{question} was told {answer!r}")


stage: Stage
"""The stage of the current plan. It is not a context variable, because threads of middleware must see it, too."""


def enter(new: Stage) -> Stage:
    """Make this stage the one that tools act on."""
    global stage
    stage = new
    return new


async def perform(call: str, steps: tuple[Step, ...], index: int = 0) -> None:
    if index == len(steps):
        return
    step = steps[index]
    if step.kind in ("tidy", "tidy_plainly", "tidy_badly", "swallow"):
        await _around(step, call, steps, index)
        return
    await _one(step, call, index)
    await perform(call, steps, index + 1)


async def _around(step: Step, call: str, steps: tuple[Step, ...], index: int) -> None:
    try:
        await perform(call, steps, index + 1)
        await stage.sleep(0.25)
    except anyio.get_cancelled_exc_class():
        if step.kind != "swallow":
            raise
        await stage.sleep(step.seconds)
    finally:
        if step.kind == "tidy":
            with cleanup():
                await stage.sleep(step.seconds)
        elif step.kind == "tidy_plainly":
            await stage.sleep(step.seconds)
        elif step.kind == "tidy_badly":
            raise stage.fail(FailureOfTool(f"{call} while it tidied up"))


async def _one(step: Step, call: str, index: int) -> None:
    if step.kind == "sleep":
        await stage.sleep(step.seconds)
    elif step.kind == "nest":
        await stage.node().ainvoke(stage.batch(f"{call}/{index}-", step.inner))
    elif step.kind == "cancel_task" and sniffio.current_async_library() == "asyncio":
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await stage.sleep(step.seconds)
    elif step.kind == "cancel_itself":
        raise asyncio.CancelledError
    else:
        _say(step, call, index)


def perform_sync(call: str, steps: tuple[Step, ...]) -> None:
    for index, step in enumerate(steps):
        if step.kind == "sleep":
            time.sleep(step.seconds * stage.unit)
        else:
            _say(step, call, index)


def _say(step: Step, call: str, index: int) -> None:
    if step.kind == "ask":
        stage.ask(f"{call}?{index}")
    elif step.kind == "fail":
        raise stage.fail(FailureOfTool(call))
    elif step.kind == "group":
        raise stage.fail(ExceptionGroup(call, [stage.fail(FailureOfTool(call)) for _ in range(2)]))  # type: ignore[list-item]
    elif step.kind == "exit":
        raise stage.fail(ExitOfTool(call))
    elif step.kind == "leave":
        raise stage.fail(ParentCommand(Command(graph=Command.PARENT, update={"from": call})))


def result_of(call: str) -> str:
    return f"{call} is done"


def _async_tool(name: str) -> BaseTool:
    async def body(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        with stage.body(tool_call_id, name, key):
            await perform(tool_call_id, stage.steps[tool_call_id])
            return result_of(tool_call_id)

    return StructuredTool.from_function(coroutine=body, name=name, description="Do what the plan says.")


def _sync_tool(name: str) -> BaseTool:
    def body(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        with stage.body(tool_call_id, name, key, thread=True):
            perform_sync(tool_call_id, stage.steps[tool_call_id])
            return result_of(tool_call_id)

    return StructuredTool.from_function(func=body, name=name, description="Do what the plan says, in a thread.")


TOOLS = [*map(_async_tool, ASYNC), *map(_sync_tool, SYNC)]
