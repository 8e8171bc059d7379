"""Actor tools behave like plain tools under middleware, overrides, run limits, commands and the test kit."""

from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send

from callboard import (
    Actor,
    CallPolicy,
    CallsInterrupted,
    IdleMiddlewareWarning,
    Reply,
    ToolNode,
    child,
    create_react_agent,
    handler,
    keyed,
    tool_call,
)
from callboard.exceptions import CallboardWarning
from callboard.middleware import Cache, Fallback, RequireApproval, Retry, Value
from callboard.testing import ActorContract, ScriptedModel, calls, killing
from tests.helpers import BrokenError, contents

from ._lives import lives


class Desk(Actor):
    """Actor that answers and counts its answers."""

    fatal = (BrokenError,)
    groups = {"reads": 4}

    async def start(self) -> None:
        lives.append(f"start {self.key}")
        self.count = 0
        self.replies: list[Reply[Any]] = []

    @handler
    async def ask(self, query: str) -> str:
        """Answer."""
        self.count += 1
        lives.append(f"ask {query}")
        return f"{query} {self.count}"

    @handler(group="reads")
    async def read(self, query: str) -> str:
        """Read for a while."""
        lives.append(f"begin {query}")
        await anyio.sleep(1)
        lives.append(f"end {query}")
        return query

    @handler
    async def shaky(self, often: int) -> str:
        """Fail so many times."""
        self.count += 1
        if self.count <= often:
            raise ConnectionError(self.count)
        return f"after {self.count}"

    @handler
    async def die(self, query: str) -> str:
        """Die."""
        lives.append("die")
        raise BrokenError(query)

    @handler
    async def jump(self, place: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Go on elsewhere."""
        self.count += 1
        return Command(
            update={"messages": [ToolMessage(f"{place} {self.count}", tool_call_id=call_id)], "place": place}
        )

    @handler
    async def jump_twice(self, call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
        """Answer, and change the state besides."""
        return [Command(update={"place": "two"}), ToolMessage("both", tool_call_id=call_id)]

    @handler(deferred=True)
    async def later(self, reply: Reply[Any], call_id: Annotated[str, InjectedToolCallId]) -> None:
        """Go on elsewhere, later."""
        reply.send(Command(update={"messages": [ToolMessage("later", tool_call_id=call_id)]}))


async def result_of(node: ToolNode, name: str, config: RunnableConfig | None = None, **args: Any) -> Any:
    return contents(await node.ainvoke({"messages": [calls(tool_call(name, **args))]}, config))[0]


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def by_thread(call: Any, context: Any) -> str:
    return str(context.config["configurable"]["thread_id"])


async def test_a_cached_call_does_not_reach_the_actor_and_starts_none() -> None:
    node = ToolNode([Desk()], middleware=[Cache(["ask"])])
    results = [await result_of(node, "ask", query=query) for query in ("a", "a", "b")]
    assert results == ["a 1", "a 1", "b 1"]
    assert lives == ["start None", "ask a", "start None", "ask b"]


async def test_no_result_of_one_key_is_given_to_another() -> None:
    spec = child(Desk, key=by_thread)
    plain = ToolNode([spec], middleware=[Cache(["ask"])])
    keys = ToolNode([spec], middleware=[Cache(["ask"], key=lambda request, context: by_thread(request, context))])
    async with plain, keys:
        with pytest.warns(CallboardWarning, match="more than its arguments"):
            results = [await result_of(plain, "ask", thread(name), query="a") for name in "121"]
        cached = [await result_of(keys, "ask", thread(name), query="a") for name in "121"]
    assert results == ["a 1", "a 1", "a 2"]
    assert cached == ["a 1", "a 1", "a 1"]


async def test_what_a_model_is_told_of_lost_state_is_not_kept_in_a_cache() -> None:
    """The notice of lost state is valid once. A cached copy would repeat it."""
    node = ToolNode([Desk()], middleware=[Cache(["ask"])], policies={"die": CallPolicy(on_unknown="fail")})
    async with node:
        await result_of(node, "ask", thread("1"), query="a")
        await result_of(node, "die", thread("2"), query="x")
        results = [await result_of(node, "ask", thread("1"), query="b") for _ in range(3)]
    assert results[0].startswith("b 1\n\n(Desk was restarted")
    assert results[1:] == ["b 2", "b 2"]


async def test_a_call_that_waits_for_approval_starts_no_actor() -> None:
    node = ToolNode([Desk()], middleware=[RequireApproval(["ask"])])
    tool_calls = [tool_call("ask", query="a")]
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke(tool_calls)
    before = list(lives)
    question = caught.value.args[0][0]
    result = await node.ainvoke(
        tool_calls, ledger=caught.value.ledger, resume={question.id: [{"type": "accept", "args": None}]}
    )
    assert before == []
    assert contents(result) == ["a 1"]
    assert lives == ["start None", "ask a"]


async def test_another_tool_answers_for_an_actor_that_dies_or_does_not_start() -> None:
    class Absent(Actor):
        async def start(self) -> None:
            raise FileNotFoundError("no such program")

        @handler
        async def search(self, query: str) -> str:
            """Search."""
            return query

    node = ToolNode(
        [Desk(), Absent()],
        middleware=[Fallback({"die": "ask", "search": Value("nothing found")})],
        policies={"die": CallPolicy(on_unknown="fail")},
    )
    results = [await result_of(node, "die", query="a"), await result_of(node, "search", query="a")]
    assert results[0].startswith("a 1")
    assert results[1] == "nothing found"


async def test_a_handler_that_fails_is_tried_again_in_the_same_actor() -> None:
    node = ToolNode([Desk()], middleware=[Retry(4, initial=0.1)], policies={"shaky": CallPolicy(idempotent=True)})
    result = await result_of(node, "shaky", often=2)
    assert result == "after 3"
    assert lives == ["start None"]


async def test_a_call_whose_actor_did_not_start_is_tried_again_whatever_its_policy() -> None:
    """The handler never ran, so a repetition is safe under every policy."""
    fails = [True, True, False]

    class Slow(Desk):
        async def start(self) -> None:
            await super().start()
            if fails.pop(0):
                raise ConnectionError("not yet")

    with pytest.warns(IdleMiddlewareWarning):  # no policy allows a repetition
        node = ToolNode([Slow()], middleware=[Retry(3, initial=0.1)])
    assert await result_of(node, "ask", query="a") == "a 1"


async def test_a_call_that_is_refused_as_poison_is_not_tried_again() -> None:
    """A retry would be refused again, after a pause each time."""
    node = ToolNode([Desk()], middleware=[Retry(5, initial=10)], policies={"die": CallPolicy(idempotent=True)})
    async with node:
        began = anyio.current_time()
        result = await result_of(node, "die", query="a")
        took = anyio.current_time() - began
    assert "ran 3 times for this call and ended its actor each time" in result
    assert lives.count("die") == 3
    assert took < 5


@pytest.mark.real_clock
async def test_a_handlers_result_ends_a_run_where_its_tool_says_so() -> None:
    """Handlers have no `return_direct`, so the option is set on the node's tool."""
    node = ToolNode([Desk()])
    node.tools_by_name["ask"].return_direct = True
    agent = create_react_agent(ScriptedModel([calls(tool_call("ask", query="a")), "never said"]), node)
    result = await agent.ainvoke({"messages": [HumanMessage("go")]})
    assert result["messages"][-1].content == "a 1"


async def test_a_handler_may_return_a_command() -> None:
    node = ToolNode([Desk()])
    jumped = await node.ainvoke([tool_call("jump", "7", place="home")])
    jumped_twice = await node.ainvoke([tool_call("jump_twice", "8")])
    later = await node.ainvoke([tool_call("later", "9")])
    assert [type(result) for result in jumped] == [Command]
    assert jumped[0].update["place"] == "home"
    assert jumped[0].update["messages"][0].content == "home 1"
    assert jumped[0].update["messages"][0].name == "jump"
    assert sorted(type(result).__name__ for result in jumped_twice) == ["Command", "dict"]
    assert later[0].update["messages"][0].content == "later"


async def test_a_command_goes_its_way_when_state_was_lost() -> None:
    """A command has no message to which the notice of lost state could be added, so the next result carries it."""
    node = ToolNode([Desk()], policies={"die": CallPolicy(on_unknown="fail")})
    async with node:
        await result_of(node, "ask", thread("1"), query="a")
        await result_of(node, "die", thread("2"), query="x")
        jumped_twice = await node.ainvoke([tool_call("jump_twice", "8")], thread("1"))
        after = [await result_of(node, "ask", thread("1"), query="b") for _ in range(2)]
    assert sorted(type(result).__name__ for result in jumped_twice) == ["Command", "dict"]
    assert "Desk was restarted" in after[0]
    assert after[1] == "b 2"


async def test_a_subclass_of_the_node_sees_calls_of_actors() -> None:
    class Mine(ToolNode):
        async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
            lives.append(f"before {input['messages'][-1].tool_calls[0]['name']}")
            result = await super().ainvoke(input, config, **options)
            lives.append("after")
            return result

    node = Mine([child(Desk, key=lambda call, context: context.state["tenant"])])
    node_input = {"messages": [calls(tool_call("ask", query="a"))], "tenant": "t"}
    assert contents(await node.ainvoke(node_input)) == ["a 1"]
    assert lives == ["before ask", "start t", "ask a", "after"]


async def test_no_more_handlers_run_than_a_run_may_have_calls() -> None:
    """`max_concurrency` also limits handlers, even if the actor could run more at once."""
    node = ToolNode([Desk()])
    tool_calls = [tool_call("read", str(number), query=str(number)) for number in range(4)]
    await node.ainvoke(tool_calls, {"max_concurrency": 1})
    alone = [line for line in lives if " " in line and not line.startswith("start")]
    lives.clear()
    await node.ainvoke(tool_calls)
    assert alone == [f"{event} {number}" for number in range(4) for event in ("begin", "end")]
    assert [line.split()[0] for line in lives[1:]] == ["begin"] * 4 + ["end"] * 4


async def test_an_actor_by_key_is_killed_at_a_chosen_point_before_it_lives() -> None:
    async with keyed(Desk) as desks:
        desk = desks["a"]
        with killing(desk, "ask") as died, pytest.raises(Exception, match="killed by a test"):
            await desk.ask("x")
        assert await desk.ask("y") == "y 1"
    assert died == ["ask"]


class TestATenantsDesk(ActorContract):
    """Contract test of an actor with terms made for a node."""

    def actor(self) -> Any:
        return child(Desk, key=by_thread, cap=2, idle=5.0, prefix="desk_", intensity=7)

    async def ask(self, reference: Any) -> object:
        await anyio.sleep(0.01)
        return await reference.ask("x")


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_each_call_that_is_sent_to_a_node_has_an_actor_of_its_own_unless_the_node_is_open() -> None:
    node = ToolNode([Desk()])

    def send(state: Any) -> list[Send]:
        return [Send("tools", [call]) for call in state["messages"][-1].tool_calls]

    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {})
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", send, ["tools"])
    graph: Any = builder.compile()
    graph_input = {
        "messages": [AIMessage("", tool_calls=[tool_call("ask", str(number), query="a") for number in range(3)])]
    }

    alone = contents(await graph.ainvoke(graph_input))
    starts = lives.count("start None")
    async with node:
        in_open_node = contents(await graph.ainvoke(graph_input))

    assert (alone, starts) == (["a 1"] * 3, 3)
    assert sorted(in_open_node) == ["a 1", "a 2", "a 3"]
    assert lives.count("start None") == 4
