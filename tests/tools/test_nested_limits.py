"""Limits of calls inside other calls: places on loan, and cycles of calls that wait for each other."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool

from callboard import (
    Actor,
    CallPolicy,
    DeadlockError,
    Limit,
    Rate,
    ToolNode,
    create_react_agent,
    fencing_token,
    handler,
    running,
    tool_call,
)
from callboard.extend import PermitRequest
from callboard.middleware import Retry
from callboard.testing import Recorder, ScriptedModel, calls


class Nest:
    """Node whose tools run nested calls of the same node by a plan. It counts the bodies without nested calls."""

    def __init__(self, limit: Limit | None = None, **options: Any) -> None:
        self.running = self.peak = self.begun = 0
        self.answers: list[ToolMessage] = []
        self.node = ToolNode(self._tools(), limit=limit, **options)

    def _tools(self) -> list[BaseTool]:
        async def run(plan: list[Any]) -> str:
            """Run a plan: a list of plans that run as a batch, one after the other if it begins with "each"."""
            self.begun += 1
            await checkpoint()  # all calls of a batch begin, also where tasks run up to their first wait at once
            if not plan:
                self.running += 1
                self.peak = max(self.peak, self.running)
                await anyio.sleep(1)
                self.running -= 1
                return "leaf"
            if plan[0] == "each":
                for inner in plan[1:]:
                    await self.ask([inner])
                return "each"
            await self.ask(plan)
            return "batch"

        return [tool("run")(run), tool("other")(run)]

    async def ask(self, plans: list[Any]) -> list[ToolMessage]:
        batch = [_call(number, plan) for number, plan in enumerate(plans)]
        with anyio.fail_after(1000):
            answers = list((await self.node.ainvoke(batch))["messages"])
        self.answers += answers
        return answers


def _call(number: int, plan: Any) -> dict[str, Any]:
    name, inner = plan if isinstance(plan, tuple) else ("run", plan)
    return dict(tool_call(name, f"c{number}", plan=inner))


def plan_of_depth(depth: int) -> list[Any]:
    return [plan_of_depth(depth - 1)] if depth else []


ONE = Limit(concurrency=1)
LENT: dict[str, tuple[dict[str, Any], list[Any], int]] = {
    "four outer calls in four places": ({"limit": Limit(concurrency=4)}, [plan_of_depth(1)] * 4, 4),
    "free places beside a lent one": ({"limit": Limit(concurrency=3)}, [[[], [], [], [], []]], 3),
    "a lent place is lent on": ({"limit": ONE}, [plan_of_depth(12), plan_of_depth(12)], 1),
    "the limit of a tool": ({"policies": {"run": CallPolicy(limit=ONE)}}, [[[], []], [[]]], 1),
    "by key": ({"limit": Limit(concurrency=1, key=lambda call: call["name"])}, [[[], []], [[]]], 1),
    "one limit, each policy with its own places": (
        {"limit": ONE, "policies": {"run": CallPolicy(limit=ONE), "other": CallPolicy(limit=ONE)}},
        [[("other", [("run", [])])]],
        1,
    ),
}
"""Options of a node, a plan, and the greatest number of innermost calls at once."""


async def test_a_call_lends_its_place_to_the_calls_within_it() -> None:
    """An outer call holds a place that it does not use. Without a loan, the inner calls would wait forever.

    A loan is an additional way to a place, and does not reduce a wide limit to one.
    """
    for case, (options, plans, peak) in LENT.items():
        nest = Nest(**options)
        answers = await nest.ask(plans)
        assert [answer.status for answer in answers] == ["success"] * len(plans), case
        assert nest.peak == peak, case


async def test_a_rate_counts_the_starts_of_calls_in_lent_places() -> None:
    """A call in a lent place still counts as a start, so nesting does not bypass a rate."""
    nest = Nest(Limit(concurrency=1, rate=Rate(1, per=10.0)))
    since = anyio.current_time()
    await nest.ask([[[], []]])
    assert anyio.current_time() - since >= 20


async def test_a_lent_place_outlives_its_lender_as_long_as_it_is_used() -> None:
    """A background task that outlives its tool keeps the lent place until it ends."""
    nest = Nest(Limit(concurrency=1))
    peak = 0
    async with anyio.create_task_group() as group:

        async def begin() -> str:
            """Begin a task that goes on."""
            group.start_soon(nest.ask, [[]])
            await anyio.sleep(0.5)
            return "begun"

        nest.node = ToolNode([*nest._tools(), tool("begin")(begin)], limit=Limit(concurrency=1))
        with anyio.fail_after(60):
            await nest.node.ainvoke([tool_call("begin")])
            await nest.ask([[]])
            peak = nest.peak
    await nest.ask([[]])
    assert (peak, nest.running, nest.begun) == (1, 0, 3)


async def test_a_cancelled_call_gives_its_lent_place_back() -> None:
    """After the inner call is cancelled, the outer call continues in its place and can lend it again."""
    nest = Nest(Limit(concurrency=1), policies={"run": CallPolicy(timeout=2.5)})
    answers = await nest.ask([["each", [], [], []], []])
    assert [answer.status for answer in answers] == ["error", "success"]


@pytest.mark.real_clock
async def test_sync_tools_that_run_calls_of_their_node_are_lent_places_in_their_threads() -> None:
    """Context variables reach the thread of a sync tool, and the loan with them."""
    inner = Recorder()

    def outer(query: str) -> str:
        """Run a call of the same node from a thread."""
        return str(node.invoke([tool_call("leaf", "c9", query=query)])["messages"][0].content)

    node = ToolNode([tool("outer")(outer), inner.tool("leaf")], limit=Limit(concurrency=2))
    answers = (await node.ainvoke([tool_call("outer", f"c{n}", query=str(n)) for n in range(2)]))["messages"]
    assert [answer.status for answer in answers] == ["success"] * 2


async def test_handlers_of_actors_that_run_calls_of_the_asking_node_are_lent_places() -> None:
    """An ask carries the context of its call, so handlers can use the loan."""
    nest = Nest(Limit(concurrency=1))

    class Helper(Actor):
        @handler
        async def help(self) -> str:
            """Run a call of the node."""
            return str((await nest.ask([[]]))[0].content)

    async with running(Helper()) as helper:

        async def outer() -> str:
            """Ask the actor."""
            return await helper.help()

        nest.node = ToolNode([*nest._tools(), tool("outer")(outer)], limit=Limit(concurrency=1))
        with anyio.fail_after(60):
            answer = (await nest.node.ainvoke([tool_call("outer")]))["messages"][0]
    assert (answer.status, answer.content) == ("success", "leaf")


@pytest.mark.real_clock
async def test_sub_agents_share_the_node_of_their_agent() -> None:
    """Users ran four sub-agents as tools of one node with four places, which deadlocked."""
    holder: list[ToolNode] = []
    searching: list[str] = []
    all_search = anyio.Event()

    async def delegate(query: str) -> str:
        """Give work to a sub-agent."""
        model = ScriptedModel([calls(tool_call("search", query=query)), "found"])
        state = await create_react_agent(model, holder[0]).ainvoke({"messages": [("user", query)]})
        return str(state["messages"][-1].content)

    async def search(query: str) -> str:
        """Search, and wait until all four sub-agents do."""
        searching.append(query)
        if len(searching) == 4:
            all_search.set()
        await all_search.wait()
        return f"result of {query}"

    node = ToolNode([tool("delegate")(delegate), tool("search")(search)], limit=Limit(concurrency=4))
    holder.append(node)
    batch = calls(*(tool_call("delegate", f"c{n}", query=str(n)) for n in range(4)))
    state = await create_react_agent(ScriptedModel([batch, "done"]), node).ainvoke({"messages": [("user", "go")]})
    assert [message.content for message in state["messages"][2:]] == ["found"] * 4 + ["done"]
    assert sorted(searching) == ["0", "1", "2", "3"]


async def test_two_tools_that_wait_for_each_others_places_are_told_of_the_deadlock() -> None:
    """Each call holds the only place that the other needs. The call that closes the cycle is refused."""
    policies = {name: CallPolicy(limit=Limit(concurrency=1)) for name in ("run", "other")}
    nest = Nest(policies=policies, handle_tool_errors=False)
    errors: list[DeadlockError] = []

    async def ask(first: str, second: str) -> None:
        try:
            await nest.ask([(first, [(second, [])])])
        except DeadlockError as error:
            errors.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "run", "other")
            group.start_soon(ask, "other", "run")
    (error,) = errors
    assert error.ended == "rejected"
    assert error.chain[0] == error.chain[-1]
    assert {name.split("'")[1] for name in error.chain} == {"run", "other"}
    assert f"the limit of tool {error.tool!r}" in str(error)
    assert "raise its concurrency" in str(error)


async def test_calls_that_hold_a_narrow_place_and_wait_for_a_wide_one_are_told_of_the_deadlock() -> None:
    """The cycle spans two limits, and its last call is not nested in another one."""
    nest = Nest(Limit(concurrency=1), policies={"other": CallPolicy(limit=Limit(concurrency=1))})
    await nest.ask([[("other", [])], ("other", [])])
    (refused,) = [answer for answer in nest.answers if answer.status == "error"]
    assert "would wait for itself: 'other' (call 'c0') -> 'other' (call 'c1') -> 'run' (call 'c0')" in str(
        refused.content
    )
    assert nest.begun == 2


class Stay:
    """Place at the limits of a `Store`."""

    failure: str | Exception | None = None
    token: int | None = None
    is_lost = False

    def __init__(self, store: "Store", on_answer: Callable[[], object]) -> None:
        self._store = store
        self.on_answer = on_answer

    def begin(self) -> None:
        """Count nothing."""

    def leave(self) -> None:
        """Give the place back, or leave the queue."""
        if self in self._store.waiting:
            self._store.waiting.remove(self)
        elif self in self._store.stays:
            self._store.stays.remove(self)
        self._store.give()


class Store:
    """Limits of one concurrency, kept in a list. Tests take places by hand, as other processes would."""

    def __init__(self, places: int, name: str | None = None) -> None:
        self.name = name
        self.places = places
        self.stays: list[Stay] = []
        self.waiting: list[Stay] = []

    def check(self, limit: Limit, /) -> None:
        """Take every limit."""

    def ask(self, request: PermitRequest, on_answer: Callable[[], object], /) -> Stay:
        """Ask for a place."""
        stay = Stay(self, on_answer)
        stay.token = len(self.stays) + 7
        self.waiting.append(stay)
        self.give()
        return stay

    def give(self) -> None:
        """Give the free places away, in order."""
        while self.waiting and len(self.stays) < self.places:
            self.stays.append(self.waiting.pop(0))
            self.stays[-1].on_answer()


async def test_places_at_a_shared_limit_are_lent_within_a_process() -> None:
    """The server sees one place, which the nested calls of this process use in turn."""
    store = Store(2)
    nest = Nest(Limit(concurrency=2, shared=store))
    answers = await nest.ask([[[], []], [[], []]])
    assert [answer.status for answer in answers] == ["success"] * 2
    assert (nest.peak, len(store.stays), len(store.waiting)) == (2, 0, 0)


async def test_a_call_in_a_lent_shared_place_has_its_fencing_token() -> None:
    """The nested call works in the lent place, so a resource must accept it under the lender's fencing token."""
    store, tokens = Store(1), list[int | None]()

    async def inner() -> str:
        """Note the token."""
        tokens.append(fencing_token())
        return "noted"

    async def outer() -> str:
        """Note the token, too."""
        tokens.append(fencing_token())
        return str((await node.ainvoke([tool_call("inner")]))["messages"][0].content)

    node = ToolNode([tool("inner")(inner), tool("outer")(outer)], limit=Limit(concurrency=1, shared=store))
    with anyio.fail_after(60):
        await node.ainvoke([tool_call("outer")])
    assert tokens == [7, 7]


