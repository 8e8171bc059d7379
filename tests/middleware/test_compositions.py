"""Promises 1, 2 and 4 for random compositions of tools and middleware."""

import asyncio
import gc
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import anyio
import pytest
import sniffio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langchain.agents.middleware import wrap_tool_call
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
from callboard.testing import Recorder, tool_call
from tests.helpers import live_tasks

from ._behaviours import BEHAVIOURS, IN_THREADS, TOOLS, Exit, Failure, World, the_world
from ._functions import MIDDLEWARE, OURS, SYNC, THEIRS, call_at_once, middleware_of

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)
WAIT = 1e7
PATIENT = 1e5
"""Longer than anything that ends by itself."""
ENDLESS = ("hang", "ignore_cancel", "tidy_up", "tidy_up_plainly", "tidy_up_badly", "rework for ever")


@dataclass(frozen=True)
class Scene:
    """A batch, its middleware and the way it is run. Times are multiples of the world's unit."""

    calls: "Calls"
    """Behaviours of tools, and queries."""
    middleware: Sequence[str] = ()
    handling: Any = ...
    """Option `handle_tool_errors`. `...` selects the default."""
    on_error: Any = "cancel"
    grace: float = 5.0
    timeout: float | None = None
    limit: Limit | None = None
    policies: Sequence[CallPolicy | None] = ()
    """Policies of the first, the second ... tool among the calls."""
    concurrency: int | None = None
    as_state: bool = True
    wrapper: bool = False
    end: float = PATIENT
    """Time at which the caller gives up."""
    natively: bool = False
    """Whether the caller uses asyncio's `task.cancel()`."""
    one_by_one: bool = False
    """Whether questions are answered one at a time."""
    response: str = "accept"
    ledger: bool = False
    """Whether the caller passes a ledger, which records each result at once."""

    shared: bool = False
    """Whether two middleware of one name are the same object."""
    name: str = "a"

    @property
    def batch(self) -> list[ToolCall]:
        return [_call(f"{self.name}{place}", *call) for place, call in enumerate(self.calls)]

    @property
    def ids(self) -> list[str | None]:
        return [call["id"] for call in self.batch]

    def policies_by_name(self, unit: float) -> dict[str, CallPolicy]:
        names = dict.fromkeys(behaviour for behaviour, _ in self.calls if behaviour != "unknown")
        pairs = zip(names, self.policies, strict=False)
        return {name: _scaled(policy, unit) for name, policy in pairs if policy is not None}

    def chain(self, world: World) -> list[object]:
        made: dict[str, object] = {}
        for place, name in enumerate(self.middleware):
            made[name if self.shared else f"{place}"] = made.get(name) or middleware_of(world, name, place)
        return [made[name if self.shared else f"{place}"] for place, name in enumerate(self.middleware)]

    def has(self, *names: str) -> bool:
        """Return whether a tool or middleware with one of these names takes part."""
        return not {*self.middleware, *(behaviour for behaviour, _ in self.calls)}.isdisjoint(names)

    def node(self, world: World) -> ToolNode:
        options: dict[str, Any] = {} if self.handling is ... else {"handle_tool_errors": self.handling}
        if self.wrapper:
            options["awrap_tool_call"] = lambda request, execute: execute(request)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CallboardWarning)  # warnings about the order
            return ToolNode(
                TOOLS,
                middleware=self.chain(world),
                on_error=self.on_error,
                grace=self.grace * world.unit,
                timeout=None if self.timeout is None else self.timeout * world.unit,
                limit=self.limit,
                policies=self.policies_by_name(world.unit),
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


Calls = Sequence[tuple[str, str]]


def calls_of(behaviours: Iterable[str]) -> st.SearchStrategy[Calls]:
    """Draw up to six calls of up to three kinds, so that some are equal."""
    kinds = st.tuples(st.sampled_from([*behaviours, "count", "unknown"]), st.sampled_from("ab"))
    return st.lists(kinds, min_size=1, max_size=3).flatmap(
        lambda some: st.lists(st.sampled_from(some), min_size=1, max_size=6)
    )


CALLS = calls_of(BEHAVIOURS)
ENDS = st.sampled_from([PATIENT, 0.0, 0.25, 0.3, 0.5, 0.75, 1.0, 1.3, 2.0])
SOON = st.sampled_from([12.0, 0.0, 0.5, 1.0, 2.0])
LIMITS = st.sampled_from(
    [
        None,
        Limit(concurrency=1),
        Limit(concurrency=1, queue=0),
        Limit(concurrency=2, queue=1),
        Limit(rate=Rate(1, per=0.5)),
        Limit(concurrency=1, key=lambda call: call["args"].get("query")),
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


def scenes(
    middleware: Iterable[str],
    calls: st.SearchStrategy[Calls] = CALLS,
    ends: st.SearchStrategy[float] = ENDS,
) -> st.SearchStrategy[Scene]:
    return st.builds(
        Scene,
        calls=calls,
        middleware=st.lists(st.sampled_from([*middleware]), max_size=5),
        handling=st.sampled_from([..., True, False, "It failed.", (Failure, TimeoutError)]),
        on_error=st.sampled_from(["cancel", "finish"]),
        grace=st.sampled_from([5.0, 0.5, 0.0]),
        timeout=st.sampled_from([None, 1.0]),
        limit=LIMITS,
        policies=st.lists(st.none() | POLICIES, max_size=3),
        concurrency=st.sampled_from([None, 1, 2]),
        as_state=st.booleans(),
        wrapper=st.booleans(),
        end=ends,
        natively=st.booleans(),
        one_by_one=st.booleans(),
        response=st.sampled_from(["accept", "ignore", "response"]),
        ledger=st.booleans(),
        shared=st.booleans(),
    )


@dataclass
class Ended:
    """Outcome of a run of a node."""

    result: Any = None
    error: BaseException | None = None
    gave_up: bool = False
    was_cancelled: bool = False
    """Whether the error came after the caller was cancelled."""


async def run(node: ToolNode, scene: Scene, world: World, **options: Any) -> Ended:
    """Run the batch until it ends or its caller gives up, and check how long the caller waits after that."""
    natively = scene.natively and sniffio.current_async_library() == "asyncio"
    call = _run_natively if natively else _run_in_scope
    given: Any = {"messages": [AIMessage("", tool_calls=scene.batch)]} if scene.as_state else scene.batch
    config = None if scene.concurrency is None else {"max_concurrency": scene.concurrency}
    world.over.difference_update(scene.ids)
    world.signalled.difference_update(scene.ids)
    began = anyio.current_time()
    world.ends.update(dict.fromkeys(scene.ids, began + scene.end * world.unit))
    try:
        return await call(node, scene.end * world.unit, given, config, options)
    finally:
        world.over.update(scene.ids)
        assert anyio.current_time() - began <= (scene.end + 20) * world.unit + (WAIT if world.is_real else 0)


async def _run_in_scope(node: ToolNode, end: float, given: Any, config: Any, options: Any) -> Ended:
    try:
        with anyio.move_on_after(end) as scope:
            return Ended(await node.ainvoke(given, config, **options))
    except BaseException as error:
        return Ended(error=error, was_cancelled=scope.cancel_called)
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
    """Return the tool messages in a node's result, including those in commands."""
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
    """Return whether the node of a scene may raise an error."""
    if isinstance(error, BaseExceptionGroup):
        return _may_raise_group(scene, error)
    if isinstance(error, Exit):
        return scene.has("leave_program", "leave", "sync_exit")
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
    """Return whether an exception group is possible: several failed calls, or parallel work in a tool or middleware."""
    if not isinstance(error, Exception):
        return scene.has("leave_program", "leave", "sync_exit")
    if scene.handling in (True, "It failed."):
        return False
    if scene.has("group", "hedge", "call_at_once"):
        return True
    several = scene.on_error == "finish" and len(error.exceptions) > 1
    return several and all(may_raise(scene, one) for one in error.exceptions)


def answers_to(waiting: CallsInterrupted, scene: Scene) -> dict[str, Any]:
    """Return answers to all questions, or to the first one."""
    asked = waiting.interrupts[:1] if scene.one_by_one else waiting.interrupts
    return {question.id: _answer_to(question.value, scene) for question in asked}


def _answer_to(question: Any, scene: Scene) -> Any:
    if isinstance(question, str):
        return "yes"
    return {"type": scene.response, "args": "as I say"} if scene.response != "accept" else {"type": "accept"}


def check_questions(waiting: CallsInterrupted, scene: Scene) -> None:
    """Check that each question belongs to one call without a result."""
    records = cast("dict[str, dict[str, Any]]", waiting.ledger["calls"])
    owners = {question.id: key for key, record in records.items() for question in record.get("pending", ())}

    assert waiting.interrupts
    assert [question.id for question in waiting.interrupts] == list(
        dict.fromkeys(question.id for question in waiting.interrupts)
    )
    for question in waiting.interrupts:
        owner = owners[question.id]
        assert owner in scene.ids
        assert not {"output", "parent"} & records[owner].keys()
        # A middleware may change the call id in the question, but the question still belongs to the same call.
        names = (f"{owner}:", "another:") if scene.has("change_id") else (f"{owner}:",)
        assert not isinstance(question.value, str) or question.value.startswith(names)


async def play(world: World, *scenes: Scene) -> None:
    """Run batches concurrently with the node of the first one, and check the invariants."""
    the_world.set(world)
    world.may_hang = any(scene.has(*ENDLESS) for scene in scenes)
    node, before = scenes[0].node(world), live_tasks()
    async with anyio.create_task_group() as tasks:
        for scene in scenes:
            tasks.start_soon(play_one, world, node, scene, before if len(scenes) == 1 else None)
    while node.statistics().abandoned_threads:  # they end by themselves
        await world.sleep(0.5)
    assert live_tasks() == before
    assert node.statistics() == IDLE
    assert world.running == 0
    most = [scenes[0].limit.concurrency] if scenes[0].limit is not None and scenes[0].limit.key is None else []
    most += [scenes[0].concurrency] if len(scenes) == 1 else []
    assert all(one is None or world.peak <= one for one in most)
    await nothing_starts_any_more(world)


async def play_one(world: World, node: ToolNode, scene: Scene, before: object) -> None:
    """Run a batch to its end, answer its questions, and check each result and error."""
    options: dict[str, Any] = {"ledger": {}} if scene.ledger else {}
    for _ in range(200 * len(scene.calls)):
        settled, since = _settled(options.get("ledger")), len(world.started)
        ended = await run(node, scene, world, **options)
        assert before is None or len(live_tasks()) == len(before) + 1
        assert not settled.intersection(world.started[since:])
        assert not ended.gave_up or scene.end < PATIENT or world.may_hang
        check(scene, ended)
        check_signals(scene, ended, world.signalled.intersection(scene.ids))
        if isinstance(ended.error, CallsInterrupted):
            options = {"ledger": ended.error.ledger, "resume": answers_to(ended.error, scene)}
        elif ended.gave_up and scene.ledger and not world.is_real and scene.end < PATIENT:
            scene, options = replace(scene, end=PATIENT), {"ledger": options["ledger"]}
        else:
            return
    pytest.fail("the calls go on asking for ever")


def _settled(ledger: Any) -> set[str]:
    calls = ledger["calls"] if ledger else {}
    return {key for key, record in calls.items() if {"output", "parent"} & record.keys()}


async def nothing_starts_any_more(world: World) -> None:
    """Check that no tool starts later, neither by itself nor through a `call_next` that a middleware kept."""
    for call_again in world.kept:
        with anyio.move_on_after(1):
            try:
                await call_again()
            except BaseException:
                continue
    await world.sleep(5 if world.is_real else 100)
    assert world.late == []


def check(scene: Scene, ended: Ended) -> None:
    """Check for one message per call in order, questions, an allowed error, or a caller that gave up."""
    if ended.gave_up:
        return
    if isinstance(ended.error, CallsInterrupted):
        check_questions(ended.error, scene)
        return
    if ended.error is not None:
        # On trio a middleware's nursery adds the cancellation to the errors of its cancelled children.
        mixed = (
            ended.was_cancelled and isinstance(ended.error, BaseExceptionGroup) and scene.has("hedge", "call_at_once")
        )
        if not mixed and not may_raise(scene, ended.error):
            raise AssertionError("this must not come out") from ended.error
        return
    assert [message.tool_call_id for message in messages_in(ended.result)] == scene.ids


def check_signals(scene: Scene, ended: Ended, signalled: set[str | None]) -> None:
    """Check that no middleware turned control flow into a result. The end of a budget may come first."""
    results = list(messages_in(ended.result))
    if isinstance(ended.error, CallsInterrupted):
        records: Any = ended.error.ledger["calls"]
        results = [one for record in records.values() for one in messages_in(record.get("output"))]
    for message in results:
        in_time = message.additional_kwargs.get("callboard", {}).get("ended") != "deadline"
        assert not (in_time and message.tool_call_id in signalled)


THREADED = calls_of([*list(IN_THREADS) * 3, *BEHAVIOURS])


def examples(number: int) -> settings:
    # Explaining a failure takes longer than shrinking it.
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    return settings(max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=phases)


@examples(150)
@given(scene=scenes(MIDDLEWARE))
@pytest.mark.filterwarnings("ignore::callboard.CallboardWarning")
async def test_every_call_ends_with_one_message_whatever_is_around_it(scene: Scene) -> None:
    """Each call ends with one message, or control flow or an unhandled error is raised. No task is left running."""
    with anyio.fail_after(WAIT):
        await play(World(), scene)


def at_once(scene: Scene, others: Sequence[tuple[Calls, float]]) -> list[Scene]:
    named = zip("bc", others, strict=False)
    return [scene, *(replace(scene, calls=calls, end=end, name=name) for name, (calls, end) in named)]


OTHERS = st.lists(st.tuples(CALLS, ENDS), min_size=1, max_size=2)


@examples(80)
@given(batches=st.builds(at_once, scenes(MIDDLEWARE), OTHERS))
@pytest.mark.filterwarnings("ignore::callboard.CallboardWarning")
async def test_batches_at_the_same_time_share_middleware_and_no_fate(batches: list[Scene]) -> None:
    """Concurrent batches share middleware objects, but their messages, errors and ends are independent."""
    with anyio.fail_after(WAIT):
        await play(World(), *batches)


@pytest.mark.backends("asyncio")
@examples(60)
@given(scene=scenes([*MIDDLEWARE, *list(THEIRS) * 4]))
@pytest.mark.filterwarnings("ignore::callboard.CallboardWarning")
async def test_the_same_holds_with_middleware_of_langchain(scene: Scene) -> None:
    """LangChain's middleware keeps the promises on asyncio, where the clock can be virtual."""
    with anyio.fail_after(WAIT):
        await play(World(), scene)


IN_THREADS_AND_ACROSS = [*list(SYNC) * 2, *list(THEIRS) * 2, *OURS, "hedge", "lose_patience", "catch_all"]


@pytest.mark.real_clock
@examples(20)
@given(scene=scenes(IN_THREADS_AND_ACROSS, THREADED, SOON))
@pytest.mark.filterwarnings("ignore::callboard.CallboardWarning")
@pytest.mark.exhaustive
async def test_the_same_holds_in_threads(scene: Scene) -> None:
    """The promises hold for sync tools, sync middleware, and across the bridge from trio to asyncio."""
    with anyio.fail_after(60):
        await play(World(unit=0.02), scene)


# Regressions that these tests have found


@pytest.mark.parametrize(
    ("middleware", "tool"),
    [
        ("answer_twice", "text"),
        ("answer_in_two_commands", "text"),
        ("forget_answer", "text"),
        ("change_id", "command"),
    ],
)
async def test_a_middleware_that_does_not_answer_exactly_once_is_told_so_by_name(middleware: str, tool: str) -> None:
    """Promise 2 holds for lists and commands as well as messages, and the error names the middleware."""
    world = World()
    ended = await run_alone(world, Scene([(tool, "a")], [middleware]))

    assert isinstance(ended.error, ValueError)
    assert middleware in str(ended.error)


async def test_a_rework_that_returns_no_message_is_told_so_by_name() -> None:
    """The error names the middleware, as for one that returns nothing."""
    ended = await run_alone(World(), Scene([("error", "a")], ["rework to nothing"], handling=True))

    (message,) = messages_in(ended.result)
    assert "aerror_message of the middleware Reworking returned None" in message.content


@pytest.mark.parametrize("neighbour", [[], [("error_once", "a")]], ids=["cancelled caller", "failed neighbour"])
async def test_no_body_starts_behind_a_shield_when_its_batch_has_ended_meanwhile(neighbour: list[Any]) -> None:
    """Promise 1: a second attempt waits for its place from 0 to 0.5, and its batch is cancelled in between."""
    world = World()
    slow_start = CallPolicy(limit=Limit(rate=Rate(1, per=0.5)))
    end = PATIENT if neighbour else 0.25
    await run_alone(world, Scene([("text", "a"), *neighbour], ["call_again_for_text"], policies=[slow_start], end=end))

    assert world.started.count("a0") == 1


@pytest.mark.backends("trio")
async def test_no_body_starts_behind_a_shield_that_was_there_before_the_cancellation() -> None:
    """Promise 1: the middleware waits behind its shield until 0.3, and the caller gives up at 0.25."""
    world = World()
    await run_alone(world, Scene([("text", "a")], ["call_behind_shield"], end=0.25))

    assert world.started == []


@pytest.mark.backends("asyncio")
async def test_no_body_starts_behind_the_shield_of_another_attempt() -> None:
    """Promise 1: one attempt cleans up from 0.25 on, others wait for its place, and the caller gives up at 0.3."""
    world = World()
    middleware = ["call_at_once", "call_at_once", "tidy_behind_shield"]
    await run_alone(world, Scene([("error_once", "a")], middleware, concurrency=1, end=0.3))

    assert world.late == []


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_a_body_that_cancels_its_task_is_a_message_below_a_sync_middleware_too() -> None:
    scene = Scene([("cancel_task", "a")], ["sync_pass_on"], end=100)

    check(scene, await run_alone(World(unit=0.02), scene))


@pytest.mark.real_clock
@pytest.mark.backends("trio")
async def test_an_error_of_a_call_that_was_given_up_across_the_bridge_is_no_matter_for_the_log(caplog: Any) -> None:
    """asyncio would log "exception was never retrieved" for an abandoned future."""

    @wrap_tool_call
    async def lose_patience(request: Any, handler: Any) -> Any:
        try:
            async with asyncio.timeout(0.1):
                return await handler(request)
        except TimeoutError:
            return ToolMessage("late", tool_call_id=request.tool_call["id"])

    the_world.set(world := World(unit=0.02))
    world.ends["1"] = PATIENT
    with anyio.fail_after(60):
        result = await ToolNode(TOOLS, middleware=[lose_patience]).ainvoke([tool_call("tidy_up_badly", "1", query="a")])
        await anyio.sleep(0.1)
    gc.collect()

    assert [message.content for message in messages_in(result)] == ["late"]
    assert caplog.records == []


async def test_a_call_counts_as_running_as_long_as_one_of_its_attempts_runs() -> None:
    """Two attempts run for one and three seconds. After two seconds the call is still counted as running."""
    durations = iter([1.0, 3.0])
    tool = Recorder().tool("work", seconds=lambda _: next(durations))

    async def both(request: Any, call_next: Any) -> Any:
        return await call_at_once(World(), request, call_next)

    node = ToolNode([tool], middleware=[both])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, [tool_call("work", "1")])
        await anyio.sleep(2)
        running = node.statistics().running

    assert running == 1


async def run_alone(world: World, scene: Scene) -> Ended:
    the_world.set(world)
    with anyio.fail_after(WAIT):
        return await run(scene.node(world), scene, world)
