"""`on_unknown="ask"`: a call whose actor died waits for a person."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from callboard import (
    Actor,
    ActorDiedError,
    CallPolicy,
    CallsInterrupted,
    ToolNode,
    create_react_agent,
    handler,
    tool_call,
)
from callboard.guards import Redact
from callboard.middleware import Retry
from callboard.testing import ScriptedModel, calls
from tests.helpers import UNKNOWN, BrokenError

ASK = {"pay": CallPolicy(on_unknown="ask")}
paid: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


class Till(Actor):
    """Actor that dies during the first payment, after it was made."""

    fatal = (BrokenError,)

    @handler
    async def pay(self, amount: int) -> str:
        """Pay.

        Args:
            amount: in cents.
        """
        paid.append(amount)
        if len(paid) == 1:
            raise BrokenError("the line is dead")
        return f"paid {amount}"

    @handler
    async def look(self) -> str:
        """Look."""
        return "fine"


PAY, LOOK = tool_call("pay", "c1", amount=7), tool_call("look", "c2")


async def interruption_of(node: ToolNode) -> CallsInterrupted:
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke([PAY, LOOK])
    return caught.value


async def test_a_person_is_asked_and_the_neighbours_go_on() -> None:
    """The question contains the call as the model wrote it and the actor that died.

    The other calls of the batch finish.
    """
    async with ToolNode([Till()], policies=ASK) as node:
        [question] = (waiting := await interruption_of(node)).interrupts

    [request] = question.value
    assert request["action_request"] == {"action": "pay", "args": {"amount": 7}}
    assert "and then Till died" in request["description"]
    assert paid == [7]
    assert waiting.ledger["keys"] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("answer", "content", "payments"),
    [
        ({"type": "accept"}, "paid 7", [7, 7]),
        ({"type": "response", "args": "it was paid"}, "it was paid", [7]),
        ({"type": "ignore"}, UNKNOWN, [7]),
    ],
)
async def test_the_answer_runs_it_again_or_is_its_result(answer: object, content: str, payments: list[int]) -> None:
    async with ToolNode([Till()], policies=ASK) as node:
        waiting = await interruption_of(node)
        result = await node.ainvoke([PAY, LOOK], ledger=waiting.ledger, resume={waiting.interrupts[0].id: answer})

    contents = [str(message.content) for message in result["messages"]]
    assert contents[0].startswith(content)
    assert contents[1].startswith("fine")
    assert paid == payments


async def test_an_answer_that_is_none_is_an_error_and_nothing_runs() -> None:
    async with ToolNode([Till()], policies=ASK) as node:
        waiting = await interruption_of(node)
        with pytest.raises(ValueError, match=r"call 'c1' is .*accept"):
            await node.ainvoke([PAY, LOOK], ledger=waiting.ledger, resume={waiting.interrupts[0].id: "yes"})
    assert paid == [7]


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", ["accept", "ignore"])
async def test_an_agent_asks_and_goes_on_from_its_checkpoint(kind: str) -> None:
    """The question and the start of the call are in the checkpoint, so the agent continues after an answer."""
    thread: Any = {"configurable": {"thread_id": "t"}}
    model = ScriptedModel([calls(PAY, LOOK), "done"])
    agent = create_react_agent(model, ToolNode([Till()], policies=ASK), checkpointer=InMemorySaver())
    async with agent:
        first = await agent.ainvoke({"messages": [HumanMessage("go")]}, thread)
        [question] = first["__interrupt__"]
        second_result = await agent.ainvoke(None, thread)
        assert [open_question.id for open_question in second_result["__interrupt__"]] == [question.id]
        last = await agent.ainvoke(Command(resume={question.id: {"type": kind}}), thread)

    contents = [str(message.content) for message in last["messages"] if isinstance(message, ToolMessage)]
    assert contents[0].startswith("paid 7" if kind == "accept" else UNKNOWN)
    assert paid == ([7, 7] if kind == "accept" else [7])


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_a_langgraph_graph_asks_through_its_interrupts() -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([Till()], policies=ASK))
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t"}}
    first = await graph.ainvoke({"messages": [calls(PAY, LOOK)]}, thread)
    assert len(first["__interrupt__"]) == 1
    last = await graph.ainvoke(Command(resume={"type": "accept"}), thread)

    assert str(last["messages"][-2].content).startswith("paid 7")
    assert paid == [7, 7]


async def test_neither_a_retry_nor_a_fallback_takes_the_question_for_a_failure() -> None:
    """Retry and fallback could repeat a payment that may have been made, so the question passes through them."""
    async with ToolNode([Till()], policies=ASK, middleware=[Retry(attempts=3, any_tool=True)]) as node:
        await interruption_of(node)
    assert paid == [7]


async def test_the_question_has_no_value_that_a_middleware_filled_in() -> None:
    """The question is stored and read by people, so values that a middleware injected are left out."""

    class Clerk(Actor):
        fatal = (BrokenError,)

        @handler
        async def send(self, address: str) -> str:
            """Send.

            Args:
                address: to whom.
            """
            assert address == "ann@example.org"
            raise BrokenError

        @handler
        async def find(self) -> str:
            """Find an address."""
            return "ann@example.org"

    node = ToolNode([Clerk()], policies={"send": CallPolicy(on_unknown="ask")}, middleware=[Redact(reveal=["send"])])
    async with node:
        [message] = (await node.ainvoke([tool_call("find", "c1")]))["messages"]
        with pytest.raises(CallsInterrupted) as caught:
            await node.ainvoke([tool_call("send", "c2", address=str(message.content))])

    assert "ann@example.org" not in repr(caught.value.interrupts)
    assert str(message.content) in repr(caught.value.interrupts)


@pytest.mark.parametrize("policy", [CallPolicy(on_unknown="fail"), CallPolicy(on_unknown="ask")], ids=["fail", "ask"])
async def test_a_tool_that_asks_the_actor_itself_gets_the_error(policy: CallPolicy) -> None:
    """A tool that asks an actor itself catches the error.

    An uncaught error falls under the tool's policy, not the handler's.
    """
    node = ToolNode([Till()], policies=ASK)
    pay: Any = node.tools_by_name["pay"]
    endings: list[str] = []

    async def shop(amount: int) -> str:
        """Shop.

        Args:
            amount: in cents.
        """
        try:
            return str(await pay.coroutine(amount=amount))
        except ActorDiedError as error:
            endings.append(error.ended)
            raise

    async with node:
        shopping = ToolNode([shop], handle_tool_errors=True, policies={"shop": policy})
        if policy.on_unknown == "ask":
            with pytest.raises(CallsInterrupted) as caught:
                await shopping.ainvoke([tool_call("shop", amount=7)])
            assert caught.value.interrupts[0].value[0]["action_request"] == {"action": "shop", "args": {"amount": 7}}
        else:
            [message] = (await shopping.ainvoke([tool_call("shop", amount=7)]))["messages"]
            assert "Whether it had its effect is unknown" in str(message.content)
    assert endings == ["unknown"]


@pytest.mark.real_clock
async def test_an_answer_that_comes_in_once_more_is_none_to_a_later_question() -> None:
    """The actor dies again after the first answer.

    A repeated first answer must not approve the second payment, which nobody saw.
    """

    class Doomed(Till):
        @handler
        async def pay(self, amount: int) -> str:
            """Pay.

            Args:
                amount: in cents.
            """
            paid.append(amount)
            raise BrokenError

    thread: Any = {"configurable": {"thread_id": "t"}}
    model = ScriptedModel([calls(PAY), "done"])
    agent = create_react_agent(model, ToolNode([Doomed()], policies=ASK), checkpointer=InMemorySaver())
    first = (await agent.ainvoke({"messages": [HumanMessage("go")]}, thread))["__interrupt__"][0].id
    answer: Any = Command(resume={first: {"type": "accept"}})
    second = (await agent.ainvoke(answer, thread))["__interrupt__"][0].id
    assert first != second
    with pytest.raises(UnknownInterruptError):
        await agent.ainvoke(answer, thread)
    assert paid == [7, 7]
