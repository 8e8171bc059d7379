"""Tenants of a limit get its permits in turns, in one process as with a store that processes share."""

from collections import deque
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import CallContext, CallPolicy, Limit, Rate, ToolNode, tool_call

WAIT = 1000.0


def by_user(call: Any) -> Any:
    return call["args"]["user"]


class Starts:
    """A tool that notes who starts, and takes one second."""

    def __init__(self) -> None:
        self.users: list[str] = []
        self.times: dict[str, float] = {}
        self.running = self.peak = 0

    async def work(self, user: str) -> str:
        """Work for a user."""
        self.users.append(user)
        self.times.setdefault(user, anyio.current_time())
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await anyio.sleep(1.0)
        finally:
            self.running -= 1
        return user


def batch(users: str) -> list[Any]:
    return [tool_call("work", f"c{number}", user=user) for number, user in enumerate(users)]


async def test_one_call_does_not_wait_for_the_many_of_another_tenant() -> None:
    starts = Starts()
    node = ToolNode([starts.work], limit=Limit(concurrency=4, tenant=by_user))
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(node.ainvoke, batch("a" * 400))
            await anyio.sleep(0.5)
            group.start_soon(node.ainvoke, batch("b"))

    assert round(starts.times["b"] - starts.times["a"], 3) == 1.0
    assert (starts.peak, len(starts.users)) == (4, 401)


async def test_a_tenant_alone_uses_all_permits() -> None:
    starts = Starts()
    with anyio.fail_after(WAIT):
        began = anyio.current_time()
        await ToolNode([starts.work], limit=Limit(concurrency=4, tenant=by_user)).ainvoke(batch("a" * 8))

    assert (starts.peak, round(anyio.current_time() - began, 3)) == (4, 2.0)


@settings(max_examples=50)
@given(st.text("abc", min_size=1, max_size=14))
async def test_tenants_take_turns_and_the_calls_of_each_start_in_order(users: str) -> None:
    """The first call starts at once; the others wait by then, in the order of their arrival."""
    starts = Starts()
    waiting: dict[str, deque[int]] = {}
    expected = [users[0]]
    for number, user in enumerate(users[1:], 1):
        waiting.setdefault(user, deque()).append(number)
    while waiting:
        user = next(iter(waiting))
        queue = waiting.pop(user)
        expected.append(user)
        queue.popleft()
        if queue:
            waiting[user] = queue

    with anyio.fail_after(WAIT):
        await ToolNode([starts.work], limit=Limit(concurrency=1, tenant=by_user)).ainvoke(batch(users))

    assert starts.users == expected


async def test_a_call_that_leaves_the_queue_takes_no_turn_of_its_tenant() -> None:
    starts = Starts()
    node = ToolNode([starts.work], limit=Limit(concurrency=1, tenant=by_user))
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(node.ainvoke, batch("a"))
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.2):
                await node.ainvoke(batch("b"))  # the head of the queue
            for users in ("c", "b", "c"):
                group.start_soon(node.ainvoke, batch(users))
                await anyio.sleep(0.01)

    assert starts.users == ["a", "c", "b", "c"]


async def test_a_key_has_turns_of_its_own() -> None:
    starts = Starts()
    limit = Limit(concurrency=1, key=lambda call: call["args"]["user"].isupper(), tenant=by_user)
    with anyio.fail_after(WAIT):
        await ToolNode([starts.work], limit=limit).ainvoke(batch("aaabAAAB"))

    assert [user for user in starts.users if user.islower()] == ["a", "a", "b", "a"]
    assert [user for user in starts.users if user.isupper()] == ["A", "A", "B", "A"]


async def test_starts_of_a_rate_are_divided_too() -> None:
    starts = Starts()
    policy = CallPolicy(limit=Limit(rate=Rate(1, per=10.0), tenant=by_user))
    with anyio.fail_after(WAIT):
        await ToolNode([starts.work], policies={"work": policy}).ainvoke(batch("aaaab"))

    assert "".join(starts.users) == "aabaa"


def unhashable(call: Any) -> Any:
    return [call]


def of_context(call: Any, context: CallContext) -> Any:
    return context.config["configurable"]["user"]


@pytest.mark.parametrize("function", [unhashable, of_context])
async def test_a_tenant_that_cannot_be_found_ends_that_call_with_the_reason(function: Any) -> None:
    node = ToolNode([Starts().work], limit=Limit(concurrency=1, tenant=function), on_error="finish")

    with anyio.fail_after(WAIT), pytest.raises((TypeError, KeyError)) as caught:
        await node.ainvoke(batch("ab"))

    assert (
        "Raised by Limit(tenant=...) of node 'tools', asked for the key of the tool call 'work' (call 'c1')."
        in (caught.value.__notes__[0])
    )
