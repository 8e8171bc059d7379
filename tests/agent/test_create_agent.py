"""`callboard.create_agent`: LangChain's agent on callboard's loop, on asyncio and on trio."""

import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from langchain.agents import create_agent as langchains_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    HumanInTheLoopMiddleware,
    ToolRetryMiddleware,
    before_model,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import EmptyInputError
from langgraph.types import Command
from langsmith import Client
from langsmith.run_helpers import get_current_run_tree, tracing_context
from pydantic import BaseModel

from callboard import Actor, CallPolicy, Limit, RunEvent, ToolNode, create_agent, handler, observe, tool_call
from callboard.middleware import Retry
from callboard.testing import Recorder, ScriptedModel, calls

from ._graphs import asking
from ._savers import AT, QUESTION, contents, run, say

# Code of LangChain runs on a loop in another thread, which a virtual clock would not wait for.
pytestmark = pytest.mark.real_clock


class Told(AgentMiddleware[Any, Any, Any]):
    """Middleware that notes each of its hooks in a list."""

    def __init__(self, label: str, notes: list[str]) -> None:
        super().__init__()
        self._label, self._notes = label, notes

    @property
    def name(self) -> str:
        return self._label

    def _note(self, hook: str) -> None:
        self._notes.append(f"{self._label}.{hook}")

    def before_agent(self, state: Any, runtime: Any) -> None:
        self._note("before_agent")

    def before_model(self, state: Any, runtime: Any) -> None:
        self._note("before_model")

    def after_model(self, state: Any, runtime: Any) -> None:
        self._note("after_model")

    def after_agent(self, state: Any, runtime: Any) -> None:
        self._note("after_agent")

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        self._note("wrap_model_call")
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self._note("wrap_tool_call")
        return await handler(request)


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def scripted_model(*asks: Any) -> ScriptedModel:
    return ScriptedModel([calls(*asks), "done"])


def adding() -> ScriptedModel:
    return scripted_model(tool_call("add", a=1, b=2))


def test_langchains_hooks_run_in_langchains_order() -> None:
    """The expected list is what LangChain's own agent runs."""

    def order(factory: Callable[..., Any], backend: str) -> list[str]:
        notes: list[str] = []
        agent = factory(adding(), [add], middleware=[Told("one", notes), Told("two", notes)])
        anyio.run(run, agent, backend=backend)
        return notes

    expected = order(langchains_agent, "asyncio")
    assert order(create_agent, "asyncio") == expected
    assert order(create_agent, "trio") == expected


async def test_middleware_of_both_kinds_mixes_in_one_list() -> None:
    notes: list[str] = []

    async def ours(request: Any, call_next: Any) -> Any:
        notes.append("ours")
        return await call_next(request)

    agent = create_agent(adding(), [add], middleware=[Told("a", notes), ours, Told("b", notes)])
    assert contents(await run(agent)) == ["go", "", "3", "done"]
    expected_order = ["a.wrap_tool_call", "ours", "b.wrap_tool_call"]
    assert [note for note in notes if "tool" in note or note == "ours"] == expected_order


async def test_a_callboard_retry_works_beside_a_langchain_middleware() -> None:
    flaky = Recorder().tool("flaky", raises=ConnectionError("lost"), times=1, returns="found")
    middleware = [ToolRetryMiddleware(max_retries=0, on_failure="error"), Retry(attempts=2, initial=0, any_tool=True)]
    agent = create_agent(scripted_model(tool_call("flaky")), [flaky], middleware=middleware)
    assert contents(await run(agent)) == ["go", "", "found", "done"]


async def test_a_call_has_a_timeout_and_a_policy() -> None:
    slow = Recorder().tool("slow", hang=True)
    agent = create_agent(scripted_model(tool_call("slow")), [slow], policies={"slow": CallPolicy(timeout=0.01)})
    result = await run(agent)
    assert result["messages"][2].status == "error"
    assert "0.01" in result["messages"][2].content


async def test_a_limit_holds_for_all_calls_of_the_agent() -> None:
    recorder = Recorder()
    await run(create_agent(scripted_model(*["work"] * 5), [recorder.tool("work", seconds=0.01)], limit=Limit(2)))
    assert (recorder.peak, recorder.count("finished")) == (2, 5)


