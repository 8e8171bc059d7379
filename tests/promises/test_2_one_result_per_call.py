"""Promise 2: every call id ends with exactly one message, or one command that carries it."""

import asyncio
from contextlib import nullcontext
from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId
from langgraph.types import Command

from callboard import (
    CallPolicy,
    DuplicateCallIdWarning,
    DuplicateToolWarning,
    Limit,
    ToolNode,
    create_agent,
    create_react_agent,
    tool_call,
)
from callboard.exceptions import CallCancelledError
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import BrokenError, ending_of, make


async def commands(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    return Command(update={"messages": [ToolMessage("commanded", tool_call_id=tool_call_id)], "foo": "bar"})


async def several(tool_call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
    return [Command(update={"foo": "bar"}), ToolMessage("listed", name="several", tool_call_id=tool_call_id)]


async def gives_up() -> str:
    raise asyncio.CancelledError


async def wants_a_number(x: int) -> str:
    return str(x)


def answers(outputs: Any) -> list[ToolMessage]:
    """Return every message that answers a call, in order, including those in commands."""
    messages: list[ToolMessage] = []
    for output in outputs if isinstance(outputs, list) else [outputs]:
        update = output.update if isinstance(output, Command) else output
        messages += [message for message in update.get("messages", ()) if isinstance(message, ToolMessage)]
    return messages


def everything(rec: Recorder, **options: Any) -> ToolNode:
    """A node with a tool for every way in which a call can end."""
    return ToolNode(
        [
            rec.tool("fine"),
            rec.tool("slow", seconds=2),
            rec.tool("boom", raises=BrokenError("no")),
            rec.tool("late", hang=True),
            rec.tool("spent", hang=True),
            rec.tool("crowded", seconds=3),
            make(commands),
            make(several),
            make(wants_a_number),
            make(gives_up),
        ],
        policies={
            "late": CallPolicy(timeout=1),
            "spent": CallPolicy(budget=1.5),
            "crowded": CallPolicy(limit=Limit(concurrency=1, queue=0)),
        },
        handle_tool_errors=True,
        **options,
    )


ENDS = {
    "fine": ("success", None, "fine"),
    "slow": ("success", None, "slow"),
    "boom": ("error", None, "BrokenError"),
    "late": ("error", "timeout", "timeout of 1 s"),
    "spent": ("error", "deadline", "budget of 1.5 s"),
    "crowded": ("success", None, "crowded"),
    "commands": ("success", None, "commanded"),
    "several": ("success", None, "listed"),
    "wants_a_number": ("error", None, "x"),
    "gives_up": ("error", "cancelled", "cancelled itself"),
    "nowhere": ("error", None, "nowhere is not a valid tool"),
}


QUIET = [name for name in ENDS if name != "gives_up"]


@pytest.mark.parametrize("name", QUIET)
async def test_a_call_ends_with_one_message_however_it_ends(name: str) -> None:
    status, ending, text = ENDS[name]
    outputs = await everything(Recorder()).ainvoke({"messages": [calls(name)]})
    (message,) = answers(outputs)
    assert (message.tool_call_id, message.name, message.status) == ("call_1", name, status)
    assert ending_of(message) == ending
    assert text in message.content


@pytest.mark.backends("asyncio")
async def test_a_body_that_cancels_itself_ends_with_a_message() -> None:
    outputs = await everything(Recorder()).ainvoke({"messages": [calls("fine", "gives_up", "slow")]})
    assert [(message.status, ending_of(message)) for message in answers(outputs)] == [
        ("success", None),
        ("error", "cancelled"),
        ("success", None),
    ]


async def test_calls_with_one_id_each_run_and_get_a_message_of_their_own() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("slow", seconds=lambda query: {"a": 3, "b": 2, "c": 1}[query])])
    requests = [tool_call("slow", "same", query="a"), tool_call("slow", "other", query="b")]
    requests.append(tool_call("slow", "same", query="c"))
    with pytest.warns(DuplicateCallIdWarning, match="'same'") as caught:
        outputs = await node.ainvoke([calls(*requests)])
    assert len(caught) == 1
    assert "other" not in str(caught[0].message)
    assert [(message.tool_call_id, message.content) for message in outputs] == [
        ("same", "a"),
        ("other", "b"),
        ("same", "c"),
    ]
    assert rec.count("started") == 3


