"""Approvals of LangChain and of callboard in `create_agent`: no call runs without its approval, and none runs twice."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from langchain.agents import create_agent as langchains_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, hook_config
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError, UnknownInterruptError
from langgraph.types import Command, Send

from callboard import create_agent, tool_call
from callboard.middleware import RequireApproval, Supervise
from callboard.testing import ScriptedModel, calls

from ._savers import AT, MORE, QUESTION, complaint

# Code of LangChain runs on a loop in another thread, which a virtual clock would not wait for.
pytestmark = pytest.mark.real_clock

APPROVED = {"decisions": [{"type": "approve"}]}
REJECTED = {"decisions": [{"type": "reject", "message": "no"}]}
DELETE = tool_call("delete", "1", path="/")
READ = tool_call("read", "1", path="x")
GATE = "HumanInTheLoopMiddleware.after_model"


class Jumps(AgentMiddleware[Any, Any, Any]):
    """Middleware of which one hook jumps, once, or returns a command."""

    def __init__(self, hook: str, output: Any) -> None:
        super().__init__()
        self._hook, self._output = hook, output

    def _result(self, hook: str, state: Any) -> Any:
        if hook != self._hook or not any(isinstance(message, AIMessage) for message in state["messages"]):
            return None
        output, self._output = self._output, None
        return output

    @hook_config(can_jump_to=["tools", "model", "end"])
    def before_agent(self, state: Any, runtime: Any) -> Any:
        return self._result("before_agent", state)

    @hook_config(can_jump_to=["tools", "model", "end"])
    def before_model(self, state: Any, runtime: Any) -> Any:
        return self._result("before_model", state)

    @hook_config(can_jump_to=["tools", "model", "end"])
    def after_model(self, state: Any, runtime: Any) -> Any:
        return self._result("after_model", state)


class Later(AgentMiddleware[Any, Any, Any]):
    """Middleware whose hook follows the model, and does nothing."""

    def after_model(self, state: Any, runtime: Any) -> None:
        return None


def jumps_to_tools() -> Jumps:
    return Jumps("after_model", {"jump_to": "tools"})


def batch_approval() -> HumanInTheLoopMiddleware[Any, Any, Any]:
    return HumanInTheLoopMiddleware(interrupt_on={"delete": True})


class World:
    """Agent with a tool that needs an approval and one that needs none, and the arguments of the calls that ran."""

    def __init__(
        self,
        *middleware: object,
        asks: Sequence[Any] = (DELETE,),
        replies: Sequence[Any] = (),
        factory: Any = create_agent,
        **options: Any,
    ) -> None:
        self.ran: list[str] = []

        async def delete(path: str) -> str:
            """Delete a file."""
            self.ran.append(path)
            return f"deleted {path}"

        async def read(path: str) -> str:
            """Read a file."""
            self.ran.append(f"read {path}")
            return f"the text of {path}"

        model = ScriptedModel([*(replies or [calls(*asks)]), "done", "done again"])
        self.agent: Any = factory(model, [delete, read], middleware=middleware, checkpointer=InMemorySaver(), **options)

    async def run(self, agent_input: Any, config: Any = AT) -> dict[str, Any]:
        return await self.agent.ainvoke(agent_input, config)

    async def question(self) -> str:
        """Run until the approval is asked for; return the id of the question."""
        (question,) = (await self.run(QUESTION))["__interrupt__"]
        assert self.ran == []
        return str(question.id)

    async def answers(self) -> list[str]:
        """Return the texts of the answers to all calls, of which each has exactly one."""
        messages = (await self.agent.aget_state(AT)).values["messages"]
        tool_messages = [message for message in messages if isinstance(message, ToolMessage)]
        assert all(times == 1 for times in Counter(message.tool_call_id for message in tool_messages).values())
        assert complaint(messages) is None
        return [str(message.content) for message in tool_messages]


@pytest.mark.parametrize(("answer", "ran"), [(APPROVED, ["/"]), (REJECTED, [])], ids=["approved", "rejected"])
@pytest.mark.parametrize("order", ["before the approval", "after it"])
async def test_a_jump_to_the_tools_runs_what_the_person_approved(order: str, answer: Any, ran: list[str]) -> None:
    """LangChain's issues 40491 and 40492: a jump repeats rejected calls, or runs calls that nobody was asked about."""
    jumps = jumps_to_tools()
    world = World(*((jumps, batch_approval()) if order == "after it" else (batch_approval(), jumps)))
    question = await world.question()
    await world.run(Command(resume={question: answer}))
    assert world.ran == ran
    assert len(await world.answers()) == 1


