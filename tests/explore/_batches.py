"""Batches: calls of a node with policies, limits and middleware, cancelled at any moment, interrupted and resumed."""

import asyncio
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import anyio
import sniffio
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from callboard import CallboardWarning, CallPolicy, CallsInterrupted, Limit, Rate, ToolNode
from callboard.guards import Redact, RepairArguments, Sanitize
from callboard.middleware import Cache, CircuitBreaker, Fallback, OutputBudget, RequireApproval, Retry, Value
from tests.helpers import live_tasks
from tests.middleware._functions import FUNCTIONS, REWORKING, THEIRS, middleware_of
from tests.middleware._functions import SYNC as SYNC_MIDDLEWARE

from ._bodies import ASYNC, SYNC, TOOLS, Call, FailureOfTool, Stage, draw_calls, enter
from ._watch import Complaint, run_on

PASSING = ("pass_on", "wait_before", "wait_after", "Sanitize", "RepairArguments", "Retry", "OutputBudget", "Redact")
"""Middleware that does not change the result of a successful call."""
WRONG = {
    *("return_none", "return_texts", "answer_another", "answer_twice", "answer_in_two_commands", "forget_answer"),
    *("rework to nothing", "sync_return_none"),
}
"""Middleware that does not return exactly one message for its call, which is a `TypeError` or `ValueError`."""
OURS: dict[str, Callable[[float], object]] = {
    "Sanitize": lambda unit: Sanitize(),
    "RepairArguments": lambda unit: RepairArguments(),
    "Retry": lambda unit: Retry(2, initial=0.5 * unit, rng=Random(0)),
    "Retry any": lambda unit: Retry(3, initial=0.25 * unit, any_tool=True, rng=Random(0)),
    "OutputBudget": lambda unit: OutputBudget(1000),
    "Redact": lambda unit: Redact(),
    "Cache": lambda unit: Cache(["a0"], ttl=unit),
    "Cache by key": lambda unit: Cache(["a0", "a1"], key=lambda request: "one", size=1),
    "CircuitBreaker": lambda unit: CircuitBreaker(minimum=2, open_for=unit),
    "Fallback": lambda unit: Fallback({"a0": Value("instead"), "a1": Value("instead")}),
    "RequireApproval": lambda unit: RequireApproval(["a0", "a2"]),
}
BUSY = tuple(name for name in (*FUNCTIONS, *REWORKING, *OURS) if name not in PASSING)
HANDLING: dict[str, Any] = {"all": True, "none": False, "text": "It failed.", "failures": (FailureOfTool, TimeoutError)}
RUNS = 80
"""More runs than any batch needs until all its questions are answered."""


@dataclass(frozen=True)
class Bound:
    """A `Limit`, as data."""

    concurrency: int | None = None
    queue: int | None = None
    rate: int | None = None
    per: float = 1.0
    by_key: bool = False

    def limit(self, unit: float) -> Limit:
        rate = None if self.rate is None else Rate(self.rate, self.per * unit)
        return Limit(self.concurrency, self.queue, rate, (lambda call: call["args"]["key"]) if self.by_key else None)


@dataclass(frozen=True)
class Policy:
    """A `CallPolicy` of one tool, as data."""

    tool: str
    timeout: float | None = None
    budget: float | None = None
    grace: float | None = None
    bound: Bound | None = None
    idempotent: bool = False

    def policy(self, unit: float) -> CallPolicy:
        def scale(seconds: float | None) -> float | None:
            return None if seconds is None else seconds * unit

        limit = None if self.bound is None else self.bound.limit(unit)
        times = scale(self.timeout), scale(self.budget), limit, scale(self.grace)
        return CallPolicy(
            **dict(zip(("timeout", "budget", "limit", "grace"), times, strict=True)), idempotent=self.idempotent
        )


