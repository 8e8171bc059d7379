"""`idempotency_key()`: a service recognises a repeated call by it, and never takes another call for a repetition."""

import hashlib
import threading
from typing import Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel, model_serializer

from callboard import (
    Actor,
    CallPolicy,
    CallsInterrupted,
    ToolNode,
    create_react_agent,
    handler,
    idempotency_key,
    tool_call,
)
from callboard.extend import digest
from callboard.middleware import Retry, Supervise
from callboard.testing import ScriptedModel, calls
from tests.engines._fake import FakeEngine

WAIT = 30
pytestmark = pytest.mark.real_clock


NOTED: list[str] = []


def note() -> str:
    """Note the key, and fail the first time."""
    NOTED.append(idempotency_key())
    if len(NOTED) == 1:
        raise ConnectionError("lost")
    return "noted"


class Till:
    """Actor that records the keys that a service would see."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def node(self, **options: Any) -> ToolNode:
        return ToolNode([self.pay], **options)

    @property
    def pay(self) -> Any:
        async def pay(amount: int, ask: bool = False) -> str:
            """Pay."""
            self.keys.append(idempotency_key())
            return f"{interrupt('really?') if ask else 'paid'}"

        return pay


AT: Any = {"configurable": {"thread_id": "t"}}
GO = {"messages": [("user", "go")]}


def asking() -> Any:
    """Return a new message, because the state knows a message by its id."""
    return calls(("pay", {"amount": 5, "ask": True}))


async def test_two_calls_and_two_runs_of_one_request_have_two_keys() -> None:
    """Models restart their call ids in each run, and paying the same amount again is meant as a second payment."""
    till = Till()
    node = till.node()
    for config in (None, None, AT, AT):
        await node.ainvoke([tool_call("pay", call, amount=5) for call in "12"], config)
    assert len(set(till.keys)) == 8


async def check_two_turns(agent: Any, keys: list[str]) -> None:
    """Check that a call keeps its key when its question is answered, and that the next turn has another one."""
    with anyio.fail_after(WAIT):
        for _ in range(2):
            await agent.ainvoke(GO, AT)
            await agent.ainvoke(Command(resume="yes"), AT)
    first, second, third, fourth = keys
    assert first == second != third == fourth


async def test_every_attempt_of_a_call_has_the_same_key_also_on_an_engine() -> None:
    """The first attempt may have reached the service, so a retry must be recognised as the same request."""
    for policy in (CallPolicy(idempotent=True), CallPolicy(idempotent=True, runs_in=FakeEngine())):
        NOTED.clear()
        node = ToolNode([note], middleware=[Retry(2, initial=0.01)], policies={"note": policy})
        with anyio.fail_after(WAIT):
            await node.ainvoke([tool_call("note", "1")])
        assert [NOTED[0]] * 2 == NOTED
        assert len(NOTED[0]) == 64


class Told(BaseModel):
    """Argument that records the threads in which its JSON is made."""

    @model_serializer
    def tell(self) -> str:
        TOLD.append(threading.get_ident())
        return "told"


TOLD: list[int] = []


async def use(text: str, told: Told) -> str:
    """Use long arguments."""
    return idempotency_key()


async def test_the_key_of_long_arguments_for_an_engine_is_made_in_a_thread() -> None:
    """It is a digest of all of them, and a model may write megabytes."""
    for length, is_here in ((10, True), (20_000, False)):
        TOLD.clear()
        node = ToolNode([use], policies={"use": CallPolicy(runs_in=FakeEngine())})
        with anyio.fail_after(WAIT):
            state = await node.ainvoke([tool_call("use", "1", text="x" * length, told=Told())])
        assert len(state["messages"][0].text) == 64
        assert (set(TOLD) == {threading.get_ident()}) is is_here
        assert len(TOLD) == 1  # once: the engine and the body share it


def test_a_long_text_is_part_of_a_digest() -> None:
    long = "x\ud83d\u00e9" * 100_000
    forged = hashlib.sha256(long.encode(errors="surrogatepass")).hexdigest()
    texts = [long, long + "x", "y" + long, [long], {long: 1}, {long + "x": 1}, {"%text": forged}, {"%text": long}]
    assert len({digest(text) for text in texts}) == len(texts)
    assert digest({"b": long, "a": 1}) == digest({"a": 1, "b": "".join([*long])})


async def test_an_attempt_with_other_arguments_has_another_key() -> None:
    """A service refuses a known key with different arguments, so changed arguments get a new key."""
    till = Till()

    async def again(request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request.override(tool_call={**request.tool_call, "args": {"amount": 6}}))

    await till.node(middleware=[again]).ainvoke([tool_call("pay", "1", amount=5)])
    assert len(set(till.keys)) == 2


async def test_the_key_stays_when_a_standalone_call_is_begun_anew_after_its_answer() -> None:
    """A caller that passes the same ledger continues the same run, so the key is the same."""
    till = Till()
    request = [tool_call("pay", "1", amount=5, ask=True)]
    node = till.node()
    with pytest.raises(CallsInterrupted) as stopped:
        await node.ainvoke(request)
    await node.ainvoke(request, ledger=stopped.value.ledger, resume="yes")
    assert till.keys == [till.keys[0]] * 2


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_agent_keeps_the_key_over_an_interrupt_and_gives_another_in_the_next_turn(version: Any) -> None:
    """The call keeps its key when the interrupt is answered. In the next turn the same call id means a new request."""
    till = Till()
    model = ScriptedModel([asking(), "done", asking(), "done"])
    agent = create_react_agent(model, [till.pay], checkpointer=InMemorySaver(), version=version)
    await check_two_turns(agent, till.keys)


async def test_an_agent_keeps_the_key_of_a_call_that_is_run_again_because_its_end_is_unknown() -> None:
    """The service may already have got a call whose outcome is unknown, so the repetition has the same key."""
    keys: list[str] = []
    begun = anyio.Event()

    async def pay(amount: int) -> str:
        """Pay, and die the first time."""
        keys.append(idempotency_key())
        if len(keys) == 1:
            begun.set()
            await anyio.sleep_forever()
        return "paid"

    node = ToolNode([pay], policies={"pay": CallPolicy(idempotent=True, grace=0)})
    model = ScriptedModel([calls(("pay", {"amount": 5})), "done"])
    agent = create_react_agent(model, node, checkpointer=InMemorySaver())
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ainvoke, GO, AT)
        await begun.wait()
        group.cancel_scope.cancel()
    await agent.ainvoke(None, AT)
    assert keys == [keys[0]] * 2


@pytest.mark.backends("asyncio")
async def test_a_graph_of_langgraph_keeps_the_key_over_an_interrupt() -> None:
    """The node works with LangGraph's own interrupts, so the key must be stable there, too."""
    till = Till()
    graph = StateGraph(MessagesState).add_node("agent", lambda state: {"messages": [asking()]})
    graph.add_node("tools", till.node()).add_edge(START, "agent").add_edge("agent", "tools")
    await check_two_turns(graph.compile(checkpointer=InMemorySaver()), till.keys)


