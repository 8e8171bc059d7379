"""The table of `docs/how-to/tools-that-pay.md`: the cases in which a payment may be made twice, or be forgotten.

Each test is a row: the text that the model reads, the number of payments, and their number with each kind of key.
A crash and `kill -9` are in `test_unknown_outcomes.py`, the death of an actor in `tests/actors/test_asked_about.py`.
"""

import threading
from contextlib import aclosing
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.types import Command

from callboard import CallPolicy, DrainingError, RunDeadlineExceededError, create_agent, idempotency_key, progress
from callboard.middleware import RequireApproval, Retry
from callboard.testing import ScriptedModel, calls
from tests.helpers import UNKNOWN, keep, make, make_sync, until

from ._savers import AT, say

pytestmark = pytest.mark.real_clock  # SQLite works in threads

WAIT = 60
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "tools-that-pay.md").read_text()
GO, MORE = say("Refund order 7."), say("Never mind.")
ASK, TELL = CallPolicy(on_unknown="ask"), CallPolicy()
BOTH = pytest.mark.parametrize("policy", [ASK, TELL], ids=["ask", "default"])
BEGUN, APPROVE = "This call was begun", "Tool execution requires approval"
ONE_CALL = calls(("refund", {"order": 7}))
REPEATED = [ONE_CALL, ONE_CALL, "done"]
"""Replies of a model that calls the tool again after its first result."""

# Payments of a shop: without a key, with a key for each call, and with a key for each order.
ONCE, SAME_CALL_TWICE, TWO_CALLS = (1, 1, 1), (2, 1, 1), (2, 2, 1)


class Shop:
    """A shop that loses its first answer, and counts its payments."""

    def __init__(self, file: Path) -> None:
        self.url = f"sqlite:///{file}"
        self.payment_sent = anyio.Event()
        self.open = threading.Event()
        self._keys: list[tuple[str, str]] = []

    def pay(self) -> bool:
        """Return whether this is the first payment."""
        self._keys.append((idempotency_key(), idempotency_key(of=("order",))))
        return len(self._keys) == 1

    @property
    def paid(self) -> tuple[int, int, int]:
        """Number of payments without a key, with a key for each call, and with a key for each order."""
        return len(self._keys), len({key for key, _ in self._keys}), len({of for _, of in self._keys})

    async def breaks(self, order: int) -> str:
        if self.pay():
            raise ConnectionError("the answer was lost")
        return "paid"

    async def hangs(self, order: int) -> str:
        is_first = self.pay()
        progress("asked the shop")
        self.payment_sent.set()
        if is_first:
            await anyio.sleep_forever()
        return "paid"

    async def answers(self, order: int) -> str:
        self.pay()
        return "paid"

    def answers_late(self, order: int) -> str:
        self.open.wait(WAIT)
        self.pay()
        return "paid"

    def agent(self, refund: Any, *tools: Any, replies: Any = None, policy: CallPolicy = ASK, **options: Any) -> Any:
        """Return the agent of a process; the next process has another one, with the same database.

        Args:
            refund: body of the tool `refund`.
            tools: other tools.
            replies: those of the model; by default it calls each tool once.
            policy: of `refund`.
            options: of `create_agent`.
        """
        names = ["refund", *(tool.name for tool in tools)]

        def reply(messages: Any) -> Any:
            return calls(*((name, {"order": 7}) for name in names)) if len(messages) == 1 else "done"

        refund_tool = make(refund, "refund") if iscoroutinefunction(refund) else make_sync(refund, "refund")
        return create_agent(
            ScriptedModel(replies or [reply], loop=True),
            [refund_tool, *tools],
            policies={"refund": policy},
            checkpointer=self.url,
            **options,
        )


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "db")


def read(state: Any) -> list[str]:
    """Return the texts that the model reads of its calls."""
    return [message.text for message in state["messages"] if message.type == "tool"]


def questions(state: Any) -> list[str]:
    """Return the first line of each open question, down to a comma."""
    texts = (question.value[0]["description"] for question in state.get("__interrupt__", ()))
    return [text.partition("\n")[0].partition(",")[0] for text in texts]