class JumpsFirst(Jumps):
    """Further middleware that jumps once."""


@pytest.mark.parametrize("later", [READ, DELETE], ids=["another tool", "the same tool"])
async def test_a_jump_applies_no_edit_to_a_later_call_with_the_same_id(later: Any) -> None:
    """Models reuse ids; the edited call would run a second time, in the place of the later one."""
    jump = {"jump_to": "tools"}
    middleware = (batch_approval(), Jumps("after_model", jump), JumpsFirst("after_model", jump))
    world = World(*middleware, replies=[calls(DELETE), calls(later)])
    edited = {"type": "edit", "edited_action": {"name": "delete", "args": {"path": "/tmp"}}}
    await world.run(Command(resume={await world.question(): {"decisions": [edited]}}))
    if later is DELETE:
        await world.run(Command(resume=APPROVED))
    assert world.ran == ["/tmp", "/" if later is DELETE else "read x"]


@pytest.mark.parametrize("node", ["model", "Counts.after_model"])
async def test_a_call_with_the_name_of_a_node_as_its_id_does_not_replace_the_node(node: str) -> None:
    """Records of nodes and calls stand side by side: a node beside such a call would have had a result."""
    hooked: list[str] = []

    class Counts(AgentMiddleware[Any, Any, Any]):
        def after_model(self, state: Any, runtime: Any) -> None:
            hooked.append("after_model")

    async def run_beside(call_id: str) -> tuple[int, int]:
        hooked.clear()
        world = World(Counts(), replies=[calls(tool_call("read", call_id, path="x"))])
        await world.agent.ainvoke(QUESTION, AT, interrupt_before=["tools"])
        state = await world.run(Command(goto=["tools", node]))
        return len(hooked), len(state["messages"])

    assert await run_beside(node) == await run_beside("1")


@pytest.mark.parametrize("jump_to", ["model", "end"])
async def test_a_jump_elsewhere_runs_nothing(jump_to: str) -> None:
    world = World(batch_approval(), Jumps("after_model", {"jump_to": jump_to}))
    await world.run(QUESTION)
    await world.run(MORE)
    assert world.ran == []


@pytest.mark.parametrize("hook", ["before_agent", "before_model"])
async def test_a_jump_at_the_start_of_a_run_does_not_run_a_call_that_waits(hook: str) -> None:
    """A new message comes in place of an answer, and a hook jumps to the tools with the reply that waits."""
    world = World(batch_approval(), Jumps(hook, {"jump_to": "tools"}))
    await world.question()
    result = await world.run(MORE)
    assert world.ran == []
    assert "__interrupt__" in result
    await world.run(Command(resume=APPROVED))
    assert world.ran == ["/"]


@pytest.mark.parametrize("goto", ["tools", ["tools", "Later.after_model"]])
async def test_a_command_of_a_hook_does_not_go_past_the_approval(goto: Any) -> None:
    world = World(Later(), batch_approval(), Jumps("after_model", Command(goto=goto)))
    question = await world.question()
    await world.run(Command(resume={question: APPROVED}))
    assert world.ran == ["/"]
    assert await world.answers() == ["deleted /"]


async def test_a_send_of_a_call_that_nobody_approved_is_refused() -> None:
    world = World(
        Jumps("after_model", Command(goto=Send("tools", [{**DELETE, "args": {"path": "/home"}}]))), batch_approval()
    )
    question = await world.question()
    with pytest.raises(InvalidUpdateError, match="per_call"):
        await world.run(Command(resume={question: APPROVED}))
    assert world.ran == []


async def test_calls_that_need_no_approval_follow_the_jump() -> None:
    world = World(batch_approval(), jumps_to_tools(), asks=[tool_call("read", "2", path="a")])
    await world.run(QUESTION)
    assert world.ran == ["read a"]


@pytest.mark.parametrize(
    "agent_input",
    [
        Command(goto="tools"),
        Command(goto="Later.after_model"),
        Command(goto=[GATE, "tools"]),
        Command(resume=APPROVED, goto="tools"),
        Command(resume=APPROVED, update={"messages": [AIMessage("", tool_calls=[{**DELETE, "id": "2"}])]}),
        Command(update={"jump_to": "tools"}),
        Command(update={"jump_to": "tools"}, goto="Later.after_model"),
        Command(update={"jump_to": "tools"}, goto="Jumps.before_model"),
        {"jump_to": "tools", "messages": [("user", "go on")]},
        {"messages": [AIMessage("", tool_calls=[DELETE])], "jump_to": "tools"},
        {"messages": [("user", "x")], "hitl_edited_tool_calls": {"1": {"name": "delete", "args": {"path": "/home"}}}},
        None,
    ],
    ids=str,
)
async def test_no_input_runs_a_call_that_waits_for_an_approval(agent_input: Any) -> None:
    world = World(Later(), batch_approval(), Jumps("", None))
    await world.question()
    await world.run(agent_input)
    await world.run(None) if (await world.agent.aget_state(AT)).next else None
    assert world.ran == []


