"""`Send` to a node of the agent: the node runs with the sent input beside the other tasks of its step, as in LangGraph.

Streams list tasks in the order in which they end, and LangGraph runs the tasks of a step concurrently. So the tests
compare the final messages, the requests to the model, and the next tasks.
"""

from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Send

from ._harness import ask, call, double, versions
from ._model import ReplayModel
from ._prebuilt import candidate, reference
from .test_agent_threads import AT, question

SENT = call("double", {"x": 7}, "s1")
HI = AIMessage("hi", id="1")


def other(text: str = "other") -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=f"h-{text}")]}


def asks(id: str, *calls: dict[str, Any]) -> AIMessage:
    return AIMessage("", id=id, tool_calls=list(calls))


class Seen:
    """One agent, and the record of its runs."""

    def __init__(self, ns: Any, *replies: AIMessage, version: str, send: Send | None = None, **options: Any) -> None:
        @tool
        def sends(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
            """Send."""
            assert send is not None
            return Command(update={"messages": [ToolMessage("sent", tool_call_id=tool_call_id)]}, goto=[send])

        self.requests: list[Any] = []
        self.updates: list[Any] = []
        self.states: list[Any] = []
        model, tools = ReplayModel(*replies, log=self.requests), [double, ask, sends]
        self.agent = ns.create_react_agent(model, tools, checkpointer=InMemorySaver(), version=version, **options)

    def run(self, value: Any) -> "Seen":
        try:
            for chunk in self.agent.stream(value, AT, stream_mode="updates"):
                self.updates += [(name, messages_in(update)) for name, update in chunk.items()]
        except Exception as error:
            self.updates.append((type(error).__name__, str(error)[:40]))
        state = self.agent.get_state(AT)
        self.states.append((state.next, [(task.name, task.path[:2]) for task in state.tasks]))
        return self

    @property
    def result(self) -> Any:
        return messages_in(self.agent.get_state(AT).values)

    @property
    def everything(self) -> Any:
        return self.result, sorted(map(repr, self.requests)), sorted(map(repr, self.updates)), self.states


def messages_in(update: Any) -> Any:
    messages = update.get("messages", ()) if isinstance(update, dict) else update or ()
    return [(m.type, m.content, [tool_call["id"] for tool_call in getattr(m, "tool_calls", ())]) for m in messages]


def both(*replies: AIMessage, inputs: tuple[Any, ...], **options: Any) -> tuple[Seen, Seen]:
    agents = []
    for ns in (reference(), candidate()):
        agent = Seen(ns, *replies, **options)
        for value in inputs:
            agent.run(value)
        agents.append(agent)
    return agents[0], agents[1]


def everything(state: Any) -> Any:
    return {"llm_input_messages": state["messages"]}


END, OTHER = AIMessage("end", id="3"), Send("agent", other())
SENDS: dict[str, tuple[tuple[AIMessage, ...], tuple[Any, ...], int, dict[str, Any]]] = {
    # replies, inputs, requests to the model, options of the agent
    "to the model, whose reply continues the conversation": (
        (HI, asks("2", call("double", {"x": 4}, "k")), END),
        (question(), Command(goto=[OTHER])),
        3,
        {},
    ),
    # The hook selects messages of the conversation; the model that gets a send is asked with the sent messages.
    "to the model, with a hook before it": (
        (HI, AIMessage("end", id="2")),
        (question(), Command(goto=[OTHER])),
        2,
        {"pre_model_hook": everything},
    ),
    # The task that ran with the state comes first, then the sends in their order.
    "two sends and the node itself": (
        (HI, HI),
        (question(), Command(goto=[Send("agent", other("a")), Send("agent", other("b")), "agent"])),
        4,
        {},
    ),
    "on a new thread": ((HI, HI), (Command(update=question(), goto=[OTHER]),), 2, {}),
}


@versions
@pytest.mark.parametrize("kind", SENDS)
def test_the_model_is_asked_what_is_sent(kind: str, version: str) -> None:
    replies, inputs, request_count, options = SENDS[kind]
    expected, actual = both(*replies, inputs=inputs, version=version, **options)
    assert actual.everything == expected.everything
    assert len(actual.requests) == request_count
    assert any(messages[-1][1] in ("other", "a") for _, messages, _ in actual.requests)


PAYLOADS: dict[str, Any] = {
    "a call": [SENT],
    "two calls": [SENT, call("double", {"x": 8}, "s2")],
    "a call with its state": {"__type": "tool_call_with_context", "tool_call": SENT, "state": {"messages": []}},
    "a state": {"messages": [asks("x", SENT)]},
    "no messages": {"messages": []},
    "nothing": None,
}


@versions
@pytest.mark.parametrize("kind", PAYLOADS)
def test_the_tools_node_runs_the_calls_that_it_is_sent(kind: str, version: str) -> None:
    """The conversation gets the results of the calls."""
    command = Command(goto=Send("tools", PAYLOADS[kind]))
    expected, actual = both(HI, AIMessage("end", id="2"), inputs=(question(), command), version=version)
    assert actual.everything == expected.everything


@versions
@pytest.mark.parametrize("hook", ["pre_model_hook", "post_model_hook"])
def test_a_hook_gets_what_it_is_sent(hook: str, version: str) -> None:
    """After the hook, the nodes that usually follow it run, too."""
    states: list[Any] = []

    def note(state: Any) -> dict[str, Any]:
        states.append((sorted(state), [message.content for message in state["messages"]]))
        return {}

    command = Command(goto=[Send(hook, other())])
    inputs = (question(), command)
    expected, actual = both(HI, AIMessage("end", id="2"), inputs=inputs, version=version, **{hook: note})
    assert actual.everything == expected.everything
    assert states[: len(states) // 2] == states[len(states) // 2 :]
    assert (["messages"], ["other"]) in states


def test_the_calls_of_each_of_two_replies_run() -> None:
    """Version v2 only: in v1 LangGraph runs the calls of the last reply, and then fails on the others."""
    sends = [Send("agent", other("a")), Send("agent", other("b"))]
    replies = HI, asks("2", call("double", {"x": 4}, "k")), asks("3", call("double", {"x": 5}, "l"))
    agents = both(*replies, AIMessage("end", id="4"), inputs=(question(), Command(goto=sends)), version="v2")

    for agent in agents:
        texts = [text for _, text, _ in agent.result]
        assert (texts[:2], sorted(texts[4:6]), texts[6:]) == (["q", "hi"], ["10", "8"], ["end"])
        assert sorted(name for name, _ in agent.updates) == ["agent"] * 4 + ["tools"] * 2
    assert len(agents[1].requests) == 4


@versions
@pytest.mark.parametrize("payload", [{"x": 1}, {"messages": None}, []], ids=repr)
def test_a_model_that_is_sent_no_messages_says_so(payload: Any, version: str) -> None:
    """The error has LangGraph's text."""
    inputs = (question(), Command(goto=[Send("agent", payload)]))
    expected, actual = both(HI, inputs=inputs, version=version)
    assert actual.updates == expected.updates
    assert actual.updates[-1][1].startswith("Expected input to call_model to have")


@versions
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("payload", [other(), [SENT]], ids=["to the model", "to the tools"])
def test_a_tool_sends_to_a_node_beside_what_follows_it(payload: Any, stops: bool, version: str) -> None:
    """A run that stops before the node has both tasks in `next`, and continues with both."""
    send = Send("tools" if isinstance(payload, list) else "agent", payload)
    replies = asks("1", call("sends", {}, "z")), AIMessage("end", id="2"), AIMessage("end", id="2")
    options: Any = {"interrupt_before": ["agent"]} if stops else {}
    expected, actual = both(*replies, inputs=(question(), None, None, None), version=version, send=send, **options)
    assert actual.everything == expected.everything
    if stops:
        assert actual.states[1][0] == (send.node, "agent")


@versions
def test_answers_reach_the_calls_of_each_send(version: str) -> None:
    """Each call has its own question, and the number of tasks is LangGraph's."""
    sends = [Send("tools", [call("ask", {"what": subject}, subject)]) for subject in "ab"]
    for ns in (reference(), candidate()):
        agent = Seen(ns, HI, AIMessage("end", id="2"), version=version)
        agent.run(question())
        questions = agent.agent.invoke(Command(goto=sends), AT)["__interrupt__"]
        assert sorted(open_question.value for open_question in questions) == ["a", "b"]
        result = agent.agent.invoke(
            Command(resume={open_question.id: f"{open_question.value}!" for open_question in questions}), AT
        )
        assert [text for _, text, _ in messages_in(result)] == ["q", "hi", "a: a!", "b: b!", "end"]
