"""Promise 9: calls have bounds; each call beyond them gets a message, and the other calls run."""

import itertools
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from callboard import CallEvent, CallsInterrupted, ToolNode, ValidationNode, create_react_agent, observe
from callboard.middleware import RequireApproval
from callboard.testing import Recorder, ScriptedModel
from callboard.tools._bounds import MAX_CHARACTERS, MAX_DEPTH, MAX_ID, MAX_NAME, MAX_VALUES, describe_exceeded_limit

SHALLOW = 500
"""A number of levels at which copying or writing of arguments once failed."""


def nest_list(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def call(query: Any = "ok", name: str = "work", call_id: str = "id") -> Any:
    return {"type": "tool_call", "name": name, "args": {"query": query}, "id": call_id}


def in_a_ring() -> Any:
    ring: dict[str, Any] = {}
    ring["a"] = ring["b"] = ring
    return ring


TOO_MUCH = {
    "deep": (call(nest_list(SHALLOW)), "levels deep"),
    "very deep": (call(nest_list(100_000)), "levels deep"),
    "in a ring": (call(in_a_ring()), "levels deep|values"),
    "many values": (call(["x"] * (MAX_VALUES + 1)), "values"),
    "long text": (call("x" * (MAX_CHARACTERS + 1)), "characters"),
    "long key": (call({"x" * (MAX_CHARACTERS + 1): 1}), "characters"),
    "long id": (call(call_id="x" * (MAX_ID + 1)), "id of this call"),
    "long name": (call(name="x" * (MAX_NAME + 1)), "name of the tool"),
}


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", TOO_MUCH)
async def test_a_call_beyond_the_bounds_gets_a_message_and_its_neighbours_run(kind: str) -> None:
    rec, call_ids = Recorder(), list[Any]()
    bad, expected_words = TOO_MUCH[kind]

    async def middleware(request: Any, call_next: Any) -> Any:
        call_ids.append(request.tool_call["id"])
        return await call_next(request)

    node = ToolNode([rec.tool("work")], middleware=[middleware])
    events: list[CallEvent] = []
    with observe(events.append):
        outputs = await node.ainvoke([call(call_id="a"), bad, call(call_id="b")])

    first, refused, last = outputs["messages"]
    assert (first.content, last.content, call_ids) == ("ok", "ok", ["a", "b"])
    assert (refused.status, refused.tool_call_id) == ("error", bad["id"])
    assert refused.additional_kwargs == {"callboard": {"ended": "rejected"}}
    assert len(refused.content) < 300
    assert any(word in refused.content for word in expected_words.split("|"))
    assert len(refused.name) <= MAX_NAME
    assert all(len(event.call_id or "") <= MAX_NAME for event in events)


async def test_a_finished_neighbour_is_kept_where_a_person_is_asked() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work"), rec.tool("delete")], middleware=[RequireApproval(["delete"])])
    tool_calls = [call("a", call_id="1"), call(nest_list(SHALLOW), "delete", "2"), call("c", "delete", "3")]
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke(tool_calls)
    (question,) = caught.value.interrupts
    assert question.value[0]["action_request"]["args"] == {"query": "c"}
    answer = {question.id: {"type": "accept"}}
    outputs = await node.ainvoke(tool_calls, ledger=caught.value.ledger, resume=answer)

    assert [message.status for message in outputs["messages"]] == ["success", "error", "success"]
    assert rec.order == ["work(a)", "delete(c)"]


def test_what_is_within_the_bounds_is_let_in() -> None:
    assert describe_exceeded_limit(call(nest_list(MAX_DEPTH - 1))) is None
    assert describe_exceeded_limit(call(nest_list(MAX_DEPTH))) is not None
    assert describe_exceeded_limit(call("x" * (MAX_CHARACTERS - len("query")))) is None
    assert describe_exceeded_limit(call(list(itertools.repeat(1, MAX_VALUES - 1)))) is None
    assert describe_exceeded_limit(call(call_id="x" * MAX_ID)) is None
    assert describe_exceeded_limit(call(name="x" * MAX_NAME)) is None
    assert describe_exceeded_limit(call(name="x" * (MAX_NAME + 1)), ["x" * (MAX_NAME + 1)]) is None


FORMS = {
    "a state": lambda reply: [{"messages": [reply]}],
    "messages": lambda reply: [[reply]],
    "calls": lambda reply: [reply.tool_calls],
    "one by one": lambda reply: [
        {"__type": "tool_call_with_context", "tool_call": one, "state": {"messages": [reply]}}
        for one in reply.tool_calls
    ],
}


@pytest.mark.parametrize("form", FORMS)
async def test_calls_beyond_max_calls_are_rejected_one_by_one(form: str) -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work")], max_calls=2)
    reply = AIMessage("", tool_calls=[call(query, call_id=query) for query in "abcd"])
    outputs: list[ToolMessage] = []
    for value in FORMS[form](reply):
        output = await node.ainvoke(value)
        outputs += output["messages"] if isinstance(output, dict) else output

    assert [message.status for message in outputs] == ["success", "success", "error", "error"]
    assert [message.tool_call_id for message in outputs] == ["a", "b", "c", "d"]
    assert "4 calls" in outputs[-1].text
    assert "first 2" in outputs[-1].text
    assert rec.count("started") == 2


async def test_answered_calls_of_a_reply_count() -> None:
    rec = Recorder()
    reply = AIMessage("", tool_calls=[call(query, call_id=query) for query in "abc"])
    outputs = await ToolNode([rec.tool("work")], max_calls=2).ainvoke([reply, ToolMessage("a", tool_call_id="a")])

    assert [message.status for message in outputs] == ["success", "error"]


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), ("2", TypeError)])
def test_a_wrong_max_calls_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_calls"):
        ToolNode([Recorder().tool("work")], max_calls=value)


