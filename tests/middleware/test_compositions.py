"""Promises 1, 2 and 4, whatever the tools do and whatever is around them: any composition of links."""

import asyncio
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import anyio
import pytest
import sniffio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.errors import ParentCommand
from langgraph.types import Command

from callboard import (
    CallboardWarning,
    CallError,
    CallPolicy,
    CallsInterrupted,
    Limit,
    Rate,
    Statistics,
    ToolInvocationError,
    ToolNode,
)
from callboard.testing import tool_call

from ._behaviours import BEHAVIOURS, LINKS, Exit, Failure, World, link_of, tools_of

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)
WAIT = 100_000


@dataclass(frozen=True)
class Scene:
    """A batch, what is around its calls, and how it is run; times are multiples of the world's unit."""

    calls: Sequence[tuple[str, str]]
    """Behaviours of tools and queries."""
    links: Sequence[str] = ()
    handling: Any = ...
    """`...` for the default."""
    on_error: Any = "cancel"
    grace: float = 5.0
    timeout: float | None = None
    limit: Limit | None = None
    policies: tuple[tuple[str, CallPolicy], ...] = ()
    concurrency: int | None = None
    as_state: bool = True
    wrapper: bool = False
    end: float = 50.0
    """When the caller gives up."""
    natively: bool = False
    """Whether by asyncio's `task.cancel()`."""
    one_by_one: bool = False
    """Whether questions are answered one at a time."""
    response: str = "accept"
    ledger: bool = False
    """Whether the caller wants to know of each result at once."""

    @property
    def batch(self) -> list[ToolCall]:
        return [_call(str(place), *call) for place, call in enumerate(self.calls)]

    def has(self, *names: str) -> bool:
        """Whether a tool or a link of one of these names takes part."""
        return not {*self.links, *(behaviour for behaviour, _ in self.calls)}.isdisjoint(names)

    def node(self, world: World) -> ToolNode:
        options: dict[str, Any] = {} if self.handling is ... else {"handle_tool_errors": self.handling}
        if self.wrapper:
            options["awrap_tool_call"] = lambda request, execute: execute(request)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CallboardWarning)  # of wrong orders
            return ToolNode(
                tools_of(world),
                middleware=[link_of(world, name, place) for place, name in enumerate(self.links)],
                on_error=self.on_error,
                grace=self.grace * world.unit,
                timeout=None if self.timeout is None else self.timeout * world.unit,
                limit=self.limit,
                policies={name: _scaled(policy, world.unit) for name, policy in self.policies},
                **options,
            )


def _call(call_id: str, behaviour: str, query: str) -> ToolCall:
    if behaviour == "count":
        return tool_call("count", call_id, number={"a": "3", "b": "many"}[query])
    return tool_call(behaviour, call_id, query=query)