async def answer(agent: Any, decision: str = "accept") -> Any:
    """Answer the open questions of the thread."""
    state = await agent.aget_state(AT)
    return await agent.ainvoke(Command(resume={question.id: {"type": decision} for question in state.interrupts}), AT)


def is_shown(quoted: str, text: str) -> bool:
    """Return whether the page quotes a part of this text."""
    return f'"{quoted}"' in PAGE and quoted in text


# An error of the tool


@BOTH
@pytest.mark.parametrize("middleware", [[], [RequireApproval(["refund"])]], ids=["", "approved"])
async def test_a_call_that_raised_runs_again_and_nobody_is_asked(
    shop: Shop, policy: CallPolicy, middleware: Any
) -> None:
    """Neither the question about unknown outcomes nor an approval stops the second payment."""
    async with shop.agent(shop.breaks, policy=policy, middleware=middleware) as agent:
        with pytest.raises(ConnectionError):
            if questions(await agent.ainvoke(GO, AT)):
                await answer(agent)
    async with shop.agent(shop.breaks, policy=policy, middleware=middleware) as agent:
        state = await agent.ainvoke(None, AT)
    assert (questions(state), read(state), shop.paid) == ([], ["paid"], SAME_CALL_TWICE)


async def test_an_error_as_a_message_ends_no_run_but_the_model_may_repeat_the_call(shop: Shop) -> None:
    async with shop.agent(shop.breaks, replies=REPEATED, handle_tool_errors=True) as agent:
        state = await agent.ainvoke(GO, AT)
    first, second = read(state)
    assert is_shown("Please fix your mistakes", first)
    assert (questions(state), second, shop.paid) == ([], "paid", TWO_CALLS)


# A result in place of the tool's own, about which nobody is asked


@pytest.mark.parametrize("options", [{"timeout": 0.5}, {"policy": CallPolicy(budget=0.5, on_unknown="ask")}], ids=str)
async def test_after_a_timeout_or_a_spent_budget_the_model_may_repeat_the_call(shop: Shop, options: Any) -> None:
    async with shop.agent(shop.hangs, replies=REPEATED, **options) as agent:
        state = await agent.ainvoke(GO, AT)
    first, second = read(state)
    assert is_shown("did not finish within its timeout" if "timeout" in options else "was given up: its budget", first)
    assert (questions(state), second, shop.paid) == ([], "paid", TWO_CALLS)


@pytest.mark.filterwarnings("ignore::callboard.AbandonedThreadWarning")
async def test_the_thread_of_a_plain_function_pays_after_its_timeout(shop: Shop) -> None:
    try:
        async with shop.agent(shop.answers_late, timeout=0.5) as agent:
            state = await agent.ainvoke(GO, AT)
            assert is_shown("did not finish within its timeout", read(state)[0])
            assert shop.paid == (0, 0, 0)
    finally:
        shop.open.set()
    await until(lambda: shop.paid == ONCE)


async def test_after_the_budget_of_a_run_the_model_may_repeat_the_call(shop: Shop) -> None:
    async with shop.agent(shop.hangs, replies=REPEATED) as agent:
        with pytest.raises(RunDeadlineExceededError):
            await agent.ainvoke(GO, AT, budget=1.0)
    async with shop.agent(shop.hangs, replies=[ONE_CALL, "done"]) as agent:
        state = await agent.ainvoke(None, AT)
    first, second = read(state)
    assert is_shown("was given up: its budget", first)
    assert (questions(state), second, shop.paid) == ([], "paid", TWO_CALLS)


async def test_after_the_end_of_one_call_the_model_may_repeat_it(shop: Shop) -> None:
    results: list[Any] = []
    async with shop.agent(shop.hangs, replies=REPEATED) as agent, anyio.create_task_group() as group:
        group.start_soon(keep, results, agent.ainvoke(GO, AT))
        await shop.payment_sent.wait()
        await agent.cancel(agent.running()[0].call_id)
    first, second = read(results[0])
    assert is_shown("was cancelled by the application", first)
    assert (questions(results[0]), second, shop.paid) == ([], "paid", TWO_CALLS)