@pytest.mark.parametrize("inner", ["node", "agent"])
async def test_calls_within_a_call_have_keys_of_their_own(inner: str) -> None:
    """Calls that a tool makes get keys that differ from the outer call's, and other keys in another run."""
    till = Till()
    requests = [tool_call("pay", "1", amount=5)]

    async def outer(config: RunnableConfig) -> str:
        """Run others."""
        till.keys.append(idempotency_key())
        if inner == "node":
            await till.node().ainvoke(requests, config)
        else:
            model = ScriptedModel([calls(("pay", {"amount": 5})), "done"])
            await create_react_agent(model, [till.pay]).ainvoke(GO, config)
        return "done"

    for _ in range(2):
        await ToolNode([outer]).ainvoke([tool_call("outer", "1")])
    assert len(till.keys) == 4
    assert len(set(till.keys)) == 4


class Desk(Actor):
    """Asks."""

    @handler
    async def key(self) -> str:
        """The key."""
        return idempotency_key()


def in_thread() -> str:
    """The key."""
    return idempotency_key()


async def test_handlers_and_sync_tools_have_the_key_of_the_call_that_they_work_for() -> None:
    """An actor calls the service on behalf of a call; a sync tool runs in a thread."""
    async with ToolNode([Desk(), in_thread]) as node:
        state = await node.ainvoke([tool_call("key", "1"), tool_call("key", "2"), tool_call("in_thread", "3")])
    keys = [message.content for message in state["messages"]]
    assert all(len(key) == 64 for key in keys)
    assert len(set(keys)) == 3


def test_outside_a_call_there_is_none_and_the_error_says_where_there_is() -> None:
    """Without the error, every request outside a call would be sent with the same key `None`."""
    with pytest.raises(RuntimeError, match="in the body of a tool that a ToolNode or an agent runs"):
        idempotency_key()


@pytest.mark.parametrize(
    "other_arguments", [{"a": 1}, {"a": "true"}, {"a": None}, {"b": True}, {"a": True, "b": None}, {}], ids=str
)
def test_other_arguments_have_another_digest(other_arguments: dict[str, Any]) -> None:
    """Values that compare equal but differ in JSON, such as `True` and 1, give different keys."""
    assert digest(other_arguments) != digest({"a": True})
    assert digest({**other_arguments, "c": 1}) == digest({"c": 1, **other_arguments})


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("door", ["ainvoke", "invoke"])
async def test_a_call_that_langchains_agent_runs_has_a_key(door: str) -> None:
    """`Supervise` repeats attempts, and LangChain's agent restarts interrupted tasks, so both need a stable key."""
    keys: list[str] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise ConnectionError("lost")
        return f"{interrupt('really?')}"

    supervise = Supervise(middleware=[Retry(2, initial=0.01)], policies={"pay": CallPolicy(idempotent=True)})
    ask = calls(("pay", {"amount": 5}), ("pay", {"amount": 5}))
    agent = create_agent(ScriptedModel([ask, "done"]), [pay], middleware=[supervise], checkpointer=InMemorySaver())

    async def run(agent_input: Any) -> Any:
        with anyio.fail_after(WAIT):
            if door == "ainvoke":
                return await agent.ainvoke(agent_input, AT)
            return await anyio.to_thread.run_sync(agent.invoke, agent_input, AT)

    paused = await run(GO)
    await run(Command(resume={question.id: "yes" for question in paused["__interrupt__"]}))
    assert len(keys) == 5  # two attempts and one attempt, and each again after its answer
    assert len(set(keys)) == 2
