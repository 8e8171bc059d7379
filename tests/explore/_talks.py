"""Live runs: people speak, calls go on in the background, runs are cancelled, and the process is killed."""

import atexit
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import anyio
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import CallPolicy, ToolNode, create_agent, create_react_agent, tool_call
from callboard._calls._draining import InFlight
from callboard._langchain._unknown_outcomes import UNKNOWN
from callboard._langgraph import _savers
from callboard._loops._side_tasks import shielded
from callboard.agent._background import BackgroundCalls
from callboard.agent._live import LiveRuns
from callboard.conversations._database import saver_of
from callboard.conversations._history import NOT_BEGUN
from callboard.conversations._storage import CHANNEL
from callboard.exceptions import DrainingError, OpenCallsError, RunCancelledError, RunNotFoundError, ThreadBusyError
from callboard.testing import ScriptedModel
from callboard.tools._background import handle_in, is_notification, open_handles
from tests.agent._postgres import running_postgres
from tests.agent._savers import complaint
from tests.helpers import live_tasks, make

from ._watch import Complaint, run_on

AT: dict[str, Any] = {"configurable": {"thread_id": "t"}}
BESIDE: dict[str, Any] = {"configurable": {"thread_id": "u"}}
MOMENT = 0.01
"""Seconds that a use of a database takes."""
SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0)
LIVES = 12
"""More lives than any plan needs: a kill takes one, and so does each question."""
REASON = "it is enough"


@dataclass(frozen=True)
class Work:
    """Call of a reply of the model: the name of its tool, and the seconds that its body takes."""

    tool: str = "work"
    seconds: float = 0.0


@dataclass(frozen=True)
class Event:
    """Event of one life of the process."""

    kind: str
    """`say` a word, `cancel` the live run, `stop` a call, `leave` a reader, `drain` the agent, `kill` the process."""
    seconds: float = 0.0
    """Time of the event since the beginning of the life."""
    write: int = 0
    """Of a kill: the number of the write to the database before which it happens; 0 for the time of the event."""


@dataclass(frozen=True)
class Talk:
    """Replies of the model, and the events of each life of the process."""

    replies: tuple[tuple[Work, ...], ...]
    lives: tuple[tuple[Event, ...], ...] = ()
    langchain: bool = False
    block: bool = True
    """`True` if the runs are started in a block of the agent; otherwise they are those of `ainvoke`."""
    durability: str = "async"
    stay: float = 20.0
    """Seconds that the block of a life goes on after the end of its first run."""
    has_neighbour: bool = False
    """`True` if each life has a run in a second thread."""
    database: str = "memory"
    """Kind of the database: `memory`, `sqlite` or `postgresql`."""


def draw(chance: Random, database: str = "memory") -> Talk:
    tools = ("work", "work", "build", "build", "again", "ask", "fail")
    return Talk(
        tuple(
            tuple(Work(chance.choice(tools), chance.choice(SECONDS)) for _ in range(chance.choice((0, 1, 1, 2, 3))))
            for _ in range(chance.randint(1, 4))
        ),
        tuple(
            tuple(_draw_event(chance) for _ in range(chance.choice((0, 1, 2, 3, 4))))
            for _ in range(chance.randint(1, 3))
        ),
        langchain=chance.random() < 0.3,
        block=chance.random() < 0.8,
        durability=chance.choice(("async", "async", "sync")),
        stay=chance.choice((20.0, 20.0, 0.0, 1.5)),
        has_neighbour=chance.random() < 0.15,
        database=database,
    )


def _draw_event(chance: Random) -> Event:
    kind = chance.choice(("say", "say", "say", "cancel", "stop", "leave", "drain", "kill", "kill"))
    seconds = chance.choice((*SECONDS, MOMENT * chance.randrange(1, 10)))
    return Event(kind, seconds, chance.choice((0, *range(1, 15))) if kind == "kill" else 0)


Writes = dict[tuple[str, str], list[dict[str, Any]]]