@dataclass(frozen=True)
class Batch:
    """A batch, its policies and middleware, and the way in which it is run."""

    calls: tuple[Call, ...]
    neighbours: tuple[Call, ...] = ()
    """Another batch of the same node, which runs at the same time."""
    middleware: tuple[str, ...] = ()
    policies: tuple[Policy, ...] = ()
    timeout: float | None = None
    bound: Bound | None = None
    grace: float = 5.0
    on_error: str = "cancel"
    handling: str = ""
    max_concurrency: int | None = None
    end: float | None = None
    """Time at which the caller cancels."""
    natively: bool = False
    """Whether the caller cancels with asyncio's `task.cancel()`."""
    ledger: bool = False
    """Whether the caller stores results as they come, and passes them to the run after a cancellation."""
    answers: int = 0
    """Number that determines which questions are answered first."""
    threads: bool = False
    cancels: tuple[tuple[int, float], ...] = ()
    """Calls that are cancelled alone: the place of each in the batch, and the time."""

    @property
    def unit(self) -> float:
        return 0.02 if self.threads else 1.0


def draw(chance: Random, *, threads: bool = False) -> Batch:
    tools = SYNC * 2 + ASYNC if threads else ASYNC
    middleware = (*PASSING, *PASSING, *BUSY, *((*SYNC_MIDDLEWARE, *THEIRS) * 2 if threads else ()))
    tools_with_policy = chance.sample(tools, chance.choice((0, 1, 1, 2)))
    return Batch(
        draw_calls(chance, tools),
        neighbours=draw_calls(chance, tools, 3) if chance.random() < 0.2 else (),
        middleware=tuple(chance.choice(middleware) for _ in range(chance.choice((0, 0, 1, 1, 2, 4)))),
        policies=tuple(_draw_policy(chance, tool) for tool in dict.fromkeys(tools_with_policy)),
        timeout=chance.choice((None, None, 0.5, 1.0)),
        bound=_draw_bound(chance),
        grace=chance.choice((5.0, 5.0, 0.5, 0.0)),
        on_error=chance.choice(("cancel", "finish")),
        handling=chance.choice(("", "", *HANDLING)),
        max_concurrency=chance.choice((None, None, 1, 2)),
        end=chance.choice((None, None, 0.0, 0.25, 0.3, 0.5, 1.0, 1.3, 2.0)),
        natively=chance.random() < 0.3,
        ledger=chance.random() < 0.5,
        answers=chance.randrange(100),
        threads=threads,
        cancels=tuple(
            (chance.randrange(6), chance.choice((0.0, 0.25, 0.5, 1.0, 1.3)))
            for _ in range(chance.choice((0, 0, 0, 1, 3)))
        ),
    )


def _draw_bound(chance: Random) -> Bound | None:
    kind = chance.choice(("none", "none", "concurrency", "queue", "rate", "both"))
    if kind == "none":
        return None
    return Bound(
        None if kind == "rate" else chance.randint(1, 2),
        chance.randint(0, 2) if kind == "queue" else None,
        chance.randint(1, 2) if kind in ("rate", "both") else None,
        by_key=chance.random() < 0.3,
    )


def _draw_policy(chance: Random, tool: str) -> Policy:
    return Policy(
        tool,
        chance.choice((None, 0.5, 1.0)),
        chance.choice((None, 0.75, 2.0)),
        chance.choice((None, 0.0, 0.5)),
        _draw_bound(chance),
        chance.random() < 0.5,
    )


@dataclass
class Run:
    """One run of a batch, as its caller observed it."""

    ids: list[str]
    began: float
    ended: float = 0.0
    result: Any = None
    error: BaseException | None = None
    gave_up: bool = False
    end: float | None = None
    """Time at which the caller cancelled."""
    settled: frozenset[str] = frozenset()
    """Ids of the calls whose results were already in the ledger."""
    bodies: int = 0
    """Number of bodies that had been started before."""
    open: frozenset[str] = frozenset()
    """Questions that bodies of this batch asked in this run, and that are not answered."""
    tasks: int = 0
    """Number of new tasks since the start; negative if unknown."""

    @property
    def questions(self) -> list[Any]:
        return list(self.error.interrupts) if isinstance(self.error, CallsInterrupted) else []