def _scaled(policy: CallPolicy, unit: float) -> CallPolicy:
    def scaled(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * unit

    return CallPolicy(
        timeout=scaled(policy.timeout),
        budget=scaled(policy.budget),
        limit=policy.limit,
        grace=scaled(policy.grace),
        idempotent=policy.idempotent,
    )


CALLS = st.tuples(st.sampled_from([*BEHAVIOURS, "count", "unknown"]), st.sampled_from("ab"))
LIMITS = st.sampled_from(
    [
        None,
        Limit(concurrency=1),
        Limit(concurrency=1, queue=0),
        Limit(concurrency=2, queue=1),
        Limit(rate=Rate(1, per=0.5)),
        Limit(concurrency=1, key=lambda call: call["args"]["query"]),
    ]
)
POLICIES = st.builds(
    CallPolicy,
    timeout=st.sampled_from([None, 0.5, 1.0]),
    budget=st.sampled_from([None, 0.75, 2.0]),
    limit=LIMITS,
    grace=st.sampled_from([None, 0.0, 0.5]),
    idempotent=st.booleans(),
)


def scenes(links: Sequence[str]) -> st.SearchStrategy[Scene]:
    return st.builds(
        Scene,
        calls=st.lists(CALLS, min_size=1, max_size=6),
        links=st.lists(st.sampled_from(links), max_size=5),
        handling=st.sampled_from([..., True, False, "It failed.", (Failure, TimeoutError)]),
        on_error=st.sampled_from(["cancel", "finish"]),
        grace=st.sampled_from([5.0, 0.5, 0.0]),
        timeout=st.sampled_from([None, 1.0]),
        limit=LIMITS,
        policies=st.dictionaries(st.sampled_from([*BEHAVIOURS]), POLICIES, max_size=3).map(
            lambda policies: tuple(policies.items())
        ),
        concurrency=st.sampled_from([None, 1, 2]),
        as_state=st.booleans(),
        wrapper=st.booleans(),
        end=st.sampled_from([50.0, 0.0, 0.25, 0.3, 0.5, 0.75, 1.0, 1.3, 2.0]),
        natively=st.booleans(),
        one_by_one=st.booleans(),
        response=st.sampled_from(["accept", "ignore", "response"]),
        ledger=st.booleans(),
    )


@dataclass
class Ended:
    """How a run of a node ended."""

    result: Any = None
    error: BaseException | None = None
    gave_up: bool = False


async def run(node: ToolNode, scene: Scene, world: World, **options: Any) -> Ended:
    """Run the batch until it ends or its caller gives up."""
    natively = scene.natively and sniffio.current_async_library() == "asyncio"
    call = _run_natively if natively else _run_in_scope
    given: Any = {"messages": [AIMessage("", tool_calls=scene.batch)]} if scene.as_state else scene.batch
    config = None if scene.concurrency is None else {"max_concurrency": scene.concurrency}
    return await call(node, scene.end * world.unit, given, config, options)


async def _run_in_scope(node: ToolNode, end: float, given: Any, config: Any, options: Any) -> Ended:
    with anyio.move_on_after(end) as scope:
        try:
            return Ended(await node.ainvoke(given, config, **options))
        except BaseException as error:
            if isinstance(error, anyio.get_cancelled_exc_class()) and scope.cancel_called:
                raise
            return Ended(error=error)
    return Ended(gave_up=True)


async def _run_natively(node: ToolNode, end: float, given: Any, config: Any, options: Any) -> Ended:
    task = asyncio.ensure_future(node.ainvoke(given, config, **options))
    await asyncio.wait([task], timeout=end)
    asked = task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        assert asked, "the node cancelled its caller"
        return Ended(gave_up=True)
    error = task.exception()
    return Ended(error=error) if error is not None else Ended(task.result())


def messages_in(result: Any) -> Iterator[ToolMessage]:
    """The tool messages in what a node returns, commands included."""
    if isinstance(result, ToolMessage):
        yield result
    elif isinstance(result, Command):
        yield from messages_in(result.update)
    elif isinstance(result, dict):
        yield from messages_in(result.get("messages", []))
    elif isinstance(result, list):
        for item in result:
            yield from messages_in(item)


def may_raise(scene: Scene, error: BaseException) -> bool:
    """Whether an error may come out of the node of a scene."""
    if isinstance(error, BaseExceptionGroup):
        return _may_raise_group(scene, error)
    if isinstance(error, Exit):
        return scene.has("leave_program", "leave")
    if isinstance(error, ParentCommand):
        return scene.has("leave_graph")
    if scene.handling in (True, "It failed."):
        return False
    if isinstance(error, CallError):
        return scene.handling is False
    if isinstance(error, ToolInvocationError):
        return scene.handling is not ...
    if isinstance(error, Failure):
        return scene.handling in (False, ...)
    return isinstance(error, (TypeError, ValueError, IndexError))


def _may_raise_group(scene: Scene, error: BaseExceptionGroup[Any]) -> bool:
    """Of several calls that failed, or of a tool or a link that does several things at once."""
    if not isinstance(error, Exception):
        return scene.has("leave_program", "leave")
    if scene.handling in (True, "It failed."):
        return False
    if scene.has("group", "hedge", "call_at_once"):
        return True
    return scene.on_error == "finish" and len(error.exceptions) > 1 and all(may_raise(scene, e) for e in error.exceptions)


def answers_to(waiting: CallsInterrupted, scene: Scene) -> dict[str, Any]:
    """An answer to every question, or to the first."""
    asked = waiting.interrupts[:1] if scene.one_by_one else waiting.interrupts
    return {question.id: _answer_to(question.value, scene) for question in asked}


def _answer_to(question: Any, scene: Scene) -> Any:
    if isinstance(question, str):
        return "yes"
    return {"type": scene.response, "args": "as I say"} if scene.response != "accept" else {"type": "accept"}


def check_questions(waiting: CallsInterrupted, scene: Scene) -> None:
    """Each question belongs to one call, which has no result."""
    records = cast("dict[str, dict[str, Any]]", waiting.ledger["calls"])
    ids = [call["id"] for call in scene.batch]
    owners = {question.id: key for key, record in records.items() for question in record.get("pending", ())}

    assert waiting.interrupts
    assert [question.id for question in waiting.interrupts] == list(
        dict.fromkeys(question.id for question in waiting.interrupts)
    )
    for question in waiting.interrupts:
        owner = owners[question.id]
        assert owner in ids
        assert not {"output", "parent"} & records[owner].keys()
        assert not isinstance(question.value, str) or question.value.startswith(f"{owner}:")


async def play(scene: Scene, world: World) -> Ended:
    """Run a scene to its end, answering what is asked, and check on the way what has to hold in every case."""
    node = scene.node(world)
    options: dict[str, Any] = {"ledger": {}} if scene.ledger else {}
    ids = [call["id"] for call in scene.batch]
    for _ in range(20 * len(ids)):
        before, settled = live_tasks(), _settled(options.get("ledger"))
        world.started.clear()
        world.over = False
        ended = await run(node, scene, world, **options)
        world.over = True
        assert live_tasks() == before
        assert node.statistics() == IDLE
        assert not settled & set(world.started)
        if not isinstance(ended.error, CallsInterrupted):
            break
        check_questions(ended.error, scene)
        options = {"ledger": ended.error.ledger, "resume": answers_to(ended.error, scene)}
    else:
        pytest.fail("the calls go on asking for ever")
    await nothing_starts_any_more(world)
    return ended


def _settled(ledger: Any) -> set[str]:
    calls = ledger["calls"] if ledger else {}
    return {key for key, record in calls.items() if {"output", "parent"} & record.keys()}


async def nothing_starts_any_more(world: World) -> None:
    """Neither by itself, nor because a link has kept what it was given."""
    for call_again in world.kept:
        with anyio.move_on_after(1):
            try:
                await call_again()
            except BaseException:
                continue
    await world.sleep(100)
    assert world.late == []


def live_tasks() -> set[object]:
    """Every task of the event loop that has not ended."""
    if sniffio.current_async_library() == "asyncio":
        return set(asyncio.all_tasks())
    import trio

    found, todo = set(), [trio.lowlevel.current_root_task()]
    while todo:
        task = todo.pop()
        assert task is not None
        found.add(task)
        todo.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return found


def check(scene: Scene, ended: Ended) -> None:
    """One message for each call, in order; or an error that may pass; or the caller gave up."""
    if ended.gave_up:
        return
    if ended.error is not None:
        if not may_raise(scene, ended.error):
            raise AssertionError("this must not come out") from ended.error
        return
    assert [message.tool_call_id for message in messages_in(ended.result)] == [call["id"] for call in scene.batch]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scene=scenes(LINKS))
@pytest.mark.filterwarnings("ignore::callboard.CallboardWarning")
async def test_every_call_ends_with_one_message_whatever_is_around_it(scene: Scene) -> None:
    """Or control flow passes, or an error that nobody handles; and nothing is left behind."""
    with anyio.fail_after(WAIT):
        check(scene, await play(scene, World()))