# The run ends within the call


async def cancel_task(agent: Any, shop: Shop) -> None:
    """Cancel the task that runs the agent."""
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ainvoke, GO, AT)
        await shop.payment_sent.wait()
        group.cancel_scope.cancel()


async def close_stream(agent: Any, shop: Shop) -> None:
    """Close the stream, as a server does whose client disconnects."""
    async with aclosing(agent.astream(GO, AT, stream_mode="custom")) as stream:
        async for _ in stream:
            break


async def cancel_run(agent: Any, shop: Shop) -> None:
    """Cancel the live run of the thread."""
    await agent.start(GO, AT)
    await shop.payment_sent.wait()
    await agent.live("1").cancel()


async def drain_agent(agent: Any, shop: Shop) -> None:
    """Drain the agent."""
    results: list[Any] = []
    async with anyio.create_task_group() as group:
        group.start_soon(keep, results, agent.ainvoke(GO, AT))
        await shop.payment_sent.wait()
        await agent.drain(0.01)
    assert isinstance(results[0], DrainingError)


ENDS = [cancel_task, close_stream, cancel_run, drain_agent]


@pytest.mark.every_variant
@pytest.mark.parametrize("end", ENDS)
async def test_a_call_whose_run_was_ended_is_unknown_to_the_model(shop: Shop, end: Any) -> None:
    async with shop.agent(shop.hangs, policy=TELL) as agent:
        await end(agent, shop)
    async with shop.agent(shop.hangs, policy=TELL) as agent:
        state = await agent.ainvoke(None, AT)
    assert is_shown("whether it had any effect is unknown", UNKNOWN)
    assert (questions(state), read(state), shop.paid) == ([], [UNKNOWN], ONCE)


@pytest.mark.every_variant
@pytest.mark.parametrize("end", ENDS)
async def test_a_person_who_is_asked_about_it_may_run_it_again_with_the_same_key(shop: Shop, end: Any) -> None:
    async with shop.agent(shop.hangs) as agent:
        await end(agent, shop)
    async with shop.agent(shop.hangs) as agent:
        interrupted_state = await agent.ainvoke(None, AT)
        before = shop.paid
        state = await answer(agent)
    assert (questions(interrupted_state), before) == ([BEGUN], ONCE)
    assert (questions(state), read(state), shop.paid) == ([], ["paid"], SAME_CALL_TWICE)


@BOTH
async def test_an_error_of_another_call_leaves_it_unknown_too(shop: Shop, policy: CallPolicy) -> None:
    errors = [ValueError("no such order")]

    async def look(order: int) -> str:
        await shop.payment_sent.wait()
        if errors:
            raise errors.pop()
        return "found"

    async with shop.agent(shop.hangs, make(look), policy=policy) as agent:
        with pytest.raises(ValueError, match="no such order"):
            await agent.ainvoke(GO, AT)
        state = await agent.ainvoke(None, AT)
    if policy is ASK:
        assert (questions(state), shop.paid) == ([BEGUN], ONCE)
    else:
        assert (read(state), shop.paid) == ([UNKNOWN, "found"], ONCE)


async def test_an_error_of_another_call_that_is_a_message_ends_no_call(shop: Shop) -> None:
    has_failed = anyio.Event()

    async def refund(order: int) -> str:
        await has_failed.wait()
        return await shop.answers(order)

    async def look(order: int) -> str:
        has_failed.set()
        raise ValueError("no such order")

    async with shop.agent(refund, make(look), handle_tool_errors=True) as agent:
        state = await agent.ainvoke(GO, AT)
    assert (read(state)[0], shop.paid) == ("paid", ONCE)