async def test_a_send_in_the_input_is_refused() -> None:
    world = World(batch_approval())
    await world.question()
    with pytest.raises(InvalidUpdateError, match="per_call"):
        await world.run(Command(goto=Send("tools", [DELETE])))
    assert world.ran == []


@pytest.mark.parametrize("node", ["model", GATE, "Later.after_model", None])
@pytest.mark.parametrize("values", [None, {"jump_to": "tools"}, {"messages": [AIMessage("", tool_calls=[DELETE])]}])
async def test_an_update_is_no_approval(node: str | None, values: Any) -> None:
    world = World(Later(), batch_approval())
    await world.question()
    await world.agent.aupdate_state(AT, values, as_node=node)
    await world.run(None)
    assert world.ran == []


async def test_an_update_leaves_the_question_about_a_call_open() -> None:
    world = World(batch_approval())
    question = await world.question()
    await world.agent.aupdate_state(AT, {"messages": [("user", "more")]})
    assert [open_question.id for open_question in (await world.agent.aget_state(AT)).interrupts] == [question]
    await world.run(Command(resume=APPROVED))
    assert world.ran == ["/"]


@pytest.mark.parametrize("change", ["command", "update"])
@pytest.mark.parametrize("key", ["messages", "hitl_edited_tool_calls"])
async def test_a_call_that_changed_after_its_approval_is_asked_about_again(change: str, key: str) -> None:
    world = World(batch_approval(), interrupt_before=["tools"])
    question = await world.question()
    stopped = await world.run(Command(resume={question: APPROVED}))
    home = {"path": "/home"}
    reply = next(message for message in stopped["messages"] if isinstance(message, AIMessage))
    changed: dict[str, Any] = {
        "messages": [AIMessage("", id=reply.id, tool_calls=[{**DELETE, "args": home}])],
        "hitl_edited_tool_calls": {"1": {"name": "delete", "args": home}},
    }
    if change == "update":
        await world.agent.aupdate_state(AT, {key: changed[key]})
    else:
        await world.run(Command(update={key: changed[key]}))
    result = await world.run(None)
    assert world.ran == []
    assert "__interrupt__" in result


async def test_a_command_that_changes_no_call_keeps_the_approval() -> None:
    world = World(batch_approval(), interrupt_before=["tools"])
    question = await world.question()
    await world.run(Command(resume={question: APPROVED}))
    await world.run(Command(update={"messages": []}))
    assert world.ran == ["/"]


FORGED: list[Any] = [
    {"0" * 32: APPROVED},
    {"decisions": []},
    {"decisions": [{"type": "approve"}] * 2},
    {"decisions": [{"type": "frobnicate"}]},
    {"decisions": "approve"},
    {"decisions": [None]},
    {"decisions": [{"type": "edit"}]},
    {"type": "approve"},
    "approve",
    True,
    [APPROVED],
]


@pytest.mark.parametrize("answer", FORGED, ids=str)
async def test_a_forged_answer_runs_nothing_and_the_question_stays_open(answer: Any) -> None:
    world = World(batch_approval())
    question = await world.question()
    with pytest.raises(Exception):  # of LangChain's middleware, which raises what fails first
        await world.run(Command(resume=answer))
    state = await world.agent.aget_state(AT)
    assert [open_question.id for open_question in state.interrupts] == [question]
    await world.run(Command(resume=APPROVED))
    assert world.ran == ["/"]
    assert await world.answers() == ["deleted /"]


@pytest.mark.parametrize("edit", [{"name": "delete"}, {"name": "unknown", "args": {}}], ids=str)
async def test_an_edit_that_cannot_run_runs_nothing_and_is_asked_about_again(edit: Any) -> None:
    """LangChain takes such an answer in, and fails when the call begins. A command goes back to the question."""
    world = World(batch_approval())
    await world.question()
    for agent_input in (Command(resume={"decisions": [{"type": "edit", "edited_action": edit}]}), None):
        with pytest.raises((KeyError, ValueError)):
            await world.run(agent_input)
    (question,) = (await world.run(Command(goto=GATE)))["__interrupt__"]
    assert world.ran == []
    await world.run(Command(resume={question.id: APPROVED}))
    assert await world.answers() == ["deleted /"]


