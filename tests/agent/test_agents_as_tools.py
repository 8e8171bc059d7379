"""Agents and graphs within the calls of an agent (promises 1, 5 and 10)."""

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import CallPolicy, Limit, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

from ._graphs import Desk, delegate, ids
from ._savers import AT, MORE, QUESTION, complaint, scripted, shape

pytestmark = pytest.mark.real_clock


@pytest.mark.parametrize("order", [("one", "two", "three"), ("three", "two", "one"), ("two", "three", "one")], ids=str)
async def test_questions_three_levels_deep_are_answered_in_any_order(order: tuple[str, ...]) -> None:
    """On each level, no body runs more often than necessary, and each model is asked twice."""
    desk = Desk()
    models: list[ScriptedModel] = []

    def level(name: str, below: list[Any], **options: Any) -> Any:
        own_calls = [tool_call("work", f"w-{name}", query=name), tool_call("ask", f"a-{name}", query=name)]
        down = [tool_call(each.name, f"d-{name}", query=f"go {each.name}") for each in below]
        models.append(ScriptedModel([calls(*own_calls, *down), f"{name} done"]))
        return create_react_agent(models[-1], desk.tools(*below), **options)

    level_three = level("three", [])
    level_two = level("two", [delegate(level_three, "three")])
    level_one = level("one", [delegate(level_two, "two")], checkpointer=InMemorySaver())
    result = await level_one.ainvoke(QUESTION, AT)
    first = ids(result)
    assert sorted(first) == ["one", "three", "two"]
    for open_count, name in zip((2, 1, 0), order, strict=True):
        answer = Command(resume={ids(result)[name]: "yes"} if open_count else "yes")
        result = await level_one.ainvoke(answer, AT)
        assert len(ids(result)) == open_count
        assert ids(result).items() <= first.items()
    assert shape(result)[2:] == ["tool:did one", "tool:one: yes", "tool:two done", "ai:one done"]
    for name in order:
        assert [desk.log.count(f"{event} {name}") for event in ("work", "ask", "answered")] == [1, 2, 1]
    assert [len(model.requests) for model in models] == [2, 2, 2]
    assert all(complaint([m for m in model.requests[-1] if m.id]) is None for model in models)


async def test_two_calls_of_one_agent_are_conversations_of_their_own() -> None:
    desk = Desk()

    def reply(messages: Any) -> Any:
        question = messages[0].content
        return f"{question} done" if messages[-1].type == "tool" else calls(tool_call("ask", "same", query=question))

    inner = scripted([reply] * 4, desk.tools())
    twice = calls(tool_call("inner", "1", query="a"), tool_call("inner", "2", query="b"))
    model = ScriptedModel([twice, "done"])
    agent = create_react_agent(model, [delegate(inner, "inner")], checkpointer=InMemorySaver())
    open_ids = ids(await agent.ainvoke(QUESTION, AT))
    answers = {open_ids["b"]: "B", open_ids["a"]: "A"}
    result = await agent.ainvoke(Command(resume=answers), AT)
    assert shape(result)[2:] == ["tool:a done", "tool:b done", "ai:done"]
    assert sorted(desk.log) == ["answered a", "answered b", "ask a", "ask a", "ask b", "ask b"]


def for_each(tool_name: str) -> Any:
    """Return a reply of an inner model: a call for each message of a person, and an answer to each result."""

    def reply(messages: Any) -> Any:
        question = next(message.content for message in reversed(messages) if message.type == "human")
        return (
            f"{question} done" if messages[-1].type == "tool" else calls(tool_call(tool_name, question, query=question))
        )

    return reply


async def test_one_conversation_takes_one_call_at_a_time(saver: Any) -> None:
    """Two runs of one thread would read each other's calls; a call that has finished would count as unknown."""
    desk = Desk()
    model = ScriptedModel([for_each("work")], loop=True)
    inner = create_react_agent(model, desk.tools(), checkpointer=True)
    two_calls = calls(tool_call("inner", "1", query="a"), tool_call("inner", "2", query="b"))
    script = [two_calls, "done", calls(tool_call("inner", "3", query="c")), "done"]
    agent = create_react_agent(ScriptedModel(script), [delegate(inner, "inner")], checkpointer=saver)
    await agent.ainvoke(QUESTION, AT)
    result = await agent.ainvoke(QUESTION, AT)
    answers = {message.tool_call_id: message for message in result["messages"] if message.type == "tool"}
    (refused,) = [answers[call_id] for call_id in "12" if answers[call_id].status == "error"]
    assert "its conversation is in use by another call" in refused.content
    first = "b" if refused.tool_call_id == "1" else "a"
    assert answers["3"].content == "c done"
    assert desk.log == [f"work {first}", "work c"]
    expected = [f"human:{first}", "ai:", f"tool:did {first}", f"ai:{first} done", "human:c", "ai:", "tool:did c"]
    assert shape(model.requests[-1]) == expected