@BOTH
async def test_a_call_that_may_run_twice_runs_again_without_a_question(shop: Shop, policy: CallPolicy) -> None:
    policy = CallPolicy(on_unknown=policy.on_unknown, idempotent=True)
    async with shop.agent(shop.hangs, policy=policy) as agent:
        await cancel_task(agent, shop)
        state = await agent.ainvoke(None, AT)
    assert (questions(state), read(state), shop.paid) == ([], ["paid"], SAME_CALL_TWICE)


@pytest.mark.filterwarnings("ignore::callboard.AbandonedThreadWarning")
async def test_the_thread_of_a_plain_function_pays_after_the_question(shop: Shop) -> None:
    """A person who looks at once finds no payment, and may accept a second one."""

    def pays_late(order: int) -> str:
        progress("asked the shop")
        return shop.answers_late(order)

    try:
        async with shop.agent(pays_late) as agent:
            await close_stream(agent, shop)
            state = await agent.ainvoke(None, AT)
        assert (questions(state), shop.paid) == ([BEGUN], (0, 0, 0))
    finally:
        shop.open.set()
    await until(lambda: shop.paid == ONCE)


# People and messages


async def test_an_approval_of_the_repeated_call_pays_again(shop: Shop) -> None:
    async with shop.agent(shop.hangs, replies=REPEATED, timeout=0.5, middleware=[RequireApproval(["refund"])]) as agent:
        first = await agent.ainvoke(GO, AT)
        second = await answer(agent)
        state = await answer(agent)
    assert questions(first) == questions(second) == [APPROVE]
    assert (read(state)[-1], shop.paid) == ("paid", TWO_CALLS)


@pytest.mark.parametrize(("policy", "is_asked"), [(ASK, False), (ASK, True), (TELL, False)])
async def test_a_new_message_gives_up_a_call_that_had_begun(shop: Shop, policy: CallPolicy, is_asked: bool) -> None:
    """Nobody is asked, and a question that is open already is taken back."""
    async with shop.agent(shop.hangs, policy=policy) as agent:
        await cancel_task(agent, shop)
        if is_asked:
            assert questions(await agent.ainvoke(None, AT)) == [BEGUN]
        state = await agent.ainvoke(MORE, AT)
    [text] = read(state)
    assert is_shown("this call has no result", text)
    assert "whether it had any effect is unknown" in text
    assert (questions(state), shop.paid) == ([], ONCE)


async def test_a_new_message_gives_up_an_approval_and_nothing_is_paid(shop: Shop) -> None:
    async with shop.agent(shop.answers, middleware=[RequireApproval(["refund"])]) as agent:
        assert questions(await agent.ainvoke(GO, AT)) == [APPROVE]
        state = await agent.ainvoke(MORE, AT)
    assert is_shown("this call did not run", read(state)[0])
    assert shop.paid == (0, 0, 0)


# The same call, or the same order, another time


@pytest.mark.parametrize("any_tool", [False, True])
async def test_retry_pays_again_with_the_same_key(shop: Shop, any_tool: bool) -> None:
    retry, policy = Retry(2, initial=0.01, any_tool=any_tool), ASK if any_tool else CallPolicy(idempotent=True)
    async with shop.agent(shop.breaks, policy=policy, middleware=[retry]) as agent:
        state = await agent.ainvoke(GO, AT)
    assert (read(state), shop.paid) == (["paid"], SAME_CALL_TWICE)


async def test_an_earlier_state_that_goes_on_pays_again(shop: Shop) -> None:
    async with shop.agent(shop.answers) as agent:
        await agent.ainvoke(GO, AT)
        [before] = [state async for state in agent.aget_state_history(AT) if state.next == ("tools",)]
        await agent.ainvoke(None, before.config)
    assert shop.paid == TWO_CALLS


async def test_another_conversation_has_another_key(shop: Shop) -> None:
    """Two users never share a payment, so the same order in two conversations is paid twice, whatever the key."""
    async with shop.agent(shop.answers) as agent:
        await agent.ainvoke(GO, AT)
        await agent.ainvoke(GO, {"configurable": {"thread_id": "2"}})
    assert shop.paid == (2, 2, 2)
