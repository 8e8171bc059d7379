"""`CircuitBreaker`: each transition at its exact time. Outcomes that say nothing about the tool are not counted."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.types import interrupt

from callboard import CallEvent, CallPolicy, CallsInterrupted, CircuitOpenError, Limit, ToolNode, observe, tool_call
from callboard.middleware import CircuitBreaker, Retry
from callboard.middleware._breaker import MAX_OUTCOMES, MIN_CIRCUITS, Circuit, CircuitRules, Circuits, Ticket
from callboard.testing import backend, backend_names
from tests.helpers import ending_of

WAIT = 100_000


class DownError(Exception):
    """Error of a service that is down."""


class Service:
    """Service that is up or down, as the test says."""

    def __init__(
        self, name: str = "fetch", *, seconds: float = 0.0, answer: Callable[[], Any] = lambda: "page"
    ) -> None:
        self.name = name
        self.seconds = seconds
        self.answer = answer
        self.down = True
        self.hosts: list[str] = []
        self.running = self.peak = 0

    def tool(self) -> StructuredTool:
        return StructuredTool.from_function(coroutine=self._body, name=self.name, description="Asks a service.")

    async def _body(self, host: str = "") -> Any:
        self.hosts.append(host)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await anyio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.down:
            raise DownError("no connection")
        return self.answer()


def by_host(call: Any) -> Hashable:
    return call["args"]["host"]


class Asked:
    """Node with one service behind a breaker, and the outcomes of its calls."""

    def __init__(self, service: Service, breaker: CircuitBreaker, *inner: object, **options: Any) -> None:
        self.service = service
        self.breaker = breaker
        self.node = ToolNode([service.tool()], middleware=[breaker, *inner], handle_tool_errors=True, **options)

    @property
    def state(self) -> str:
        return self.breaker.state(self.service.name)

    async def once(self, host: str = "") -> ToolMessage:
        (message,) = await self.several(host)
        return message

    async def several(self, *hosts: str) -> list[ToolMessage]:
        calls = [tool_call(self.service.name, f"{number}", host=host) for number, host in enumerate(hosts)]
        messages: list[ToolMessage] = (await self.node.ainvoke(calls))["messages"]
        return messages

    async def fail(self, times: int, host: str = "") -> None:
        for _ in range(times):
            assert not was_refused(await self.once(host))


def was_refused(message: ToolMessage) -> bool:
    return bool(ending_of(message) == "unavailable")


async def test_a_circuit_opens_when_enough_calls_failed() -> None:
    """The circuit stays closed below the minimum of calls, and opens at once after it. An open circuit runs no body."""
    caller = Asked(Service(), CircuitBreaker(0.5, minimum=4))
    await caller.fail(3)
    assert caller.state == "closed"
    await caller.fail(1)
    assert caller.state == "open"
    assert was_refused(await caller.once())
    assert len(caller.service.hosts) == 4


@pytest.mark.parametrize(("passed", "seconds"), [(0, 30), (18, 12), (18.2, 12), (29.0, 1), (29.9, 1)])
async def test_an_open_circuit_raises_an_error_with_the_time(passed: float, seconds: int) -> None:
    """The model reads whole seconds, rounded up. Programs get the remaining time with the error or the message."""
    caller, call = Asked(Service(), CircuitBreaker(minimum=1, open_for=30)), [tool_call("fetch", "1")]
    bare = ToolNode([caller.service.tool()], middleware=[caller.breaker], handle_tool_errors=False)
    with pytest.raises(DownError):
        await bare.ainvoke(call)
    await anyio.sleep(passed)
    with pytest.raises(CircuitOpenError, match=f"Try again after {seconds} s") as caught:
        await bare.ainvoke(call)
    assert caught.value.retry_after == pytest.approx(30 - passed)
    assert (caught.value.tool, caught.value.call_id, caught.value.ended) == ("fetch", "1", "unavailable")
    message = await caller.once()
    assert f"Tool 'fetch' is unavailable after repeated failures. Try again after {seconds} s." in str(message.content)
    assert (message.status, was_refused(message)) == ("error", True)
    assert message.additional_kwargs["callboard"]["retry_after"] >= 30 - passed - 1e-6


async def test_states_follow_each_other_to_the_second() -> None:
    """The circuit is open for 30 seconds, half-open, open again, half-open and closed."""
    caller = Asked(Service(seconds=1), CircuitBreaker(minimum=2, open_for=30))
    states: list[tuple[float, str]] = []

    async def watch() -> None:
        while True:
            state = caller.state
            if not states or states[-1][1] != state:
                states.append((anyio.current_time() - started, state))
            await anyio.sleep(0.25)

    started = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await caller.fail(2)  # busy until 2
        await anyio.sleep(40)  # half-open since 32
        await caller.fail(1)  # runs from 42 to 43
        await anyio.sleep(30)
        caller.service.down = False
        assert (await caller.once()).content == "page"  # runs from 73 to 74
        await anyio.sleep(1)
        group.cancel_scope.cancel()

    assert [state for _, state in states] == ["closed", "open", "half-open", "open", "half-open", "closed"]
    assert [time for time, _ in states] == pytest.approx([0, 2, 32, 43, 73, 74], abs=0.25)


async def test_keys_have_circuits_of_their_own() -> None:
    """With a key per host, only the failing host's circuit opens, and the refusal does not call the tool down."""
    caller = Asked(Service(), CircuitBreaker(minimum=2, key=by_host))
    await caller.fail(2, "a.org")
    refused = await caller.once("a.org")
    assert (caller.breaker.state("a.org"), caller.breaker.state("b.org")) == ("open", "closed")
    await caller.fail(1, "b.org")
    assert "unavailable for calls like this one" in str(refused.content)
    assert caller.service.hosts == ["a.org", "a.org", "b.org"]


