"""Values that cannot be stored, beside approvals, edits and rejections, with kills between all writes.

A kill ends a run at a write of its checkpointer. The next life goes on from a copy of what was stored by then.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import anyio.lowlevel
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.agents.middleware import AgentState as LangChainState
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import StorageError, ToolNode, create_agent, create_react_agent, tool_call
from callboard.middleware import RequireApproval
from callboard.questions import Action, Answer, approval_in
from callboard.testing import ScriptedModel, calls
from tests.agent._savers import copy_of

from ._watch import Complaint, run_on

VALUES: dict[str, Any] = {
    "plain": 7,
    "surrogate": "half \ud83d",
    "NaN": math.nan,
    "65 bits": 2**64,
    "object": object(),
    "levels": [[[[[[]]]]]] * 3,
    "bytes": b"\xff",
}
"""Values by name; a plan has only the names."""
JSON = ("plain", "surrogate", "NaN", "65 bits", "levels")
"""Names of the values that a model or a person can write."""
TOOLS = ("take", "give", "pay")
ROUNDS = 60
"""More rounds than any plan needs."""


@dataclass(frozen=True)
class Asked:
    """A call of `take`, of `give`, which returns a value, or of `pay`, which a person has to approve."""

    tool: str = "take"
    value: str = "plain"


@dataclass(frozen=True)
class Decision:
    """What a person answers to a question; an edit changes the value."""

    kind: Literal["accept", "edit", "ignore"] = "accept"
    value: str = "plain"


@dataclass(frozen=True)
class Plan:
    """The replies of a model, the decisions of a person, and the write of each life at which it ends."""

    replies: tuple[tuple[Asked, ...], ...] = ((Asked(),),)
    decisions: tuple[Decision, ...] = ()
    kills: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """Values that a hook writes to the state, one before each request to the model."""
    is_langchain: bool = False
    durability: str = "sync"


def draw(chance: Random) -> Plan:
    return Plan(
        tuple(tuple(_draw_call(chance) for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 2))),
        tuple(
            Decision(chance.choice(("accept", "ignore", "edit", "edit")), chance.choice(JSON))
            for _ in range(chance.randint(0, 6))
        ),
        tuple(chance.randint(1, 12) for _ in range(chance.randint(0, 4))),
        tuple(chance.choice((*VALUES, "plain", "plain")) for _ in range(chance.randint(0, 3))),
        is_langchain=chance.random() < 0.5,
        durability=chance.choice(("sync", "async")),
    )


def _draw_call(chance: Random) -> Asked:
    tool = chance.choice(TOOLS)
    return Asked(tool, chance.choice([*VALUES] if tool == "give" else JSON))


class KilledError(BaseException):
    """The end of a life. It is no Exception, because nothing in a killed process can handle it."""


class _Dying(InMemorySaver):
    """Checkpointer that raises `KilledError` at a write, and keeps a copy of what was stored by then."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = math.inf
        self.left_behind: InMemorySaver | None = None

    def _die_at_last(self) -> None:
        self.writes_left -= 1
        if self.writes_left <= 0 and self.left_behind is None:
            self.left_behind = copy_of(self)
        if self.left_behind is not None:
            raise KilledError

    def put(self, *args: Any, **options: Any) -> Any:
        self._die_at_last()
        return super().put(*args, **options)

    def put_writes(self, *args: Any, **options: Any) -> None:
        self._die_at_last()
        super().put_writes(*args, **options)


@dataclass
class Played:
    """Record of a plan that was played."""

    plan: Plan
    begun: list[str] = field(default_factory=list)
    """The ids of the calls whose bodies began."""
    wrong: list[str] = field(default_factory=list)
    """Bodies of `pay` that began without a decision of a person for their value."""
    allowed: dict[str, str | None] = field(default_factory=dict)
    """The value that a person has approved, by id of the call; `None` after a rejection."""
    requests: list[list[BaseMessage]] = field(default_factory=list)
    messages: list[BaseMessage] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    is_over: bool = False


async def observe(plan: Plan) -> Played:
    """Play a plan to its end, over all lives."""
    played, saver = Played(plan), _Dying()
    decisions, kills, notes = list(plan.decisions), list(plan.kills), list(plan.notes)
    config: Any = {"configurable": {"thread_id": "t"}}
    run_input: Any = {"messages": [("user", "go")]}
    for _ in range(ROUNDS):
        saver.writes_left = kills.pop(0) if kills else math.inf
        agent = _agent_of(played, saver, notes)
        try:
            await agent.ainvoke(run_input, config, durability=plan.durability)
        except (StorageError, ValueError) as error:
            if not isinstance(error, StorageError) and "half of a surrogate pair" not in str(error):
                raise
            played.errors.append(error)
        except BaseException as error:
            if not _is_killed(error):
                raise
        if saver.left_behind is not None:
            saver, stored = _Dying(), saver.left_behind
            for name in ("storage", "writes", "blobs"):
                getattr(saver, name).update(getattr(stored, name))
        state = await _agent_of(played, saver, notes).aget_state(config)
        if not state.values.get("messages"):
            run_input = {"messages": [("user", "go")]}
        elif state.interrupts:
            run_input = Command(resume=_answers(played, state.interrupts, decisions))
        elif state.next or state.tasks:
            run_input = None
        else:
            played.is_over, played.messages = True, state.values["messages"]
            return played
    return played


def _is_killed(error: BaseException) -> bool:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return isinstance(error, KilledError) or (bool(inner) and all(map(_is_killed, inner)))


