"""A call under a shared limit waits, starts, and always releases its permit, on any store."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, Limit, Rate, StorageError, ToolNode, fencing_token
from callboard.extend import PermitRequest, SharedLimits
from tests.helpers import ask, ending_of, make, make_sync, until


class Noted:
    """Permit that the test grants by itself."""

    def __init__(self, request: PermitRequest, on_answer: Callable[[], object], number: int) -> None:
        self.request = request
        self.failure: str | Exception | None = None
        self.token: int | None = number
        self.is_lost = False
        self.actions: list[str] = []
        self._on_answer = on_answer

    def answer(self, failure: str | Exception | None = None) -> None:
        self.failure = failure
        self._on_answer()

    def begin(self) -> None:
        self.actions.append("begin")

    def leave(self) -> None:
        self.actions.append("leave")


class Store:
    """Store whose permits the test grants by itself."""

    def __init__(self, *, gives: bool = True, loses: int = 0, failure: str | Exception | None = None) -> None:
        self.permits: list[Noted] = []
        self._gives = gives
        self._loses = loses
        self._failure = failure

    def check(self, limit: Limit) -> None:
        if limit.concurrency == 13:
            raise ValueError("13 is an unlucky number")

    def ask(self, request: PermitRequest, on_answer: Callable[[], object]) -> Noted:
        permit = Noted(request, on_answer, 100 + len(self.permits))
        permit.is_lost = len(self.permits) < self._loses
        self.permits.append(permit)
        if self._gives:
            permit.answer(self._failure)
        return permit

    @property
    def actions(self) -> list[list[str]]:
        return [permit.actions for permit in self.permits]


def node_on(store: SharedLimits, tool: Any, **options: Any) -> ToolNode:
    limit = Limit(**{"concurrency": 1, "rate": Rate(5), "shared": store, **options})
    return ToolNode([tool], policies={tool.name: CallPolicy(limit=limit)})


async def work() -> str:
    return "done"


async def test_a_call_says_when_it_begins_and_when_it_leaves() -> None:
    """The start counts for the rate and the end frees the permit, so each is reported once, in this order."""
    store = Store()

    async def work() -> str:
        return f"{fencing_token()} {store.permits[0].actions}"

    [message] = await node_on(store, make(work)).ainvoke(ask("work"))

    assert message.content == "100 ['begin']"
    assert store.actions == [["begin", "leave"]]


async def test_a_lost_place_is_taken_anew() -> None:
    """A call that has not started requests a new permit."""
    store = Store(loses=1)

    async def work() -> str:
        return f"{fencing_token()} {store.actions}"

    [message] = await node_on(store, make(work)).ainvoke(ask("work"))

    assert message.content == "101 [['leave'], ['begin']]"


async def test_a_cancelled_wait_leaves_without_waiting() -> None:
    """The clean-up does not wait for the store, which may be away."""
    store = Store(gives=False)

    with anyio.move_on_after(1) as scope:
        await node_on(store, make(work)).ainvoke(ask("work"))

    assert scope.cancelled_caught
    assert store.actions == [["leave"]]


async def test_a_refusal_becomes_a_message_for_the_model() -> None:
    """The message is that of any limit."""
    store = Store(failure="the queue is full")

    [message] = await node_on(store, make(work)).ainvoke(ask("work"))

    assert ending_of(message) == "rejected"
    assert "the queue is full" in message.content


async def test_an_error_of_the_store_is_raised_as_it_is() -> None:
    """A model cannot repair the store, so no message is made of its error."""
    store = Store(failure=StorageError("redis://host", "has other numbers."))

    with pytest.raises(StorageError, match="redis://host has other numbers"):
        await node_on(store, make(work)).ainvoke(ask("work"))

    assert store.actions == [["leave"]]


async def test_what_the_store_does_not_take_is_refused_when_the_node_is_built() -> None:
    """The error does not wait for the first call."""
    with pytest.raises(ValueError, match="unlucky"):
        node_on(Store(), make(work), concurrency=13)


async def test_keys_and_tenants_are_told_as_digests() -> None:
    """Keys may contain text of a model, which must not leave the process without permission."""
    store = Store()

    async def work(host: str) -> str:
        return host

    def by_user(call: Any, context: Any) -> str:
        return str(context.config["configurable"]["user"])

    node = node_on(store, make(work), key=lambda call: call["args"]["host"], tenant=by_user)
    for host, user in (("secret-host", "ann"), ("secret-host", "bob"), ("other", "ann")):
        await node.ainvoke(ask(("work", {"host": host})), {"configurable": {"user": user}})

    request = [permit.request for permit in store.permits]
    assert request[0].key == request[1].key != request[2].key
    assert request[0].tenant == request[2].tenant != request[1].tenant
    assert not any(
        word in f"{permit_request.key}{permit_request.tenant}{permit_request.title}"
        for permit_request in request
        for word in ("secret", "ann", "bob")
    )


@pytest.mark.real_clock
async def test_a_thread_that_outlives_its_call_keeps_its_place() -> None:
    """The sync function still runs in its thread, in this or another process."""
    store, release = Store(), threading.Event()

    def work() -> str:
        release.wait(20)
        return "late"

    limit = Limit(concurrency=1, shared=store)
    node = ToolNode([make_sync(work)], policies={"work": CallPolicy(limit=limit, timeout=0.1, grace=0.0)})
    with pytest.warns(Warning, match="work"):
        [message] = await node.ainvoke(ask("work"))
    assert ending_of(message) == "timeout"
    assert store.actions == [["begin"]]

    release.set()
    await until(lambda: store.actions == [["begin", "leave"]], 20)
