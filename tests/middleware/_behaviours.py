"""Tools and links of every manner, good and bad, by name; `test_compositions` puts them together."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

import anyio
import sniffio
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.errors import ParentCommand
from langgraph.types import Command, interrupt

from callboard import cleanup
from callboard._call import current_call
from callboard.middleware import (
    Cache,
    CircuitBreaker,
    Fallback,
    OutputBudget,
    Redact,
    RepairArguments,
    RequireApproval,
    Retry,
    Sanitize,
    Value,
)

SECRET = "write to ann@example.org, \x1b[31mkey sk-ant-api03-" + "a1B2" * 24


class Failure(Exception):
    """What goes wrong in a tool or in a link."""


class Exit(BaseException):
    """A wish to end the program."""


@dataclass
class World:
    """What happens in one example; times are multiples of `unit` seconds."""

    unit: float = 1.0
    over: bool = False
    """Whether the batch has ended."""
    started: list[str | None] = field(default_factory=list)
    """The ids of the calls whose bodies have started."""
    late: list[str | None] = field(default_factory=list)
    """Those that started when the batch was over."""
    kept: list[Callable[[], Awaitable[Any]]] = field(default_factory=list)
    """What a link has kept of its `call_next`, to call it when all is over."""
    failed: set[str | None] = field(default_factory=set)

    async def sleep(self, times: float) -> None:
        await anyio.sleep(times * self.unit)

    def start(self) -> str:
        call = current_call.get()
        assert call is not None
        assert call.id is not None
        self.started.append(call.id)
        if self.over:
            self.late.append(call.id)
        return call.id


# Tools


async def text(world: World, call_id: str, query: str) -> str:
    return query


async def slow(world: World, call_id: str, query: str) -> str:
    await world.sleep(1)
    return query


async def error(world: World, call_id: str, query: str) -> str:
    raise Failure(call_id)


async def error_once(world: World, call_id: str, query: str) -> str:
    await world.sleep(0.25)
    if call_id not in world.failed:
        world.failed.add(call_id)
        raise Failure(call_id)
    return query


async def group(world: World, call_id: str, query: str) -> str:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(error, world, call_id, query)
        tasks.start_soon(error, world, call_id, query)
    return query


async def leave_program(world: World, call_id: str, query: str) -> str:
    raise Exit(call_id)


async def hang(world: World, call_id: str, query: str) -> str:
    await anyio.sleep_forever()
    return query


async def ignore_cancel(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return "too late"
    return query


async def tidy_up(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        with cleanup():
            await world.sleep(1)
    return query


async def tidy_up_plainly(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        await world.sleep(1)
    return query


async def tidy_up_badly(world: World, call_id: str, query: str) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        raise Failure(call_id)


async def ask(world: World, call_id: str, query: str) -> str:
    return str(interrupt(f"{call_id}: sure?"))


async def ask_late(world: World, call_id: str, query: str) -> str:
    await world.sleep(0.5)
    return str(interrupt(f"{call_id}: sure?"))


async def ask_twice(world: World, call_id: str, query: str) -> str:
    return f"{interrupt(f'{call_id}: sure?')} {interrupt(f'{call_id}: quite sure?')}"


async def ask_and_fail(world: World, call_id: str, query: str) -> str:
    interrupt(f"{call_id}: sure?")
    raise Failure(call_id)


async def leave_graph(world: World, call_id: str, query: str) -> str:
    raise ParentCommand(Command(graph=Command.PARENT, update={"seen": call_id}))


async def cancel_itself(world: World, call_id: str, query: str) -> str:
    raise asyncio.CancelledError


async def cancel_task(world: World, call_id: str, query: str) -> str:
    if sniffio.current_async_library() == "asyncio":
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await world.sleep(1)
    return query


async def large(world: World, call_id: str, query: str) -> str:
    return "0123456789\n" * 500


async def secret(world: World, call_id: str, query: str) -> str:
    return SECRET


async def secret_error(world: World, call_id: str, query: str) -> str:
    raise Failure(SECRET)


async def command(world: World, call_id: str, query: str) -> Command[Any]:
    return Command(update={"messages": [ToolMessage(query, tool_call_id=call_id)], "seen": 1})


async def several(world: World, call_id: str, query: str) -> list[Any]:
    return [Command(update={"seen": 1}), ToolMessage(query, tool_call_id=call_id)]


async def forget_message(world: World, call_id: str, query: str) -> Command[Any]:
    return Command(update={"messages": []})


Behaviour = Callable[[World, str, str], Awaitable[object]]


def _named(*some: Any) -> dict[str, Any]:
    return {one.__name__: one for one in some}


WITH_ID = _named(command, several, forget_message)
"""Behaviours of tools that are given the call's id."""
PLAIN = _named(
    *(text, slow, large, secret),
    *(error, error_once, group, secret_error, leave_program),
    *(hang, ignore_cancel, tidy_up, tidy_up_plainly, tidy_up_badly),
    *(ask, ask_late, ask_twice, ask_and_fail, leave_graph),
    *(cancel_itself, cancel_task),
)
BEHAVIOURS: dict[str, Behaviour] = {**PLAIN, **WITH_ID}


def tools_of(world: World) -> list[BaseTool]:
    """A tool for each behaviour, and `count`, whose argument is a number."""

    def plain(behaviour: Behaviour) -> Any:
        async def body(query: str) -> object:
            return await behaviour(world, world.start(), query)

        return body

    def with_id(behaviour: Behaviour) -> Any:
        async def body(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> object:
            world.start()
            return await behaviour(world, tool_call_id, query)

        return body

    async def count(number: int) -> str:
        world.start()
        return str(number)

    bodies = {name: plain(one) for name, one in PLAIN.items()}
    bodies |= {name: with_id(one) for name, one in WITH_ID.items()} | {"count": count}
    return [
        StructuredTool.from_function(coroutine=body, name=name, description="A tool.") for name, body in bodies.items()
    ]


# Links


def _answer(request: Any, content: str = "from a link") -> ToolMessage:
    return ToolMessage(content, tool_call_id=request.tool_call["id"], name=request.tool_call["name"])


def _changed(request: Any, **changes: Any) -> Any:
    return request.override(tool_call={**request.tool_call, **changes})


def _question(request: Any) -> str:
    return f"{request.tool_call['id']}: may the link?"


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
    raise Exit("link")


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


class Obj:
    """A link that is an object."""

    def __init__(self, link: Any) -> None:
        self._link = link

    async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
        return await self._link(request, call_next)


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
    *(catch, catch_all, insist, catch_and_wait, call_again_behind_shield, translate),
    *(call_twice, call_at_once, hedge, lose_patience),
    *(fail_before, fail_after, leave),
    *(ask_before, ask_after, change_arguments, change_tool),
    *(return_none, return_texts, answer_another, change_id, answer_twice, answer_in_two_commands, forget_answer),
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
}
LINKS = [*FUNCTIONS, *OURS]


def link_of(world: World, name: str, place: int) -> object:
    """The link of a name; every second function is an object."""
    if name in FUNCTIONS:
        return _function(world, FUNCTIONS[name], place)
    return {**OURS, **THEIRS}[name](world, place)


def _function(world: World, behaviour: Any, place: int) -> object:
    async def link(request: Any, call_next: Any) -> Any:
        return await behaviour(world, request, call_next)

    link.__qualname__ = behaviour.__name__
    return Obj(link) if place % 2 else link
