"""Middleware with good and bad behaviours, by name. `test_compositions` puts them around tools."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from random import Random
from typing import Any

import anyio
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware, wrap_tool_call
from langchain_core.messages import ToolMessage
from langgraph.types import Command, interrupt

from callboard import cleanup
from callboard.guards import Redact, RepairArguments, Sanitize
from callboard.middleware import Cache, CircuitBreaker, Fallback, OutputBudget, RequireApproval, Retry, Value

from ._behaviours import BEHAVIOURS, PLAIN, Exit, Failure, World, _named


def _answer(request: Any, content: str = "from a middleware") -> ToolMessage:
    return ToolMessage(content, tool_call_id=request.tool_call["id"], name=request.tool_call["name"])


def _changed(request: Any, **changes: Any) -> Any:
    return request.override(tool_call={**request.tool_call, **changes})


def _question(request: Any) -> str:
    return f"{request.tool_call['id']}: may the middleware?"


async def pass_on(world: World, request: Any, call_next: Any) -> Any:
    return await call_next(request)


async def wait_before(world: World, request: Any, call_next: Any) -> Any:
    await world.sleep(0.3)
    return await call_next(request)


async def wait_after(world: World, request: Any, call_next: Any) -> Any:
    output = await call_next(request)
    await world.sleep(0.3)
    return output


async def catch(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except Exception:
        return _answer(request)


async def catch_alone(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except Exception:
        return _answer(request)


async def catch_all(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except BaseException:  # the mistake under test
        return _answer(request)


async def insist(world: World, request: Any, call_next: Any) -> Any:
    for _ in range(3):
        try:
            return await call_next(request)
        except BaseException:  # the mistake under test
            continue
    return _answer(request)


async def catch_and_wait(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except BaseException:  # the mistake under test
        await world.sleep(2)
        return _answer(request)


async def call_again_behind_shield(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    finally:
        with cleanup():
            await call_next(request)


async def call_again_for_text(world: World, request: Any, call_next: Any) -> Any:
    middleware = call_again_behind_shield if request.tool_call["name"] == "text" else pass_on
    return await middleware(world, request, call_next)


async def call_again_when_cancelled(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except anyio.get_cancelled_exc_class():
        with cleanup():
            await call_next(request)
        raise


async def call_behind_shield(world: World, request: Any, call_next: Any) -> Any:
    with cleanup():
        await world.sleep(0.3)
        return await call_next(request)


async def tidy_behind_shield(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    finally:
        with cleanup():
            await world.sleep(1)


async def call_twice(world: World, request: Any, call_next: Any) -> Any:
    await call_next(request)
    return await call_next(request)


async def call_at_once(world: World, request: Any, call_next: Any) -> Any:
    answers: list[Any] = []

    async def one() -> None:
        answers.append(await call_next(request))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    return answers[0]


async def hedge(world: World, request: Any, call_next: Any) -> Any:
    answers: list[Any] = []

    async def one(after: float) -> None:
        await world.sleep(after)
        answers.append(await call_next(request))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, 0)
        tasks.start_soon(one, 0.3)
    return answers[0]


async def lose_patience(world: World, request: Any, call_next: Any) -> Any:
    with anyio.move_on_after(0.4 * world.unit):
        return await call_next(request)
    return _answer(request)


async def keep(world: World, request: Any, call_next: Any) -> Any:
    world.kept.append(lambda: call_next(request))
    return await call_next(request)


async def answer(world: World, request: Any, call_next: Any) -> Any:
    return _answer(request)


async def answer_command(world: World, request: Any, call_next: Any) -> Any:
    return Command(update={"messages": [_answer(request)]})


async def answer_list(world: World, request: Any, call_next: Any) -> Any:
    return [Command(update={"seen": 1}), _answer(request)]


async def fail_before(world: World, request: Any, call_next: Any) -> Any:
    raise Failure("before")


async def fail_after(world: World, request: Any, call_next: Any) -> Any:
    await call_next(request)
    raise Failure("after")


async def translate(world: World, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except Exception as error:
        raise Failure("translated") from error


async def leave(world: World, request: Any, call_next: Any) -> Any:
    raise Exit("middleware")


async def ask_before(world: World, request: Any, call_next: Any) -> Any:
    interrupt(_question(request))
    return await call_next(request)


async def ask_after(world: World, request: Any, call_next: Any) -> Any:
    output = await call_next(request)
    interrupt(_question(request))
    return output


async def change_arguments(world: World, request: Any, call_next: Any) -> Any:
    return await call_next(_changed(request, args={"query": "changed"}))


async def change_tool(world: World, request: Any, call_next: Any) -> Any:
    tool = next(tool for tool in request.runtime.tools if tool.name == "slow")
    return await call_next(_changed(request, name="slow", args={"query": "a"}).override(tool=tool))


async def return_none(world: World, request: Any, call_next: Any) -> Any:
    await call_next(request)


async def return_texts(world: World, request: Any, call_next: Any) -> Any:
    return ["text"]


async def answer_another(world: World, request: Any, call_next: Any) -> Any:
    return ToolMessage("x", tool_call_id="another")


async def change_id(world: World, request: Any, call_next: Any) -> Any:
    return await call_next(_changed(request, id="another"))


async def answer_twice(world: World, request: Any, call_next: Any) -> Any:
    return [_answer(request), _answer(request)]


async def answer_in_two_commands(world: World, request: Any, call_next: Any) -> Any:
    return [Command(update={"messages": [_answer(request)]})] * 2


async def forget_answer(world: World, request: Any, call_next: Any) -> Any:
    return Command(update={"seen": 1})


def sync_pass_on(world: World, request: Any, call_next: Any) -> Any:
    return call_next(request)


def sync_wait(world: World, request: Any, call_next: Any) -> Any:
    time.sleep(world.unit / 4)
    return call_next(request)


def sync_catch(world: World, request: Any, call_next: Any) -> Any:
    try:
        return call_next(request)
    except Exception:
        return _answer(request)


def sync_insist(world: World, request: Any, call_next: Any) -> Any:
    for _ in range(3):
        try:
            return call_next(request)
        except BaseException:  # the mistake under test
            continue
    return _answer(request)


def sync_call_at_once(world: World, request: Any, call_next: Any) -> Any:
    with ThreadPoolExecutor(2) as pool:
        # Run with the call's context variables, which threads do not inherit.
        asked = [pool.submit(copy_context().run, call_next, request) for _ in range(2)]
        return [one.result() for one in asked].pop()


def sync_answer(world: World, request: Any, call_next: Any) -> Any:
    return _answer(request)


def sync_fail(world: World, request: Any, call_next: Any) -> Any:
    call_next(request)
    raise Failure("after")


def sync_ask_before(world: World, request: Any, call_next: Any) -> Any:
    interrupt(_question(request))
    return call_next(request)


def sync_return_none(world: World, request: Any, call_next: Any) -> Any:
    call_next(request)


class Obj:
    """Async middleware as an object."""

    def __init__(self, middleware: Any) -> None:
        self._link = middleware

    async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
        return await self._link(request, call_next)


class SyncObj:
    """Sync middleware as an object, which runs in a worker thread."""

    def __init__(self, middleware: Any) -> None:
        self._link = middleware

    def wrap_tool_call(self, request: Any, call_next: Any) -> Any:
        return self._link(request, call_next)


class Reworking:
    """Middleware that passes calls on and reworks errors."""

    def __init__(self, rework: Any) -> None:
        self._rework = rework

    async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def aerror_message(self, message: Any, request: Any) -> Any:
        return await self._rework(message, request)


async def _reword(message: Any, request: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return message.model_copy(update={"content": "reworded"})


async def _fail_to_rework(message: Any, request: Any) -> Any:
    raise Failure("rework")


async def _rework_to_nothing(message: Any, request: Any) -> Any:
    return None


async def _rework_for_ever(message: Any, request: Any) -> Any:
    await anyio.sleep_forever()


async def _instead(request: Any, failure: Any) -> str:
    return "instead"


def _fallback() -> Fallback:
    return Fallback(
        {
            "error": "text",
            "hang": ["error", "slow"],
            "tidy_up": Value("instead"),
            "cancel_itself": "ask",
            "group": "command",
            "secret_error": _instead,
            "leave_graph": "text",
            "ask_and_fail": ["ask", Value("instead")],
        }
    )


CACHED = set(PLAIN)
PASSING = _named(pass_on, wait_before, wait_after, tidy_behind_shield, keep, answer, answer_command, answer_list)
WILD = _named(
    *(catch, catch_all, insist, catch_and_wait, translate),
    *(call_behind_shield, call_again_behind_shield, call_again_for_text, call_again_when_cancelled),
    *(call_twice, call_at_once, hedge, lose_patience),
    *(fail_before, fail_after, leave),
    *(ask_before, ask_after, change_arguments, change_tool),
    *(return_none, return_texts, answer_another, change_id, answer_twice, answer_in_two_commands, forget_answer),
)
SYNC = _named(
    *(sync_pass_on, sync_wait, sync_catch, sync_insist, sync_call_at_once),
    *(sync_answer, sync_fail, sync_ask_before, sync_return_none),
)
FUNCTIONS = PASSING | WILD
OURS: dict[str, Callable[[World, int], object]] = {
    "Retry": lambda world, _: Retry(3, initial=0.5 * world.unit, any_tool=True, rng=Random(0)),
    "Retry, idempotent": lambda world, _: Retry(2, initial=0.5 * world.unit, on=(Failure, TimeoutError), rng=Random(0)),
    "Retry, messages": lambda world, _: Retry(2, initial=0, any_tool=True, on_message=lambda m: m.status == "error"),
    "Fallback": lambda world, _: _fallback(),
    "Cache": lambda world, _: Cache(CACHED, ttl=world.unit),
    "Cache, by key": lambda world, _: Cache(BEHAVIOURS, key=lambda request: "one", size=1),
    "CircuitBreaker": lambda world, _: CircuitBreaker(minimum=1, open_for=world.unit),
    "CircuitBreaker, one": lambda world, _: CircuitBreaker(1, minimum=2, open_for=world.unit, key=lambda call: "all"),
    "RepairArguments": lambda world, _: RepairArguments(),
    "Sanitize": lambda world, _: Sanitize(),
    "Redact": lambda world, _: Redact(reveal=["text"]),
    "OutputBudget": lambda world, place: OutputBudget(100, reader=f"read_{place}"),
    "RequireApproval": lambda world, _: RequireApproval(),
    "RequireApproval, some": lambda world, _: RequireApproval(["slow", "error", "command", "count"]),
}
THEIRS: dict[str, Callable[[World, int], object]] = {
    "ToolRetryMiddleware": lambda world, _: ToolRetryMiddleware(
        max_retries=2, initial_delay=0.25 * world.unit, jitter=False, on_failure="error"
    ),
    "ToolRetryMiddleware, message": lambda world, _: ToolRetryMiddleware(max_retries=1, initial_delay=0.0),
    "ToolErrorMiddleware": lambda world, _: ToolErrorMiddleware(lambda error, request: "handled"),
    "@wrap_tool_call": lambda world, _: wrap_tool_call(catch_alone),
}
REWORKING: dict[str, Callable[[World, int], object]] = {
    "reword": lambda world, _: Reworking(_reword),
    "fail to rework": lambda world, _: Reworking(_fail_to_rework),
    "rework to nothing": lambda world, _: Reworking(_rework_to_nothing),
    "rework for ever": lambda world, _: Reworking(_rework_for_ever),
}
MIDDLEWARE = [*FUNCTIONS, *OURS, *OURS, *REWORKING]


def middleware_of(world: World, name: str, place: int) -> object:
    """Return the middleware of a name. Every second function is wrapped in an object."""
    if name in FUNCTIONS:
        return _async_link(world, FUNCTIONS[name], place)
    if name in SYNC:
        return _sync_link(world, SYNC[name], place)
    return {**OURS, **THEIRS, **REWORKING}[name](world, place)


def _async_link(world: World, behaviour: Any, place: int) -> object:
    async def middleware(request: Any, call_next: Any) -> Any:
        return await behaviour(world, request, call_next)

    middleware.__qualname__ = behaviour.__name__
    return Obj(middleware) if place % 2 else middleware


def _sync_link(world: World, behaviour: Any, place: int) -> object:
    def middleware(request: Any, call_next: Any) -> Any:
        return behaviour(world, request, call_next)

    middleware.__qualname__ = behaviour.__name__
    return SyncObj(middleware) if place % 2 else middleware