@pytest.mark.real_clock
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("hook", [None, lambda _: {}], ids=["", "hook"])
async def test_an_agent_goes_on_after_calls_beyond_the_bounds(version: Any, hook: Any) -> None:
    rec = Recorder()
    tool_calls = [
        call("a", call_id="1"),
        call(nest_list(SHALLOW), call_id="2"),
        call("c", call_id="3"),
        call("d", call_id="4"),
    ]
    model = ScriptedModel([AIMessage("", tool_calls=tool_calls), "done"])
    options: Any = {"version": version, "post_model_hook": hook, "checkpointer": InMemorySaver(), "max_calls": 3}
    agent = create_react_agent(model, [rec.tool("work")], middleware=[RequireApproval()], **options)
    config: Any = {"configurable": {"thread_id": "1"}}
    stopped = await agent.ainvoke({"messages": [("user", "go")]}, config)
    assert len(stopped["__interrupt__"]) == 2
    answers = {question.id: {"type": "accept"} for question in stopped["__interrupt__"]}
    result = await agent.ainvoke(Command(resume=answers), config)

    statuses = {
        message.tool_call_id: message.status for message in result["messages"] if isinstance(message, ToolMessage)
    }
    assert statuses == {"1": "success", "2": "error", "3": "success", "4": "error"}
    assert len([message for message in result["messages"] if isinstance(message, ToolMessage)]) == 4
    assert result["messages"][-1].content == "done"
    assert sorted(rec.order) == ["work(a)", "work(c)"]


@pytest.mark.real_clock
@pytest.mark.parametrize("hook", [None, lambda _: {}], ids=["", "hook"])
async def test_an_agent_goes_on_where_no_call_of_a_reply_could_be_kept(hook: Any) -> None:
    rec, deep_call = Recorder(), call(nest_list(SHALLOW), call_id="1")
    repeated = {"type": "tool_use", "id": "1", "name": "work", "input": deep_call["args"]}
    content: Any = [{"type": "text", "text": "so"}, repeated]
    model = ScriptedModel([AIMessage(content, tool_calls=[deep_call]), "done"])
    agent = create_react_agent(model, [rec.tool("work")], post_model_hook=hook, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    await agent.ainvoke({"messages": [("user", "go")]}, config)
    messages = (await agent.aget_state(config)).values["messages"]

    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[1].tool_calls[0]["args"] == {}
    assert messages[1].content[1]["input"] == {}
    assert "levels deep" in messages[2].content
    assert rec.events == []


def test_an_agent_with_a_node_of_its_own_has_its_bound_there() -> None:
    """Bounds in both the agent and its node could contradict each other."""
    with pytest.raises(ValueError, match="max_calls"):
        create_react_agent(ScriptedModel(["hi"]), ToolNode([Recorder().tool("work")]), max_calls=3)


class Query(BaseModel):
    """Anything."""

    query: Any


def test_a_validation_node_has_the_same_bounds() -> None:
    tool_calls = [call("a", "Query", "1"), call(nest_list(SHALLOW), "Query", "2")]
    fine, refused = ValidationNode([Query]).invoke([AIMessage("", tool_calls=tool_calls)])

    assert fine.content == '{"query":"a"}'
    assert refused.additional_kwargs == {"is_error": True}
    assert "levels deep" in refused.content
