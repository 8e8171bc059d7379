"""People in the loop: questions, answers, stops, and changes from outside (promises 2, 5 and 10)."""

from functools import partial
from typing import Any, Literal, NotRequired

import anyio
import pytest
from langchain.agents import AgentState as LangChainState
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.errors import UnknownInterruptError
from langgraph.types import Command, interrupt
from pydantic import ValidationError

from callboard import AgentState, create_agent, create_react_agent, tool_call
from callboard.middleware import RequireApproval
from callboard.testing import Recorder, ScriptedModel, calls

from ._graphs import ids
from ._savers import AT, MORE, QUESTION, complaint, scripted, shape

pytestmark = pytest.mark.real_clock

NEW_MESSAGE_INSTEAD = "Error: this call has no result"


class Asking:
    """Tools that ask questions, and the number of their executions by query."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.answered: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        async def ask(query: str) -> str:
            """Ask for a yes or a no."""
            self.started.append(query)
            answer = interrupt(query, response_schema=Literal["yes", "no"])
            self.answered.append(query)
            return f"{query}: {answer}"

        return [ask]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("anew", [False, True], ids=["same agent", "another agent"])
async def test_three_questions_beside_two_finished_calls_are_answered_one_by_one(
    saver: Any, version: Any, anew: bool
) -> None:
    asking, recorder = Asking(), Recorder()
    tools = [*asking.tools(), recorder.tool("work")]
    ask_calls = [("ask", {"query": name}) for name in ("a", "b", "c")]
    model = ScriptedModel([calls(("work", {"query": "x"}), *ask_calls, ("work", {"query": "y"})), "done"])

    def agent() -> Any:
        return create_react_agent(model, tools, checkpointer=saver, version=version)

    current_agent = agent()
    result = await current_agent.ainvoke(QUESTION, AT)
    open_ids = ids(result)
    assert list(open_ids) == ["a", "b", "c"]
    assert len(set(open_ids.values())) == 3
    for number, name in enumerate(("c", "b", "a")):
        current_agent = agent() if anew else current_agent
        assert ids(result) == {key: value for key, value in open_ids.items() if key <= name}
        if name == "b":
            with pytest.raises(ValidationError):
                await current_agent.ainvoke(Command(resume={open_ids["b"]: "perhaps"}), AT)
            state = await current_agent.aget_state(AT)
            assert [question.value for question in state.interrupts] == ["a", "b"]
        answer = Command(resume="yes") if number == 2 else Command(resume={open_ids[name]: "yes"})
        result = await current_agent.ainvoke(answer, AT)

    expected = ["human:go", "ai:", "tool:x", "tool:a: yes", "tool:b: yes", "tool:c: yes", "tool:y", "ai:done"]
    assert shape(result) == expected
    assert complaint(result["messages"]) is None
    assert sorted(asking.started) == ["a", "a", "b", "b", "b", "c", "c"]
    assert asking.answered == ["c", "b", "a"]
    assert recorder.order == ["work(x)", "work(y)"]
    assert len(model.requests) == 2


async def test_answers_that_fit_no_question_are_refused_and_change_nothing(saver: Any) -> None:
    asking = Asking()
    model = ScriptedModel([calls(("ask", {"query": "a"}), ("ask", {"query": "b"})), "done"])
    agent = create_react_agent(model, asking.tools(), checkpointer=saver)
    with pytest.raises(UnknownInterruptError, match="No question is open"):
        await agent.ainvoke(Command(resume="yes"), AT)
    open_ids = ids(await agent.ainvoke(QUESTION, AT))
    for answer, pattern in (
        ("yes", "multiple pending interrupts"),
        ({"0" * 32: "yes"}, "0" * 32),
        ({open_ids["a"]: "yes", "0" * 32: "yes"}, "0" * 32),
    ):
        with pytest.raises(UnknownInterruptError, match=pattern):
            await agent.ainvoke(Command(resume=answer), AT)
    state = await agent.aget_state(AT)
    assert {question.id for question in state.interrupts} == {*open_ids.values()}
    await agent.ainvoke(Command(resume=dict.fromkeys(open_ids.values(), "yes")), AT)
    with pytest.raises(UnknownInterruptError, match="No question is open"):
        await agent.ainvoke(Command(resume="yes"), AT)
    result = await agent.aget_state(AT)
    assert sorted(asking.started) == ["a", "a", "b", "b"]
    assert shape(result.values)[-1] == "ai:done"


async def test_an_answer_without_a_checkpointer_is_refused() -> None:
    agent = scripted(["hi"], [])

    with pytest.raises(RuntimeError, match="without checkpointer"):
        await agent.ainvoke(Command(resume="yes"), AT)


async def test_a_new_message_instead_of_an_answer_keeps_what_finished(saver: Any) -> None:
    asking, recorder = Asking(), Recorder()
    reply = calls(("work", {"query": "x"}), ("ask", {"query": "a"}), ("ask", {"query": "b"}))
    model = ScriptedModel([reply, "never mind", calls(("ask", {"query": "a"})), "done"])
    agent = create_react_agent(model, [*asking.tools(), recorder.tool("work")], checkpointer=saver)
    open_ids = ids(await agent.ainvoke(QUESTION, AT))
    result = await agent.ainvoke(MORE, AT)
    assert "__interrupt__" not in result
    with pytest.raises(UnknownInterruptError):
        await agent.ainvoke(Command(resume={open_ids["a"]: "yes"}), AT)
    # The same call in a later turn asks a new question.
    later_ids = ids(await agent.ainvoke(MORE, AT))
    assert later_ids["a"] not in open_ids.values()
    last = await agent.ainvoke(Command(resume="yes"), AT)

    second_request = model.requests[1]
    assert [message.type for message in second_request] == ["human", "ai", "tool", "tool", "tool", "human"]
    assert second_request[2].content == "x"
    assert all(message.text.startswith(NEW_MESSAGE_INSTEAD) for message in second_request[3:5])
    for request in model.requests:
        assert complaint([message for message in request if message.id]) is None
    assert shape(last)[-2:] == ["tool:a: yes", "ai:done"]
    assert recorder.count("started") == 1


AFTER_MODEL: Any = HumanInTheLoopMiddleware(interrupt_on={"work": True})
DID_NOT_RUN: dict[str, Any] = {
    "an approval of callboard": (create_react_agent, {"middleware": [RequireApproval(["work"])]}, "did not run"),
    "an approval of LangChain": (create_agent, {"middleware": [AFTER_MODEL]}, "did not run"),
    "a breakpoint": (create_react_agent, {"interrupt_before": ["tools"]}, "did not run"),
    "a tool that does not exist": (create_react_agent, {"interrupt_before": ["tools"]}, "nope is not a valid tool"),
}


@pytest.mark.parametrize("label", DID_NOT_RUN)
async def test_a_new_message_before_a_call_began_tells_the_model_that_it_did_not_run(label: str, saver: Any) -> None:
    """Otherwise the model would look for effects that the call cannot have had, or would not dare to repeat it."""
    build, options, text = DID_NOT_RUN[label]
    model = ScriptedModel([calls(("nope" if "exist" in label else "work", {"query": "x"})), "done"])
    agent = build(model, [Recorder().tool("work")], checkpointer=saver, **options)
    await agent.ainvoke(QUESTION, AT)
    await agent.ainvoke(MORE, AT)
    assert [text in message.text for message in model.requests[1]] == [False, False, True, False]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_new_message_after_a_cancelled_call_tells_the_model_that_its_outcome_is_unknown(
    durability: Any, saver: Any
) -> None:
    begun = anyio.Event()

    async def work(query: str) -> str:
        """Work."""
        begun.set()
        await anyio.sleep_forever()
        return query

    model = ScriptedModel([calls(("work", {"query": "x"})), "done"])
    agent = create_react_agent(model, [work], checkpointer=saver)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(agent.ainvoke, QUESTION, AT, durability=durability))
        await begun.wait()
        group.cancel_scope.cancel()
    await agent.ainvoke(MORE, AT)
    assert ["unknown" in message.text for message in model.requests[1]] == [False, False, True, False]


async def test_a_command_that_goes_elsewhere_leaves_the_questions_and_keeps_the_results(saver: Any) -> None:
    asking, recorder = Asking(), Recorder()
    model = ScriptedModel([calls(("work", {"query": "x"}), ("ask", {"query": "a"})), "done"])
    agent = create_react_agent(model, [*asking.tools(), recorder.tool("work")], checkpointer=saver)
    await agent.ainvoke(QUESTION, AT)
    result = await agent.ainvoke(Command(goto="agent"), AT)
    assert shape(result)[2] == "tool:x"
    assert shape(result)[-1] == "ai:done"
    assert complaint(result["messages"]) is None
    assert asking.started == ["a"]


async def test_a_hook_may_ask_and_is_answered(saver: Any) -> None:
    log: list[str] = []

    def before(state: Any) -> Any:
        log.append("before")
        return {"llm_input_messages": [*state["messages"], HumanMessage(interrupt("before?"))]}

    def after(state: Any) -> Any:
        log.append("after")
        return {"messages": [AIMessage(interrupt("after?"), id=state["messages"][-1].id)]}

    model = ScriptedModel(["done"])
    agent = create_react_agent(model, [], checkpointer=saver, pre_model_hook=before, post_model_hook=after)
    assert list(ids(await agent.ainvoke(QUESTION, AT))) == ["before?"]
    assert (await agent.aget_state(AT)).next == ("pre_model_hook",)
    assert list(ids(await agent.ainvoke(Command(resume="now"), AT))) == ["after?"]
    assert (await agent.aget_state(AT)).next == ("post_model_hook",)
    result = await agent.ainvoke(Command(resume="better"), AT)
    assert shape(result) == ["human:go", "ai:better"]
    assert shape(model.requests[0]) == ["human:go", "human:now"]
    assert len(model.requests) == 1
    assert log == ["before", "before", "after", "after"]


def _stopping(saver: Any, recorder: Recorder, model: Any, **when: Any) -> Any:
    return create_react_agent(model, [recorder.tool("work"), recorder.tool("other")], checkpointer=saver, **when)


async def test_a_waiting_call_is_refused_and_its_neighbours_results_are_kept(saver: Any) -> None:
    asking, recorder = Asking(), Recorder()
    model = ScriptedModel([calls(("work", {"query": "x"}), ("ask", {"query": "a"})), "understood"])
    agent = create_react_agent(model, [*asking.tools(), recorder.tool("work")], checkpointer=saver)
    result = await agent.ainvoke(QUESTION, AT)
    call = next(call for call in result["messages"][1].tool_calls if call["name"] == "ask")
    await agent.aupdate_state(AT, {"messages": [ToolMessage("no", tool_call_id=call["id"])]}, as_node="tools")
    state = await agent.aget_state(AT)
    assert (state.next, state.interrupts) == (("agent",), ())
    result = await agent.ainvoke(None, AT)
    assert sorted(shape(result)[2:4]) == ["tool:no", "tool:x"]
    assert shape(result)[4:] == ["ai:understood"]
    assert recorder.count("started") == 1


class Noted(AgentState):
    note: NotRequired[str]


class NotedByLangChain(LangChainState):
    note: NotRequired[str]


UPDATES = {"a note": {"note": "more"}, "a message": {"messages": [("user", "more")]}}


@pytest.mark.parametrize("added", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("create", [create_react_agent, create_agent])
async def test_an_update_of_the_state_leaves_questions_open(saver: Any, create: Any, added: Any) -> None:
    """The answer that follows must not be lost, nor asked for again."""
    asking = Asking()
    state: Any = Noted if create is create_react_agent else NotedByLangChain
    twice = calls(("ask", {"query": "a"}), ("ask", {"query": "b"}))
    agent = create(ScriptedModel([twice, "done"]), asking.tools(), checkpointer=saver, state_schema=state)
    first = ids(await agent.ainvoke(QUESTION, AT))
    result = await agent.ainvoke(Command(resume={first["b"]: "no"}), AT)
    await agent.aupdate_state(AT, added)
    state = await agent.aget_state(AT)
    assert (state.next, list(ids({"__interrupt__": state.interrupts}))) == (("tools",), ["a"])
    result = await agent.ainvoke(Command(resume="yes"), AT)
    answers = [text for text in shape(result) if text.startswith("tool")]
    assert (sorted(answers), shape(result)[-1]) == (["tool:a: yes", "tool:b: no"], "ai:done")
    assert sorted(asking.started) == ["a", "a", "b", "b"]


async def test_an_update_that_answers_or_changes_a_call_closes_its_question_alone(saver: Any) -> None:
    asking = Asking()
    script = [calls(*[tool_call("ask", name, query=name) for name in "abc"]), "done"]
    agent = create_react_agent(ScriptedModel(script), asking.tools(), checkpointer=saver)
    reply = (await agent.ainvoke(QUESTION, AT))["messages"][-1]
    edited = [{**call, "args": {"query": "other"}} if call["id"] == "b" else call for call in reply.tool_calls]
    await agent.aupdate_state(AT, {"messages": [reply.model_copy(update={"tool_calls": edited})]})
    await agent.aupdate_state(AT, {"messages": [ToolMessage("no", tool_call_id="a")]})
    assert list(ids({"__interrupt__": (await agent.aget_state(AT)).interrupts})) == ["c"]
    result = await agent.ainvoke(Command(resume="yes"), AT)
    assert list(ids(result)) == ["other"]
    result = await agent.ainvoke(Command(resume="no"), AT)
    assert sorted(shape(result)[2:]) == ["ai:done", "tool:c: yes", "tool:no", "tool:other: no"]


async def test_ids_of_calls_that_a_model_repeats_are_kept_apart(saver: Any) -> None:
    asking = Asking()
    same_calls = [tool_call("ask", "same", query="a")]
    model = ScriptedModel([calls(*same_calls), "one", calls(*same_calls), "two"])
    agent = create_react_agent(model, asking.tools(), checkpointer=saver)
    first = ids(await agent.ainvoke(QUESTION, AT))
    await agent.ainvoke(Command(resume="yes"), AT)
    second = ids(await agent.ainvoke(MORE, AT))
    result = await agent.ainvoke(Command(resume="no"), AT)
    assert first["a"] != second["a"]
    tools = [text for text in shape(result) if text.startswith("tool")]
    assert tools == ["tool:a: yes", "tool:a: no"]
    assert asking.started == ["a"] * 4


@pytest.mark.parametrize("replaces", [True, False], ids=["in its place", "after it"])
async def test_a_refused_call_does_not_run(saver: Any, replaces: bool) -> None:
    recorder, model = Recorder(), ScriptedModel([calls("work"), "what else?"])
    agent = _stopping(saver, recorder, model, interrupt_before=["tools"])
    reply = (await agent.ainvoke(QUESTION, AT))["messages"][-1]
    refusal = AIMessage("refused", id=reply.id if replaces else None)
    await agent.aupdate_state(AT, {"messages": [refusal]}, as_node="agent")
    assert (await agent.aget_state(AT)).next == ()
    result = await agent.ainvoke(None, AT)
    later_result = await agent.ainvoke(MORE, AT)
    assert recorder.count("started") == 0
    assert [shape(outcome)[-1] for outcome in (result, later_result)] == ["ai:refused", "ai:what else?"]
    assert len(model.requests) == 2


async def test_the_model_reads_an_answer_that_a_person_gives_to_the_only_call(saver: Any) -> None:
    """The run ended without the model, while an answer to one of two calls was read."""
    recorder, model = Recorder(), ScriptedModel([calls("work"), "understood"])
    agent = _stopping(saver, recorder, model, interrupt_before=["tools"])
    call = (await agent.ainvoke(QUESTION, AT))["messages"][-1].tool_calls[0]
    await agent.aupdate_state(AT, {"messages": [ToolMessage("no", tool_call_id=call["id"])]})
    result = await agent.ainvoke(None, AT)

    assert shape(result)[2:] == ["tool:no", "ai:understood"]
    assert recorder.count("started") == 0