async def test_tools_have_circuits_of_their_own_unless_they_share_a_key() -> None:
    """A breaker is shared by all tools of a node, so each tool needs its own circuit."""
    down, up = Service("down"), Service("up")
    up.down = False
    calls = [tool_call("down", "1", host="a"), tool_call("up", "2", host="a")]
    for breaker, refused in (
        (CircuitBreaker(minimum=1), [True, False]),
        (CircuitBreaker(0.5, minimum=2, key=by_host), [True] * 2),
    ):
        node = ToolNode([down.tool(), up.tool()], middleware=[breaker], handle_tool_errors=True)
        await node.ainvoke(calls)
        messages = (await node.ainvoke(calls))["messages"]
        assert [was_refused(message) for message in messages] == refused


async def test_a_key_that_cannot_be_had_is_the_tools_name() -> None:
    """The model's arguments may lack the value that the key function needs, or give an unhashable key."""

    async def fetch(host: str) -> str:
        """Fetch."""
        raise DownError

    breaker = CircuitBreaker(minimum=2, key=by_host)
    node = ToolNode([fetch], middleware=[breaker], handle_tool_errors=True)

    calls = [tool_call("fetch", "1"), tool_call("fetch", "2", host=["a"]), tool_call("fetch", "3", host="a")]
    messages = (await node.ainvoke(calls))["messages"]

    assert ["host" in str(message.content) for message in messages] == [True, True, False]
    assert breaker.state("fetch") == breaker.state("a") == "closed"


async def test_a_cancelled_probe_gives_its_place_back() -> None:
    """A cancelled probe says nothing about the tool: the circuit stays half-open, and another probe may run."""
    service = Service(seconds=50)
    caller = Asked(service, CircuitBreaker(minimum=1, open_for=10))

    await caller.fail(1)
    await anyio.sleep(10)
    for _ in range(3):
        with anyio.move_on_after(5) as scope:
            await caller.once()
        assert scope.cancelled_caught
        assert caller.state == "half-open"
    service.seconds, service.down = 0, False
    assert (await caller.once()).content == "page"
    assert caller.state == "closed"