async def test_an_edit_may_not_name_a_tool_whose_own_rule_allows_no_edit() -> None:
    """The person would write a call that nobody may write. The question stays open."""
    rules: Any = {"delete": {"allowed_decisions": ["approve", "reject"]}, "read": True}
    world = World(HumanInTheLoopMiddleware(interrupt_on=rules), asks=[READ])
    await world.question()
    edit = {"type": "edit", "edited_action": {"name": "delete", "args": {"path": "/"}}}
    with pytest.raises(ValueError, match="'delete': interrupt_on allows for this tool only approve, reject"):
        await world.run(Command(resume={"decisions": [edit]}))
    await world.run(Command(resume=APPROVED))
    assert world.ran == ["read x"]


def per_call() -> HumanInTheLoopMiddleware[Any, Any, Any]:
    return HumanInTheLoopMiddleware(interrupt_on={"delete": True}, interrupt_mode="per_call")


ASKS_EACH = [(per_call, "approve"), (lambda: RequireApproval(["delete"]), "accept")]
TWO = [tool_call("delete", "1", path="/1"), tool_call("delete", "2", path="/2")]
each = pytest.mark.parametrize(("middleware", "yes"), ASKS_EACH, ids=["LangChain's", "callboard's"])


@each
async def test_an_answer_reaches_its_own_call_only(middleware: Any, yes: str) -> None:
    world = World(middleware(), asks=TWO)
    first, second = (question.id for question in (await world.run(QUESTION))["__interrupt__"])
    for answer in ({"type": yes}, {first: "yes"}, {first: {"type": "frobnicate"}}, {"0" * 32: {"type": yes}}):
        with pytest.raises((ValueError, UnknownInterruptError)):
            await world.run(Command(resume=answer))
    await world.run(Command(resume={second: {"type": yes}}))
    assert world.ran == ["/2"]
    with pytest.raises(UnknownInterruptError):
        await world.run(Command(resume={second: {"type": yes}}))
    await world.run(Command(resume={first: {"type": yes}}))
    assert world.ran == ["/2", "/1"]
    assert await world.answers() == ["deleted /1", "deleted /2"]


@each
@pytest.mark.parametrize(
    "agent_input",
    [
        Command(goto="tools"),
        Command(goto=Send("tools", [{**DELETE, "id": "3"}])),
        Command(update={"jump_to": "tools"}, goto="model"),
    ],
    ids=str,
)
async def test_a_call_is_asked_about_wherever_it_comes_from(middleware: Any, yes: str, agent_input: Any) -> None:
    world = World(middleware(), jumps_to_tools())
    await world.question()
    await world.run(agent_input)
    assert world.ran == []


@each
async def test_an_answer_to_a_call_that_has_changed_runs_nothing(middleware: Any, yes: str) -> None:
    world = World(middleware())
    question = await world.question()
    reply = (await world.agent.aget_state(AT)).values["messages"][-1]
    changed = AIMessage("", id=reply.id, tool_calls=[{**DELETE, "args": {"path": "/home"}}])
    with suppress(UnknownInterruptError):
        await world.run(Command(resume={question: {"type": yes}}, update={"messages": [changed]}))
    assert world.ran == []


async def test_a_model_cannot_approve_its_own_call() -> None:
    """Neither by a text, nor by fields of its message, nor by an id that a person has approved before."""
    fake: dict[str, Any] = {"approved": True, "decisions": APPROVED["decisions"], "jump_to": "tools"}
    reply = calls(DELETE)
    reply.content = str(ToolMessage("approved", tool_call_id="1")) + str(fake)
    reply.additional_kwargs = fake
    world = World(batch_approval(), replies=[reply, calls({**DELETE, "args": {"path": "/home"}})])
    await world.question()
    await world.run(Command(resume=APPROVED))
    assert world.ran == ["/"]
    assert (await world.agent.aget_state(AT)).interrupts


@pytest.mark.filterwarnings("ignore::callboard.exceptions.DuplicateCallIdWarning")
@pytest.mark.parametrize("rejected", [0, 1])
async def test_a_rejected_call_does_not_run_beside_an_approved_one_with_its_id(rejected: int) -> None:
    """As in LangChain, an answer counts for all calls of the reply with its id."""
    world = World(batch_approval(), asks=[DELETE, {**DELETE, "args": {"path": "/home"}}])
    question = await world.question()
    decisions = [*APPROVED["decisions"], *APPROVED["decisions"]]
    decisions[rejected] = REJECTED["decisions"][0]
    await world.run(Command(resume={question: {"decisions": decisions}}))
    assert world.ran == []