def _agent_of(played: Played, saver: Any, notes: list[str]) -> Any:
    plan = played.plan

    async def note_begin(call: str, value: Any) -> None:
        played.begun.append(call)
        await anyio.lowlevel.checkpoint()

    async def take(call: str, value: Any) -> str:
        await note_begin(call, value)
        return f"{call} is done"

    async def give(call: str, value: str) -> tuple[str, Any]:
        await note_begin(call, value)
        return f"{call} is done", VALUES[value]

    async def pay(call: str, value: Any) -> str:
        if repr(value) != played.allowed.get(call):
            played.wrong.append(f"{call} began with {value!r}, and {played.allowed.get(call)} was approved")
        await note_begin(call, value)
        return f"{call} is done"

    tools = [
        StructuredTool.from_function(coroutine=take, name="take", description="Take."),
        StructuredTool.from_function(
            coroutine=give, name="give", description="Give.", response_format="content_and_artifact"
        ),
        StructuredTool.from_function(coroutine=pay, name="pay", description="Pay."),
    ]

    def reply(messages: list[BaseMessage]) -> AIMessage:
        played.requests.append(messages)
        number = sum(isinstance(message, AIMessage) for message in messages)
        if number >= len(plan.replies):
            return AIMessage("done", id=f"ai{number}")
        requested_calls = [
            tool_call(
                call.tool,
                f"{number}-{index}",
                call=f"{number}-{index}",
                value=call.value if call.tool == "give" else VALUES[call.value],
            )
            for index, call in enumerate(plan.replies[number])
        ]
        return calls(*requested_calls).model_copy(update={"id": f"ai{number}"})

    model = ScriptedModel([reply], loop=True)  # type: ignore[list-item]
    if not plan.is_langchain:
        node = ToolNode(tools, middleware=[RequireApproval(["pay"])], on_unknown="fail")
        return create_react_agent(model, node, checkpointer=saver)

    class State(LangChainState):
        note: Any

    class Note(AgentMiddleware[Any, Any, Any]):
        state_schema = State

        async def abefore_model(self, state: Any, runtime: Any) -> Any:
            return {"note": VALUES[notes.pop(0)]} if notes else None

    middleware = [Note(), HumanInTheLoopMiddleware({"pay": True})]
    return create_agent(model, tools, middleware=middleware, checkpointer=saver, on_unknown="fail")


def _answers(played: Played, questions: Any, decisions: list[Decision]) -> dict[str, Any]:
    """Answer all open questions with the next decisions; approve when there are none left."""
    answers: dict[str, Any] = {}
    for question in questions:
        approval = approval_in(question)
        assert approval is not None
        answers[question.id] = approval.encode([_answer(played, action, decisions) for action in approval.actions])
    return answers


def _answer(played: Played, action: Action, decisions: list[Decision]) -> Answer:
    if not action.args:
        return "accept", None  # LangChain asks about a call that is answered already, because it cannot be stored
    decision = decisions.pop(0) if decisions else Decision()
    value = VALUES[decision.value] if decision.kind == "edit" else action.args["value"]
    played.allowed[action.args["call"]] = None if decision.kind == "ignore" else repr(value)
    return decision.kind, {**action.args, "value": value} if decision.kind == "edit" else None


def no_call_begins_twice(played: Played) -> list[str]:
    """Promise 10: with `on_unknown="fail"`, whatever is stored or lost."""
    return [f"{call} began {times} times" for call, times in Counter(played.begun).items() if times > 1]


def no_call_begins_against_a_decision(played: Played) -> list[str]:
    """Promise 5: a rejected call never runs, and an edited one only as a person has edited it."""
    return played.wrong


def every_request_has_an_answer_for_each_call(played: Played) -> list[str]:
    """Promise 2: each request to the model is a history that providers accept."""
    return [wrong for request in played.requests if (wrong := _complaint(request))][:1]


def _complaint(messages: list[BaseMessage]) -> str | None:
    """Return why a provider refuses a conversation. Calls that cannot be stored are answered before their batch."""
    owed: set[str | None] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in owed:
                return f"{message.tool_call_id} is answered, and {owed} are asked for"
            owed.remove(message.tool_call_id)
        elif owed:
            return f"no answer to {owed}"
        elif isinstance(message, AIMessage):
            owed = {call["id"] for call in message.tool_calls}
    return f"no answer to {owed} at the end" if owed else None


def the_conversation_ends_whole(played: Played) -> list[str]:
    """Promise 2: the conversation ends, with one message for each call."""
    if not played.is_over:
        return [f"it does not end: {played.errors[-1:]}"]
    wrong = _complaint(played.messages)
    answered = sorted(message.tool_call_id for message in played.messages if isinstance(message, ToolMessage))
    requested = [f"{reply}-{index}" for reply, batch in enumerate(played.plan.replies) for index in range(len(batch))]
    return [wrong] if wrong else [] if answered == requested else [f"{answered} for {requested}"]


def what_finished_is_not_told_as_unknown(played: Played) -> list[str]:
    """Promise 10: without a kill, each call ends in the life in which it began."""
    unknown_messages = (
        [] if played.plan.kills else [message for message in played.messages if "unknown" in message.text]
    )
    return [f"{message.text}" for message in unknown_messages]


PROMISES: tuple[Callable[[Played], list[str]], ...] = (
    no_call_begins_against_a_decision,
    no_call_begins_twice,
    every_request_has_an_answer_for_each_call,
    the_conversation_ends_whole,
    what_finished_is_not_told_as_unknown,
)


def play(plan: Plan, backend: str) -> list[Complaint]:
    """Play a plan on a backend; return the broken promises."""

    async def main() -> list[Complaint]:
        played = await observe(plan)
        return [Complaint(promise.__name__, detail) for promise in PROMISES for detail in promise(played)]

    # Checkpointers and sync hooks run in threads, which a virtual clock does not see.
    return run_on(backend, main, real_clock=True)
