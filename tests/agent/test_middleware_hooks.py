"""The tables of hooks in `docs/reference/middleware.md`, computed from runs of `create_agent`."""

import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
import sniffio
from langchain.agents.middleware import AgentMiddleware, hook_config

from callboard import create_agent, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

from ._savers import say

# Code of LangChain runs on a loop in another thread, which a virtual clock would not wait for.
pytestmark = pytest.mark.real_clock

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "middleware.md"
SECTION = "## Hooks of LangChain's middleware in `create_agent`"
HOOKS = ("before_agent", "before_model", "wrap_model_call", "after_model", "wrap_tool_call", "after_agent")
WRAPPERS = {"wrap_model_call", "wrap_tool_call"}
ORDERS = {"12": "first to last", "21": "last to first", "1221": "the first is outermost"}
ADD = tool_call("add", a=1, b=2)

Told: TypeAlias = Callable[[str, str], None]
"""Function that is told the name of a middleware and of its hook, each time when the hook runs."""


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def sync_half(hook: str, record_hook: Told) -> Any:
    def around(self: Any, request: Any, handler: Any) -> Any:
        record_hook(self.name, hook)
        answer = handler(request)
        record_hook(self.name, hook)
        return answer

    def at(self: Any, state: Any, runtime: Any) -> Any:
        record_hook(self.name, hook)

    return around if hook in WRAPPERS else at


def async_half(hook: str, record_hook: Told, jump: str | None) -> Any:
    async def around(self: Any, request: Any, handler: Any) -> Any:
        record_hook(self.name, hook)
        answer = await handler(request)
        record_hook(self.name, hook)
        return answer

    jumps = [] if jump is None else [{"jump_to": jump}]

    async def at(self: Any, state: Any, runtime: Any) -> Any:
        record_hook(self.name, hook)
        return jumps.pop() if jumps else None

    function = around if hook in WRAPPERS else at
    return function if jump is None else hook_config(can_jump_to=[jump])(function)


def middleware(
    name: str,
    record_hook: Told,
    halves: tuple[str, ...],
    *,
    hooks: tuple[str, ...] = HOOKS,
    jumps: dict[str, str] | None = None,
) -> AgentMiddleware[Any, Any, Any]:
    """Return a middleware that has the given halves of the given hooks."""
    jumps = jumps or {}
    attributes: dict[str, Any] = {"name": name}
    for hook in hooks:
        if "sync" in halves:
            attributes[hook] = sync_half(hook, record_hook)
        if "async" in halves:
            attributes["a" + hook] = async_half(hook, record_hook, jumps.get(hook))
    kind: Any = type("Told", (AgentMiddleware,), attributes)
    return kind()


async def run_agent(model: ScriptedModel, *middleware: Any, messages: tuple[Any, ...] = ()) -> None:
    await create_agent(model, [add], middleware=middleware).ainvoke({"messages": [("user", "go"), *messages]})


async def order_of_hooks() -> dict[str, tuple[str, str]]:
    """Return for each hook what it runs for, and the order of two middlewares."""
    hook_calls: list[tuple[str, str]] = []
    pair = [middleware(name, lambda *hook_call: hook_calls.append(hook_call), ("async",)) for name in "12"]
    await run_agent(ScriptedModel([calls(ADD), "done"]), *pair)
    order = {hook: "".join(name for name, called_hook in hook_calls if called_hook == hook) for hook in HOOKS}
    order = {hook: names[: 4 if hook in WRAPPERS else 2] for hook, names in order.items()}
    hook_calls.clear()
    await run_agent(ScriptedModel([calls(ADD, ADD, ADD), "done"]), pair[0])
    runs = {
        hook: len([called_hook for _, called_hook in hook_calls if called_hook == hook]) // (1 + (hook in WRAPPERS))
        for hook in HOOKS
    }
    units = {1: "run", 2: "request", 3: "call"}
    return {hook: (units[runs[hook]], ORDERS[order[hook]]) for hook in HOOKS}


