"""Middleware with good and bad behaviours, by name. `tests.explore` puts them around tools."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Protocol

import anyio
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware, wrap_tool_call
from langchain_core.messages import ToolMessage
from langgraph.types import Command, interrupt

from callboard import cleanup


class Failure(Exception):
    """Error that a middleware raises on purpose."""


class Exit(BaseException):
    """A wish to end the program."""


class Stage(Protocol):
    """Clock and record of the plan that is played. Times are multiples of `unit` seconds."""

    unit: float
    kept_calls: list[Any]
    """Each `call_next` that a middleware kept, to call it after the end of the batch."""

    async def sleep(self, seconds: float) -> None: ...


def _answer(request: Any, content: str = "from a middleware") -> ToolMessage:
    return ToolMessage(content, tool_call_id=request.tool_call["id"], name=request.tool_call["name"])


def _change_call(request: Any, **changes: Any) -> Any:
    return request.override(tool_call={**request.tool_call, **changes})


def _question(request: Any) -> str:
    return f"{request.tool_call['id']}: may the middleware?"


async def pass_on(stage: Stage, request: Any, call_next: Any) -> Any:
    return await call_next(request)


async def wait_before(stage: Stage, request: Any, call_next: Any) -> Any:
    await stage.sleep(0.3)
    return await call_next(request)


async def wait_after(stage: Stage, request: Any, call_next: Any) -> Any:
    output = await call_next(request)
    await stage.sleep(0.3)
    return output


async def catch(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except Exception:
        return _answer(request)


async def catch_alone(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except Exception:
        return _answer(request)


async def catch_all(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except BaseException:  # the mistake under test
        return _answer(request)


async def insist(stage: Stage, request: Any, call_next: Any) -> Any:
    for _ in range(3):
        try:
            return await call_next(request)
        except BaseException:  # the mistake under test
            continue
    return _answer(request)


async def catch_and_wait(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except BaseException:  # the mistake under test
        await stage.sleep(2)
        return _answer(request)


async def call_again_behind_shield(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    finally:
        with cleanup():
            await call_next(request)


async def call_again_when_cancelled(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except anyio.get_cancelled_exc_class():
        with cleanup():
            await call_next(request)
        raise


async def call_behind_shield(stage: Stage, request: Any, call_next: Any) -> Any:
    with cleanup():
        await stage.sleep(0.3)
        return await call_next(request)


async def tidy_behind_shield(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    finally:
        with cleanup():
            await stage.sleep(1)


async def call_twice(stage: Stage, request: Any, call_next: Any) -> Any:
    await call_next(request)
    return await call_next(request)


async def call_at_once(stage: Stage, request: Any, call_next: Any) -> Any:
    answers: list[Any] = []

    async def one() -> None:
        answers.append(await call_next(request))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    return answers[0]


async def hedge(stage: Stage, request: Any, call_next: Any) -> Any:
    answers: list[Any] = []

    async def one(after: float) -> None:
        await stage.sleep(after)
        answers.append(await call_next(request))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, 0)
        tasks.start_soon(one, 0.3)
    return answers[0]


async def lose_patience(stage: Stage, request: Any, call_next: Any) -> Any:
    with anyio.move_on_after(0.4 * stage.unit):
        return await call_next(request)
    return _answer(request)


async def keep(stage: Stage, request: Any, call_next: Any) -> Any:
    stage.kept_calls.append(lambda: call_next(request))
    return await call_next(request)


async def answer(stage: Stage, request: Any, call_next: Any) -> Any:
    return _answer(request)


async def answer_command(stage: Stage, request: Any, call_next: Any) -> Any:
    return Command(update={"messages": [_answer(request)]})


async def answer_list(stage: Stage, request: Any, call_next: Any) -> Any:
    return [Command(update={"seen": 1}), _answer(request)]


async def fail_before(stage: Stage, request: Any, call_next: Any) -> Any:
    raise Failure("before")


async def fail_after(stage: Stage, request: Any, call_next: Any) -> Any:
    await call_next(request)
    raise Failure("after")


async def translate(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except Exception as error:
        raise Failure("translated") from error


async def leave(stage: Stage, request: Any, call_next: Any) -> Any:
    raise Exit("middleware")


async def ask_before(stage: Stage, request: Any, call_next: Any) -> Any:
    interrupt(_question(request))
    return await call_next(request)


async def ask_after(stage: Stage, request: Any, call_next: Any) -> Any:
    output = await call_next(request)
    interrupt(_question(request))
    return output


async def change_arguments(stage: Stage, request: Any, call_next: Any) -> Any:
    return await call_next(_change_call(request, args={"key": "changed"}))


async def return_none(stage: Stage, request: Any, call_next: Any) -> Any:
    await call_next(request)


async def return_texts(stage: Stage, request: Any, call_next: Any) -> Any:
    return ["text"]


async def answer_another(stage: Stage, request: Any, call_next: Any) -> Any:
    return ToolMessage("x", tool_call_id="another")


async def answer_twice(stage: Stage, request: Any, call_next: Any) -> Any:
    return [_answer(request), _answer(request)]


async def answer_in_two_commands(stage: Stage, request: Any, call_next: Any) -> Any:
    return [Command(update={"messages": [_answer(request)]})] * 2


async def forget_answer(stage: Stage, request: Any, call_next: Any) -> Any:
    return Command(update={"seen": 1})


def sync_pass_on(stage: Stage, request: Any, call_next: Any) -> Any:
    return call_next(request)


def sync_wait(stage: Stage, request: Any, call_next: Any) -> Any:
    time.sleep(stage.unit / 4)
    return call_next(request)


def sync_catch(stage: Stage, request: Any, call_next: Any) -> Any:
    try:
        return call_next(request)
    except Exception:
        return _answer(request)


def sync_insist(stage: Stage, request: Any, call_next: Any) -> Any:
    for _ in range(3):
        try:
            return call_next(request)
        except BaseException:  # the mistake under test
            continue
    return _answer(request)


def sync_call_at_once(stage: Stage, request: Any, call_next: Any) -> Any:
    with ThreadPoolExecutor(2) as pool:
        # Run with the call's context variables, which threads do not inherit.
        futures = [pool.submit(copy_context().run, call_next, request) for _ in range(2)]
        return [future.result() for future in futures].pop()


def sync_answer(stage: Stage, request: Any, call_next: Any) -> Any:
    return _answer(request)


def sync_fail(stage: Stage, request: Any, call_next: Any) -> Any:
    call_next(request)
    raise Failure("after")


def sync_ask_before(stage: Stage, request: Any, call_next: Any) -> Any:
    interrupt(_question(request))
    return call_next(request)


def sync_return_none(stage: Stage, request: Any, call_next: Any) -> Any:
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


async def _rework_slowly(message: Any, request: Any) -> Any:
    await anyio.sleep(1)
    return message


def _by_name(*functions: Any) -> dict[str, Any]:
    return {function.__name__: function for function in functions}


FUNCTIONS = _by_name(
    *(pass_on, wait_before, wait_after, tidy_behind_shield, keep, answer, answer_command, answer_list),
    *(catch, catch_all, insist, catch_and_wait, translate),
    *(call_behind_shield, call_again_behind_shield, call_again_when_cancelled),
    *(call_twice, call_at_once, hedge, lose_patience, fail_before, fail_after, leave, ask_before, ask_after),
    *(change_arguments, return_none, return_texts, answer_another, answer_twice, answer_in_two_commands),
    forget_answer,
)
SYNC = _by_name(
    *(sync_pass_on, sync_wait, sync_catch, sync_insist, sync_call_at_once),
    *(sync_answer, sync_fail, sync_ask_before, sync_return_none),
)
THEIRS: dict[str, Callable[[float], object]] = {
    "ToolRetryMiddleware": lambda unit: ToolRetryMiddleware(
        max_retries=2, initial_delay=0.25 * unit, jitter=False, on_failure="error"
    ),
    "ToolErrorMiddleware": lambda unit: ToolErrorMiddleware(lambda error, request: "handled"),
    "@wrap_tool_call": lambda unit: wrap_tool_call(catch_alone),
}
"""Middleware of LangChain, which needs a real clock: on trio it runs on an event loop in another thread."""
REWORKING: dict[str, Any] = {
    "reword": _reword,
    "fail to rework": _fail_to_rework,
    "rework to nothing": _rework_to_nothing,
    "rework slowly": _rework_slowly,
}


def middleware_of(stage: Stage, name: str, position: int) -> object:
    """Return the middleware of a name. Every second function is wrapped in an object."""
    if name in REWORKING:
        return Reworking(REWORKING[name])
    if name in THEIRS:
        return THEIRS[name](stage.unit)
    return _sync_link(stage, SYNC[name], position) if name in SYNC else _async_link(stage, FUNCTIONS[name], position)


def _async_link(stage: Stage, behaviour: Any, position: int) -> object:
    async def middleware(request: Any, call_next: Any) -> Any:
        return await behaviour(stage, request, call_next)

    middleware.__qualname__ = behaviour.__name__
    return Obj(middleware) if position % 2 else middleware


def _sync_link(stage: Stage, behaviour: Any, position: int) -> object:
    def middleware(request: Any, call_next: Any) -> Any:
        return behaviour(stage, request, call_next)

    middleware.__qualname__ = behaviour.__name__
    return SyncObj(middleware) if position % 2 else middleware