async def test_a_probe_that_asks_a_person_gives_its_place_back() -> None:
    """Promise 4: a question is no outcome. The answered call is a probe again, and its success counts."""
    service = Service(answer=lambda: str(interrupt("sure?")))
    caller, call = Asked(service, CircuitBreaker(minimum=1, open_for=10)), [tool_call("fetch", "1")]
    await caller.fail(1)
    await anyio.sleep(10)
    service.down = False
    for _ in range(2):
        with pytest.raises(CallsInterrupted) as caught:
            await caller.node.ainvoke(call)
        assert caller.state == "half-open"
    result = await caller.node.ainvoke(call, ledger=caught.value.ledger, resume="yes")
    assert result["messages"][0].content == "yes"
    assert caller.state == "closed"


async def test_the_models_mistakes_neither_open_a_circuit_nor_close_one() -> None:
    """Invalid arguments say nothing about the tool, and a tool that does not exist has no circuit to open."""
    caller = Asked(Service(), CircuitBreaker(minimum=1, open_for=10))
    wrong, unknown = tool_call("fetch", "1", host=["x"]), tool_call("fetsch", "3")
    await caller.node.ainvoke([wrong, wrong | {"id": "4"}, unknown])
    assert caller.state == caller.breaker.state("fetsch") == "closed"
    await caller.fail(1)
    await anyio.sleep(10)
    await caller.node.ainvoke([wrong])
    assert caller.state == "half-open"


async def test_what_says_nothing_about_the_tool_does_not_count() -> None:
    """Cancelled calls, calls that our own limit rejects, and calls that another middleware refuses with a message."""
    cancelled = Asked(Service(seconds=50), CircuitBreaker(minimum=2))
    for _ in range(5):
        with anyio.move_on_after(1):
            await cancelled.several(*"abc")
    assert cancelled.state == "closed"
    await cancelled.fail(1)
    assert cancelled.state == "closed"

    policy = CallPolicy(limit=Limit(concurrency=1, queue=0))
    rejected = Asked(Service(seconds=1), CircuitBreaker(0.5, minimum=2), policies={"fetch": policy})
    rejected.service.down = False
    messages = await rejected.several(*"abcdef")
    assert [message.status for message in messages].count("error") == 5
    assert rejected.state == "closed"

    async def refuse(request: Any, call_next: Any) -> ToolMessage:
        return ToolMessage("not today", tool_call_id=request.tool_call["id"], status="error")

    refused = Asked(Service(), CircuitBreaker(minimum=1), refuse)
    await refused.several(*"abc")
    assert refused.state == "closed"


async def test_a_breaker_inside_does_not_open_the_one_outside() -> None:
    """With a breaker per host inside a breaker per tool, a refusal of the inner one is no failure for the outer one."""
    outer = CircuitBreaker(minimum=5)
    caller = Asked(Service(), outer, CircuitBreaker(minimum=2, key=by_host))

    await caller.fail(2, "a")
    for _ in range(10):
        assert was_refused(await caller.once("a"))
    assert outer.state("fetch") == "closed"
    await caller.fail(2, "b")
    await caller.fail(1, "c")
    assert outer.state("fetch") == "open"


async def test_a_timeout_counts_and_a_spent_budget_if_a_body_ran() -> None:
    """A tool that hangs is failing. A spent budget is seen as a cancellation. Time in a queue does not count."""
    timed = Asked(Service(seconds=50), CircuitBreaker(minimum=2), timeout=1)
    await timed.several("a", "b")
    assert timed.state == "open"
    policy = CallPolicy(budget=10, limit=Limit(concurrency=1))
    caller = Asked(Service(seconds=50), CircuitBreaker(minimum=2), policies={"fetch": policy})
    assert list(map(ending_of, await caller.several(*"abcdef"))) == ["deadline"] * 6
    assert caller.state == "closed"
    await caller.once()
    assert caller.state == "open"


@pytest.mark.parametrize(
    ("on", "state"),
    [
        (DownError, "open"),
        ((KeyError, DownError), "open"),
        (lambda error: "no" in str(error), "open"),
        (KeyError, "closed"),
        (lambda _: False, "closed"),
    ],
)
async def test_only_chosen_errors_are_failures(on: Any, state: str) -> None:
    caller = Asked(Service(), CircuitBreaker(minimum=1, on=on))
    await caller.once()
    assert caller.state == state