async def test_shared_places_that_are_not_lent_are_told_of_the_deadlock() -> None:
    """A server would not count the start of a call in a lent place, so a place with a rate is not lent.

    A named store treats the limits of a tool and of its node as one limit, so the call would wait for itself.
    """
    store = Store(1)
    nest = Nest(Limit(concurrency=1, rate=Rate(100, per=1.0), shared=store), handle_tool_errors=False)
    with pytest.raises(DeadlockError, match=r"'run' \(call 'c0'\) -> 'run' \(call 'c0'\)"):
        await nest.ask([[[]]])
    assert (store.stays, store.waiting) == ([], [])
    vendor = Store(1, "vendor")
    tool_limit, of_node = (Limit(concurrency=1, shared=vendor) for _ in range(2))
    nest = Nest(of_node, policies={"run": CallPolicy(limit=tool_limit)}, handle_tool_errors=False)
    with pytest.raises(DeadlockError):
        await nest.ask([[]])


async def test_a_call_takes_one_permit_of_a_shared_limit_that_its_tool_and_its_node_have() -> None:
    """One object is one limit. With two permits for each call, a limit of one would let no call run."""
    limit = Limit(concurrency=1, shared=Store(1, "vendor"))
    nest = Nest(limit, policies={"run": CallPolicy(limit=limit)}, handle_tool_errors=False)
    answers = await nest.ask([[], [[]]])
    assert [answer.status for answer in answers] == ["success"] * 2
    assert nest.peak == 1


