"""`idempotency_key(of=...)`: the key of a request that a model may plan again as another call."""

import math
import sys
from contextlib import nullcontext
from enum import Enum
from typing import Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from callboard import Actor, CallPolicy, ToolNode, create_react_agent, handler, idempotency_key, tool_call
from callboard.middleware import Supervise
from callboard.testing import ScriptedModel, calls
from tests.engines._fake import FakeEngine
from tests.entrances._values import nest
from tests.helpers import watch_loop

WAIT = 30
MOST = 0.02
"""Seconds for which the event loop may be held."""
pytestmark = pytest.mark.real_clock


class Currency(Enum):
    """Currency of an order."""

    EURO = "EUR"
    POUND = "GBP"


def pay(order: Any, currency: Currency = Currency.EURO, note: Any = "") -> str:
    """Pay an order."""
    return idempotency_key(of=("order", "currency"))


class Till(Actor):
    """Actor that pays orders."""

    @handler
    async def pay_here(self, order: str, note: str = "") -> str:
        """Pay an order."""
        return idempotency_key(of=["order"])


def at(thread: object) -> Any:
    return {"configurable": {"thread_id": thread}}


async def keys(node: ToolNode, *requests: dict[str, Any], thread: object = "t", name: str = "pay") -> list[Any]:
    """Return the keys, or the texts of the errors, of some calls; each is a run of its own."""
    contents: list[Any] = []
    with anyio.fail_after(WAIT):
        for number, args in enumerate(requests):
            state = await node.ainvoke([tool_call(name, str(number), **args)], at(thread))
            contents += [message.content for message in state["messages"]]
    return contents


async def test_a_call_that_the_model_plans_again_after_a_timeout_has_the_same_key() -> None:
    """The service may have executed the request that timed out: a second key would let it pay twice."""
    order_keys: list[str] = []

    async def pay(order: str, note: str = "") -> str:
        """Pay, and never answer the first time."""
        order_keys.append(idempotency_key(of=("order",)))
        if len(order_keys) == 1:
            await anyio.sleep_forever()
        return "paid"

    node = ToolNode([pay], policies={"pay": CallPolicy(timeout=0.05, grace=0)})
    plans = [calls(("pay", {"order": "A1"})), calls(("pay", {"order": "A1", "note": "again"})), "done"]
    agent = create_react_agent(ScriptedModel([*plans, *plans[1:]]), node, checkpointer=InMemorySaver())
    for _ in range(2):
        await agent.ainvoke({"messages": [("user", "go")]}, at("t"))
    assert order_keys == [order_keys[0]] * 3
    assert len(order_keys[0]) == 64


async def test_other_orders_and_tools_and_conversations_have_other_keys() -> None:
    """A service would drop the order of one user as a repetition of another's."""
    refund = StructuredTool.from_function(pay, name="refund")
    node = ToolNode([pay, refund])
    order_keys = [
        *await keys(node, {"order": "A1"}, {"order": "A2"}, {"order": 1}, {"order": "1"}),
        *await keys(node, {"order": "A1"}, thread="u"),
        *await keys(node, {"order": "A1"}, name="refund"),
    ]
    assert len(set(order_keys)) == 6


async def test_the_key_is_the_same_on_an_engine() -> None:
    """A tool that moves to worker processes between two attempts must not pay twice."""
    local_keys = await keys(ToolNode([pay]), {"order": "A1"})
    engine_keys = await keys(
        ToolNode([pay], policies={"pay": CallPolicy(runs_in=FakeEngine())}), {"order": "A1", "note": "x"}
    )
    assert local_keys == engine_keys


async def test_a_default_counts_for_an_argument_that_the_model_leaves_out() -> None:
    """A model that plans a call again often writes the defaults."""
    explicit = [{"order": "A1", "currency": currency} for currency in ("EUR", "GBP")]
    order_keys = await keys(ToolNode([pay]), {"order": "A1"}, *explicit)
    assert order_keys[0] == order_keys[1] != order_keys[2]


async def test_a_handler_of_an_actor_has_the_key() -> None:
    async with ToolNode([Till()]) as node:
        order_keys = await keys(node, {"order": "A1"}, {"order": "A1", "note": "again"}, name="pay_here")
    assert order_keys[0] == order_keys[1]
    assert len(order_keys[0]) == 64


