"""Concurrency of keyed actors and actors of nodes, where several events coincide."""

import asyncio
from typing import Any

import anyio
import pytest
import sniffio
from langchain_core.tools import tool

from callboard import (
    Actor,
    ActorGoneError,
    CallPolicy,
    InMemorySnapshots,
    Reply,
    Supervisor,
    ToolNode,
    child,
    handler,
    keyed,
    remaining,
    running,
    tool_call,
)
from tests.helpers import BrokenError, contents

from ._lives import lives


class Counter(Actor):
    fatal = (BrokenError,)

    def __init__(self, slow_start: float = 0.0) -> None:
        self.slow_start = slow_start

    async def start(self) -> None:
        lives.append("start")
        self.count = 0
        self.replies: list[Reply[str]] = []
        self.left_at_start = remaining()
        await anyio.sleep(self.slow_start)

    async def stop(self) -> None:
        lives.append("stop")
        lives.append(f"left {remaining()}")

    @handler
    async def up(self) -> int:
        """Count."""
        self.count += 1
        return self.count

    @handler(group="reads")
    async def look(self, seconds: float) -> str:
        """Look for a while."""
        await anyio.sleep(seconds)
        return "seen"

    @handler(deferred=True)
    async def later(self, reply: Reply[str]) -> None:
        """Answer later."""
        self.replies.append(reply)

    @handler(group="control")
    async def answer(self) -> None:
        """Answer those who wait."""
        while self.replies:
            self.replies.pop().send("late")

    @handler
    async def boom(self) -> str:
        """Die."""
        lives.append("boom")
        raise BrokenError("boom")


def one(name: str, **args: Any) -> list[Any]:
    return [tool_call(name, "1", **args)]


async def test_who_uses_a_node_while_it_opens_has_actors_of_its_own_and_none_is_left() -> None:
    node = ToolNode([child(Counter, 5.0, name="slow", prefix="slow_"), Counter()])
    results: list[Any] = []

    async def use() -> None:
        for _ in range(4):
            results.extend(contents(await node.ainvoke(one("up"))))
            await anyio.sleep(2)

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await anyio.sleep(0.5)
        async with node:
            await anyio.sleep(20)

    assert results in (["1", "1", "1", "1"], ["1", "1", "1", "2"])
    assert lives.count("start") == lives.count("stop")


async def test_what_the_first_caller_has_in_its_variables_is_not_the_actors() -> None:
    """The actor outlives the first caller, so the caller's deadline must not apply to the actor's `stop`."""
    node = ToolNode([Counter()], policies={"up": CallPolicy(timeout=5, budget=60)})
    spec = child(Counter, key=lambda _: "k")
    by_key = ToolNode([spec], policies={"up": CallPolicy(timeout=5, budget=60)})

    for each in (node, by_key):
        async with each:
            await each.ainvoke(one("up"))
            await anyio.sleep(100)

    lefts = [float(line.split()[1]) for line in lives if line.startswith("left")]
    assert len(lefts) == 2
    assert all(seconds > 1 for seconds in lefts)


@pytest.mark.parametrize("restart", ["temporary", "permanent"])
async def test_one_that_is_not_restarted_gives_its_place_back(restart: Any) -> None:
    async with keyed(child(Counter, cap=1, restart=restart)) as counters:
        with pytest.raises(Exception, match="boom"):
            await counters["a"].boom()
        await anyio.sleep(5)
        counts = [await counters[key].up() for key in "ab"]

    assert counts == [1, 1]


async def test_a_timeout_of_a_tool_that_uses_an_actors_tool_is_not_lost() -> None:
    actors = ToolNode([child(Counter, mailbox=1, when_full="reject")])
    up: Any = actors.tools_by_name["look"]

    @tool
    async def outer() -> str:
        """Look, and go on."""
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(_look)
        await anyio.sleep(10_000)
        return "never"

    async def _look() -> None:
        try:
            await up.coroutine(seconds=1.0)
        except Exception:
            lives.append("refused")

    node = ToolNode([outer], policies={"outer": CallPolicy(timeout=5.0)})
    async with actors:
        result = await node.ainvoke(one("outer"))

    assert contents(result) == ["Error: Tool 'outer' did not finish within its timeout of 5 s."]


async def test_a_call_that_had_begun_is_never_said_not_to_have_been_started() -> None:
    """ "Not started" would invite a repetition.

    A call that had begun is unknown, even if its second attempt failed to start.
    """
    node = ToolNode([child(Counter, intensity=0)])

    async with node:
        result = await node.ainvoke(one("boom"))

    # The caller or the supervisor that gives up comes first: this decides whether the call was tried again.
    times = lives.count("boom")
    reason = "had begun when Counter died of BrokenError('boom')" if times < 3 else "it ended its actor 3 times"
    assert reason in contents(result)[0]
    assert "is not there" not in contents(result)[0]


class Basket(Actor):
    """Actor that returns its own mutable list as its snapshot."""

    fatal = (BrokenError,)

    async def start(self) -> None:
        self.things: list[str] = []

    async def snapshot(self) -> list[str]:
        return self.things

    async def restore(self, snapshot: list[str]) -> None:
        self.things = snapshot

    @handler
    async def add(self, thing: str) -> str:
        """Add a thing."""
        self.things.append(thing)
        if thing == "bomb":
            raise BrokenError(thing)
        return " ".join(self.things)