async def test_a_message_may_be_a_failure_too() -> None:
    """Some tools report a failure as a message instead of raising."""
    caller = Asked(Service(), CircuitBreaker(minimum=2, on_message=lambda message: message.content == "page"))
    caller.service.down = False
    await caller.fail(2)
    assert caller.state == "open"


async def test_a_broken_function_does_not_keep_a_probes_place() -> None:
    """The error of the function is raised, and the next call may be a probe."""
    errors: list[Exception] = []

    def on(error: Exception) -> bool:
        errors.append(error)
        if len(errors) > 1:
            raise ZeroDivisionError
        return True

    caller = Asked(Service(), CircuitBreaker(minimum=1, open_for=5, on=on))

    await caller.fail(1)
    await anyio.sleep(5)
    assert "ZeroDivisionError" in str((await caller.once()).content)
    caller.service.down = False
    assert (await caller.once()).content == "page"


async def test_a_series_of_attempts_is_one_failure() -> None:
    policy = CallPolicy(idempotent=True)
    caller = Asked(Service(), CircuitBreaker(minimum=3), Retry(4, initial=0), policies={"fetch": policy})
    await caller.fail(2)
    assert caller.state == "closed"
    await caller.fail(1)
    assert caller.state == "open"
    assert len(caller.service.hosts) == 12


@pytest.mark.filterwarnings("ignore::callboard.MiddlewareOrderWarning")
@pytest.mark.filterwarnings("ignore::callboard.exceptions.IdleMiddlewareWarning")
async def test_a_retry_outside_waits_until_the_tool_may_be_tried() -> None:
    """`retry_after` is a lower bound of the pause. A refused call never ran, so retrying it is safe for any tool."""
    service, breaker = Service(), CircuitBreaker(minimum=1, open_for=30)
    node = ToolNode([service.tool()], middleware=[Retry(2, initial=0), breaker], handle_tool_errors=True)
    await node.ainvoke([tool_call("fetch", "1")])
    service.down = False
    await anyio.sleep(10)
    started = anyio.current_time()
    result = await node.ainvoke([tool_call("fetch", "2")])

    assert result["messages"][0].content == "page"
    assert anyio.current_time() - started == pytest.approx(20)


async def test_a_model_is_not_told_of_a_tool_whose_circuit_is_open() -> None:
    """A half-open circuit shows it, so that a probe can run. With a key it stays offered: another host may be up."""
    down, up = Service("down"), Service("up")
    breaker, by_key = CircuitBreaker(minimum=1, open_for=30), CircuitBreaker(minimum=1, key=lambda _: "down")
    node, keyed = (
        ToolNode([down.tool(), up.tool()], middleware=[item], handle_tool_errors=True) for item in (breaker, by_key)
    )

    def list_offered() -> list[list[str]]:
        return [[tool.name for tool in item.offered_tools()] for item in (node, keyed)]

    both_names = ["down", "up"]
    assert list_offered() == [both_names, both_names]
    for item in (node, keyed):
        await item.ainvoke([tool_call("down", "1")])
    assert breaker.state("down") == by_key.state("down") == "open"
    await anyio.sleep(29)
    assert list_offered() == [["up"], both_names]
    await anyio.sleep(1)
    assert list_offered() == [both_names, both_names]


@pytest.mark.parametrize("key", [None, "fetch"])
async def test_a_reset_closes_a_circuit(key: str | None) -> None:
    """An operator can close a circuit by hand. A call that was already running does not open it again."""
    service = Service(seconds=20)
    caller = Asked(service, CircuitBreaker(minimum=1))

    async with anyio.create_task_group() as group:
        group.start_soon(caller.once)
        await anyio.sleep(10)
        service.seconds = 0
        await caller.fail(1)
        caller.breaker.reset("another")
        assert caller.state == "open"
        caller.breaker.reset(key)
        assert caller.state == "closed"
    assert caller.state == "closed"