async def jumps_of(hook: str) -> str:
    """Return the targets to which a hook may jump: after a jump, the run continues elsewhere."""

    async def path(jump: dict[str, str]) -> list[tuple[str, str]]:
        hook_calls: list[tuple[str, str]] = []
        pair = [
            middleware(name, lambda *hook_call: hook_calls.append(hook_call), ("async",), jumps=jump) for name in "12"
        ]
        await run_agent(ScriptedModel(["done"], loop=True), *pair, messages=(calls(ADD),))
        return hook_calls

    usual = await path({})
    targets = [target for target in ("model", "tools", "end") if await path({hook: target}) != usual]
    return ", ".join(f"`{target}`" for target in targets)


async def place_of(hook: str, halves: tuple[str, ...], *, is_sync: bool) -> str:
    """Return where a hook runs that has the given halves."""
    places: set[str] = set()
    loop = threading.get_ident()

    def record_place(*_: str) -> None:
        if threading.get_ident() == loop:
            places.add("event loop")
        else:
            places.add("thread with asyncio" if has_loop() else "worker thread")

    agent = create_agent(
        ScriptedModel([calls(ADD), "done"]), [add], middleware=[middleware("1", record_place, halves, hooks=(hook,))]
    )
    agent_input = say("go")
    try:
        await (anyio.to_thread.run_sync(agent.invoke, agent_input) if is_sync else agent.ainvoke(agent_input))
    except NotImplementedError:
        return "`NotImplementedError`"
    (place,) = places
    return place


def has_loop() -> bool:
    try:
        return bool(sniffio.current_async_library())
    except sniffio.AsyncLibraryNotFoundError:
        return False


BOTH = ("sync", "async")
PLACES = ((BOTH, False), (BOTH, True), (("sync",), False), (("async",), True))
"""Halves of a hook, and whether the run is `invoke`, for the columns of the second table."""


async def test_the_order_of_hooks_is_the_order_in_the_docs() -> None:
    order = await order_of_hooks()
    table = [
        f"| `{hook}` | {unit} | {order} | {'no' if hook in WRAPPERS else await jumps_of(hook)} |"
        for hook, (unit, order) in order.items()
    ]
    print("\n".join(table))
    assert table == documented_rows(0)


async def test_hooks_run_where_the_docs_say() -> None:
    column = ("asyncio", "trio").index(sniffio.current_async_library())
    rows = [[await place_of(hook, halves, is_sync=is_sync) for halves, is_sync in PLACES] for hook in HOOKS]
    print(*rows, sep="\n")
    expected = [[cell.strip() for cell in row.strip("| ").split("|")] for row in documented_rows(1)]
    assert [row[0] for row in expected] == [f"`{hook}`" for hook in HOOKS]
    assert rows == [[row[1 + column], *row[3:]] for row in expected]


def documented_rows(number: int) -> list[str]:
    """Return the rows of a table in the section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(SECTION)[2].partition("\n## ")[0]
    tables = [part.splitlines() for part in section.split("\n\n") if part.startswith("| hook |")]
    return tables[number][2:]


USER: ContextVar[str] = ContextVar("user")


async def who() -> str:
    """Return the user of the run."""
    return USER.get()


@pytest.mark.parametrize("part", [*HOOKS[:4], "after_agent", "pre_model_hook", "post_model_hook", "prompt", "model"])
async def test_a_context_variable_that_a_hook_sets_reaches_no_tool_and_no_caller(part: str) -> None:
    """A worker that runs agents one after the other would act as the user of an earlier run."""
    model = ScriptedModel([calls("who"), "done"])

    def become_other(*_: Any) -> None:
        USER.set("other")

    async def hook(state: Any, *_: Any) -> Any:
        become_other()
        return {"prompt": state["messages"], "model": model}.get(part, {})

    if part in HOOKS:
        agent = create_agent(model, [who], middleware=[middleware("1", become_other, ("async",), hooks=(part,))])
    else:
        options: Any = {"model": model, part: hook}
        agent = create_react_agent(tools=[who], **options)
    USER.set("caller")
    result = await agent.ainvoke(say("go"))

    assert (result["messages"][2].text, USER.get()) == ("caller", "caller")
