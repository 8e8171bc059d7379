"""A person speaks to a running agent, starts a run and leaves it, and joins it again by the number of a chunk."""

import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from copy import deepcopy
from functools import partial
from typing import Any

import anyio
import pytest
import sniffio
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError, UnknownInterruptError
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from callboard import Agent, RunEvent, create_agent, create_react_agent, observe
from callboard.exceptions import (
    ChunksDroppedError,
    DrainingError,
    OpenCallsError,
    RunCancelledError,
    RunNotFoundError,
    StorageError,
    ThreadBusyError,
)
from callboard.testing import ScriptedModel, calls

from ._gate import Gate, run_at_work
from ._savers import AGENTS, AT, QUESTION, complaint, copy_of

pytestmark = pytest.mark.real_clock
WAIT = 30
UNSTORABLE = HumanMessage("x", additional_kwargs={"value": object()})


def texts(state: Any) -> list[str]:
    return [f"{message.type}: {message.text}" for message in state["messages"]]


async def messages_of(agent: Agent) -> list[Any]:
    return list((await agent.aget_state(AT)).values["messages"])


async def in_turn(*functions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Await functions at the same time, and return their results in the order of their ends."""
    results: list[Any] = []

    async def perform(action: Callable[[], Awaitable[Any]]) -> None:
        results.append(await action())

    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(perform, function)
    return results


class Thinking:
    """Reply of a model that blocks its thread, as a client that is not async does, until a person has spoken."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self._asked, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _: Sequence[Any]) -> Any:
        self._asked.set()
        self.may_end.wait(WAIT)
        return self._reply

    async def hear(self, agent: Agent, text: str) -> tuple[Any, Any]:
        """Run the agent, and say something while its model thinks; return the results of `say` and of the run."""

        async def speak() -> Any:
            await anyio.to_thread.run_sync(self._asked.wait)
            said = await agent.say(text, AT)
            self.may_end.set()
            return said

        run = partial(agent.invoke, QUESTION, AT, durability="sync")
        said, state = await in_turn(speak, partial(anyio.to_thread.run_sync, run))
        return said, state


class Copying(InMemorySaver):
    """Keeps a copy of its data after each write, as a process that is killed then leaves it."""

    def __init__(self, is_copied: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.copies: list[InMemorySaver] = []
        self._is_copied = is_copied

    def put_writes(self, *args: Any) -> None:
        super().put_writes(*args)
        if self._is_copied():
            self.copies.append(copy_of(self))


@AGENTS
@pytest.mark.parametrize("streams", [True, False])
async def test_the_chunks_of_a_message_have_the_id_that_the_thread_stores(make: Any, streams: bool) -> None:
    """A page that was reloaded leaves out the chunks of messages that it has read from the thread."""
    gate = Gate()
    gate.open.set()
    model = ScriptedModel([calls("work", "work"), "it is done"], disable_streaming=not streams)
    texts_by_id: dict[str, str] = {}
    async with make(model, [gate.work], checkpointer=InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT, stream_mode="messages")
        async for _, (message, _) in run.stream():
            texts_by_id[message.id] = texts_by_id.get(message.id, "") + message.text
        stored = await messages_of(agent)

    assert sorted(texts_by_id.items()) == sorted((message.id, message.text) for message in stored[1:])


@AGENTS
async def test_a_live_run_reads_a_message_after_the_results_of_its_calls(make: Any) -> None:
    gate = Gate()
    model = ScriptedModel([calls("work", "work"), "done"])
    async with run_at_work(make, gate, model=model) as (agent, run):
        assert await agent.say("and hurry", AT) is run
        assert not run.is_over

        gate.open.set()
        state = await run.result()

    assert texts(state) == ["human: go", "ai: ", "tool: worked", "tool: worked", "human: and hurry", "ai: done"]
    assert [message.text for message in model.requests[1]][-1] == "and hurry"


@AGENTS
@pytest.mark.parametrize("form", ["and hurry", ("user", "and hurry"), {"role": "user", "content": "and hurry"}])
async def test_a_message_reaches_a_run_of_ainvoke_in_any_form(make: Any, form: Any) -> None:
    gate = Gate()
    agent = make(ScriptedModel([calls("work"), "done"]), [gate.work], checkpointer=InMemorySaver())

    async def speak() -> None:
        await gate.begun.wait()
        run = await agent.say(form, AT)
        assert run is not None
        with pytest.raises(RuntimeError, match="was not started by start"):
            await run.result()
        gate.open.set()

    _, state = await in_turn(speak, partial(agent.ainvoke, QUESTION, AT))

    assert texts(state)[2:] == ["tool: worked", "human: and hurry", "ai: done"]


@AGENTS
async def test_a_message_that_arrives_during_the_last_reply_is_read_before_the_run_ends(make: Any) -> None:
    reply = Thinking("done")
    async with make(ScriptedModel([reply, "and that, too"]), [], checkpointer=InMemorySaver()) as agent:
        said, state = await reply.hear(agent, "and this?")

    assert said is not None
    assert texts(state) == ["human: go", "ai: done", "human: and this?", "ai: and that, too"]


class Weather(BaseModel):
    """Structured response."""

    city: str


def weather_replies(make: Any, form: Any, city: str) -> list[Any]:
    """Return the replies of a model that answers with the weather of this city."""
    if isinstance(form, ProviderStrategy):
        return [Weather(city=city).model_dump_json()]
    typed = calls(("Weather", {"city": city}))
    return [typed] if make is create_agent else ["done", typed]


@pytest.mark.parametrize(
    ("make", "form"),
    [(create_agent, ToolStrategy(Weather)), (create_agent, ProviderStrategy(Weather)), (create_react_agent, Weather)],
)
async def test_a_message_that_arrives_during_a_typed_reply_is_answered_by_a_new_one(make: Any, form: Any) -> None:
    *before, last = weather_replies(make, form, "Oslo")
    reply = Thinking(last)
    model = ScriptedModel([*before, reply, *weather_replies(make, form, "Rome")])
    async with make(model, [], response_format=form, checkpointer=InMemorySaver()) as agent:
        _, state = await reply.hear(agent, "no: Rome")

    assert "human: no: Rome" in texts(state)
    assert state["structured_response"] == Weather(city="Rome")


@AGENTS
async def test_without_a_live_run_a_message_is_not_stored_or_starts_a_run(make: Any) -> None:
    async with make(ScriptedModel(["done", "again"]), [], checkpointer=InMemorySaver()) as agent:
        assert await agent.say("hello", AT) is None
        assert not (await agent.aget_state(AT)).values

        first = await agent.say("hello", AT, start=True)
        await first.result()
        second = await agent.say("again", AT, start=True)

        assert texts(await second.result()) == ["human: hello", "ai: done", "human: again", "ai: again"]


@AGENTS
async def test_of_a_hundred_senders_one_starts_a_run_and_each_message_is_read_once(make: Any) -> None:
    model = ScriptedModel(["done"], loop=True)
    async with make(model, [], checkpointer=InMemorySaver()) as agent:
        senders = [partial(agent.say, f"m{number}", AT, start=True) for number in range(100)]
        runs = await in_turn(*senders)
        for run in runs:
            await run.result()
        messages = await messages_of(agent)

    assert len({*runs}) == 1
    read = Counter(message.text for message in messages if message.type == "human")
    assert read == Counter(f"m{number}" for number in range(100))


@AGENTS
async def test_a_message_that_was_stored_and_not_read_is_read_by_the_next_run_of_a_killed_one(make: Any) -> None:
    """What `say` has returned for is stored: a copy of the database at this moment has it."""
    gate, saver = Gate(), InMemorySaver()
    async with run_at_work(make, gate, saver=saver) as (agent, run):
        await agent.say("and hurry", AT)
        stored = deepcopy(saver.storage), deepcopy(saver.writes), deepcopy(saver.blobs)
        gate.open.set()
        await run.result()

    for later_input in (None, {"messages": [("user", "are you there?")]}):
        later = InMemorySaver()
        later.storage, later.writes, later.blobs = deepcopy(stored)
        model = ScriptedModel(["done", "done", "done"])
        state = await make(model, [gate.work], checkpointer=later).ainvoke(later_input, AT)
        assert Counter(texts(state))["human: and hurry"] == 1
        assert all(complaint(request) is None for request in model.requests)


@AGENTS
async def test_a_message_stands_after_the_reply_that_has_not_read_it_wherever_the_process_is_killed(make: Any) -> None:
    """A reply may be stored, and the end of its step not. A message before the reply would never be answered."""
    reply = Thinking("done")
    saver = Copying(reply.may_end.is_set)
    async with make(ScriptedModel([reply, "and that, too"]), [], checkpointer=saver) as agent:
        await reply.hear(agent, "and this?")

    assert len(saver.copies) > 1
    for later in saver.copies:
        state = await make(ScriptedModel(["and that, too"]), [], checkpointer=later).ainvoke(None, AT)
        assert texts(state) == ["human: go", "ai: done", "human: and this?", "ai: and that, too"]


@AGENTS
async def test_a_run_that_fails_or_is_cancelled_loses_no_message(make: Any) -> None:
    gate, attempts = Gate(), 0

    async def work() -> str:
        """Work."""
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await gate.work()
            raise ConnectionError("lost")
        return "worked"

    async with run_at_work(make, gate, tool=work) as (agent, run):
        await agent.say("and hurry", AT)
        gate.open.set()
        with pytest.raises(ConnectionError):
            await run.result()

        state = await agent.ainvoke(None, AT)

    assert texts(state)[2:] == ["tool: worked", "human: and hurry", "ai: done"]


@AGENTS
async def test_a_message_waits_until_the_question_of_a_call_is_answered(make: Any) -> None:
    gate = Gate(lambda: str(interrupt("may I?")))
    async with run_at_work(make, gate) as (agent, run):
        await agent.say("and hurry", AT)
        gate.open.set()
        assert (await run.result())["__interrupt__"][0].value == "may I?"
        assert await agent.say("hello?", AT) is None

        state = await agent.ainvoke(Command(resume="yes"), AT)

    assert texts(state)[2:] == ["tool: yes", "human: and hurry", "ai: done"]


async def test_a_message_that_cannot_be_stored_or_read_is_an_error_of_its_sender_alone() -> None:
    gate = Gate()
    async with run_at_work(create_react_agent, gate) as (agent, run):
        with pytest.raises(StorageError, match="cannot store a message"):
            await agent.say(UNSTORABLE, AT)
        halves: list[Any] = ["half \ud800", HumanMessage("x", id="\ud800"), HumanMessage("x", name="\ud800")]
        for half in halves:
            with pytest.raises(ValueError, match="half of a surrogate pair"):
                await agent.say(half, AT)
        with pytest.raises(ValueError, match="message of a person"):
            await agent.say(AIMessage("I am the model"), AT)
        with pytest.raises(TypeError, match="a text or a message"):
            await agent.say(object(), AT)
        with pytest.raises(ValueError, match="thread_id"):
            await agent.say("hello", {})
        for wrong_option, error in (({"budgte": 3.0}, TypeError), ({"stream_mode": "update"}, ValueError)):
            with pytest.raises(error, match=r"budget|no stream mode"):
                await agent.say("hello", AT, **wrong_option)
        await agent.say("and hurry", AT)
        gate.open.set()

        assert texts(await run.result())[2:] == ["tool: worked", "human: and hurry", "ai: done"]

    with pytest.raises(ValueError, match="No checkpointer set"):
        await create_react_agent(ScriptedModel([]), []).say("hello", AT)


async def test_say_starts_a_run_with_the_output_keys_of_its_caller() -> None:
    agent = create_react_agent(ScriptedModel(["done"]), [], checkpointer=InMemorySaver())
    async with agent:
        run = await agent.say("hello", AT, start=True, output_keys="messages")

        assert [message.text for message in await run.result()] == ["hello", "done"]


@pytest.mark.parametrize("start", [False, True])
async def test_code_of_a_run_that_reads_no_more_messages_does_not_wait_for_its_own_end(start: bool) -> None:
    answers: list[Any] = []

    class Handler(AsyncCallbackHandler):
        async def on_chain_end(self, outputs: Any, *, parent_run_id: Any = None, **_: Any) -> None:
            if parent_run_id is None:
                try:
                    answers.append(await agent.say("and this?", AT, start=start))
                except RuntimeError as error:
                    answers.append(str(error))

    agent = create_react_agent(ScriptedModel(["done"]), [], checkpointer=InMemorySaver())
    state = await agent.ainvoke(QUESTION, {**AT, "callbacks": [Handler()]})

    assert texts(state) == ["human: go", "ai: done"]
    if start:
        assert "reads no more messages" in answers[0]
    else:
        assert answers == [None]


async def test_a_message_gives_a_run_new_steps() -> None:
    """A conversation that goes on for hours is no endless loop."""
    gates = [Gate() for _ in range(5)]
    works = iter(gates)

    async def work() -> str:
        """Work."""
        return await next(works).work()

    model = ScriptedModel([*[calls("work")] * 5, "done"])
    async with create_react_agent(model, [work], checkpointer=InMemorySaver()) as agent:
        run = await agent.start(QUESTION, {**AT, "recursion_limit": 5})
        for gate in gates:
            await gate.begun.wait()
            await agent.say("go on", AT)
            gate.open.set()
        assert texts(await run.result())[-1] == "ai: done"


@pytest.mark.parametrize("start", [False, True])
async def test_a_message_from_another_event_loop_reaches_the_run(start: bool) -> None:
    gate, backend = Gate(), sniffio.current_async_library()
    async with run_at_work(create_react_agent, gate) as (agent, run):
        speak = partial(anyio.run, partial(agent.say, "and hurry", AT, start=start), backend=backend)
        assert await anyio.to_thread.run_sync(speak) is run
        gate.open.set()

        assert texts(await run.result())[2:] == ["tool: worked", "human: and hurry", "ai: done"]


class SlowEnd(InMemorySaver):
    """Checkpointer that stores a checkpoint and then waits, once; its runs have ended for readers, not for callers."""

    def __init__(self) -> None:
        super().__init__()
        self.stored, self.open = threading.Event(), threading.Event()

    def put(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        stored = super().put(config, checkpoint, *args)
        if "done" in str(checkpoint["channel_values"].get("messages")) and not self.stored.is_set():
            self.stored.set()
            self.open.wait(WAIT)
        return stored

    async def aput(self, *args: Any) -> Any:
        return await anyio.to_thread.run_sync(self.put, *args)


async def test_a_run_that_begins_while_an_earlier_one_ends_takes_messages() -> None:
    """The thread is free as soon as the end of the earlier run is stored, which its caller does not know yet."""
    gate, saver = Gate(), SlowEnd()
    agent = create_react_agent(ScriptedModel(["done", calls("work"), "yes"]), [gate.work], checkpointer=saver)
    runs: list[Any] = []

    async def come_later() -> None:
        await anyio.to_thread.run_sync(saver.stored.wait)
        await agent.ainvoke(QUESTION, AT)

    async def speak() -> None:
        await gate.begun.wait()
        saver.open.set()
        runs.append(await agent.say("and hurry", AT))
        gate.open.set()

    await in_turn(partial(agent.ainvoke, QUESTION, AT), come_later, speak)

    assert runs[0] is not None
    assert [message.text for message in await messages_of(agent)][-2:] == ["and hurry", "yes"]


# A turn that is not over.


class Asking:
    """Tool `work` that asks a person."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    async def work(self) -> str:
        """Work."""
        self.answers.append(interrupt("may I?"))
        return f"worked: {self.answers[-1]}"


@AGENTS
async def test_a_message_does_not_give_an_open_question_up_unasked(make: Any) -> None:
    tool, saver = Asking(), InMemorySaver()
    async with make(ScriptedModel([calls("work"), "done", "more"]), [tool.work], checkpointer=saver) as agent:
        [question] = (await (await agent.start(QUESTION, AT)).result())["__interrupt__"]
        stored = deepcopy((saver.storage, saver.writes))
        with pytest.raises(OpenCallsError, match=rf"{question.id}.*Command.*give_up=True") as caught:
            await agent.say("hello", AT, start=True)
        assert (caught.value.thread_id, caught.value.interrupts) == ("1", (question,))
        assert (saver.storage, saver.writes) == stored

        await (await agent.start(Command(resume={question.id: "yes"}), AT)).result()
        state = await (await agent.say("hello", AT, start=True)).result()

    assert texts(state)[2:] == ["tool: worked: yes", "ai: done", "human: hello", "ai: more"]
    assert tool.answers == ["yes"]


@AGENTS
async def test_a_message_gives_a_question_up_if_its_sender_says_so(make: Any) -> None:
    tool, model = Asking(), ScriptedModel([calls("work"), "hello to you"])
    async with make(model, [tool.work], checkpointer=InMemorySaver()) as agent:
        await (await agent.start(QUESTION, AT)).result()
        state = await (await agent.say("hello", AT, start=True, give_up=True)).result()

    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "human", "ai"]
    assert tool.answers == []
    assert all(complaint(request) is None for request in model.requests)


@AGENTS
async def test_of_two_messages_to_a_thread_with_a_question_each_has_the_answer_for_itself(make: Any) -> None:
    """The start of one is refused, and the other one, which waits for this start, gives the question up."""

    async def speak(text: str, *, give_up: bool) -> str:
        try:
            await agent.say(text, AT, start=True, give_up=give_up)
        except OpenCallsError:
            return f"{text} is refused"
        return f"{text} is read"

    model = ScriptedModel([calls("work"), "done"], loop=True)
    async with make(model, [Asking().work], checkpointer=InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT)
        await run.result()
        refusals = await in_turn(partial(speak, "a", give_up=False), partial(speak, "b", give_up=False))
        assert sorted(refusals) == ["a is refused", "b is refused"]

        ends = await in_turn(partial(speak, "a", give_up=False), partial(speak, "b", give_up=True))
        await agent.live("1").result()
        messages = await messages_of(agent)

    human_texts = [message.text for message in messages if message.type == "human"]
    assert "b is read" in ends
    assert human_texts[:2] == ["go", "b"]
    assert ("a" in human_texts) == ("a is read" in ends)


@AGENTS
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_message_beside_an_answer_changes_nothing_of_the_answer(make: Any, is_first: bool) -> None:
    """It is refused, or it is read after the result of the call. The start with the answer is not refused for it."""
    tool, refused = Asking(), list[OpenCallsError]()

    async def speak() -> None:
        try:
            await agent.say("hello", AT, start=True)
        except OpenCallsError as error:
            refused.append(error)

    async def answer() -> None:
        await agent.start(Command(resume="yes"), AT)

    async with make(ScriptedModel([calls("work"), "a", "b"]), [tool.work], checkpointer=InMemorySaver()) as agent:
        await (await agent.start(QUESTION, AT)).result()
        await in_turn(*((speak, answer) if is_first else (answer, speak)))
        await agent.live("1").result()
        messages = await messages_of(agent)

    assert tool.answers == ["yes"]
    assert messages[2].text == "worked: yes"
    assert [message.text for message in messages].count("hello") == 1 - len(refused)


@AGENTS
async def test_a_message_does_not_give_up_a_call_without_a_result(make: Any) -> None:
    """A person continues the turn, or says that it is over."""
    gate = Gate()
    async with run_at_work(make, gate) as (agent, run):
        await run.cancel()
        with pytest.raises(OpenCallsError, match=r"calls without a result.*input None") as caught:
            await agent.say("hello", AT, start=True)
        assert caught.value.interrupts == ()
        state = await (await agent.say("hello", AT, start=True, give_up=True)).result()

    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "human", "ai"]


@AGENTS
async def test_a_message_gives_up_no_call_of_a_reply_if_a_kill_came_before_the_end_of_its_step(make: Any) -> None:
    """The reply is stored, and the calls have not begun: input that gives them up says so, and not "unknown"."""
    gate, saver = Gate(), Copying()
    gate.open.set()
    model = ScriptedModel([calls("work"), "done"])
    await make(model, [gate.work], checkpointer=saver).ainvoke(QUESTION, AT, durability="sync")

    texts_of_calls = []
    for stored in saver.copies:
        agent = make(ScriptedModel(["done"]), [gate.work], checkpointer=stored)
        messages = (await agent.aget_state(AT)).values.get("messages")
        if messages and messages[-1].type == "ai" and "claim" not in str(dict(stored.writes)):
            async with agent:
                with pytest.raises(OpenCallsError):
                    await agent.say("hello", AT, start=True)
            texts_of_calls.append((await agent.ainvoke(QUESTION, AT))["messages"][2].text)

    assert texts_of_calls
    assert all("did not run" in text for text in texts_of_calls)


@AGENTS
async def test_a_message_is_read_once_if_a_killed_run_left_its_entries_without_their_checkpoint(make: Any) -> None:
    """The next run stops at the same position, and stores the same entries on the same checkpoint."""
    tool, reply, saver, read = Asking(), Thinking(calls("work")), Copying(), list[str]()

    def note(event: RunEvent) -> None:
        if event.phase == "read":
            read.append(event.input.text)

    async with make(ScriptedModel([reply]), [tool.work], checkpointer=saver) as agent:
        await reply.hear(agent, "hello")
    agent = make(ScriptedModel(["done"]), [tool.work], checkpointer=saver.copies[-1])
    await agent.ainvoke(None, AT)
    with observe(lambda _: None, runs=note):
        await agent.ainvoke(Command(resume="yes"), AT)

    assert read == ["hello"]


# Runs that were started.


@AGENTS
async def test_a_started_run_goes_on_without_its_caller_until_the_block_ends(make: Any) -> None:
    gate, saver = Gate(), InMemorySaver()
    async with make(ScriptedModel([calls("work"), "done"]), [gate.work], checkpointer=saver) as agent:
        with anyio.CancelScope() as caller:
            run = await agent.start(QUESTION, AT)
            caller.cancel()
            await anyio.sleep_forever()
        await gate.begun.wait()
        assert agent.live("1") is run
        gate.open.set()
    assert run.is_over
    assert (await messages_of(agent))[-1].text == "done"


@AGENTS
async def test_a_reader_joins_again_after_any_chunk_and_misses_none(make: Any) -> None:
    gate = Gate()
    model = ScriptedModel([calls("work"), "a few words"])
    async with make(model, [gate.work], checkpointer=InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT, stream_mode=["updates", "messages", "values"])
        early: list[Any] = []

        async def read_along() -> None:
            async with aclosing(run.stream()) as chunks:
                early.extend([numbered_chunk async for numbered_chunk in chunks])

        async def let_go() -> None:
            await gate.begun.wait()
            gate.open.set()

        await in_turn(read_along, let_go)
        numbers = [number for number, _ in early]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        for count in range(len(early) + 1):
            after = numbers[0] + count - 1
            assert [item async for item in agent.live("1").stream(after=after)] == early[count:]


@AGENTS
async def test_a_start_that_fails_does_not_hide_the_run_before_it(make: Any) -> None:
    """A second answer to a question is refused; a reader of the run that asked still finds its chunks."""
    async with make(ScriptedModel(["a few words", "more"]), [], checkpointer=InMemorySaver()) as agent:
        with pytest.raises(EmptyInputError):
            await agent.start(None, AT)
        with pytest.raises(RunNotFoundError):
            agent.live("1")
        run = await agent.start(QUESTION, AT, stream_mode="messages")
        chunks = [item async for item in run.stream()]
        for _ in range(2):
            with pytest.raises(UnknownInterruptError):
                await agent.start(Command(resume={"0" * 32: "yes"}), AT)
            assert agent.live("1") is run
        assert [item async for item in agent.live("1").stream()] == chunks
        later = await agent.start(QUESTION, AT, stream_mode="messages")
        numbers = [number async for number, _ in later.stream(after=chunks[0][0])]
        assert numbers == [*range(chunks[0][0] + 1, numbers[-1] + 1)]
        assert agent.live("1") is later


async def test_the_chunks_of_a_later_run_follow_those_of_an_earlier_one() -> None:
    async with create_react_agent(ScriptedModel(["one", "two"]), [], checkpointer=InMemorySaver()) as agent:
        first = await agent.start(QUESTION, AT)
        chunks = [item async for item in first.stream()]
        await first.result()
        second = await agent.start(QUESTION, AT)
        all_chunks = [item async for item in second.stream(after=chunks[0][0] - 1)]

        assert all_chunks[: len(chunks)] == chunks
        assert [item async for item in second.stream()] == all_chunks[len(chunks) :]
        assert [item async for item in first.stream()] == chunks  # also a reader that comes late
        assert all_chunks[-1][1]["agent"]["messages"][0].text == "two"


async def test_a_slow_reader_costs_a_bounded_buffer_and_reads_of_what_was_dropped() -> None:
    model = ScriptedModel(["a b c d e f g h"])
    async with create_react_agent(model, [], checkpointer=InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT, stream_mode="messages", buffer=3)
        await run.result()
        with pytest.raises(ChunksDroppedError, match="no longer has all chunks") as caught:
            await anext(run.stream())
        last = [number async for number, _ in run.stream(after=caught.value.oldest)]

        assert len(last) == 3
        for after in (0, last[-1] + 1):  # of another process
            with pytest.raises(ChunksDroppedError):
                await anext(run.stream(after=after))
        with pytest.raises(TypeError, match="number of a chunk"):
            await anext(run.stream(after="3"))  # type: ignore[arg-type]


async def test_a_reader_with_all_chunks_of_its_run_gets_the_end_though_later_runs_have_filled_the_buffer() -> None:
    """It has missed nothing: an error would send it to read the state again."""
    model = ScriptedModel(["one"], loop=True)
    async with create_react_agent(model, [], checkpointer=InMemorySaver()) as agent:
        run = await agent.start(QUESTION, AT, buffer=1)
        await run.result()
        async with aclosing(run.stream()) as chunks:
            last, _ = await anext(chunks)
            for _ in range(2):
                await (await agent.start(QUESTION, AT, buffer=1)).result()

            assert [number async for number, _ in chunks] == []
        assert [number async for number, _ in run.stream(after=last)] == []


@AGENTS
async def test_a_cancelled_run_ends_with_its_grace_and_goes_on_later(make: Any) -> None:
    gate, cleaned = Gate(), anyio.Event()

    async def work() -> str:
        """Work."""
        try:
            return await gate.work()
        finally:
            cleaned.set()

    async def read(run: Any) -> None:
        async for _ in run.stream():
            pass

    async with run_at_work(make, gate, tool=work) as (agent, run):
        await run.cancel()
        assert cleaned.is_set()
        for end in (run.result, partial(read, run)):
            with pytest.raises(RunCancelledError, match="The input None continues it"):
                await end()
        await run.cancel()

        later = await agent.start(None, AT)
        messages = (await later.result())["messages"]

    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert complaint(messages) is None


async def test_a_tool_cancels_its_own_run() -> None:
    async def work() -> str:
        """Work."""
        await agent.live("1").cancel()
        return "worked"

    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [work], checkpointer=InMemorySaver())
    async with agent:
        run = await agent.start(QUESTION, AT)
        with pytest.raises(RunCancelledError):
            await run.result()


async def test_a_run_is_started_in_a_block_and_once_for_a_thread() -> None:
    gate = Gate()
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [gate.work], checkpointer=InMemorySaver())
    with pytest.raises(RuntimeError, match="within `async with agent:`"):
        await agent.start(QUESTION, AT)
    with pytest.raises(RunNotFoundError, match="no live run"):
        agent.live("1")
    async with agent:
        for buffer in (0, 2**70, 1.0):
            with pytest.raises(ValueError, match="buffer"):
                await agent.start(QUESTION, AT, buffer=buffer)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="no_option"):
            await agent.start(QUESTION, AT, no_option=1)
        run = await agent.start(QUESTION, AT)
        with pytest.raises(ThreadBusyError):
            await agent.start(QUESTION, AT)
        with pytest.raises(ThreadBusyError):
            await agent.ainvoke(QUESTION, AT)
        gate.open.set()
        await run.result()


async def test_an_error_before_the_input_is_stored_is_that_of_start() -> None:
    async with create_react_agent(ScriptedModel(["done"]), [], checkpointer=InMemorySaver()) as agent:
        with pytest.raises(StorageError):
            await agent.start({"messages": [UNSTORABLE]}, AT)
        await agent.drain()
        with pytest.raises(DrainingError):
            await agent.start(QUESTION, AT)
        with pytest.raises(DrainingError):
            await agent.say("hello", AT, start=True)


async def test_an_error_of_a_run_that_nobody_reads_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate.work()
        raise ConnectionError("lost")

    with caplog.at_level(logging.ERROR, "callboard"):
        async with create_react_agent(ScriptedModel([calls("work")]), [work], checkpointer=InMemorySaver()) as agent:
            await agent.start(QUESTION, AT)
            gate.open.set()
    assert "The run of the thread '1' ended with an error" in caplog.text


async def test_a_run_that_a_tool_starts_is_not_part_of_its_call() -> None:
    """It has a thread of its own, and neither the time limit nor the callbacks of the call."""
    results: list[Any] = []
    helper = create_react_agent(ScriptedModel(["helped"], delay=0.05), [], checkpointer=InMemorySaver())

    async def delegate() -> str:
        """Delegate."""
        results.append(await helper.start(QUESTION, {"configurable": {"thread_id": "2"}}))
        return "delegated"

    async with helper, create_react_agent(ScriptedModel([calls("delegate"), "done"]), [delegate]) as agent:
        await agent.ainvoke(QUESTION, AT)
        assert texts(await results[0].result())[-1] == "ai: helped"


async def test_the_parts_of_a_reply_and_their_messages_are_whole_after_each_message() -> None:
    gate = Gate()
    model = ScriptedModel([calls("work", "work"), calls("work"), "done"])
    async with run_at_work(create_agent, gate, model=model) as (agent, run):
        for number in range(3):
            await agent.say(f"m{number}", AT)
        gate.open.set()
        messages = (await run.result())["messages"]

    assert [message.text for message in messages if isinstance(message, HumanMessage)] == ["go", "m0", "m1", "m2"]
    assert sum(isinstance(message, ToolMessage) for message in messages) == 3
    assert all(complaint(request) is None for request in model.requests)


async def test_a_message_to_a_live_run_has_its_config_checked_once() -> None:
    """Each check makes a config, which takes longer than the way of the message."""
    checks: list[str] = []

    class Config(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            if key == "recursion_limit":
                checks.append(key)
            return super().get(key, default)

    gate = Gate()
    async with run_at_work(create_react_agent, gate) as (agent, run):
        config: Any = Config(AT)
        assert await agent.say("and hurry", config) is run
        gate.open.set()
        await run.result()

    assert len(checks) == 1
