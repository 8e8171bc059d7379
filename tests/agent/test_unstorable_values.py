"""Values that a database cannot store: none of them makes a finished call run again, or a rejected one run."""

import contextlib
from enum import IntEnum
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import (
    Agent,
    AgentState,
    DuplicateCallIdWarning,
    StorageError,
    ToolNode,
    create_agent,
    create_react_agent,
    tool_call,
)
from callboard.conversations._unstorable import describe_unstorable
from callboard.middleware import RequireApproval
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import AGENTS, AT, QUESTION, complaint

pytestmark = pytest.mark.real_clock  # databases work in threads
DURABILITIES = pytest.mark.parametrize("durability", ["sync", "async", "exit"])
AT_ONCE = pytest.mark.parametrize("durability", ["sync", "async"])
BIG = 2**64


async def answer(agent: Agent, decisions: list[Any], durability: Any) -> Any:
    """Answer the open question of the agent's thread with decisions."""
    [question] = (await agent.aget_state(AT)).interrupts
    return await agent.ainvoke(Command(resume={question.id: {"decisions": decisions}}), AT, durability=durability)


def test_of_many_parts_only_the_one_that_cannot_be_stored_is_written() -> None:
    """The names of two million parts held the event loop for over a second."""
    written: list[str] = []

    class Key(str):
        __slots__ = ()

        def __repr__(self) -> str:
            written.append(self)
            return super().__repr__()

    rows = {Key(number): BIG if number == 500 else number for number in range(1000)}
    description = describe_unstorable(rows, lambda parts: BIG not in parts)  # type: ignore[operator]
    assert (description, written) == ("['500'] is an integer of 65 bits, and 64 are the most", ["500"])


@AGENTS
async def test_a_negative_integer_that_cannot_be_stored_has_more_bits_than_are_allowed(make: Any) -> None:
    """Its sign is a bit, too: the text said that it has 64 bits, and that 64 are the most."""

    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    below = -(2**63) - 1
    agent = make(ScriptedModel([calls(("pay", {"amount": below})), "done"]), [pay], checkpointer="memory")
    with pytest.raises(StorageError, match="is an integer of 65 bits, and 64 are the most"):
        await agent.ainvoke({"messages": [HumanMessage("go", additional_kwargs={"amount": below})]}, AT)
    state = await agent.ainvoke(QUESTION, AT)
    assert "an integer of 65 bits, at most 64 are allowed" in state["messages"][-2].text


@AT_ONCE
async def test_a_call_that_a_person_rejected_never_runs_though_the_answer_cannot_be_stored(
    saver: Any, durability: Any
) -> None:
    """The end of the question's step was stored without its result, and the calls ran as the model had written them."""
    ran: list[str] = []

    def delete(path: str) -> str:
        """Delete a file."""
        ran.append("delete")
        return "deleted"

    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"pay {amount}")
        return "paid"

    agent = create_agent(
        ScriptedModel([calls(("delete", {"path": "/"}), ("pay", {"amount": 5})), "done"]),
        [delete, pay],
        middleware=[HumanInTheLoopMiddleware({"delete": True, "pay": True})],
        checkpointer=saver,
    )
    await agent.ainvoke(QUESTION, AT, durability=durability)
    reject = {"type": "reject", "message": "never"}
    edits = [{"type": "edit", "edited_action": {"name": "pay", "args": {"amount": amount}}} for amount in (BIG, 2)]
    with pytest.raises(StorageError, match=r"amount'\] is an integer of 65 bits, and 64 are the most"):
        await answer(agent, [reject, edits[0]], durability)
    state = await agent.ainvoke(None, AT, durability=durability)
    assert ran == []
    assert "__interrupt__" in state

    await answer(agent, [reject, edits[1]], durability)
    assert ran == ["pay 2"]


@AGENTS
@DURABILITIES
async def test_a_call_whose_artifact_cannot_be_stored_runs_once(saver: Any, make: Any, durability: Any) -> None:
    """Each `invoke(None)` charged again."""
    charged: list[str] = []

    @tool(response_format="content_and_artifact")
    def charge(order: str) -> tuple[str, object]:
        """Charge."""
        charged.append(order)
        return "charged", {"receipt": [object()]}

    model = ScriptedModel([calls(("charge", {"order": "8"})), "done"])
    agent = make(model, [charge], checkpointer=saver)
    state = await agent.ainvoke(QUESTION, AT, durability=durability)
    await agent.ainvoke(None, AT, durability=durability)
    assert charged == ["8"]
    assert "artifact['receipt'][0] is a value of the type object" in state["messages"][2].text
    assert state["messages"][3].text == "done"