async def test_an_actor_is_a_tool_of_the_agent() -> None:
    class Counter(Actor):
        def __init__(self) -> None:
            self._count = 0

        @handler
        async def count(self) -> int:
            """Count one more."""
            self._count += 1
            return self._count

    async with create_agent(scripted_model("count", "count"), [Counter()]) as agent:
        assert contents(await run(agent)) == ["go", "", "1", "2", "done"]


async def test_the_answer_has_the_form_of_each_strategy_and_a_database_keeps_it(tmp_path: Path) -> None:
    class Answer(BaseModel):
        value: int

    call_reply, text_reply = calls(tool_call("Answer", value=3)), '{"value": 3}'
    strategies = ((Answer, call_reply), (ToolStrategy(Answer), call_reply), (ProviderStrategy(Answer), text_reply))
    for number, (strategy, reply) in enumerate(strategies):
        url = f"sqlite:///{tmp_path / str(number)}"
        model = ScriptedModel([calls(tool_call("add", a=1, b=2)), reply])
        make_agent = partial(create_agent, model, [add], response_format=strategy, checkpointer=url)
        assert (await run(make_agent(), config=AT))["structured_response"] == Answer(value=3)
        assert (await make_agent().aget_state(AT)).values["structured_response"] == Answer(value=3)


async def test_the_schema_decides_what_goes_in_and_out() -> None:
    class Kept(AgentState[Any]):
        topic: str

    class Reads(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"topic": state["topic"] + "!"}

    agent = create_agent(ScriptedModel(["done"]), [], state_schema=Kept, middleware=[Reads()])
    result = await run(agent, {**QUESTION, "topic": "tea", "structured_response": "forged", "jump_to": "end"})
    assert result["topic"] == "tea!"
    assert contents(result) == ["go", "done"]
    assert "structured_response" not in result


async def test_a_resumed_run_repeats_no_finished_call() -> None:
    recorder = Recorder()
    tools = [recorder.tool("once"), recorder.tool("twice", raises=ConnectionError("lost"), times=1)]
    agent = create_agent(scripted_model("once", "twice"), tools, checkpointer="memory", on_error="finish")
    with pytest.raises(ConnectionError):
        await run(agent, config=AT)
    assert contents(await run(agent, None, AT)) == ["go", "", "once", "twice", "done"]
    assert (recorder.count("started", "once"), recorder.count("started", "twice")) == (1, 2)