@pytest.mark.backends("asyncio")
async def test_a_call_that_langchains_agent_runs_has_the_key() -> None:
    """LangChain's agent checks no arguments: the last request is nested deeper than Python can read it."""
    order_keys: list[str] = []

    @tool
    async def pay(order: Any, note: str = "") -> str:
        """Pay."""
        order_keys.append(idempotency_key(of=("order", "note")))
        return "paid"

    orders: list[Any] = [{"order": "A1"}, {"order": "A1", "note": ""}, {"order": nest(600)}]
    model = ScriptedModel([*(calls(("pay", order)) for order in orders), "done"])
    agent: Any = create_agent(model, [pay], middleware=[Supervise()])
    # Since Python 3.12, C code reads values of this depth.
    is_readable = sys.version_info >= (3, 12)
    refusal = pytest.raises(ValueError, match="the argument 'order' cannot be part of a key")
    with nullcontext() if is_readable else refusal:
        await agent.ainvoke({"messages": [("user", "go")]}, at("t"))
    assert len(order_keys) == (3 if is_readable else 2)
    assert order_keys[0] == order_keys[1]


@pytest.mark.parametrize("engine", [None, FakeEngine()], ids=["here", "engine"])
@pytest.mark.parametrize(
    "value",
    [math.nan, [1, -math.inf], "x" * 10_001, ["x"] * 10_001, {"a": "x" * 10_001}, 10**10_000, 10**5_000],
    ids=["NaN", "infinity", "long", "many", "long inside", "huge", "unprintable"],
)
async def test_a_value_that_identifies_no_request_ends_the_call_in_words(value: Any, engine: Any) -> None:
    """A digest of such a value would take too long, or would be the same for different values."""
    node = ToolNode([pay], handle_tool_errors=True, policies={"pay": CallPolicy(runs_in=engine)})
    (text,) = await keys(node, {"order": value})
    assert "the argument 'order' cannot be part of a key: it has more than 10,000 characters" in text


async def test_an_object_ends_the_call_in_words() -> None:
    (text,) = await keys(ToolNode([pay], handle_tool_errors=True), {"order": object()})
    assert "the argument 'order' cannot be part of a key" in text


async def test_half_of_a_surrogate_pair_and_large_numbers_are_part_of_a_key() -> None:
    order_keys = await keys(ToolNode([pay]), {"order": "half \ud83d"}, {"order": "half \ud83e"}, {"order": 2**70})
    assert len(set(order_keys)) == 3


@pytest.mark.parametrize("value", ["x" * 9_000_000, ["x"] * 90_000], ids=["9 MB of text", "90,000 values"])
@pytest.mark.hangs_after(100)
async def test_a_key_holds_the_loop_only_for_a_moment_beside_a_large_argument(value: Any) -> None:
    """A model, or who speaks through it, chooses the size of the arguments."""
    hold_times: list[float] = []

    @tool(args_schema={"type": "object", "properties": {"order": {"type": "string"}, "note": {}}})
    async def pay_large(order: str, note: Any) -> str:
        """Pay an order."""
        async with watch_loop() as hold:
            key = idempotency_key(of=("order",))
        hold_times.append(hold.longest)
        return key

    node = ToolNode([pay_large])
    order_keys = await keys(node, *({"order": "A1", "note": note} for note in (value, "")), name="pay_large")
    assert order_keys[0] == order_keys[1]
    assert hold_times[0] < MOST


@pytest.mark.parametrize("engine", [None, FakeEngine()], ids=["here", "engine"])
async def test_an_argument_that_the_tool_does_not_have_is_an_error_with_a_suggestion(engine: Any) -> None:
    """A key without the number of the order would be that of all orders."""
    node = ToolNode([misspelt], policies={"misspelt": CallPolicy(runs_in=engine)})
    with pytest.raises(ValueError, match=r"there is no argument 'ordr', only \['order'\]; did you mean 'order'"):
        await keys(node, {"order": "A1"}, name="misspelt")


def misspelt(order: str) -> str:
    """Name an argument that does not exist."""
    return idempotency_key(of=("ordr",))


@pytest.mark.parametrize("engine", [None, FakeEngine()], ids=["here", "engine"])
async def test_a_run_without_a_thread_is_an_error(engine: Any) -> None:
    """All runs without a thread would share one key, whoever their users are."""
    node = ToolNode([pay], policies={"pay": CallPolicy(runs_in=engine)})
    with pytest.raises(RuntimeError, match="within a conversation, and this run has none"):
        await node.ainvoke([tool_call("pay", order="A1")])


def test_names_are_a_collection_of_names() -> None:
    with pytest.raises(TypeError, match=r"takes names of arguments, such as \('order',\); got 'order'"):
        idempotency_key(of="order")
    with pytest.raises(TypeError, match="takes names of arguments"):
        idempotency_key(of=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="takes names of arguments"):
        idempotency_key(of=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names no argument"):
        idempotency_key(of=())
    with pytest.raises(RuntimeError, match="in the body of a tool that a ToolNode or an agent runs"):
        idempotency_key(of=("order",))