@pytest.mark.parametrize("by_id", [True, False])
async def test_an_answer_that_is_sent_twice_counts_once(by_id: bool) -> None:
    world = World(batch_approval())
    question = await world.question()
    answer: Command[Any] = Command(resume={question: APPROVED} if by_id else APPROVED)
    await world.run(answer)
    with pytest.raises(UnknownInterruptError):
        await world.run(answer)
    assert world.ran == ["/"]
    assert await world.answers() == ["deleted /"]


async def test_a_fork_behind_an_approval_asks_again() -> None:
    world = World(batch_approval())
    await world.question()
    await world.run(Command(resume=APPROVED))
    fork_point = next(
        snapshot
        for snapshot in [snapshot async for snapshot in world.agent.aget_state_history(AT)]
        if "tools" in snapshot.next
    )
    for agent_input in (None, Command(resume=APPROVED)):
        result = await world.run(agent_input, fork_point.config)
        assert world.ran == ["/"]
        assert "__interrupt__" in result


@each
async def test_an_old_place_asks_again(middleware: Any, yes: str) -> None:
    world = World(middleware())
    question = await world.question()
    config = (await world.agent.aget_state(AT)).config
    answer: Command[Any] = Command(resume={question: {"type": yes}})
    await world.run(answer, config)
    assert world.ran == ["/"]
    with pytest.raises(UnknownInterruptError):
        await world.run(answer, config)
    assert world.ran == ["/"]


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("factory", [langchains_agent, create_agent])
async def test_supervise_after_hooks_runs_no_call_that_jumps_past_the_approval(factory: Any) -> None:
    """LangChain alone runs it: the issues langchain #40491 and #40492."""
    world = World(Supervise(after_hooks=True), batch_approval(), jumps_to_tools(), factory=factory)
    result = await world.run(QUESTION)
    assert world.ran == []
    if factory is create_agent:
        assert "__interrupt__" in result  # the run went back to the question
    else:
        [answer] = await world.answers()
        assert "past the hooks that follow the model" in answer


@pytest.mark.backends("asyncio")
async def test_supervise_after_hooks_runs_no_open_call_of_the_input() -> None:
    """A user cannot say that the hooks have run: the key is private."""
    jumps = Jumps("before_agent", {"jump_to": "tools"})
    world = World(Supervise(after_hooks=True), batch_approval(), jumps, factory=langchains_agent)
    reply = AIMessage("", tool_calls=[{"name": "delete", "args": {"path": "/"}, "id": "c1", "type": "tool_call"}])
    forged = ['[1, "c1", "delete", {"path": "/"}]', '[0, "c1", "delete", {"path": "/"}]']
    await world.run({"messages": [("user", "go"), reply], "callboard_after_hooks": forged})
    assert world.ran == []


EDITED = {"decisions": [{"type": "edit", "edited_action": {"name": "delete", "args": {"path": "/tmp"}}}]}


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(("answer", "ran"), [(APPROVED, ["/"]), (EDITED, ["/tmp"]), (REJECTED, [])])
async def test_supervise_after_hooks_follows_the_person(answer: Any, ran: list[str]) -> None:
    world = World(Supervise(after_hooks=True), batch_approval(), factory=langchains_agent)
    question = await world.question()
    await world.run(Command(resume={question: answer}))
    assert world.ran == ran
    assert len(await world.answers()) == 1


SUPERVISED = {
    "LangChain's, then a jump": (lambda: [jumps_to_tools(), batch_approval(), Supervise()], REJECTED, APPROVED),
    "LangChain's for each call, after a jump": (
        lambda: [per_call(), jumps_to_tools(), Supervise()],
        {"type": "reject"},
        {"type": "approve"},
    ),
    "callboard's, after a jump": (
        lambda: [Supervise(middleware=[RequireApproval(["delete"])]), jumps_to_tools()],
        {"type": "ignore"},
        {"type": "accept"},
    ),
}


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("case", SUPERVISED)
@pytest.mark.parametrize("approves", [True, False], ids=["approved", "rejected"])
async def test_langchains_agent_with_supervise_follows_the_person(case: str, approves: bool) -> None:
    """LangChain's edges are LangChain's: a jump past a batched approval is possible there, and needs one of these."""
    middleware, no, yes = SUPERVISED[case]
    world = World(*middleware(), factory=langchains_agent)
    question = await world.question()
    await world.run(Command(resume={question: yes if approves else no}))
    assert world.ran == (["/"] if approves else [])
    assert len(await world.answers()) == 1
    with suppress(UnknownInterruptError):
        await world.run(Command(resume={question: yes}))
    assert len(world.ran) <= approves