@pytest.mark.parametrize("version", ["v1", "v2"])
@AT_ONCE
@pytest.mark.parametrize("part", ["artifact", "additional_kwargs", "response_metadata"])
async def test_each_part_of_a_result_is_looked_at_before_it_is_stored(
    saver: Any, durability: Any, version: Any, part: str
) -> None:
    """A call whose write fails looks as if it had not finished, and runs again beside a finished neighbour."""
    paid: list[str] = []

    @tool
    def pay(order: str, call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Pay."""
        paid.append(order)
        return ToolMessage("paid", tool_call_id=call_id, **{part: {"amount": 2**70} if order == "8" else {}})

    model = ScriptedModel([calls(("pay", {"order": "8"}), ("pay", {"order": "9"})), "done"])
    agent = create_react_agent(model, [pay], checkpointer=saver, version=version)
    state = await agent.ainvoke(QUESTION, AT, durability=durability)
    await agent.ainvoke(None, AT, durability=durability)
    assert sorted(paid) == ["8", "9"]
    lost, done = [message for message in state["messages"] if message.type == "tool"]
    assert f"{part}['amount'] is an integer of 71 bits" in lost.text
    assert done.text == "paid"


class Level(IntEnum):
    HIGH = 1


async def test_a_result_with_a_number_of_an_enumeration_holds_no_loop(tmp_path: Path) -> None:
    """Membership of such a number in a range is searched item by item, for ever."""

    @tool(response_format="content_and_artifact")
    def ask() -> tuple[str, object]:
        """Ask."""
        return "asked", {"level": Level.HIGH}

    model, url = ScriptedModel([calls("ask"), "done"]), f"sqlite:///{tmp_path / 'db'}"
    async with create_react_agent(model, [ask], checkpointer=url) as agent:
        state = await agent.ainvoke(QUESTION, AT)
    assert "artifact['level'] is a value of the type" in state["messages"][2].text


async def test_an_argument_of_an_enumeration_reaches_its_tool() -> None:
    """Programs call tools, too."""

    async def ask(status: int) -> str:
        """Ask."""
        return str(int(status))

    output = await ToolNode([ask]).ainvoke([tool_call("ask", "1", status=HTTPStatus.OK)])
    assert output["messages"][0].text == "200"


@AT_ONCE
async def test_no_call_begins_after_an_answer_or_a_state_that_cannot_be_stored(saver: Any, durability: Any) -> None:
    """The write may belong to another task, such as the renewal of the lease, and its error be swallowed there."""
    recorder = Recorder()

    class Mood(AgentState):
        mood: Any

    moods = iter([object(), "calm"])
    agent = create_react_agent(
        ScriptedModel([calls(("work", {"query": "tea"})), "done", "done"], loop=True),
        [recorder.tool("work")],
        pre_model_hook=lambda state: {"llm_input_messages": state["messages"], "mood": next(moods, "calm")},
        state_schema=Mood,
        checkpointer=saver,
    )
    with pytest.raises(StorageError, match=r"\['mood'\] is a value of the type object"):
        await agent.ainvoke(QUESTION, AT, durability=durability)
    assert recorder.count("started") == 0
    state = await agent.ainvoke(None, AT, durability=durability)
    assert state["mood"] == "calm"


@AT_ONCE
async def test_a_question_that_cannot_be_stored_is_named(saver: Any, durability: Any) -> None:
    """A bare TypeError of the serializer named an `Interrupt`."""

    async def ask() -> str:
        """Ask."""
        return str(interrupt({"amount": 2**70}))

    agent = create_react_agent(ScriptedModel([calls("ask"), "done"]), [ask], checkpointer=saver)
    with pytest.raises(StorageError, match=r"value\['amount'\] is an integer of 71 bits"):
        await agent.ainvoke(QUESTION, AT, durability=durability)


@AGENTS
@DURABILITIES
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, "an integer of 65 bits") for value in (BIG, -BIG, [{"deep": BIG}])),
        *((value, "half of a surrogate pair") for value in ("\ud800", [{"\udfff": "é"}])),
    ],
)
async def test_a_call_with_arguments_that_cannot_be_stored_is_answered_with_an_error(
    saver: Any, make: Any, durability: Any, value: Any, reason: str
) -> None:
    """Both are legal JSON. The thread stood before the tools, without the reply, for ever."""
    added: list[Any] = []

    def add(n: Any) -> str:
        """Add a number."""
        added.append(n)
        return "added"

    model = ScriptedModel([calls(("add", {"n": value}), ("add", {"n": 2**64 - 1})), "done"])
    agent = make(model, [add], checkpointer=saver)
    state = await agent.ainvoke(QUESTION, AT, durability=durability)

    refused, done = state["messages"][2:4]
    assert reason in refused.text
    assert done.text == "added"
    assert added == [2**64 - 1]
    assert state["messages"][-1].text == "done"
    assert complaint(state["messages"]) is None


@AT_ONCE
async def test_a_question_of_a_call_whose_id_has_a_lone_surrogate_is_asked_once(saver: Any, durability: Any) -> None:
    """Checkpointers store such an id as another text, and the answer would find no call."""

    def ask(x: str) -> str:
        """Ask."""
        return str(interrupt(x))

    agent = create_react_agent(
        ScriptedModel([calls(tool_call("ask", "1\ud800", x="a"), tool_call("ask", "1\udfff", x="b")), "done"]),
        [ask],
        checkpointer=saver,
    )
    with pytest.warns(DuplicateCallIdWarning):
        state = await agent.ainvoke(QUESTION, AT, durability=durability)
        answers = {question.id: f"for {question.value}" for question in state["__interrupt__"]}
        state = await agent.ainvoke(Command(resume=answers), AT, durability=durability)

    assert [message.text for message in state["messages"]][2:] == ["for a", "for b", "done"]


@AT_ONCE
async def test_a_reply_that_cannot_be_stored_is_an_error_and_its_model_is_asked_again(
    saver: Any, durability: Any
) -> None:
    """A model of one's own may put anything into a reply."""
    odd = calls(("add", {"query": "tea"}))
    odd.response_metadata = {"client": object()}
    recorder = Recorder()
    agent = create_react_agent(ScriptedModel([odd, "done"]), [recorder.tool("add")], checkpointer=saver)
    with pytest.raises(StorageError, match=r"response_metadata\['client'\] is a value of the type object"):
        await agent.ainvoke(QUESTION, AT, durability=durability)
    state = await agent.ainvoke(None, AT, durability=durability)
    assert state["messages"][-1].text == "done"
    assert recorder.count("started") <= 1


@AGENTS
async def test_without_a_database_a_tool_gets_integers_of_any_size(make: Any) -> None:
    """As in LangGraph: only a database has a largest integer."""
    added: list[Any] = []

    def add(n: Any) -> str:
        """Add a number."""
        added.append(n)
        return "added"

    state = await make(ScriptedModel([calls(("add", {"n": BIG})), "done"]), [add]).ainvoke(QUESTION)
    assert added == [BIG]
    assert state["messages"][-1].text == "done"


@AGENTS
async def test_a_thread_id_with_a_lone_surrogate_is_refused_in_words(saver: Any, make: Any) -> None:
    """The error said that the database held no conversation."""
    agent = make(ScriptedModel(["done"]), [], checkpointer=saver)
    with pytest.raises(ValueError, match=r"thread_id .* has half of a surrogate pair, which no database stores"):
        await agent.ainvoke(QUESTION, {"configurable": {"thread_id": "half \ud83d"}})


async def test_no_call_begins_beside_an_answer_that_cannot_be_stored(saver: Any) -> None:
    """The neighbour of such a call was cancelled after its start; whether it had paid was unknown."""
    paid: list[int] = []

    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    model = ScriptedModel([calls(("pay", {"amount": 1}), ("pay", {"amount": 2}))], loop=True)
    agent = create_react_agent(model, [pay], middleware=[RequireApproval()], checkpointer=saver)
    for number in range(8):
        config: Any = {"configurable": {"thread_id": str(number)}}
        first, second = (await agent.ainvoke(QUESTION, config))["__interrupt__"]
        edit = {"type": "edit", "args": {"action": "pay", "args": {"amount": BIG}}}
        answers = {first.id: {"type": "accept", "args": None}, second.id: edit}
        with pytest.raises(StorageError, match="an integer of 65 bits"):
            await agent.ainvoke(Command(resume=answers), config)
    assert paid == []


@pytest.mark.parametrize("write", range(1, 6))
async def test_a_call_that_never_began_is_not_told_as_unknown_after_a_failed_write(write: int) -> None:
    """The error of a neighbour's claim cancels a call while its own claim is written."""

    class Failing(InMemorySaver):
        writes_left = 0

        async def aput_writes(self, *args: Any, **options: Any) -> None:
            self.writes_left -= 1
            if self.writes_left == 0:
                raise OSError("the disk is full")
            await super().aput_writes(*args, **options)

    paid: list[int] = []

    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    saver = Failing()
    model = ScriptedModel([calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), "done"])
    agent = create_react_agent(model, [pay], middleware=[RequireApproval()], checkpointer=saver)
    questions = (await agent.ainvoke(QUESTION, AT))["__interrupt__"]
    saver.writes_left = write
    answers = {question.id: {"type": "accept", "args": None} for question in questions}
    with contextlib.suppress(OSError):
        await agent.ainvoke(Command(resume=answers), AT)
    begun = [*paid]
    state = await agent.aget_state(AT)
    resumed = Command(resume={question.id: answers[question.id] for question in state.interrupts})
    messages = (await agent.ainvoke(resumed if state.interrupts else None, AT))["messages"]
    unknown = [message for message in messages if "unknown" in message.text]
    assert len(unknown) <= len(begun)
    assert sorted(paid) == [1, 2]