class Database:
    """Database as one process sees it: it calls a function before a chosen write, and takes no write after a kill.

    `writes` gets the entries of the journal that the database has stored in the thread, by the ids of their writes.
    """

    def __init__(self, saver: Any, writes: Writes) -> None:
        self.saver = saver
        self.writes = writes
        self.writes_left = 0
        self.on_kill: Callable[[], None] | None = None
        self.is_dead = False
        """`True` after the kill of the process: its writes no longer reach the database."""
        # Not a subclass: callboard treats savers by their classes.
        for name in ("put", "put_writes") if type(saver) is InMemorySaver else ("write_in_transaction",):
            setattr(saver, name, self._counting(getattr(saver, name)))
        saver.put_writes = self._listing(saver.put_writes)

    def _listing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def write_and_list(config: Any, writes: Any, task_id: str, *args: Any) -> Any:
            result = write(config, writes, task_id, *args)
            if not self.is_dead and config["configurable"]["thread_id"] == "t":
                entries = [entry for channel, entries in writes if channel == CHANNEL for entry in entries]
                # Savers keep the first of two writes with one id.
                self.writes.setdefault((config["configurable"]["checkpoint_id"], task_id), entries)
            return result

        return write_and_list

    def _counting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_write(*args: Any, **options: Any) -> Any:
            self.writes_left -= 1
            if self.writes_left == 0 and self.on_kill is not None:
                self.on_kill()
            return None if self.is_dead else write(*args, **options)

        return count_and_write


@contextmanager
def databases(kind: str, writes: Writes) -> Iterator[Callable[[], Database]]:
    """Return a function that opens a database for each process; it is empty at first. See `Database` for `writes`."""
    if kind == "memory":
        storage = InMemorySaver()

        def open_in_memory() -> Database:
            saver = InMemorySaver()
            saver.storage, saver.writes, saver.blobs = storage.storage, storage.writes, storage.blobs
            return Database(saver, writes)

        yield open_in_memory
        return
    opened = _open_saver(kind)
    opened.delete_thread("t")
    opened.delete_thread("u")

    def open_again() -> Database:
        saver = copy(opened)
        saver.close = _stay_open
        return Database(saver, writes)

    with _in_this_thread():
        yield open_again


def _stay_open() -> None:
    """Leave a connection open at the end of an agent's block."""


@cache
def _open_saver(kind: str) -> Any:
    """Return the saver whose connection all plans use: to open one takes as long as a life of a process."""
    stack = ExitStack()
    atexit.register(stack.close)
    if kind == "sqlite":
        folder = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        url = f"sqlite:///{stack.enter_context(folder)}/talks.db"
    else:
        url = stack.enter_context(running_postgres()).url()
    saver: Any = saver_of(url)
    stack.callback(saver.close)
    return saver