@pytest.mark.parametrize("placement", [{"policies": ["run", "other"]}, {"policies": ["run"], "limit": True}])
async def test_one_shared_limit_under_two_names_is_refused(placement: dict[str, Any]) -> None:
    """The store would keep two limits, and twice as many calls would run."""
    limit = Limit(concurrency=1, shared=Store(1))
    policies = {name: CallPolicy(limit=limit) for name in placement["policies"]}
    with pytest.raises(ValueError, match=r"one name for all of them, such as Store\(..., name='api.example.com'\)"):
        Nest(limit if "limit" in placement else None, policies=policies)


async def test_nodes_of_one_tool_share_a_limit_of_a_store_without_a_name() -> None:
    """A program may make a node for each request; the name of the tool is the same."""
    store = Store(1)
    limit = Limit(concurrency=1, shared=store)
    nests = [Nest(policies={"run": CallPolicy(limit=limit)}) for _ in range(2)]
    for nest in nests:
        assert [answer.status for answer in await nest.ask([[]])] == ["success"]


async def test_a_retried_call_borrows_again() -> None:
    """A loan ends with its attempt, so the next attempt needs a new one."""
    times = 0

    async def flaky() -> str:
        """Fail once."""
        nonlocal times
        times += 1
        if times == 1:
            raise OSError("once")
        return "well"

    async def outer() -> str:
        """Run the flaky tool."""
        return str((await node.ainvoke([tool_call("flaky")]))["messages"][0].content)

    node = ToolNode(
        [tool("outer")(outer), tool("flaky")(flaky)],
        limit=Limit(concurrency=1),
        middleware=[Retry(attempts=2, on=OSError, any_tool=True)],
    )
    with anyio.fail_after(60):
        answer = (await node.ainvoke([tool_call("outer")]))["messages"][0]
    assert answer.content == "well"


plans: st.SearchStrategy[Any] = st.recursive(
    st.just([]),
    lambda inner: st.one_of(
        st.lists(st.one_of(inner, st.tuples(st.sampled_from(["run", "other"]), inner)), min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: ["each", *some]),
    ),
    max_leaves=8,
)


@given(
    batch=st.lists(plans, min_size=1, max_size=4),
    width=st.integers(1, 3),
    narrow=st.one_of(st.none(), st.integers(1, 2)),
    queue=st.one_of(st.none(), st.integers(0, 2)),
)
async def test_nested_calls_end_and_the_limit_of_the_innermost_bodies_holds(
    batch: list[Any], width: int, narrow: int | None, queue: int | None
) -> None:
    """For any nesting, each call gets an answer, and all places are returned."""
    policies = {"other": CallPolicy(limit=Limit(concurrency=narrow))} if narrow else None
    nest = Nest(Limit(concurrency=width, queue=queue), policies=policies)
    with anyio.fail_after(1000):
        answers = await nest.ask(batch)
        assert len(answers) == len(batch)
        assert nest.peak <= width
        later = await nest.ask([[]] * 1)
    assert [answer.status for answer in later] == ["success"]
    if narrow is None and queue is None:
        assert all(answer.status == "success" for answer in answers)
