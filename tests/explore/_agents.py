"""Agents: conversations with questions that are answered in any order, cancelled, resumed, forked and updated."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel
from tests.agent._savers import complaint
from tests.helpers import live_tasks

from ._bodies import ASYNC, SECONDS, TOOLS, Call, Stage, Step, enter, result_of
from ._watch import Complaint, run_on

KINDS = ("sleep", "sleep", "sleep", "ask", "ask", "fail", "tidy", "swallow")
ROUNDS = 60
"""More rounds than any conversation needs."""


@dataclass(frozen=True)
class Act:
    """An action on a thread, when its run has stopped or while it runs."""

    kind: str
    """`cancel`: give the next run up. `some`: answer only some questions. `fork`, `update`, `say`: as named."""
    number: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Conversation:
    """Turns of a thread, and the actions on it; the n-th action belongs to the n-th run."""

    replies: tuple[tuple[Call, ...], ...]
    """The calls of each reply of the model; a reply without calls has a text."""
    turns: int = 1
    acts: tuple[Act, ...] = ()
    saver: str = "memory"
    version: str = "v2"
    durability: str = "sync"

    @property
    def unit(self) -> float:
        """Return the seconds of one second of the plan: database calls run in threads, which ignore a virtual clock."""
        return 1.0 if self.saver == "memory" else 0.01


def draw(chance: Random) -> Conversation:
    return Conversation(
        tuple(_draw_reply(chance) for _ in range(chance.randint(1, 4))),
        turns=chance.randint(1, 3),
        acts=tuple(_draw_act(chance) for _ in range(chance.randint(0, 5))),
        saver=chance.choice(("memory", "memory", "memory", "sqlite")),
        version=chance.choice(("v1", "v2")),
        durability=chance.choice(("sync", "async")),
    )


def _draw_reply(chance: Random) -> tuple[Call, ...]:
    return tuple(
        Call(
            chance.choice(ASYNC),
            tuple(Step(chance.choice(KINDS), chance.choice(SECONDS)) for _ in range(chance.choice((0, 1, 1, 2)))),
        )
        for _ in range(chance.randint(0, 3))
    )


def _draw_act(chance: Random) -> Act:
    kind = chance.choice(("cancel", "cancel", "some", "some", "pass", "fork", "update", "say"))
    return Act(kind, chance.randrange(100), chance.choice(SECONDS))


@dataclass
class Told:
    """Record of a conversation that was played."""

    plan: Conversation
    stage: Stage
    requests: list[list[BaseMessage]] = field(default_factory=list)
    """The messages of each request to the model."""
    messages: list[BaseMessage] = field(default_factory=list)
    """The messages at the end."""
    results: list[Any] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    """The number of tasks that were left after each run."""
    states: list[tuple[str, str]] = field(default_factory=list)
    """Values before and after serialization."""
    repeated: set[str] = field(default_factory=set)
    """Calls whose bodies ran again after one had returned, although no plan step had discarded the result."""
    missing: list[str] = field(default_factory=list)
    """Questions that bodies asked and that are missing in the state."""
    over: bool = False


async def observe(plan: Conversation, make: Callable[..., Any] = ToolNode) -> Told:
    """Play a conversation to its end."""
    record = Told(plan, enter(Stage(plan.unit)))
    if plan.saver == "memory":
        await _converse(record, InMemorySaver(), make)
        return record
    with tempfile.TemporaryDirectory() as folder:
        await _converse(record, f"sqlite:///{Path(folder, 'agent.db')}", make)
    return record


def _replying(record: Told) -> Callable[[list[BaseMessage]], Any]:
    plan = record.plan

    def reply(messages: list[BaseMessage]) -> Any:
        record.requests.append(messages)
        number = sum(isinstance(message, AIMessage) for message in messages)
        planned_calls = plan.replies[number] if number < len(plan.replies) else ()
        if not planned_calls:
            return AIMessage(f"text {number}", id=f"ai{number}")
        return AIMessage("", id=f"ai{number}", tool_calls=record.stage.batch(f"r{number}-", planned_calls))

    return reply


async def _converse(record: Told, saver: Any, make: Callable[..., Any]) -> None:
    plan = record.plan
    node = make(TOOLS, handle_tool_errors=True)
    model = ScriptedModel([_replying(record)], loop=True)
    agent = create_react_agent(model, node, checkpointer=saver, version=plan.version)  # type: ignore[arg-type]
    before = live_tasks()
    async with agent:
        await _rounds(record, agent, before)
    await record.stage.sleep(10)
    record.tasks.append(len(live_tasks() - before))


async def _rounds(record: Told, agent: Any, before: set[Any]) -> None:
    plan, config = record.plan, {"configurable": {"thread_id": "t"}}
    acts, turns_said, turns = list(plan.acts), 0, plan.turns
    for _ in range(ROUNDS):
        act = acts.pop(0) if acts else Act("none")
        state = await agent.aget_state(config)
        if turns_said and act.kind in ("fork", "update"):
            # A message that is added from outside ends a waiting run whose calls are open; they are closed when the run
            # continues.
            turns += act.kind == "update" and bool(state.next)
            config = await _rewrite(record, agent, config, act)
            state = await agent.aget_state(config)
        if state.interrupts and act.kind != "say":
            run_input: Any = Command(resume=_answers(state.interrupts, act))
        elif (state.next or state.tasks) and act.kind != "say":
            run_input = None
        elif turns_said < turns:
            run_input, turns_said = (
                {"messages": [HumanMessage(f"turn {turns_said}", id=f"h{turns_said}-{act.number}")]},
                turns_said + 1,
            )
        elif state.interrupts or state.next or state.tasks:
            continue  # no message was left to send
        else:
            record.over, record.messages = True, state.values.get("messages", [])
            return
        await _run(record, agent, run_input, config, act)
        record.tasks.append(len(live_tasks() - before))
        config = {"configurable": {"thread_id": "t"}}
        await _note(record, agent, config)


def _answers(questions: Any, act: Act) -> dict[str, str]:
    chance = Random(act.number)
    chosen = chance.sample(list(questions), chance.randint(1, len(questions))) if act.kind == "some" else questions
    return {question.id: f"yes, {question.value}" for question in chosen}


async def _rewrite(record: Told, agent: Any, config: Any, act: Act) -> Any:
    """Continue from a past checkpoint, or add a message; expectations about earlier runs no longer apply."""
    record.stage.bodies = [body for body in record.stage.bodies if body.ending != "returned"]
    if act.kind == "update":
        await agent.aupdate_state(config, {"messages": [HumanMessage("by the way", id=f"u{act.number}")]})
        return config
    past = [state async for state in agent.aget_state_history(config)]
    return past[act.number % len(past)].config if past else config


async def _run(record: Told, agent: Any, run_input: Any, config: Any, act: Act) -> None:
    stage = record.stage
    stage.open_questions.clear()
    start, returned = len(stage.bodies), {body.call for body in stage.bodies if body.ending == "returned"}
    with anyio.move_on_after(act.seconds * record.plan.unit if act.kind == "cancel" else None):
        try:
            record.results.append(await agent.ainvoke(run_input, config, durability=record.plan.durability))
        except Exception as error:
            record.errors.append(error)
    if act.kind != "say":
        record.repeated |= returned & {body.call for body in stage.bodies[start:]}


async def _note(record: Told, agent: Any, config: Any) -> None:
    serde, state = JsonPlusSerializer(), await agent.aget_state(config)
    record.states.append((repr(state.values), repr(serde.loads_typed(serde.dumps_typed(state.values)))))
    open_ones = {question.value for question in state.interrupts}
    if open_ones:
        record.missing += sorted(record.stage.open_questions - open_ones)


def no_task_is_left(record: Told) -> list[str]:
    """Promise 1: no task is left after each run, and at the end."""
    return [f"{record.tasks}"] if any(record.tasks) else []


def no_body_is_left(record: Told) -> list[str]:
    """Promise 1: no body is left running."""
    return [f"{body}" for body in record.stage.bodies if body.ended is None]


def every_request_has_an_answer_for_each_call(record: Told) -> list[str]:
    """Promise 2: each request to the model is a history that providers accept."""
    return [wrong for request in record.requests if (wrong := complaint(request))][:1]


def the_conversation_ends_whole(record: Told) -> list[str]:
    """Promise 2: every call has one message, in order except for messages that were added from outside."""
    if not record.over:
        return ["it does not end"]
    if not any(act.kind == "update" for act in record.plan.acts):
        wrong = complaint(record.messages)
        return [wrong] if wrong else []
    requested = Counter(call["id"] for message in record.messages for call in getattr(message, "tool_calls", ()))
    answered = Counter(message.tool_call_id for message in record.messages if isinstance(message, ToolMessage))
    return [] if requested == answered else [f"asked {requested}, answered {answered}"]


def results_are_their_own(record: Told) -> list[str]:
    """Promise 2: no call has another call's result."""
    return [
        f"{message.tool_call_id} returned {message.content!r}"
        for message in record.messages
        if message.type == "tool" and message.status == "success" and message.content != result_of(message.tool_call_id)
    ]