@contextmanager
def _in_this_thread() -> Iterator[None]:
    """Let callboard use a database in the thread of the event loop: a virtual clock does not wait for other threads.

    Each use takes a moment of virtual time, so that other tasks run meanwhile.
    """

    async def run(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await anyio.sleep(MOMENT)
        return function(*args)

    with (
        patch.object(anyio.to_thread, "run_sync", run),
        patch.object(_savers, "run_in_shielded_thread", lambda function: shielded(partial(run, function))),
    ):
        yield


@dataclass
class History:
    """What has happened, as far as it survives: a kill takes away what came after it."""

    words: dict[str, bool] = field(default_factory=dict)
    """Words that were said: `True` for those that `say` has reported as stored."""
    words_before: dict[str, list[str]] = field(default_factory=dict)
    """Words that were stored when a word was said, by that word."""
    begun: list[str] = field(default_factory=list)
    """Ids of the calls whose bodies have begun."""
    ended: list[str] = field(default_factory=list)
    """Ids of the calls whose bodies have had their effect."""
    interrupted: set[str] = field(default_factory=set)
    """Ids of the calls whose bodies were cancelled."""
    cancellations: set[str] = field(default_factory=set)
    """Ids of the calls of which the cancellation alone was begun."""
    stopped: dict[str, int] = field(default_factory=dict)
    """Ids of the calls that were cancelled alone, with the number of their effects before."""


@dataclass
class Played:
    """Record of a plan that was played."""

    plan: Talk
    history: History = field(default_factory=History)
    requests: list[list[BaseMessage]] = field(default_factory=list)
    messages: list[BaseMessage] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    writes: Writes = field(default_factory=dict)
    """Entries of the journal that were stored, in all lives, by the ids of their writes."""
    unclaimed: list[str] = field(default_factory=list)
    """Ids of the calls whose bodies have begun before their claims were stored."""
    neighbour_messages: list[BaseMessage] = field(default_factory=list)
    """Messages of the thread beside the first one, at the end."""
    lost: set[str] = field(default_factory=set)
    """Ids of the calls that had begun, and whose results were not stored, at a kill."""
    readings: list[list[BaseMessage]] = field(default_factory=list)
    """Conversations as they were read: from the database at the beginning of a life, and by the model.

    With the durability "async", the model may read what a kill then takes away.
    """
    open_at_end: list[str] = field(default_factory=list)
    """Calls that are open, or have no result in the conversation, when a run had ended without a question."""
    tasks: int = 0
    is_over: bool = False

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [*chain.from_iterable(self.writes.values())]

    @property
    def claims(self) -> set[str]:
        return {entry["task"] for entry in self.entries if entry["kind"] == "claim"}


class Process:
    """One life of the process."""

    def __init__(self, played: Played, database: Database) -> None:
        self.played = played
        self.database = database
        self.history = deepcopy(played.history)
        self.survivor: History | None = None
        """History at the kill; `None` for a life that has ended by itself."""
        self.scope = anyio.CancelScope()
        self.running: list[str] = []
        self.agent = agent_on(database.saver, langchain=played.plan.langchain)
        stage.process = self

    def reply(self, messages: list[BaseMessage]) -> Any:
        if messages[0].text == "aside":
            number = len(messages)
            calls = [tool_call("work", f"u{number}", call_id=f"u{number}", seconds=2.0)] if number % 4 == 1 else []
            return AIMessage("" if calls else "well", tool_calls=calls)
        self.played.requests.append(messages)
        if self.survivor is None and self.played.plan.durability == "sync":
            self.played.readings.append(messages)
        number = sum(isinstance(message, AIMessage) for message in messages)
        replies = self.played.plan.replies
        works = replies[number] if number < len(replies) else ()
        calls = [
            tool_call(
                planned_call.tool, f"c{number}-{index}", call_id=f"c{number}-{index}", seconds=planned_call.seconds
            )
            for index, planned_call in enumerate(works)
        ]
        return AIMessage("" if calls else f"text {number}", id=f"ai{number}", tool_calls=calls)

    async def work(self, name: str, call_id: str, seconds: float) -> str:
        """Perform a call of a tool."""
        is_first = call_id not in self.history.begun
        if name != "again" and call_id[0] == "c" and self.survivor is None and call_id not in self.played.claims:
            self.played.unclaimed.append(call_id)
        if name != "ask" or is_first:
            self.history.begun.append(call_id)
        if name == "ask" and is_first:
            interrupt(f"may I {call_id}?")
        self.running.append(call_id)
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            self.history.interrupted.add(call_id)
            raise
        finally:
            self.running.remove(call_id)
        self.history.ended.append(call_id)
        if name == "fail":
            raise ValueError(f"failed {call_id}")
        return f"result of {call_id}"

    def kill(self) -> None:
        if self.survivor is None:
            self.survivor, self.database.is_dead = deepcopy(self.history), True
            self.played.lost |= {*self.played.claims, *self.history.begun} - results_of_entries(
                self.played.entries
            ).keys()
            self.scope.cancel()

    async def live(self, events: tuple[Event, ...]) -> None:
        """Play the events of this life."""
        kills = [event.write for event in events if event.kind == "kill" and event.write]
        self.database.writes_left, self.database.on_kill = min(kills, default=0), self.kill
        try:
            with self.scope:
                async with anyio.create_task_group() as group:
                    for number, event in enumerate(events):
                        group.start_soon(self._perform, event, f"{len(self.history.words)}-{number}")
                    group.start_soon(self._run)
        except Exception:
            # A dead process still learns that its database has not kept what it wrote.
            if self.survivor is None:
                raise

    async def _perform(self, event: Event, name: str) -> None:
        await anyio.sleep(event.seconds)
        match event.kind:
            case "say":
                await self._say(f"word {name}")
            case "cancel":
                await self._guard(self._cancel)
            case "stop":
                await self._guard(self._stop)
            case "leave":
                await self._guard(self._read_a_part)
            case "drain":
                await self.agent.drain(0.5)
            case "kill" if not event.write:
                self.kill()

    async def _say(self, word: str) -> None:
        self.history.words_before[word] = [earlier for earlier, is_stored in self.history.words.items() if is_stored]
        self.history.words[word] = False

        async def say() -> None:
            if await self.agent.say(word, AT, start=self.played.plan.block, durability=self.played.plan.durability):
                self.history.words[word] = True

        await self._guard(say)

    async def _cancel(self) -> None:
        await self.agent.live("t").cancel()

    async def _stop(self) -> None:
        """Cancel one call alone."""
        calls = [call for call in self.agent.running() if call.thread_id == "t"]
        if not calls:
            return
        call_id = str(calls[-1].call_id)
        self.history.cancellations.add(call_id)
        if not await self.agent.cancel(call_id, REASON, thread_id="t"):
            return
        self.history.stopped[call_id] = self.history.ended.count(call_id)
        if call_id in self.running and self.survivor is None:
            self.played.errors.append(f"{call_id} goes on after its cancellation")

    async def _read_a_part(self) -> None:
        async with aclosing(self.agent.live("t").stream()) as chunks:
            async for _ in chunks:
                break

    async def _guard(self, act: Callable[[], Awaitable[object]]) -> object:
        """Call a function, and return its result; `None` if another event of the plan is the reason that it fails."""
        try:
            return await act()
        except (DrainingError, OpenCallsError, RunCancelledError, RunNotFoundError, ThreadBusyError):
            pass
        except RuntimeError as error:
            # A run of `ainvoke`, and a block that has ended.
            if "was not started by start" not in str(error) and "async with agent" not in str(error):
                raise
        return None

    async def _run(self) -> None:
        if not self.played.plan.block:
            await self._go_on()
            return
        async with self.agent:
            if self.played.plan.has_neighbour:
                await self._guard(lambda: self.agent.say("aside", BESIDE, start=True))
            await self._go_on()
            await anyio.sleep(self.played.plan.stay)
        if self.survivor is None:
            self.played.open_at_end += self.running

    async def _go_on(self) -> None:
        """Run the thread until nothing is left to do in it."""
        state = await self.agent.aget_state(AT)
        self.played.readings.append(state.values.get("messages", []))
        run_input: Any = None if state.values.get("messages") else {"messages": [HumanMessage("go", id="go")]}
        for _ in range(LIVES):
            if state.interrupts:
                run_input = Command(resume={question.id: "yes" for question in state.interrupts})
            if await self._guard(lambda chosen_input=run_input: self._invoke(chosen_input)):  # type: ignore[misc]
                return
            state = await self.agent.aget_state(AT)
            if not state.next and not state.interrupts:
                return
            run_input = None

    async def _invoke(self, run_input: Any) -> bool:
        """Run the thread once; return whether it has come to its end."""
        durability = self.played.plan.durability
        if self.played.plan.block:
            run = await self.agent.start(run_input, AT, durability=durability)
            result = await run.result()
        else:
            result = await self.agent.ainvoke(run_input, AT, durability=durability)
        if "__interrupt__" in result:
            return False
        live_calls = [call.call_id for call in self.agent.running() if call.thread_id == "t"]
        running = [call_id for call_id in self.running if call_id[0] == "c"]
        self.played.open_at_end += [*running, *map(str, live_calls), *open_handles(result["messages"])]
        return True


class Stage:
    """Process that the tools and the model of the agents belong to."""

    process: Process


stage = Stage()


def _tool(name: str) -> Any:
    async def body(call_id: str, seconds: float) -> str:
        return await stage.process.work(name, call_id, seconds)

    tool = make(body, name)
    if name in ("build", "again"):
        return CallPolicy(background=1.0 if name == "build" else True, idempotent=name == "again")(tool)
    return tool


TOOLS = [_tool(name) for name in ("work", "build", "again", "ask", "fail")]


MODEL = ScriptedModel([lambda messages: stage.process.reply(messages)], loop=True)


@cache
def _agent(langchain: bool) -> Any:
    if langchain:
        return create_agent(MODEL, TOOLS, handle_tool_errors=True, checkpointer=InMemorySaver())
    return create_react_agent(MODEL, ToolNode(TOOLS, handle_tool_errors=True), checkpointer=InMemorySaver())


def agent_on(saver: Any, *, langchain: bool) -> Any:
    """Return an agent without any run or call of an earlier process: to build one takes longer than to play a plan."""
    agent = copy(_agent(langchain))
    in_flight = InFlight("the agent")
    live_runs = LiveRuns(in_flight)
    registries = {"in_flight": in_flight, "live_runs": live_runs}
    agent._runner = replace(agent._runner, **registries, background_calls=BackgroundCalls(in_flight, live_runs))
    agent.checkpointer = saver
    return agent


async def observe(plan: Talk) -> Played:
    played = Played(plan)
    MODEL.requests.clear()
    MODEL.requested_tools.clear()
    before = live_tasks()
    with databases(plan.database, played.writes) as open_database:
        for events in (*plan.lives, (), ()):  # the last lives do what is left to do
            process = Process(played, open_database())
            await process.live(events)
            played.history = process.survivor or process.history
        agent = Process(played, open_database()).agent
        state, state_beside = await agent.aget_state(AT), await agent.aget_state(BESIDE)
    played.neighbour_messages = state_beside.values.get("messages", [])
    played.messages, played.is_over = state.values.get("messages", []), not state.next and not state.interrupts
    await anyio.sleep(10)
    played.tasks = len(live_tasks() - before)
    return played


def results_of_entries(entries: list[dict[str, Any]]) -> dict[str, BaseMessage]:
    """Return the results that were stored first, by the id of their call, in the order in which they were stored."""
    results: dict[str, BaseMessage] = {}
    for entry in entries:
        message = entry.get("output", entry.get("message"))
        if isinstance(message, ToolMessage) and handle_in(message) is None:
            results.setdefault(message.tool_call_id, message)
        elif is_notification(message):
            results.setdefault(message.id.removeprefix("bg-"), message)
    return results


def results_in(messages: list[BaseMessage]) -> dict[str, BaseMessage]:
    """Return the results in a conversation, by the id of their call."""
    return {
        message.tool_call_id if isinstance(message, ToolMessage) else str(message.id).removeprefix("bg-"): message
        for message in messages
        if is_notification(message) or (isinstance(message, ToolMessage) and handle_in(message) is None)
    }


def no_task_is_left(played: Played) -> list[str]:
    """Promise 1: no task is left at the end."""
    return [f"{played.tasks}"] if played.tasks else []


def no_run_ends_with_an_open_call(played: Played) -> list[str]:
    """Promise 1: a run that does not stop for a question waits for its background calls."""
    return played.open_at_end


def every_request_is_valid(played: Played) -> list[str]:
    """Promise 2: each request to the model is a history that providers accept."""
    return [wrong for request in played.requests if (wrong := complaint(request))][:1]


def the_conversation_ends_whole(played: Played) -> list[str]:
    """Promise 2: the thread comes to its end, and its history is valid."""
    if not played.is_over:
        return ["it does not end"]
    wrong = complaint(played.messages)
    return [wrong] if wrong else []


def each_word_is_read_once(played: Played) -> list[str]:
    """A word that was stored is read exactly once; any other at most once."""
    read = Counter(message.text for message in played.messages if message.type == "human")
    return [
        f"{word!r} ({'stored' if is_stored else 'not stored'}) was read {read[word]} times"
        for word, is_stored in played.history.words.items()
        if read[word] > 1 or (is_stored and not read[word])
    ]


def each_background_call_has_one_result(played: Played) -> list[str]:
    """A call in the background has exactly one message with its end, and no other message is added."""
    facts = [message.additional_kwargs.get("callboard", {}) for message in played.messages]
    handles = Counter(
        fact.get("background")
        for fact, message in zip(facts, played.messages, strict=True)
        if isinstance(message, ToolMessage) and "background" in fact
    )
    people = [message for message in played.messages if isinstance(message, HumanMessage)]
    ends = Counter(message.id for message in people)
    strangers = [message for message in people if message.id not in {"go", *handles}]
    return [
        *(f"{handle}: {ends[handle]} ends" for handle in handles if ends[handle] != 1),
        *(f"{message!r}" for message in strangers if message.text not in played.history.words),
    ]


def no_call_runs_twice(played: Played) -> list[str]:
    """Promise 10: a call runs once, unless it is safe to repeat."""
    names = {call["id"]: call["name"] for message in played.messages for call in getattr(message, "tool_calls", ())}
    times = Counter(played.history.ended)
    return [f"{call} ran {times[call]} times" for call in times if times[call] > 1 and names.get(call) != "again"]


def each_result_is_true(played: Played) -> list[str]:
    """A call has the result of its body. It is unknown only if its body was interrupted, or its process killed."""
    history, results = played.history, results_in(played.messages)
    names = {call["id"]: call["name"] for message in played.messages for call in getattr(message, "tool_calls", ())}
    broken = []
    for call, message in results.items():
        text, has_ended, is_failure = message.text, call in history.ended, names.get(call) == "fail"
        status = (
            message.status if isinstance(message, ToolMessage) else message.additional_kwargs["callboard"]["status"]
        )
        if call in played.lost and UNKNOWN in text:
            is_true = names.get(call) != "again"
        elif UNKNOWN in text:
            is_true = names.get(call) != "again" and call in history.interrupted and not has_ended
        elif NOT_BEGUN in text:
            is_true = call not in history.begun
        elif "cancelled by the application" in text:
            is_true = REASON in text and call in history.cancellations
        else:
            has_text = f"failed {call}" in text if is_failure else text.endswith(f"result of {call}")
            is_true = has_ended and has_text
        is_error = is_failure or not text.endswith(f"result of {call}")
        if not is_true or status != ("error" if is_error else "success"):
            broken.append(f"{call} of {names.get(call)}: {status}, {text!r}")
    return broken


def a_claim_is_stored_before_its_body(played: Played) -> list[str]:
    """After a kill, a call that may have had its effect has left a trace."""
    return played.unclaimed


def no_call_begins_twice(played: Played) -> list[str]:
    """Promise 10: the body of a call that is not safe to repeat begins once, also if it is killed."""
    names = {call["id"]: call["name"] for message in played.messages for call in getattr(message, "tool_calls", ())}
    times = Counter(played.history.begun)
    return [f"{call} began {times[call]} times" for call in times if times[call] > 1 and names.get(call) != "again"]


def each_stored_message_is_read_once(played: Played) -> list[str]:
    """A message that a run has received is added to the conversation by one entry, also after a kill."""
    stored = {entry["message"].id for entry in played.entries if entry["kind"] == "said"}
    read = Counter(chain.from_iterable(entry.get("read", ()) for entry in played.entries))
    return [f"{message_id} was read {read[message_id]} times" for message_id in stored if read[message_id] != 1]


def threads_have_their_own_messages(played: Played) -> list[str]:
    """Runs of one agent at the same time do not mix the words and the calls of their threads."""
    people = {message.text for message in played.neighbour_messages if message.type == "human"}
    ids = [message.tool_call_id for message in played.neighbour_messages if isinstance(message, ToolMessage)]
    wrong = [call_id for call_id in ids if call_id[0] != "u"] + [
        call for call in results_in(played.messages) if call[0] != "c"
    ]
    return [*(people - {"aside"}), *wrong, *(m.text for m in played.messages if m.text == "aside")]


def a_cancelled_call_does_not_go_on(played: Played) -> list[str]:
    """Promise 11: after `cancel` has reported the end of a call, the call has no effect, and its message says so."""
    history, results = played.history, results_in(played.messages)
    return [
        *played.errors,
        *(
            f"{call}: {results.get(call)!r}, {history.ended.count(call)} effects"
            for call, effects in history.stopped.items()
            if call not in played.lost
            and (history.ended.count(call) > effects or call not in results or REASON not in results[call].text)
        ),
    ]


def what_is_stored_stays(played: Played) -> list[str]:
    """A result or a word that was stored once is in the conversation, unchanged."""
    stored = [entry.get("output", entry.get("message")) for entry in played.entries]
    final = {_identity(message): message for message in played.messages}
    return [
        f"{message.text!r} became {final.get(_identity(message))!r}"
        for message in stored
        if isinstance(message, BaseMessage) and not _is_same(message, final.get(_identity(message)))
    ]


def what_was_read_stays(played: Played) -> list[str]:
    """A conversation goes on where it was: nothing that was read is changed, removed or moved."""
    return [
        f"message {index} was {message!r}"
        for messages in played.readings
        for index, message in enumerate(_without_open_step(messages))
        if index >= len(played.messages) or not _is_same(message, played.messages[index])
    ][:1]


def _without_open_step(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return messages without the results after the last reply if one is missing: they get their order at the end."""
    last = max((index for index, message in enumerate(messages) if message.type == "ai"), default=-1)
    return messages if complaint(messages) is None else messages[: last + 1]


def _identity(message: BaseMessage) -> str | None:
    return message.tool_call_id if isinstance(message, ToolMessage) else message.id


def _is_same(message: BaseMessage, other_message: BaseMessage | None) -> bool:
    return other_message is not None and (
        message.type,
        _identity(message),
        message.content,
        message.additional_kwargs,
    ) == (*(other_message.type, _identity(other_message), other_message.content, other_message.additional_kwargs),)


def messages_are_read_in_order(played: Played) -> list[str]:
    """A run reads messages in the order in which they were stored."""
    indexes = {message.id: index for index, message in enumerate(played.messages) if message.type == "human"}
    stored = [entry["message"].id for entry in played.entries if entry["kind"] == "said"]
    read = [indexes[message_id] for message_id in dict.fromkeys(stored) if message_id in indexes]
    texts = [message.text for message in played.messages if message.type == "human"]
    early = [
        f"{word!r} was read before {earlier!r}"
        for word, words in played.history.words_before.items()
        for earlier in words
        if word in texts and earlier in texts and texts.index(word) < texts.index(earlier)
    ]
    return [*early, *([f"{read}"] if read != sorted(read) else [])]


def each_reply_answers_what_is_before_it(played: Played) -> list[str]:
    """The model has read all that stands before its reply, and is not asked again after its own answer."""
    requests = {tuple(map(_identity, messages)) for messages in played.requests}
    path = [*map(_identity, played.messages)]
    return [
        f"message {index}, {message!r}"
        for index, message in enumerate(played.messages)
        if message.type == "ai" and (tuple(path[:index]) not in requests or played.messages[index - 1].type == "ai")
    ]


PROMISES = (
    no_task_is_left,
    no_run_ends_with_an_open_call,
    every_request_is_valid,
    the_conversation_ends_whole,
    each_word_is_read_once,
    each_background_call_has_one_result,
    no_call_runs_twice,
    each_result_is_true,
    a_claim_is_stored_before_its_body,
    no_call_begins_twice,
    each_stored_message_is_read_once,
    threads_have_their_own_messages,
    a_cancelled_call_does_not_go_on,
    what_is_stored_stays,
    what_was_read_stays,
    messages_are_read_in_order,
    each_reply_answers_what_is_before_it,
)


def play(plan: Talk, backend: str) -> list[Complaint]:
    if plan.database != "memory":
        _open_saver(plan.database)  # or the test is skipped, here and not in an event loop

    async def main() -> list[Complaint]:
        played = await observe(plan)
        return [Complaint(promise.__name__, broken) for promise in PROMISES for broken in promise(played)]

    return run_on(backend, main)