async def test_a_call_that_was_lost_leaves_nothing_in_what_is_restored() -> None:
    """A snapshot is copied, so later changes by a lost call do not reach the stored state."""
    node = ToolNode([child(Basket, save="each_call")], policies={"add": CallPolicy(on_unknown="fail")})

    async with node:
        answers = [contents(await node.ainvoke(one("add", thing=thing)))[0] for thing in ("a", "bomb", "b")]

    assert answers[0] == "a"
    assert "Whether it had its effect is unknown" in answers[1]
    assert answers[2] == "a b"


async def test_a_store_that_hangs_holds_up_nobody_for_ever() -> None:
    class Hanging(InMemorySnapshots):
        async def load(self, actor: str, key: Any) -> object:
            if key == "load":
                await anyio.sleep(1_000_000)
            return await super().load(actor, key)

        async def save(self, actor: str, key: Any, snapshot: object) -> None:
            await anyio.sleep(1_000_000)

    spec = child(Basket, snapshots=Hanging(), start_timeout=10, stop_timeout=10)
    async with keyed(spec) as baskets:
        with pytest.raises(ActorGoneError, match="its snapshot was not read within 10 s"):
            await baskets["load"].add("a")
        assert await baskets["save"].add("a") == "a"


@pytest.mark.real_clock
async def test_sync_code_in_the_loop_of_an_actor_is_told_that_it_would_wait_for_ever() -> None:
    """A sync call in the actor's own event loop would block the loop that has to run the handler, so it raises."""
    node = ToolNode([Counter()])

    async with running(Counter()) as counter:
        local_node = ToolNode([counter.up])
        with pytest.raises(RuntimeError, match="waits for the sync code that asks"):
            local_node.invoke(one("up"))
    async with node:
        with pytest.raises(RuntimeError, match="waits for the sync code that asks"):
            node.invoke(one("up"))
        assert contents(await node.ainvoke(one("up"))) == ["1"]


def test_a_node_whose_loop_has_ended_says_so() -> None:
    """A node that is opened in one `asyncio.run` and used in another raises instead of waiting forever."""
    node = ToolNode([child(Counter, key=lambda _: "k")])
    opened: list[Any] = []

    async def open_it() -> None:
        manager = node.__aenter__()
        opened.append(await manager)

    asyncio.run(open_it())

    async def use() -> Any:
        with anyio.fail_after(10):
            return await node.ainvoke(one("up"))

    assert "its event loop has ended" in contents(asyncio.run(use()))[0]


@pytest.mark.parametrize("owner_kind", ["node", "supervisor"])
def test_what_was_opened_in_a_loop_that_has_ended_is_opened_anew(owner_kind: str) -> None:
    """In a notebook each cell may have its own loop.

    Actors of an ended loop are replaced, because nothing can close them.
    """
    node = ToolNode([Counter()])
    tree = Supervisor([Counter()])
    owner: Any = node if owner_kind == "node" else tree

    async def open_it() -> None:
        await owner.__aenter__()

    async def use() -> Any:
        with anyio.fail_after(10):
            async with owner:
                return (
                    await tree[Counter].up() if owner_kind == "supervisor" else contents(await node.ainvoke(one("up")))
                )

    asyncio.run(open_it())
    assert asyncio.run(use()) in (1, ["1"])


@pytest.mark.real_clock
async def test_an_actor_by_key_is_asked_from_another_kind_of_loop() -> None:
    other_library = {"asyncio": "trio", "trio": "asyncio"}

    async def ask() -> int:
        with anyio.fail_after(20):
            return await counters["k"].up()

    async with keyed(Counter()) as counters:
        backend = other_library[sniffio.current_async_library()]
        first_count = await anyio.to_thread.run_sync(lambda: anyio.run(ask, backend=backend))
        second_count = await counters["k"].up()

    assert (first_count, second_count) == (1, 2)


async def test_nobodys_call_is_ended_because_others_want_room() -> None:
    """An actor with a running handler or an owed reply is not evicted, so waiting keys have to wait."""
    answers: dict[str, Any] = {}

    async def ask(method: str, key: str, *args: Any) -> None:
        answers[method] = (await getattr(counters[key], method)(*args), round(anyio.current_time() - began, 1))

    async with keyed(Counter(), cap=1) as counters, anyio.create_task_group() as group:
        began = anyio.current_time()
        group.start_soon(ask, "look", "a", 60.0)
        await anyio.sleep(1)
        group.start_soon(ask, "up", "b")
    async with keyed(Counter(), cap=1) as counters, anyio.create_task_group() as group:
        began = anyio.current_time()
        group.start_soon(ask, "later", "a")
        await anyio.sleep(1)
        group.start_soon(ask, "up", "b")
        await anyio.sleep(30)
        await counters["a"].answer()

    assert answers["look"] == ("seen", 60.0)
    assert answers["later"] == ("late", 31.0)
    assert answers["up"] == (1, 31.0)