async def test_calls_without_an_id_run_and_have_their_messages() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("slow", seconds=1)])
    requests: list[Any] = [
        {"type": "tool_call", "name": "slow", "args": {"query": query}, "id": call_id}
        for query, call_id in (("a", None), ("b", "call_b"), ("c", None), ("d", ""))
    ]
    message = AIMessage("", tool_calls=requests)
    with pytest.warns(DuplicateCallIdWarning):
        outputs = await node.ainvoke([message])
        remaining_outputs = await node.ainvoke([message, *outputs[:2]])
    expected = [("", "a"), ("call_b", "b"), ("", "c"), ("", "d")]
    assert [(output.tool_call_id, output.content) for output in outputs] == expected
    assert [output.content for output in remaining_outputs] == ["c", "d"]


@pytest.mark.real_clock
@pytest.mark.parametrize("build", [create_react_agent, create_agent])
async def test_an_agent_gives_an_id_to_calls_that_have_none(build: Any) -> None:
    """Providers refuse results with an empty id, and could not tell two of them apart."""
    rec = Recorder()

    def ask(_: Any) -> AIMessage:
        requests: list[Any] = [tool_call("work", "", query=item) for item in "ab"]
        blocks: list[Any] = [{"type": "tool_use", "id": "", "name": "work", "input": item["args"]} for item in requests]
        return AIMessage(blocks, tool_calls=requests)

    agent = build(ScriptedModel([ask, "done"]), [rec.tool("work")])
    result = await agent.ainvoke({"messages": [("user", "go")]})
    _, reply, *results, last = result["messages"]
    assert [call["id"] for call in reply.tool_calls] == [message.tool_call_id for message in results]
    assert [block["id"] for block in reply.content] == [message.tool_call_id for message in results]
    assert len({message.tool_call_id for message in results} - {""}) == 2
    assert [message.content for message in results] == ["a", "b"]
    assert last.content == "done"


async def test_three_calls_with_one_id_of_which_one_is_answered_leave_two() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("slow", seconds=1)])
    request = calls(*(tool_call("slow", "same", query=query) for query in "abc"))
    with pytest.warns(DuplicateCallIdWarning):
        outputs = await node.ainvoke([request, ToolMessage("done", tool_call_id="same")])
    assert [message.content for message in outputs] == ["b", "c"]


def raw(**call: Any) -> dict[str, Any]:
    return {"type": "tool_call", **call}


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ([], "No message found"),
        ({"messages": []}, "No message found"),
        ({"other": 1}, "No message found"),
        ([HumanMessage("hi")], "No AIMessage found"),
        ({"messages": [HumanMessage("hi")]}, "No AIMessage found"),
        ([raw(name="a", args={}, id="1"), raw(name="a", args={})], "'id'"),
        ([raw(name="a", args="x=1", id="1")], "'args'.*'x=1'"),
        ([raw(name="a", args=None, id="1")], "'args'.*None"),
        ([raw(args={}, id="1")], "'name'"),
    ],
    ids=repr,
)
async def test_input_that_cannot_be_run_is_named_and_nothing_runs(bad: Any, text: str) -> None:
    """Promise 2: a call that could not be answered is refused before the first body starts."""
    rec = Recorder()
    with pytest.raises(ValueError, match=text):
        await ToolNode([rec.tool("a")]).ainvoke(bad)
    assert rec.events == []


