"""Questions of a server become interrupts of the call, which goes on when they are answered; forms are untrusted."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)

from callboard import CallsInterrupted, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp import McpBounds, McpServer, McpToolError

from ._asked import ROOT, answers
from ._asking import COMMAND, Done, server

WAIT = 30
ERAS = ["auto", "legacy"]


async def ask_and_answer(node: ToolNode, call: Any, *answers: Any) -> tuple[list[Any], ToolMessage]:
    """Run a call and answer its questions one by one; return the questions and the result."""
    ledger, resume, questions = None, None, []
    for answer in [*answers, None]:
        try:
            state = await node.ainvoke([call], ledger=ledger, resume=resume)
        except CallsInterrupted as waiting:
            [question] = waiting.interrupts
            questions.append(question)
            ledger, resume = waiting.ledger, {question.id: answer}
        else:
            return questions, state["messages"][0]
    raise AssertionError(f"it asks more: {questions[-1].value}")


def accept(**content: object) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def test_a_server_of_2026_is_told_all_answers_and_is_called_twice_only() -> None:
    """Two questions are two interrupts. The server's state is sent back, so earlier steps are not repeated."""
    done = Done()
    async with McpServer(server(done)) as served:
        call = tool_call("book", "1", table="T1")
        questions, message = await ask_and_answer(ToolNode([served]), call, accept(guests=4), accept(hour=19))

    assert message.text == "T1: [{'guests': 4}, {'hour': 19}]"
    assert done.effects == ["reserve T1", "book with reserved:T1"]
    assert [question.value["request"]["message"] for question in questions] == ["How many?", "When?"]
    assert len({question.id for question in questions}) == 2


async def test_a_server_of_2025_waits_with_the_call_open() -> None:
    """Version 2025 has no other way to ask, and the call must not restart for each answer."""
    done = Done()
    async with McpServer(server(done), mode="legacy") as served:
        call = tool_call("reserve", "1", table="T1")
        questions, message = await ask_and_answer(ToolNode([served]), call, accept(guests=4), accept(sure=True))

    assert message.text == "T1: AcceptedElicitation(action='accept', data=Guests(guests=4)) accept"
    assert done.effects == ["reserve T1", "book T1"]
    assert len({question.id for question in questions}) == 2


@pytest.mark.parametrize("mode", ERAS)
async def test_a_question_says_who_asks_what_and_for_which_tool(mode: str) -> None:
    """The person has to know which server gets the answer, and a program needs the schema of the form."""
    async with McpServer(server(), mode=mode, name="bistro") as served:
        call = tool_call("cancel", "1", table="T1")
        [question], message = await ask_and_answer(ToolNode([served]), call, accept(sure=True))

    assert (question.value["type"], question.value["server"], question.value["tool"]) == (
        "mcp_elicitation",
        "bistro",
        "cancel",
    )
    assert question.value["request"]["message"] == "Cancel T1?"
    assert question.value["request"]["requestedSchema"]["properties"]["sure"]["type"] == "boolean"
    assert question.response_schema["properties"]["content"]["required"] == ["sure"]
    assert message.text == "cancelled T1: True"


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_may_refuse_and_the_server_knows_in_which_way(mode: str, action: str) -> None:
    """Values that were filled in but not accepted are not sent."""
    done = Done()
    async with McpServer(server(done), mode=mode) as served:
        answer = {"action": action, "content": {"sure": True}}
        _, message = await ask_and_answer(ToolNode([served]), tool_call("cancel", "1", table="T1"), answer)

    assert (message.status, done.effects) == ("error", [])


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("wrong", [accept(sure="maybe"), accept(), {"action": "yes"}, "yes"])
async def test_an_answer_that_does_not_fit_leaves_the_question_open(mode: str, wrong: object) -> None:
    """A typing mistake does not use up the call: a valid answer may follow."""
    done = Done()
    async with McpServer(server(done), mode=mode) as served:
        node, calls = ToolNode([served]), [tool_call("cancel", "1", table="T1")]
        with pytest.raises(CallsInterrupted) as waiting:
            await node.ainvoke(calls)
        ledger, [question] = waiting.value.ledger, waiting.value.interrupts
        with pytest.raises(ValueError, match=r"action|sure|dict"):
            await node.ainvoke(calls, ledger=ledger, resume={question.id: wrong})
        assert done.effects == []
        state = await node.ainvoke(calls, ledger=ledger, resume={question.id: accept(sure=True)})

    assert (state["messages"][0].text, done.effects) == ("cancelled T1: True", ["cancel T1 True"])