async def test_observers_are_told_of_every_change_and_of_no_argument() -> None:
    """Notes leave the process, so they contain no arguments."""
    caller = Asked(Service(), CircuitBreaker(minimum=1, open_for=30, key=lambda call: call["args"].get("host") or {}))
    events: list[CallEvent] = []

    with observe(events.append):
        await caller.fail(1, "secret.org")
        await anyio.sleep(10)
        await caller.once("secret.org")
        await anyio.sleep(20)
        caller.service.down = False
        await caller.once("secret.org")
        await caller.once("")

    noted = [event for event in events if event.phase == "noted"]
    changes = ["opened", "refused", "half_open", "closed", "no_key"]
    assert [event.note for event in noted] == [f"breaker_{word}" for word in changes]
    assert [event.facts.get("retry_after") for event in noted] == [30, pytest.approx(20), None, None, None]
    assert {event.facts["tool"] for event in noted} == {"fetch"}
    assert "secret" not in repr([event.facts for event in noted])


@pytest.mark.exhaustive
async def test_keys_that_nobody_asks_for_are_forgotten() -> None:
    """Keys come from the model without bound, so circuits are dropped unless they are open or may still count."""
    breaker = CircuitBreaker(minimum=1, window=60, open_for=1000, key=by_host)
    caller = Asked(Service(), breaker)

    await caller.fail(1, "a.org")
    caller.service.down = False
    for number in range(500):
        await caller.once(f"{number}.org")
        await anyio.sleep(1)
    assert breaker.state("a.org") == "open"
    assert len(breaker._circuits._circuits) <= 2 * 64
    await anyio.sleep(1000)
    for number in range(200):
        await caller.once(f"{number}.com")
    assert "a.org" not in breaker._circuits._circuits


@pytest.mark.parametrize("name", backend_names(real_clock=True))
def test_one_breaker_serves_several_loops_in_several_threads(name: str) -> None:
    """Threads with their own event loops share the counts, the state and the single probe."""
    service = Service()
    breaker = CircuitBreaker(0.5, minimum=100, window=60, open_for=1)
    node = ToolNode([service.tool()], middleware=[breaker], handle_tool_errors=True)
    together = threading.Barrier(4, timeout=20)
    kind, options = backend(name, real_clock=True)

    async def hammer() -> list[ToolMessage]:
        with anyio.fail_after(20):
            for _ in range(25):
                await node.ainvoke([tool_call("fetch", "1")])
            together.wait()
            assert breaker.state("fetch") == "open"
            service.seconds, service.down = 0.5, False
            await anyio.sleep(1.1)
            together.wait()
            messages: list[ToolMessage] = (await node.ainvoke([tool_call("fetch", "1")]))["messages"]
            return messages

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(anyio.run, hammer, backend=kind, backend_options=options) for _ in range(3)]
        runs.append(pool.submit(anyio.run, hammer, backend="trio"))
        last = [message for run in runs for message in run.result(timeout=30)]

    assert len(service.hosts) == 101
    assert [was_refused(message) for message in last].count(False) == 1