def answers_reach_their_questions(record: Told) -> list[str]:
    """Promise 5: each body gets the answer to its own question."""
    return record.stage.misled


def all_questions_surface_together(record: Told) -> list[str]:
    """Promise 5: when a run has stopped, the state has the open questions of all its bodies."""
    return record.missing


def what_finished_does_not_run_again(record: Told) -> list[str]:
    """Promise 10: a finished call does not run again, even if its run was cancelled."""
    return [f"{sorted(record.repeated)}"] if record.repeated else []


def no_run_fails(record: Told) -> list[str]:
    """Errors of tools are messages in these plans, so no run may raise."""
    return [f"{error!r}" for error in record.errors if not isinstance(error, asyncio.CancelledError)]


def states_round_trip(record: Told) -> list[str]:
    """Promise 10: a stored state is read back unchanged."""
    return [f"{state} came back as {back}" for state, back in record.states if state != back][:1]


PROMISES = (
    no_task_is_left,
    no_body_is_left,
    every_request_has_an_answer_for_each_call,
    no_run_fails,
    the_conversation_ends_whole,
    results_are_their_own,
    answers_reach_their_questions,
    all_questions_surface_together,
    what_finished_does_not_run_again,
    states_round_trip,
)


def play(plan: Conversation, backend: str, make: Callable[..., Any] = ToolNode) -> list[Complaint]:

    async def main() -> list[Complaint]:
        record = await observe(plan, make)
        return [Complaint(promise.__name__, detail) for promise in PROMISES for detail in promise(record)]

    return run_on(backend, main, real_clock=plan.saver != "memory")