@pytest.mark.parametrize("mode", ERAS)
async def test_calls_of_one_batch_are_asked_about_together_and_answered_one_by_one(mode: str) -> None:
    """Each answer reaches the call that asked, and no call runs twice."""
    done = Done()
    async with McpServer(server(done), mode=mode) as served:
        node = ToolNode([served])
        calls = [tool_call("cancel", str(number), table=f"T{number}") for number in range(3)]
        with pytest.raises(CallsInterrupted) as waiting:
            await node.ainvoke(calls)
        by_table = {question.value["request"]["message"]: question.id for question in waiting.value.interrupts}
        assert set(by_table) == {"Cancel T0?", "Cancel T1?", "Cancel T2?"}
        first, ledger = {by_table["Cancel T1?"]: accept(sure=False)}, waiting.value.ledger
        with pytest.raises(CallsInterrupted) as waiting:
            await node.ainvoke(calls, ledger=ledger, resume=first)
        remaining_answers = {by_table["Cancel T0?"]: accept(sure=True), by_table["Cancel T2?"]: accept(sure=True)}
        state = await node.ainvoke(calls, ledger=waiting.value.ledger, resume=remaining_answers)

    texts = [message.text for message in state["messages"]]
    assert texts == ["cancelled T0: True", "cancelled T1: False", "cancelled T2: True"]
    assert sorted(done.effects) == ["cancel T0 True", "cancel T1 False", "cancel T2 True"]


@pytest.mark.parametrize("mode", ERAS)
async def test_each_call_of_one_body_has_its_own_answer(mode: str) -> None:
    """A tool may make several calls and restarts from its beginning; answers must not be mixed up."""
    done = Done()
    async with McpServer(server(done), mode=mode) as served:

        async def cancel_both() -> str:
            """Cancel two tables."""
            results = [await served.call("cancel", {"table": table}) for table in ("T1", "T2")]
            return ", ".join(getattr(one.content[0], "text", "") for one in results)

        questions, message = await ask_and_answer(
            ToolNode([cancel_both]), tool_call("cancel_both", "1"), accept(sure=True), accept(sure=False)
        )

    assert [one.value["request"]["message"] for one in questions] == ["Cancel T1?", "Cancel T2?"]
    assert message.text == "cancelled T1: True, cancelled T2: False"
    assert done.effects.count("cancel T2 False") == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_without_a_node_a_function_answers(mode: str) -> None:
    """A program that calls a server directly has no interrupts; it may pass a function that answers."""
    messages: list[str] = []

    async def yes(params: Any) -> ElicitResult:
        messages.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with McpServer(server(), mode=mode, on_elicit=yes) as served:
        result = await served.call("cancel", {"table": "T1"})

    assert (result.content[0].text, messages) == ("cancelled T1: True", ["Cancel T1?"])  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ERAS)
