"""Nested limits: calls of a node that run calls of the same node, with limits, timeouts and cancellations."""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import anyio
from langchain_core.tools import BaseTool, StructuredTool

from callboard import CallPolicy, Limit, ToolNode, tool_call

from ._watch import Complaint, run_on

TOOLS = ("red", "green", "blue")


@dataclass(frozen=True)
class Nested:
    """A call that sleeps, or runs other calls, in a batch or one after the other."""

    tool: str = "red"
    inner: "tuple[Nested, ...]" = ()
    each: bool = False
    timeout: float | None = None


@dataclass(frozen=True)
class Nest:
    """Batches of nested calls that run concurrently, and the limits of their node."""

    batches: tuple[tuple[Nested, ...], ...] = ((Nested(),),)
    width: int | None = None
    narrow: tuple[tuple[str, int], ...] = ()
    queue: int | None = None
    end: float | None = None
    """Time at which the caller cancels."""


def draw(chance: Random) -> Nest:
    narrow = tuple((name, chance.randint(1, 2)) for name in TOOLS if chance.random() < 0.4)
    return Nest(
        batches=tuple(
            tuple(_draw_call(chance, 3) for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 2))
        ),
        width=chance.choice((None, 1, 2, 3)),
        narrow=narrow,
        queue=chance.choice((None, None, 0, 2)),
        end=chance.choice((None, None, 0.5, 1.5, 3.5)),
    )


def _draw_call(chance: Random, depth: int) -> Nested:
    count = chance.choice((0, 0, 1, 1, 2, 3)) if depth else 0
    return Nested(
        chance.choice(TOOLS),
        tuple(_draw_call(chance, depth - 1) for _ in range(count)),
        each=chance.random() < 0.3,
        timeout=chance.choice((None, None, None, 1.5)),
    )


@dataclass
class _Stage:
    plan: Nest
    node: ToolNode = field(init=False)
    running: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    """Texts of the error messages of calls at any depth."""

    def __post_init__(self) -> None:
        policies = {name: CallPolicy(limit=Limit(concurrency=width)) for name, width in self.plan.narrow}
        limit = None if self.plan.width is None else Limit(concurrency=self.plan.width, queue=self.plan.queue)
        self.node = ToolNode([self._tool(name) for name in TOOLS], limit=limit, policies=policies)

    def _tool(self, name: str) -> BaseTool:
        async def run(call: Any) -> str:
            await self._play(call)
            return "done"

        return StructuredTool.from_function(coroutine=run, name=name, description="Runs a nested call.")

    async def _play(self, call: Nested) -> None:
        with anyio.move_on_after(call.timeout):
            if not call.inner:
                await self._sleep(call.tool)
            elif call.each:
                for inner in call.inner:
                    await self.ask((inner,))
            else:
                await self.ask(call.inner)

    async def _sleep(self, tool: str) -> None:
        for name in ("all", tool):
            self.running[name] = self.running.get(name, 0) + 1
            self.peaks[name] = max(self.peaks.get(name, 0), self.running[name])
        try:
            await anyio.sleep(1)
        finally:
            for name in ("all", tool):
                self.running[name] -= 1

    async def ask(self, calls: tuple[Nested, ...]) -> list[Any]:
        batch = [tool_call(call.tool, f"c{number}", call=call) for number, call in enumerate(calls)]
        answers = list((await self.node.ainvoke(batch))["messages"])
        self.errors += [answer.content for answer in answers if answer.status == "error"]
        return answers


def play(plan: Nest, backend: str) -> list[Complaint]:
    """Play nested calls; return an error for each broken limit, unfinished call and lost place."""
    return run_on(backend, partial(_play_plan, plan))


async def _play_plan(plan: Nest) -> list[Complaint]:
    stage = _Stage(plan)
    complaints: list[Complaint] = []

    async def ask(calls: tuple[Nested, ...]) -> None:
        answers = await stage.ask(calls)
        if [answer.tool_call_id for answer in answers] != [f"c{number}" for number in range(len(calls))]:
            complaints.append(Complaint("every_call_has_one_message", f"{answers} for {calls}"))

    with anyio.move_on_after(plan.end):
        async with anyio.create_task_group() as group:
            for calls in plan.batches:
                group.start_soon(ask, calls)
    if not plan.narrow and plan.queue is None and stage.errors:
        complaints.append(Complaint("one_limit_never_deadlocks", f"{stage.errors}"))
    bounds = {**({} if plan.width is None else {"all": plan.width}), **dict(plan.narrow)}
    complaints += [
        Complaint("limits_hold_for_innermost_bodies", f"{name}: {stage.peaks[name]} > {bound}")
        for name, bound in bounds.items()
        if stage.peaks.get(name, 0) > bound
    ]
    later = [answer.status for name in TOOLS for answer in await stage.ask((Nested(name),))]
    if later != ["success"] * len(TOOLS):
        complaints.append(Complaint("places_come_back", f"{later}"))
    return complaints
