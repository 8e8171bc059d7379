"""Cost of middleware: none, pass-through middleware, and each of callboard's own."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import langgraph.prebuilt

import callboard
from callboard.guards import Redact, RepairArguments, Sanitize
from callboard.middleware import Cache, CircuitBreaker, Fallback, OutputBudget, RequireApproval, Retry, Value

from ._contestants import LOOK_UP, Work, direct, queries
from ._cost import pass_on
from ._measure import Budget, Contestant, Samples, Table, batches, interleaved, timed

COUNTS = (1, 2, 5)
DEEP = 1_000
"""Number of awaits in one measurement: a single await is too short to be measured."""
NONE, EMPTY = "without middleware", "middleware=[]"
THEIRS, THEIRS_WRAPPED = "LangGraph, without", "LangGraph, awrap_tool_call"
AWAIT = "a bare await"

OWN: dict[str, Callable[[], object]] = {
    "OutputBudget": OutputBudget,
    "RepairArguments": RepairArguments,
    "Sanitize": Sanitize,
    "RequireApproval, of other tools": lambda: RequireApproval({"look_up": False}),
    "Fallback": lambda: Fallback({"look_up": Value("nothing")}),
    "Cache, nothing found": lambda: Cache(["look_up"], size=1),
    "Cache, found": lambda: Cache(["look_up"], size=100_000),
    "CircuitBreaker": CircuitBreaker,
    "Retry": lambda: Retry(any_tool=True),
    "Redact": Redact,
}
"""Each middleware with its default options, for calls that it lets pass."""


def middleware(*, sizes: tuple[int, ...], repetitions: int) -> Table:
    """Measure the additional microseconds per call of each middleware."""
    table = Table("Cost of middleware", ["calls in the batch", *map(str, sizes)])
    costs = [_Costs(_samples(size, repetitions), size) for size in sizes]
    for name in (NONE, EMPTY, *map(_passing, COUNTS), AWAIT, THEIRS, THEIRS_WRAPPED):
        table.add(f"{name}, us", *(cost.each(name) for cost in costs))
    for name in OWN:
        table.add(f"{name}, added, us", *(cost.added(name, NONE) for cost in costs))
    table.add(f"{THEIRS_WRAPPED}, added, us", *(cost.added(THEIRS_WRAPPED, THEIRS) for cost in costs))
    for size, cost in zip(sizes, costs, strict=True):
        table.budgets += [
            Budget(f"{size} calls, an empty chain : none", 1.03, cost.samples.ratio(EMPTY, NONE)),
            Budget(f"{size} calls, each added middleware over a bare await, us", 5.0, cost.per_link - cost.each(AWAIT)),
            Budget(f"{size} calls, the first middleware, us (an aim)", 5.0, cost.added(_passing(1), NONE)),
        ]
    return table


class _Costs:
    """Microseconds for each call of a batch."""

    def __init__(self, samples: Samples, size: int) -> None:
        self.samples = samples
        self._size = size

    def each(self, name: str) -> float:
        return self.samples[name] / (DEEP if name == AWAIT else self._size) * 1e6

    def added(self, name: str, without: str) -> float:
        """Return a contestant's extra cost, from the ratio within each turn, because the machine's speed changes."""
        return (self.samples.ratio(name, without) - 1) * self.each(without)

    @property
    def per_link(self) -> float:
        """Return the additional cost of each middleware after the first."""
        first, last = min(COUNTS), max(COUNTS)
        return (self.added(_passing(last), NONE) - self.added(_passing(first), NONE)) / (last - first)


def _passing(count: int) -> str:
    return f"{count} that pass{'es' if count == 1 else ''} on"


def _samples(size: int, repetitions: int) -> Samples:
    message = queries(size)

    def ours(**options: Any) -> Contestant:
        return batches("asyncio", direct(callboard.ToolNode([LOOK_UP], **options), message), size)

    def theirs(**options: Any) -> Contestant:
        return batches("asyncio", direct(langgraph.prebuilt.ToolNode([LOOK_UP], **options), message), size)

    contestants = {
        NONE: ours(),
        EMPTY: ours(middleware=[]),
        **{_passing(count): ours(middleware=[pass_on] * count) for count in COUNTS},
        AWAIT: timed("asyncio", _awaits(DEEP)),
        THEIRS: theirs(),
        THEIRS_WRAPPED: theirs(awrap_tool_call=pass_on),
        **{name: ours(middleware=[make()]) for name, make in OWN.items()},
    }
    return interleaved(contestants, repetitions)


def _awaits(count: int) -> Work:
    """Measure this many awaits of a pass-through function, in chains of ten."""
    chain: Callable[[object], Awaitable[object]] = _last
    for _ in range(10):
        chain = partial(pass_on, execute=chain)

    async def run() -> None:
        for _ in range(count // 10):
            await chain(None)

    return run


async def _last(request: object) -> object:
    return request