async def test_where_nobody_can_be_asked_it_is_declined_and_said(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server gets a refusal and the log a warning, so that neither waits without notice."""
    async with McpServer(server(), mode=mode) as served:
        result = await served.call("cancel", {"table": "T1"})

    assert result.is_error
    assert "'asking' asks 'Cancel T1?', and there is nobody to ask here" in caplog.text
    assert "on_elicit" in caplog.text


async def test_a_call_has_a_largest_number_of_questions_that_wait_for_a_person() -> None:
    """A person takes a while, and a server could ask without end meanwhile, which would fill the memory."""
    async with McpServer(server(), mode="legacy") as served:
        node, call = ToolNode([served]), tool_call("ask_at_once", "1", times=40)
        ledger, resume, count = None, None, 0
        message = None
        while message is None:
            try:
                message = (await node.ainvoke([call], ledger=ledger, resume=resume))["messages"][0]
            except CallsInterrupted as waiting:
                [question] = waiting.interrupts
                ledger, resume, count = waiting.ledger, {question.id: accept(sure=True)}, count + 1
                await anyio.sleep(10)  # until the server has asked all

    assert count == 16
    assert "'16 questions wait for a person': 24, 'accept': 16" in message.text


async def test_a_question_that_is_declined_is_said_in_short(caplog: pytest.LogCaptureFixture) -> None:
    """A server may ask in megabytes, and as often as it likes."""
    async with McpServer(server(), mode="legacy") as served:
        await served.call("cancel", {"table": "T" * 10_000})

    [record] = [record for record in caplog.records if "there is nobody to ask here" in record.getMessage()]
    assert len(record.getMessage()) < 500


@pytest.mark.parametrize("mode", ERAS)
async def test_a_server_that_asks_for_a_model_gets_none(mode: str) -> None:
    """A model costs money and the server chooses its messages, so no model is lent; the calling model reads that."""
    async with McpServer(server(), mode=mode) as served:
        [message] = await answers(ToolNode([served]), tool_call("shorten", "1", text="x"))

    assert message.status == "error"
    assert "sampling" in message.text.lower()


async def test_a_call_to_a_server_that_asks_for_a_model_all_the_same_is_given_up() -> None:
    """A server may ask although the client has not said that it has a model."""

    async def asks_for_a_model() -> InputRequiredResult:
        message = SamplingMessage(role="user", content=TextContent(text="say"))
        request = CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=1))
        return InputRequiredResult(input_requests={"model": request})

    hostile: MCPServer[Any] = MCPServer("hostile")
    hostile.add_tool(asks_for_a_model, name="ask")
    async with McpServer(hostile) as served:
        [message] = await answers(ToolNode([served]), tool_call("ask", "1"))

    assert message.status == "error"
    assert "the MCP server 'hostile' asks for a model, and this client lends none" in message.text


async def test_a_call_that_is_held_open_ends_when_nobody_answers() -> None:
    """Some conversations are never resumed. A late answer gets an error that the outcome of the call is unknown."""
    done = Done()
    with anyio.fail_after(10 * WAIT):
        async with McpServer(server(done), mode="legacy", bounds=McpBounds(hold=60.0)) as served:
            node, calls = ToolNode([served]), [tool_call("reserve", "1", table="T1")]
            with pytest.raises(CallsInterrupted) as waiting:
                await node.ainvoke(calls)
            await anyio.sleep(61)
            resume = {waiting.value.interrupts[0].id: accept(guests=4)}
            state = await node.ainvoke(calls, ledger=waiting.value.ledger, resume=resume)

    [message] = state["messages"]
    assert message.additional_kwargs["callboard"]["ended"] == "unknown"
    assert "asked a person" in message.text
    assert done.effects == ["reserve T1"]


async def test_a_server_that_asks_for_time_again_and_again_is_given_up() -> None:
    """A call without a timeout would otherwise go on for ever."""
    async with McpServer(server()) as served:
        with pytest.raises(McpToolError, match=r"given up.*10 rounds"):
            await served.call("endless")


# Answers that come after the connection was lost: the call is continued or unknown, never restarted.


async def resume_elsewhere(done: Done, mode: str, call: Any, answer: Any) -> Any:
    """Let one agent ask, and resume its conversation in another agent with another connection."""
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "1"}}
    model = ScriptedModel([call, "Done."])
    with anyio.fail_after(WAIT):
        async with McpServer(server(done), mode=mode) as served:
            agent = create_react_agent(model, ToolNode([served]), checkpointer=saver)
            state = await agent.ainvoke({"messages": ["go"]}, config)
            [question] = state["__interrupt__"]
        async with McpServer(server(done), mode=mode) as served:
            agent = create_react_agent(model, ToolNode([served]), checkpointer=saver)
            return await agent.ainvoke(Command(resume={question.id: answer}), config)


@pytest.mark.real_clock  # the checkpointer is called in a thread
async def test_a_call_of_2026_goes_on_with_another_connection() -> None:
    """The conversation stores the server's state, so steps before the question are not repeated."""
    call = calls(("once", {"table": "T1"}))
    state = await resume_elsewhere(done := Done(), "auto", call, accept(guests=4))
    assert state["messages"][2].text == "T1 for 4"
    assert done.effects == ["reserve T1", "book with reserved:T1"]


@pytest.mark.real_clock  # the checkpointer is called in a thread
async def test_a_call_of_2025_that_was_held_open_by_what_is_gone_is_unknown() -> None:
    """A restarted call could repeat its effects; the model gets a message and no request is sent."""
    state = await resume_elsewhere(done := Done(), "legacy", calls(("reserve", {"table": "T1"})), accept(guests=4))
    message = state["messages"][2]
    assert (message.status, message.additional_kwargs["callboard"]["ended"]) == ("error", "unknown")
    assert "was not kept open until the answer came" in message.text
    assert done.effects == ["reserve T1"]


# Servers of 2025 over stdio, where the protocol does not name the call that asks.


def effects(folder: Path) -> list[str]:
    return (folder / "effects").read_text().splitlines()


@pytest.mark.exhaustive
@pytest.mark.real_clock
async def test_over_stdio_the_call_that_does_not_end_meanwhile_is_the_one_that_asked(tmp_path: Path) -> None:
    """The protocol of 2025 does not say which call asks, so the server's other calls are awaited first."""
    async with McpServer([*COMMAND, str(tmp_path)], cwd=ROOT, mode="legacy") as served:
        node = ToolNode([served])
        batch = [tool_call("wait", "1", folder=str(tmp_path)), tool_call("cancel", "2", table="T2")]
        waiting: dict[str, Any] = {}

        async def run() -> None:
            with pytest.raises(CallsInterrupted) as interruption:
                await node.ainvoke(batch)
            waiting.update(ledger=interruption.value.ledger, questions=interruption.value.interrupts)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not (tmp_path / "waiting").exists():
                await anyio.sleep(0.01)
            (tmp_path / "go").touch()
        [question] = waiting["questions"]
        state = await node.ainvoke(batch, ledger=waiting["ledger"], resume={question.id: accept(sure=True)})

    assert question.value["tool"] == "cancel"
    assert [message.text for message in state["messages"]] == ["waited", "cancelled T2: True"]


@pytest.mark.exhaustive
@pytest.mark.real_clock
async def test_two_calls_that_both_ask_over_stdio_are_both_answered(tmp_path: Path) -> None:
    """Neither call ends before its answer, so the questions must not wait for a call to end."""
    async with McpServer([*COMMAND, str(tmp_path)], cwd=ROOT, mode="legacy") as served:
        node, batch = ToolNode([served]), [tool_call("cancel", f"{n}", table=f"T{n}") for n in range(2)]
        with pytest.raises(CallsInterrupted) as interruption:
            await node.ainvoke(batch)
        resume = {question.id: accept(sure=True) for question in interruption.value.interrupts}
        state = await node.ainvoke(batch, ledger=interruption.value.ledger, resume=resume)

    assert [message.text for message in state["messages"]] == ["cancelled T0: True", "cancelled T1: True"]
    assert sorted(effects(tmp_path)) == ["cancel T0 True", "cancel T1 True"]


# Forms by which servers ask a person; their schemas are untrusted.


def form_of(field: dict[str, Any], **fields: Any) -> ElicitRequest:
    schema: Any = {"type": "object", "properties": {"name": field}, **fields}
    return ElicitRequest(params=ElicitRequestFormParams(message="Who?", requested_schema=schema))


def page(url: str) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestURLParams(message="Look", url=url, elicitation_id="1"))