@pytest.mark.filterwarnings("ignore::langsmith.utils.LangSmithMissingAPIKeyWarning")
@pytest.mark.parametrize("enabled", [False, "local"])
async def test_wrappers_have_their_langsmith_spans_if_something_records_them(enabled: Any) -> None:
    """A span changes threads twice for each call, so an untraced run leaves the spans out."""
    span_names: list[str | None] = []

    class Looks(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            span = get_current_run_tree()
            span_names.append(span and span.name)
            return await handler(request)

    agent = create_agent(adding(), [add], middleware=[Looks(), Told("in", [])])
    nowhere = Client(api_url="http://127.0.0.1:1", api_key="none", auto_batch_tracing=False, tracing_sampling_rate=0)
    with tracing_context(enabled=enabled, client=nowhere):
        assert contents(await run(agent)) == ["go", "", "3", "done"]
    assert span_names == (["Looks.awrap_tool_call"] if enabled else [None])


async def test_a_sync_hook_does_not_run_on_the_event_loop() -> None:
    on_event_loop: list[bool] = []

    class Blocks(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:
            on_event_loop.append(threading.get_ident() == loop_thread)

    loop_thread = threading.get_ident()
    await run(create_agent(ScriptedModel(["done"]), [], middleware=[Blocks()]))
    assert on_event_loop == [False]


class Adder(Actor):
    """Actor with a handler that has the name of a function."""

    @handler
    async def add(self) -> int:
        """Add."""
        return 0


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"tools": ToolNode([add])}, TypeError, "'ToolNode' object is not iterable"),
        ({"tools": add}, TypeError, r"write \[add\]"),
        ({"model": lambda state, runtime: None}, TypeError, "wrap_model_call"),
        ({"tools": [add, Adder()]}, ValueError, "several tools are named 'add'"),
        ({"interrupt_before": ["tool"]}, ValueError, "tool"),
        ({"budget": -1}, ValueError, "budget"),
        ({"timeout": "1"}, TypeError, r"^create_agent\(timeout=...\)"),
        ({"on_error": "stop"}, ValueError, r"^create_agent\(on_error=...\)"),
        ({"policies": {"ad": CallPolicy(timeout=1)}}, ValueError, r"^create_agent\(policies=...\).*'add'"),
        ({"midleware": []}, TypeError, "middleware"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        create_agent(**{"model": ScriptedModel(["done"]), "tools": [add], **options})


async def test_a_call_that_cannot_be_stored_is_answered_and_loses_its_arguments() -> None:
    """Such a call would make each later checkpoint of the thread fail."""
    deep: Any = "bottom"
    for _ in range(3000):
        deep = [deep]
    agent = create_agent(scripted_model(tool_call("add", "c1", a=deep, b=2)), [add], checkpointer=InMemorySaver())
    reply, answer = (await run(agent, config=AT))["messages"][1:3]
    assert reply.tool_calls[0]["args"] == {}
    assert "deep" in answer.content
    assert answer.tool_call_id == "c1"


async def test_a_hook_may_jump_only_where_it_has_declared() -> None:
    """As with LangChain, whose graph has no such edge."""

    @before_model(can_jump_to=["end"])
    def jump(state: Any, runtime: Any) -> dict[str, Any]:
        return {"jump_to": "tools"}

    agent = create_agent(scripted_model(), [add], middleware=[jump])
    with pytest.raises(KeyError, match=r"'jump\.before_model' jumps to 'tools'"):
        await run(agent)


async def test_observers_hear_of_each_request_to_the_model() -> None:
    events: list[RunEvent] = []
    agent = create_agent(adding(), [add])
    with observe(lambda _: None, runs=events.append):
        await run(agent)
    assert [event.phase for event in events] == ["begun", "asked", "answered", "asked", "answered", "ended"]
    replies = [event.result for event in events if event.phase == "answered"]
    assert [reply.content for reply in replies if isinstance(reply, AIMessage)] == ["", "done"]


async def test_each_call_has_a_result_before_the_model_is_asked_again() -> None:
    """Providers refuse a conversation with an unanswered call, so a message instead of an approval would end it."""
    human = HumanInTheLoopMiddleware(interrupt_on={"add": True}, interrupt_mode="per_call")
    model = ScriptedModel([calls(tool_call("add", "1", a=1, b=2), tool_call("look", "2")), "done"])
    agent = create_agent(model, [add, Recorder().tool("look")], middleware=[human], checkpointer="memory")
    await run(agent, config=AT)
    state = await run(agent, say("Never mind."), AT)
    request = model.requests[-1]
    assert [message.type for message in request] == ["human", "ai", "tool", "tool", "human"]
    assert request[2].content.startswith("Error: this call has no result.")
    assert request[3].content == "look"
    assert state["messages"][:-1] == request


async def test_calls_without_an_id_get_one() -> None:
    """Some providers give no id."""

    class NoIds(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    asks = [ToolCall(name="add", args={"a": 1, "b": number}, id=None) for number in (2, 3)]
    agent = create_agent(NoIds(messages=iter([AIMessage("", tool_calls=asks), AIMessage("done")])), [add])
    messages = (await run(agent))["messages"]
    assert contents(messages) == ["go", "", "3", "4", "done"]
    assert [call["id"] for call in messages[1].tool_calls] == [message.tool_call_id for message in messages[2:4]]


def send_note(text: str) -> str:
    """Write to the state as deepagents' `StateBackend` does, and return what the running task reads afterwards."""
    conf = get_config()["configurable"]
    conf["__pregel_send"]([("notes", [text])])
    return str(conf["__pregel_read"]("notes", True))


class StateWithNotes(AgentState[Any]):
    """State with a key to which tools and hooks write directly."""

    notes: Annotated[list[str], operator.add]


class Notes(AgentMiddleware[Any, Any, Any]):
    """Middleware that writes to the key `notes` of the state directly."""

    state_schema = StateWithNotes

    def before_agent(self, state: Any, runtime: Any) -> None:
        send_note("hook")

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        send_note(f"around {request.tool_call['id']}")
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        send_note(f"around {request.tool_call['id']}")
        return await handler(request)


def note(text: str) -> str:
    """Note a text."""
    return send_note(text)


async def test_writes_that_tools_and_hooks_send_to_the_state_are_kept() -> None:
    """LangGraph's tasks may write to channels before they return: deepagents keeps its files in this way."""

    def agent_of(factory: Callable[..., Any]) -> Any:
        model = scripted_model(tool_call("note", text="one"), tool_call("note", text="two"))
        return factory(model, [note], middleware=[Notes()], checkpointer=InMemorySaver())

    agent = agent_of(create_agent)
    result = await run(agent, QUESTION, AT)
    expected = await anyio.to_thread.run_sync(agent_of(langchains_agent).invoke, QUESTION, AT)
    assert result["notes"] == expected["notes"] == ["hook", "around call_1", "one", "around call_2", "two"]
    assert contents(result) == contents(expected)
    assert (await agent.aget_state(AT)).values["notes"] == result["notes"]


async def test_a_write_that_a_finished_call_has_sent_survives_an_interrupted_turn() -> None:
    model = scripted_model(tool_call("note", text="one"), tool_call("ask"))
    agent = create_agent(model, [note, asking("may I?")], middleware=[Notes()], checkpointer=InMemorySaver())
    assert "__interrupt__" in await run(agent, QUESTION, AT)
    resumed = await run(agent, Command(resume="yes"), AT)
    assert resumed["notes"] == ["hook", "around call_1", "one", "around call_2"]


async def test_a_channel_of_deltas_is_stored_whole_at_the_end_of_a_run() -> None:
    """LangGraph stores only the writes to such a channel; deepagents has one for the messages and one for the files."""

    def join_writes(before: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
        return [*before, *(item for write in writes for item in write)]

    class Schema(AgentState[Any]):
        messages: Annotated[list[Any], DeltaChannel(join_writes)]  # type: ignore[misc]
        items: Annotated[list[str], DeltaChannel(join_writes)]

    model, saver, agent_input = ScriptedModel(["done"] * 4), InMemorySaver(), {**QUESTION, "items": ["x"]}
    agent = create_agent(model, state_schema=Schema, checkpointer=saver)
    assert "items" in agent.stream_channels
    await run(agent, agent_input, AT)
    second = await run(agent, agent_input, AT)
    assert second["items"] == ["x", "x"]
    assert all(message.id for message in second["messages"])
    their_agent = langchains_agent(model, state_schema=Schema, checkpointer=saver)
    third = await anyio.to_thread.run_sync(their_agent.invoke, agent_input, AT)
    assert third["items"] == ["x", "x", "x"]
    assert third["messages"][:4] == second["messages"]
    fourth = await run(agent, agent_input, AT)
    assert fourth["items"] == ["x"] * 4
    assert fourth["messages"][:4] == second["messages"]
    assert len(fourth["messages"]) == len(third["messages"]) + 2


@pytest.mark.parametrize("before", [[], [QUESTION], [QUESTION, {}]], ids=["new", "stored", "after another"])
async def test_an_empty_input_begins_a_turn_as_in_langchain(before: list[Any]) -> None:
    """The model is asked again with the stored conversation; input with unknown keys only is a mistake, and refused."""
    model = ScriptedModel(["one", "two", "three"] * 2)
    outcomes = []
    for factory in (langchains_agent, create_agent):
        agent = factory(model, [add], checkpointer=InMemorySaver())
        for agent_input in (*before, {}):
            result = await anyio.to_thread.run_sync(agent.invoke, agent_input, AT)
        snapshots = await anyio.to_thread.run_sync(lambda agent=agent: [*agent.get_state_history(AT)])
        steps = [(snapshot.metadata["step"], snapshot.next, len(snapshot.values["messages"])) for snapshot in snapshots]
        outcomes.append((len(result["messages"]), steps))
    assert outcomes[0] == outcomes[1]
    with pytest.raises(EmptyInputError):
        await run(create_agent(model, []), {"message": "go"})


async def test_a_hook_that_writes_in_each_turn_writes_once_in_each() -> None:
    class Turns(AgentMiddleware[Any, Any, Any]):
        state_schema = StateWithNotes

        def before_model(self, state: Any, runtime: Any) -> None:
            send_note("turn")

    agent = create_agent(adding(), [add], middleware=[Turns()])
    assert (await run(agent))["notes"] == ["turn", "turn"]