def test_a_circuit_remembers_so_many_calls_and_no_more() -> None:
    """The memory of a circuit is bounded, even for a tool that is called a thousand times per second."""
    circuit = Circuit(CircuitRules(ratio=0.5, minimum=1, window=1e9, open_for=1, probes=1))

    for now in range(5 * MAX_OUTCOMES):
        circuit.record_outcome(_let_in(circuit, now), now, has_failed=False)
    assert len(circuit._outcomes) == MAX_OUTCOMES
    for _ in range(MAX_OUTCOMES // 2):
        assert circuit.state(6 * MAX_OUTCOMES) == "closed"
        circuit.record_outcome(_let_in(circuit, 6 * MAX_OUTCOMES), 6 * MAX_OUTCOMES, has_failed=True)

    assert circuit.state(6 * MAX_OUTCOMES) == "open"


def _let_in(circuit: Circuit, now: float) -> Ticket:
    ticket = circuit.admit(now)
    assert ticket is not None
    return ticket


RULES = CircuitRules(ratio=0.5, minimum=3, window=10, open_for=7, probes=2)


class CircuitAndModel(RuleBasedStateMachine):
    """Model of a circuit that computes the expected state from the complete history."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit = Circuit(RULES)
        self.now = 0
        self.opened_at: int | None = None
        self.history: list[tuple[int, bool]] = []
        self.inside: list[tuple[Ticket, bool]] = []
        """Tickets of running calls, and whether they may still count."""

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def begin(self) -> None:
        trying = sum(matters for _, matters in self.inside)
        may = self.opened_at is None or (self.now >= self.opened_at + RULES.open_for and trying < RULES.probes)
        ticket = self.circuit.admit(self.now)
        assert (ticket is not None) == may
        if ticket is not None:
            self.inside.append((ticket, True))

    @precondition(lambda self: self.inside)
    @rule(which=st.integers(0), failed=st.sampled_from([True, True, False, None]))
    def end(self, which: int, failed: bool | None) -> None:
        ticket, matters = self.inside.pop(which % len(self.inside))
        change = self.circuit.record_outcome(ticket, self.now, has_failed=failed)
        assert change == (self.expect_change(failed) if matters and failed is not None else None)

    def expect_change(self, failed: bool) -> str | None:
        if self.opened_at is not None:
            self.change_state(self.now if failed else None)
            return "open" if failed else "closed"
        self.history.append((self.now, failed))
        recent = [bad for when, bad in self.history if when > self.now - RULES.window]
        if len(recent) < RULES.minimum or sum(recent) < RULES.ratio * len(recent):
            return None
        self.change_state(self.now)
        return "open"

    def change_state(self, opened_at: int | None) -> None:
        self.opened_at = opened_at
        self.history = []
        self.inside = [(ticket, False) for ticket, _ in self.inside]

    @invariant()
    def states_agree(self) -> None:
        remaining = 0 if self.opened_at is None else max(0, self.opened_at + RULES.open_for - self.now)
        assert self.circuit.seconds_to_wait(self.now) == remaining
        state = "closed" if self.opened_at is None else "open" if remaining else "half-open"
        assert self.circuit.state(self.now) == state

    @invariant()
    def only_what_is_over_is_idle(self) -> None:
        recent_times = [when for when, _ in self.history if when > self.now - RULES.window]
        if self.circuit.is_idle(self.now):
            assert not self.inside
            assert not recent_times
            assert self.opened_at is None or self.circuit.state(self.now) == "half-open"


def test_a_circuit_does_what_its_history_says() -> None:
    """For any order of events, the circuit matches a model with complete history."""
    run_state_machine_as_test(CircuitAndModel)


def test_a_circuit_is_idle_when_a_new_one_would_do_the_same() -> None:
    """No call is running, the last outcome does not count any more, and the tool was not down within the window."""
    circuit = Circuit(CircuitRules(ratio=1, minimum=1, window=10, open_for=7, probes=1))
    assert circuit.is_idle(0)
    first, second = _let_in(circuit, 0), _let_in(circuit, 0)
    circuit.record_outcome(first, 2, has_failed=False)
    assert not circuit.is_idle(100)
    circuit.record_outcome(second, 5, has_failed=None)
    assert [circuit.is_idle(now) for now in (11, 12)] == [False, True]
    circuit.record_outcome(_let_in(circuit, 5), 5, has_failed=False)
    assert [circuit.is_idle(now) for now in (14, 15)] == [False, True]
    circuit.record_outcome(_let_in(circuit, 20), 20, has_failed=True)
    assert [circuit.is_idle(now) for now in (36, 37)] == [False, True]


async def test_idle_circuits_are_dropped_when_there_are_many_and_those_in_use_are_kept() -> None:
    circuits = Circuits(CircuitRules(ratio=0.5, minimum=1, window=10, open_for=7, probes=1))
    circuits.request_admission("busy")
    for number in range(MIN_CIRCUITS - 1):
        circuits.end_call(circuits.request_admission(number), None)
    assert len(circuits._circuits) == MIN_CIRCUITS
    circuits.request_admission("one more")
    assert set(circuits._circuits) == {"busy", "one more"}
    assert circuits._prune_above_count == MIN_CIRCUITS
    for number in range(MIN_CIRCUITS - 1):
        circuits.request_admission(f"held {number}")
    assert (len(circuits._circuits), circuits._prune_above_count) == (MIN_CIRCUITS + 1, 2 * MIN_CIRCUITS), (
        "it looks more seldom"
    )