def asking(request: ElicitRequest) -> MCPServer[Any]:
    """Return a server whose tool asks in the way of the negotiated version."""
    mcp_server: MCPServer[Any] = MCPServer("asking")

    @mcp_server.tool()
    async def new(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask in the way of 2026."""
        if not ctx.input_responses:
            return InputRequiredResult(input_requests={"who": request}, request_state="x")
        return "asked"

    @mcp_server.tool()
    async def old(ctx: Context[Any, Any]) -> str:
        """Ask in the way of 2025."""
        answer: ElicitResult = await ctx.session.send_request(request, ElicitResult)
        return answer.action

    return mcp_server


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (form_of({"$ref": "http://127.0.0.1:9/secret"}), "a form with '$ref', which no form may have"),
        (form_of({"$dynamicRef": "http://127.0.0.1:9/secret"}), "a form with '$dynamicRef', which no form may have"),
        (form_of({"$ref": "#/properties/name"}), "a form with '$ref', which no form may have"),
        (form_of({"type": "nonsense"}), "a form that is none: 'nonsense' is not valid"),
        (form_of({"type": "string", "pattern": "("}), "a form that is none: '(' is not a 'regex'"),
        (page("javascript:alert(1)"), "sends a person to 'javascript:alert(1)', which is no web page"),
        (page("file:///etc/passwd"), "sends a person to 'file:///etc/passwd', which is no web page"),
    ],
)
@pytest.mark.parametrize(("mode", "tool"), [("auto", "new"), ("legacy", "old")])
async def test_a_form_by_which_nobody_can_be_asked_is_refused_before_anybody_is(
    mode: str, tool: str, request_: ElicitRequest, why: str
) -> None:
    """A reference in the schema would make this process fetch any URL that the server chooses."""
    async with McpServer(asking(request_), mode=mode, name="bistro") as server:
        [message] = await answers(ToolNode([server]), tool_call(tool, "1"))
    assert message.status == "error"
    assert why in message.text


async def test_a_form_says_by_which_rules_it_was_written() -> None:
    """Libraries add `$schema` to the form; it is not part of the question."""
    request = form_of({"type": "string"}, **{"$schema": "https://json-schema.org/draft/2020-12/schema"})
    async with McpServer(asking(request)) as server:
        with pytest.raises(CallsInterrupted):
            await ToolNode([server]).ainvoke([tool_call("new", "1")])