async def test_a_question_in_one_conversation_is_not_replaced_by_another_call_of_its_step() -> None:
    desk = Desk()
    inner = scripted([for_each("ask")] * 5, desk.tools(), checkpointer=True)
    two_calls = calls(tool_call("inner", "1", query="a"), tool_call("inner", "2", query="b"))
    later = [calls(tool_call("inner", name, query=name)) for name in "cd"]
    tools = ToolNode([delegate(inner, "inner")], policies={"inner": CallPolicy(limit=Limit(concurrency=1))})
    model = ScriptedModel([two_calls, "done", *later, "done"])
    agent = create_react_agent(model, tools, checkpointer=InMemorySaver())
    await agent.ainvoke(QUESTION, AT)
    result = await agent.ainvoke(Command(resume="yes"), AT)
    assert shape(result)[2] == "tool:a done"
    assert "in use by another call" in shape(result)[3]
    await agent.ainvoke(QUESTION, AT)
    result = await agent.ainvoke(QUESTION, AT)  # a new turn may leave the question of the last one
    assert list(ids(result)) == ["d"]
    result = await agent.ainvoke(Command(resume="yes"), AT)
    assert shape(result)[-2:] == ["tool:d done", "ai:done"]


async def test_a_resumed_call_that_gave_its_agent_no_input_yet_gives_it(saver: Any) -> None:
    """One conversation for all calls has the input of earlier calls; their answer is not that of this call."""
    inner = create_react_agent(ScriptedModel([for_each("work")], loop=True), Desk().tools(), checkpointer=True)
    fails = iter([False, True, False])

    @tool
    async def ask(query: str) -> str:
        """Ask the agent."""
        if next(fails):
            raise ConnectionError(query)
        return str((await inner.ainvoke({"messages": [("user", query)]}))["messages"][-1].content)

    script = [reply for name in "ab" for reply in (calls(tool_call("ask", name, query=name)), "done")]
    agent = create_react_agent(ScriptedModel(script), [ask], checkpointer=saver)
    await agent.ainvoke(QUESTION, AT)
    with pytest.raises(ConnectionError):
        await agent.ainvoke(QUESTION, AT)
    assert shape(await agent.ainvoke(None, AT))[-2:] == ["tool:b done", "ai:done"]


@pytest.mark.parametrize("change", ["update", "command"])
async def test_an_agent_in_a_call_goes_on_after_a_change_of_the_state_around(saver: Any, change: str) -> None:
    """Its thread is found under the ids of the step, although the change has an id of its own."""
    desk = Desk()
    script = [calls(tool_call("work", "1", query="x")), calls(tool_call("ask", "2", query="a")), "inner"]
    inner = create_react_agent(ScriptedModel(script), desk.tools())
    model = ScriptedModel([calls("inner"), "done"])
    agent = create_react_agent(model, [delegate(inner, "inner")], checkpointer=saver)
    first = ids(await agent.ainvoke(QUESTION, AT))
    if change == "update":
        await agent.aupdate_state(AT, MORE)
    tasks = (await agent.aget_state(AT)).tasks
    assert [question.id for task in tasks for question in task.interrupts] == [first["a"]]
    result = await agent.ainvoke(Command(resume="yes", update=MORE if change == "command" else None), AT)
    assert shape(result)[2:] == ["human:more", "tool:inner", "ai:done"]
    assert desk.log == ["work x", "ask a", "ask a", "answered a"]


async def test_a_tool_that_had_an_agent_do_it_asks_in_its_own_name() -> None:
    """When an inner agent has ended, `interrupt()` is the tool's own; with the answer, no inner agent runs again."""
    desk = Desk()
    inner_model = ScriptedModel([calls(tool_call("work", "1", query="x")), "one", "two"])
    inner = create_react_agent(inner_model, desk.tools())

    @tool
    async def careful() -> str:
        """Have it done twice, and then ask."""
        names = [str((await inner.ainvoke(QUESTION))["messages"][-1].content) for _ in range(2)]
        return f"{names}, {interrupt('really?')}"

    model = ScriptedModel([calls(tool_call("careful", "1")), "done"])
    agent = create_react_agent(model, [careful], checkpointer=InMemorySaver())
    (question,) = (await agent.ainvoke(QUESTION, AT))["__interrupt__"]
    (task,) = (await agent.aget_state(AT)).tasks
    assert task.interrupts == (question,)
    result = await agent.ainvoke(Command(resume={question.id: "yes"}), AT)
    assert shape(result)[2:] == ["tool:['one', 'two'], yes", "ai:done"]
    assert desk.log == ["work x"]
    assert len(inner_model.requests) == 3