@dataclass
class Seen:
    """Record of a plan that was played."""

    plan: Batch
    stage: Stage
    runs: list[Run] = field(default_factory=list)
    tasks: int = 0
    """Number of tasks that are left at the end."""
    statistics: Any = None
    ledgers: list[tuple[str, str]] = field(default_factory=list)
    """Each ledger before and after serialization."""
    endless: bool = False
    cancelled: dict[str, int] = field(default_factory=dict[str, int])
    """Calls that were cancelled alone, each with the number of bodies that had been started then."""


MakeNode = Callable[..., Any]


def node_of(plan: Batch, stage: Stage, make: MakeNode = ToolNode) -> Any:
    options: dict[str, Any] = {"handle_tool_errors": HANDLING[plan.handling]} if plan.handling else {}
    unit = plan.unit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CallboardWarning)  # of orders that are known to be wrong
        return make(
            TOOLS,
            middleware=_middleware(plan, stage),
            policies={policy.tool: policy.policy(unit) for policy in plan.policies},
            timeout=None if plan.timeout is None else plan.timeout * unit,
            limit=None if plan.bound is None else plan.bound.limit(unit),
            on_error=plan.on_error,
            grace=plan.grace * unit,
            **options,
        )


def _middleware(plan: Batch, stage: Stage) -> list[object]:
    readers = iter(range(len(plan.middleware)))
    return [
        OutputBudget(1000, reader=f"read_{next(readers)}")
        if name == "OutputBudget"
        else OURS[name](plan.unit)
        if name in OURS
        else middleware_of(stage, name, index)
        for index, name in enumerate(plan.middleware)
    ]


async def observe(plan: Batch, make: MakeNode = ToolNode) -> Seen:
    """Play a plan to its end and record everything that can be observed."""
    stage = enter(Stage(plan.unit))
    stage.loop_time = time.monotonic if plan.threads else anyio.current_time
    stage.node = lambda: ToolNode(TOOLS, grace=plan.grace * plan.unit)
    record = Seen(plan, stage)
    node = node_of(plan, stage, make)
    before = live_tasks()
    batches = [("c", plan.calls), *([("d", plan.neighbours)] if plan.neighbours else [])]
    async with anyio.create_task_group() as tasks:
        for name, calls in batches:
            counts = len(batches) == 1 and not plan.cancels
            tasks.start_soon(_play, plan, record, node, stage.batch(name, calls), before if counts else None)
        for index, delay in plan.cancels:
            tasks.start_soon(_cancel, plan, record, node, f"c{index % len(plan.calls)}", delay)
    while plan.threads and node.statistics().abandoned_threads:  # the threads end by themselves
        await anyio.sleep(0.01)
    await anyio.sleep(0.2 if plan.threads else 100)
    for call_again in stage.kept_calls:
        with anyio.move_on_after(1):
            try:
                await call_again()
            except BaseException:
                continue
    record.tasks = len(live_tasks() - before)
    record.statistics = node.statistics()
    return record


async def _cancel(plan: Batch, record: Seen, node: Any, call_id: str, delay: float) -> None:
    await anyio.sleep(delay * plan.unit)
    if await node.cancel(call_id, "a person has pressed stop"):
        record.cancelled.setdefault(call_id, len(record.stage.bodies))