def test_of_two_tools_with_one_name_the_last_is_used_and_a_warning_says_so() -> None:
    rec = Recorder()
    twins = [rec.tool("twin"), rec.tool("twin")]
    with pytest.warns(DuplicateToolWarning, match="'twin'"):
        assert ToolNode(twins).tools_by_name == {"twin": twins[1]}


def test_a_policy_of_an_unknown_tool_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'serch'.*did you mean 'search'"):
        ToolNode([Recorder().tool("search")], policies={"serch": CallPolicy(timeout=1)})


async def test_what_cannot_become_a_message_is_an_error_that_names_tool_and_value() -> None:
    """Promise 2: a list that mixes commands and other values cannot be an answer."""

    async def mixture(tool_call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
        return [ToolMessage("a", tool_call_id=tool_call_id), ToolMessage("b", tool_call_id=tool_call_id)]

    async def orphan() -> Command[Any]:
        return Command(update={"foo": 1})

    async def foreign() -> ToolMessage:
        return ToolMessage("for somebody else", tool_call_id="call_99")

    tools = [make(mixture), make(orphan), make(foreign)]
    for name, message in (("mixture", r"mixture.*2 messages.*call_1"), ("orphan", "orphan")):
        with pytest.raises(ValueError, match=message):
            await ToolNode(tools).ainvoke({"messages": [calls(name)]})
    handled = await ToolNode(tools, handle_tool_errors=True).ainvoke({"messages": [calls("orphan", "foreign")]})
    first, second = answers(handled)
    assert (first.tool_call_id, first.status, second.tool_call_id) == ("call_1", "error", "call_2")


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
async def test_a_finished_result_survives_a_batch_that_fails_or_is_cancelled(end: str) -> None:
    rec = Recorder()
    other_options = {"raises": BrokenError("no"), "times": 1, "seconds": 2} if end == "fails" else {"seconds": 5}
    node = ToolNode([rec.tool("quick", seconds=1), rec.tool("other", **other_options)])
    inputs, ledger = {"messages": [calls("quick", "other")]}, {}
    with anyio.move_on_after(3), pytest.raises(BrokenError) if end == "fails" else nullcontext():
        await node.ainvoke(inputs, ledger=ledger)
    outputs = await node.ainvoke(inputs, ledger=ledger)
    assert [message.content for message in outputs["messages"]] == ["quick", "other"]
    assert (rec.count("started", "quick"), rec.count("started", "other")) == (1, 2)


async def test_a_call_id_that_the_model_uses_again_in_a_later_turn_is_a_new_call() -> None:
    recorder = Recorder()
    asks = AIMessage("", tool_calls=[tool_call("work", "call_1", query="again")])
    history = [
        AIMessage("", tool_calls=[tool_call("work", "call_1", query="first")]),
        ToolMessage("first", tool_call_id="call_1"),
        asks,
    ]
    alone = {"__type": "tool_call_with_context", "tool_call": asks.tool_calls[0], "state": {"messages": history}}

    result = await ToolNode([recorder.tool("work")]).ainvoke(alone)

    assert [message.content for message in result["messages"]] == ["again"]


@pytest.mark.backends("asyncio")
async def test_a_call_whose_task_other_code_cancels_before_it_begins_is_an_error_and_never_nothing() -> None:
    """A tool may cancel all tasks that it finds; asyncio never runs the first line of those that have not begun."""
    before = asyncio.all_tasks()

    async def cancels_others() -> str:
        for task in asyncio.all_tasks() - before - {asyncio.current_task()}:
            task.cancel()
        return "done"

    request = calls("cancels_others", "cancels_others", "cancels_others")
    node = ToolNode([make(cancels_others)])
    if asyncio.get_running_loop().get_task_factory() is None:
        with pytest.raises(CallCancelledError):
            await node.ainvoke([request])
    else:  # eager tasks: each call has ended before the next one begins
        result = await node.ainvoke([request])
        assert [message.content for message in result] == ["done"] * 3
