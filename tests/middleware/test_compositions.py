"""Defects of calls and middleware together that random compositions have found; `tests.explore` draws more of them."""

import asyncio
import gc
from typing import Annotated, Any

import anyio
import pytest
from langchain.agents.middleware import wrap_tool_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId
from langgraph.types import Command

from callboard import ToolNode, tool_call
from callboard.testing import Recorder
from tests.explore._batches import Batch, Bound, Policy, observe, play
from tests.explore._bodies import Call, Stage, Step

from ._functions import call_at_once, middleware_of

ONE_PER_HALF_SECOND = Policy("a0", bound=Bound(rate=1, per=0.5))
FAILS = Call("a1", (Step("sleep", 0.1), Step("fail")))


@pytest.mark.parametrize(
    "plan",
    [
        Batch((Call("a0"), FAILS), middleware=("call_again_behind_shield",), policies=(ONE_PER_HALF_SECOND,)),
        Batch((Call("a0"),), middleware=("call_again_behind_shield",), policies=(ONE_PER_HALF_SECOND,), end=0.25),
    ],
    ids=["failed neighbour", "cancelled caller"],
)
async def test_no_body_starts_behind_a_shield_when_its_batch_has_ended_meanwhile(plan: Batch) -> None:
    """Promise 1: a second attempt waits for its place until 0.5, and its batch is cancelled in between."""
    observation = await observe(plan)
    assert [body.call for body in observation.stage.bodies].count("c0") == 1


@pytest.mark.parametrize(
    ("backend", "plan"),
    [
        # The middleware waits behind its shield until 0.3.
        ("trio", Batch((Call("a0"),), middleware=("call_behind_shield",), end=0.25)),
        # One attempt cleans up from 0.25 on, and others wait for its place.
        (
            "asyncio",
            Batch(
                (Call("a0", (Step("sleep", 0.25), Step("fail"))),),
                middleware=("call_at_once", "call_at_once", "tidy_behind_shield"),
                max_concurrency=1,
                end=0.3,
            ),
        ),
        # A sync middleware is around a body that cancels its own task.
        ("asyncio", Batch((Call("a0", (Step("cancel_task", 1.0),)),), middleware=("sync_pass_on",), threads=True)),
    ],
    ids=["shield before the cancellation", "shield of another attempt", "body that cancels its task"],
)
@pytest.mark.real_clock
def test_a_plan_that_broke_a_promise_keeps_all(backend: str, plan: Batch) -> None:
    assert play(plan, backend) == []


@pytest.mark.parametrize("middleware", ["answer_twice", "answer_in_two_commands", "forget_answer", "change_id"])
async def test_a_middleware_that_does_not_answer_exactly_once_is_told_so_by_name(middleware: str) -> None:
    """Promise 2 holds for lists and commands as well as messages, and the error names the middleware."""

    async def work(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Work."""
        return Command(update={"messages": [ToolMessage("done", tool_call_id=call_id)]})

    async def change_id(request: Any, call_next: Any) -> Any:
        return await call_next(request.override(tool_call={**request.tool_call, "id": "another"}))

    wrapper = change_id if middleware == "change_id" else middleware_of(Stage(), middleware, 0)
    with pytest.raises(ValueError, match=middleware):
        await ToolNode([work], middleware=[wrapper]).ainvoke([tool_call("work", "1")])


async def test_a_rework_that_returns_no_message_is_told_so_by_name() -> None:
    """The error names the middleware, as for one that returns nothing."""
    node = ToolNode(
        [Recorder().tool("work", raises=ValueError("no"))],
        middleware=[middleware_of(Stage(), "rework to nothing", 0)],
        handle_tool_errors=True,
    )
    [message] = (await node.ainvoke([tool_call("work", "1")]))["messages"]
    assert "aerror_message of the middleware Reworking returned None" in message.content


@pytest.mark.real_clock
@pytest.mark.backends("trio")
async def test_an_error_of_a_call_that_was_given_up_across_the_bridge_is_no_matter_for_the_log(caplog: Any) -> None:
    """asyncio would log "exception was never retrieved" for an abandoned future."""

    async def work() -> None:
        """Tidy up badly."""
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("late")

    @wrap_tool_call
    async def lose_patience(request: Any, handler: Any) -> Any:
        try:
            async with asyncio.timeout(0.1):
                return await handler(request)
        except TimeoutError:
            return ToolMessage("late", tool_call_id=request.tool_call["id"])

    result = await ToolNode([work], middleware=[lose_patience]).ainvoke([tool_call("work", "1")])
    await anyio.sleep(0.1)
    gc.collect()

    assert [message.content for message in result["messages"]] == ["late"]
    assert caplog.records == []


async def test_a_call_counts_as_running_as_long_as_one_of_its_attempts_runs() -> None:
    """Two attempts run for one and three seconds. After two seconds the call is still counted as running."""
    durations = iter([1.0, 3.0])
    tool = Recorder().tool("work", seconds=lambda _: next(durations))

    async def both(request: Any, call_next: Any) -> Any:
        return await call_at_once(Stage(), request, call_next)

    node = ToolNode([tool], middleware=[both])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, [tool_call("work", "1")])
        await anyio.sleep(2)
        running = node.statistics().running

    assert running == 1