async def _play(plan: Batch, record: Seen, node: Any, batch: list[Any], before: Any) -> None:
    """Run a batch, answer its questions and continue after cancellations, until it ends."""
    chance, serde = Random(plan.answers), JsonPlusSerializer()
    options: dict[str, Any] = {"ledger": {}} if plan.ledger else {}
    end = plan.end
    for _ in range(RUNS):
        run = await _run(plan, record, node, batch, end, options)
        run.tasks = -1 if before is None else len(live_tasks() - before) - 1
        if run.questions:
            ledger = run.error.ledger  # type: ignore[union-attr]
            back = serde.loads_typed(serde.dumps_typed(ledger))
            record.ledgers.append((repr(ledger), repr(back)))  # as they are now: the next run continues with them
            options = {"ledger": back, "resume": _answers(run.questions, chance)}
        elif run.gave_up and plan.ledger:
            end, options = None, {"ledger": options["ledger"]}
        else:
            return
    record.endless = True


def _answers(questions: list[Any], chance: Random) -> dict[str, Any]:
    chosen = chance.sample(questions, chance.randint(1, len(questions)))
    return {
        question.id: f"yes, {question.value}" if isinstance(question.value, str) else {"type": "accept", "args": None}
        for question in chosen
    }


async def _run(plan: Batch, record: Seen, node: Any, batch: list[Any], end: float | None, options: Any) -> Run:
    stage, ids = record.stage, [call["id"] for call in batch]
    run = Run(ids, stage.loop_time(), settled=_ids_in(options.get("ledger")), bodies=len(stage.bodies), end=end)
    stage.over.difference_update(ids)
    stage.open_questions = {question for question in stage.open_questions if not _of(question, ids)}
    config = None if plan.max_concurrency is None else {"max_concurrency": plan.max_concurrency}
    invoke = partial(node.ainvoke, {"messages": [AIMessage("", tool_calls=batch)]}, config, **options)
    natively = plan.natively and sniffio.current_async_library() == "asyncio"
    try:
        await (_natively if natively else _in_scope)(run, invoke, None if end is None else end * plan.unit)
    finally:
        stage.over.update(ids)
    run.ended, run.open = (
        stage.loop_time(),
        frozenset(question for question in stage.open_questions if _of(question, ids)),
    )
    record.runs.append(run)
    return run


async def _in_scope(run: Run, invoke: Callable[[], Any], end: float | None) -> None:
    with anyio.move_on_after(end) as scope:
        try:
            run.result = await invoke()
        except anyio.get_cancelled_exc_class():
            if not scope.cancel_called:
                run.error = sys.exception()
                return
            raise
        except BaseException as error:
            run.error = error
    run.gave_up = run.result is None and run.error is None


async def _natively(run: Run, invoke: Callable[[], Any], end: float | None) -> None:
    task = asyncio.ensure_future(invoke())
    await asyncio.wait([task], timeout=end)
    cancel_accepted = task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        run.gave_up = cancel_accepted
        run.error = None if cancel_accepted else asyncio.CancelledError()
    elif (error := task.exception()) is not None:
        run.error = error
    else:
        run.result = task.result()


def _of(question: str, ids: list[str]) -> bool:
    return question.partition("?")[0].partition("/")[0] in ids


def _ids_in(ledger: Any) -> frozenset[str]:
    calls = ledger.get("calls", {}) if ledger else {}
    return frozenset(key for key, record in calls.items() if {"output", "parent"} & record.keys())


def messages_in(result: Any) -> list[ToolMessage]:
    """Return the tool messages in the output of a node, including those in commands."""
    if isinstance(result, ToolMessage):
        return [result]
    if isinstance(result, Command):
        return messages_in(result.update)
    if isinstance(result, dict):
        return messages_in(result.get("messages", []))
    return [message for item in result for message in messages_in(item)] if isinstance(result, list) else []


def play(plan: Batch, backend: str, make: MakeNode = ToolNode) -> list[Complaint]:
    from ._promises import PROMISES

    async def main() -> list[Complaint]:
        record = await observe(plan, make)
        return [Complaint(promise.__name__, detail) for promise in PROMISES for detail in promise(record)]

    return run_on(backend, main, real_clock=plan.threads)
