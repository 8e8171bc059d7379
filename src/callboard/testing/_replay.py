"""Replay of a recording: recorded replies and results replace models and tools, and the events are compared."""

import math
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot, interrupt
from pydantic import BaseModel

from callboard._calls._call import SupervisedCall, current_call
from callboard._calls._observers import current_run, observe
from callboard._loops._side_tasks import SideTask
from callboard._records._events import CallEvent, RunInfo
from callboard._records._policies import check_path
from callboard.agent._agent import Agent
from callboard.agent._inbox import Letter, person_message
from callboard.agent._run import Run
from callboard.agent._run_events import RunReporter
from callboard.conversations._channels import MESSAGES
from callboard.exceptions import CallCancelledError
from callboard.telemetry._capture import messages_of
from callboard.telemetry._recording._recorder import RecordingWriter
from callboard.telemetry._recording._recordings import read_recording
from callboard.telemetry._recording._timeline import Part, RecordedAttempt, RecordedCall, RecordedRun
from callboard.testing._clock import backend as backend_of
from callboard.testing._clock import set_patience
from callboard.testing._differences import QUICK, ComparisonOptions, Story, differences, is_ended_with_run, report
from callboard.testing._fakes import fake_tools
from callboard.testing._kills import Kill

_TIME_LIMIT = 1e7
"""Virtual seconds after which a replay hangs."""
_PATIENCE = 0.25
"""Real seconds for which the clock does not jump although every task waits: sync hooks work in threads.

It is not unlimited, because tasks may wait for a timer, such as that of a retry.
"""
_HANGS = ("timeout", "deadline", "cancelled")
"""Errors of attempts that were ended from outside: the replayed body waits for its end."""


class ReplayDifferenceError(AssertionError):
    """Raised if an agent behaves differently from its recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a replay: the agent's final state, and the number of events of calls, runs and model requests."""

    state: Any
    """State of the agent at the end of the last run; `None` if that run failed."""
    events: int
    """Number of events of calls, runs and model requests: the largest useful `kill_at`."""


def replay(
    path: str | os.PathLike[str],
    agent: Agent,
    *,
    real: Sequence[str] = (),
    results: bool = False,
    kill_at: int | None = None,
    backend: str = "asyncio",
) -> Replay:
    """Run an agent with the inputs, model replies and tool results of a recording, and compare what the agent does.

    Call it from sync code. The agent's own model, tools and checkpointer are not used; middleware and limits are.
    Hooks around the model of `create_agent` run only if it has a `response_format`. A virtual clock keeps the recorded
    durations, except with `real`.

    Args:
        path: recording with arguments and results: of `callboard run --capture`, or `RecordingWriter(capture=True)`.
        agent: agent as it is now.
        real: names or patterns of tools that run as they are, on the real clock.
        results: whether to compare the results of successful calls, too, which real tools and middleware return.
        kill_at: number of the event at which the process "dies", from 1: the run ends there, and another run goes on
            with what was stored. Then only the promises about kills are checked.
        backend: name of the event loop, as for `backend()`.

    Raises:
        ReplayDifferenceError: with the first differences, expected and got.
        ValueError: if the recording has no arguments and results, is incomplete, or has a cancellation that cannot be
            repeated; if there is no event `kill_at`.
        TypeError: if `agent` is no agent of callboard, or `path` is no path.
    """
    __tracebackhide__ = True  # for pytest
    if not isinstance(agent, Agent):
        raise TypeError(f"replay(agent=...) takes an agent of callboard, got {agent!r}")
    check_path("replay(path=...)", path, "run.jsonl")
    path = Path(path)
    recorded_stories = _read_stories(path)
    player = _Player(recorded_stories, keeps_times=not real)
    name, options = backend_of(backend, real_clock=bool(real))
    with TemporaryDirectory() as folder:
        record = Path(folder) / "replay.jsonl"
        runs = _Runs(agent, player, record, real, kill_at)
        anyio.run(runs.all, backend=name, backend_options=options)
        replayed_stories = [story for part in read_recording(record).parts for story in _stories_of(part)]
    if kill_at is not None and not runs.kill.is_done:
        raise ValueError(
            f"replay(kill_at=...) is the number of an event, from 1 to {runs.kill.events}; got {kill_at!r}"
        )
    comparison = ComparisonOptions(order=not real, results=results)
    texts = runs.kill.violations if kill_at is not None else differences(recorded_stories, replayed_stories, comparison)
    if texts:
        # The errors of the runs are in the text: their frames are those of the replay, and would hide the difference.
        raise ReplayDifferenceError(report(path, texts, runs.errors)) from None
    return Replay(state=runs.state, events=runs.kill.events)


# The recording


def _read_stories(path: Path) -> list[Story]:
    recording = read_recording(path)
    stories: list[Story] = []
    for part in recording.parts:
        if part.runs and not part.captures:
            raise ValueError(
                f"{path} has no arguments, results and replies, which a replay needs: record with "
                "`callboard run --capture`, or RecordingWriter(path, capture=True)"
            )
        stories += _stories_of(part)
    if not any(not story.is_nested for story in stories):
        raise ValueError(f"{path} has no run of an agent")
    for story in stories:
        run = story.run
        if run.end is None:
            raise ValueError(f"{path} ends within a run of the agent {run.agent!r}; a replay needs all of it")
        if any(
            request.reply is None and request.response is None and request.error is None for request in run.requests
        ):
            raise ValueError(
                f"{path} lacks replies of the model, in a run of the agent {run.agent!r}: the recording is by a "
                "version of callboard that did not record replies, or structured responses"
            )
        has_cancelled_part = any(request.error == "cancelled" for request in run.requests) or any(
            is_ended_with_run(call) for call in story.calls
        )
        if run.outcome == "cancelled" and not story.is_nested and not has_cancelled_part:
            raise ValueError(
                f"{path} has a run of the agent {run.agent!r} that was cancelled while it waited for neither its model "
                "nor a call of its own turn, such as for a background call: a replay cannot repeat that"
            )
    return stories


def _stories_of(part: Part) -> list[Story]:
    return [Story(run, [call for call in part.calls if call.run == run.number]) for run in part.runs]


# Replies and results


@dataclass(slots=True)
class _Player:
    """Source of recorded model replies and tool results, which a replay uses in place of the real ones."""

    stories: Sequence[Story]
    keeps_times: bool
    remaining_stories: list[Story] = field(init=False)
    """Recorded runs that no run of the replay has taken yet."""
    story_by_run: dict[int, Story] = field(default_factory=dict[int, Story])
    recording_by_call: dict[int, tuple[RecordedCall, list[RecordedAttempt]]] = field(default_factory=dict[int, Any])
    """Recorded calls with the attempts that have not been replayed, by the number of the replayed call."""
    waiting: int = 0
    """Number of bodies and requests that wait for the end of their recorded duration."""
    people: dict[int, "_People"] = field(default_factory=dict[int, "_People"])
    """Senders of recorded messages to the live runs of the replay, by the number of the run."""
    was_killed: bool = False
    cancel_run: Callable[[], object] = field(default=lambda: None)
    """Function that cancels the run of the replay."""

    def __post_init__(self) -> None:
        self.remaining_stories = list(self.stories)

    def story(self, info: RunInfo | None) -> Story:
        """Return the recorded run that a replayed run repeats: the next one of the same agent, or else of any agent."""
        if info is None:
            raise LookupError("the replay called a tool outside of an agent's run")
        if (story := self.story_by_run.get(info.number)) is not None:
            return story
        candidates = [candidate for candidate in self.remaining_stories if candidate.is_nested == bool(info.namespace)]
        if not candidates:
            raise LookupError(f"the recording has no further run, and the agent {info.agent!r} began one")
        chosen = next((candidate for candidate in candidates if candidate.run.agent == info.agent), candidates[0])
        self.remaining_stories.remove(chosen)
        self.story_by_run[info.number] = chosen
        return chosen

    def discard(self, story: Story) -> None:
        """Remove a recorded run from `remaining_stories`, so that no later run of the replay repeats it."""
        # After a kill at a question, a run may end without a request, and so without a call of `story`.
        self.remaining_stories = [candidate for candidate in self.remaining_stories if candidate is not story]

    async def result(self, **_: object) -> Any:
        """Return or raise the recorded result of a tool call, after its recorded duration."""
        # The fake of every tool.
        call = current_call()
        assert call is not None
        story = self.story(current_run.get())
        if call.number not in self.recording_by_call:
            # After a kill, a question may be answered in an earlier run than in the recording; the last run has its
            # result.
            call_id = call.call.get("id")
            if self.was_killed and not story.has_call(call_id):
                story = next((later for later in reversed(self.stories) if later.has_call(call_id)), story)
            if story.is_cut_off and not story.has_call(call_id):  # it did not begin before the run was ended
                await self._wait_for_end_of_run(story)
            recorded = story.take(call_id)
            self.recording_by_call[call.number] = (recorded, list(recorded.attempts))
        recorded, attempts = self.recording_by_call[call.number]
        attempt = attempts.pop(0) if attempts else None
        if recorded.outcome == "cancelled" and not attempts and (attempt is None or attempt.error == "cancelled"):
            await self._end_cancelled(call, story, recorded, attempt)
        if attempt is not None and attempt.end is not None and self.keeps_times:
            # Its own duration, and not its recorded end: it may get the permit of a limit earlier than in the
            # recording. An attempt that was ended from outside waits longer, and not forever: the timeout may be gone.
            seconds = attempt.end - attempt.start
            await self._sleep(2 * seconds + 1 if attempt.error in _HANGS else seconds)
        if attempt is None or attempt.error is None:
            return _read_result(recorded)
        if recorded.outcome == "interrupted" and attempt.error.endswith("GraphInterrupt"):
            # The recording has no questions. The answers are in the result of the recorded call that was resumed last.
            while True:
                interrupt(f"question of {recorded.tool} in the recording")  # raises behind the last answer
        raise _make_error(attempt.error)

    async def _end_cancelled(
        self, call: SupervisedCall[Any], story: Story, recorded: RecordedCall, attempt: RecordedAttempt | None
    ) -> None:
        """End a call, or its run, where the recorded call was cancelled."""
        period = recorded if attempt is None else attempt
        if self.keeps_times and period.end is not None:
            await self._sleep(period.end - period.start)
        if recorded.cancelled_by == "tool":
            raise CallCancelledError(recorded.tool, recorded.id)
        if (reason := _reason_of_cancel(recorded)) is not None:
            call.cancel(reason, call.loop.wakeup())
        elif story.run.outcome == "cancelled" and not story.is_nested:
            self.cancel_run()
        await self._wait_for_end_of_run(story)
        raise LookupError(
            f"the recorded call {recorded.id!r} was cancelled with its run or by a drain, and the replay goes on"
        )

    async def _wait_for_end_of_run(self, story: Story) -> None:
        """Wait until the error of another call ends the run; not for ever: today's agent may go on."""
        await self._sleep(2 * ((story.run.end or 0.0) - story.run.start) + 1)

    def on_call(self, event: CallEvent) -> None:
        """Cancel a call that begins, or its run, if the recorded call was cancelled before its first attempt."""
        call = current_call()
        if event.phase != "begun" or event.run is None or call is None:
            return
        story = self.story(event.run)
        recorded = story.next_call(event.call_id)
        if recorded is None or recorded.attempts or recorded.outcome != "cancelled":
            return
        if (reason := _reason_of_cancel(recorded)) is not None:
            story.take(event.call_id)
            call.cancel(reason, call.loop.wakeup())
        elif story.run.outcome == "cancelled" and not any(other.attempts for other in story.calls):
            self.cancel_run()

    async def _sleep(self, seconds: float) -> None:
        """Sleep for a recorded duration; on the virtual clock, this takes no real time."""
        self.waiting += 1
        set_patience(0.0)
        try:
            await anyio.sleep(seconds)
        finally:
            self.waiting -= 1
            if not self.waiting:
                set_patience(_PATIENCE)

    async def reply(self, prompt: object, response_format: Any) -> Any:
        """Return the recorded reply to the next model request of the current run, or raise the recorded error."""
        story = self.story(current_run.get())
        try:
            index, request = story.next_request(messages_of(prompt))
        except LookupError:
            if not self.was_killed:
                raise
            return AIMessage("")  # to a message about a call whose outcome the kill has made unknown
        if self.keeps_times and request.end is not None:
            await self._sleep(request.end - request.start)
        if request.error is not None:
            if request.error == "cancelled" and story.run.outcome == "cancelled" and not story.is_nested:
                self.cancel_run()
                await self._wait_for_end_of_run(story)
            raise _make_error(request.error)
        info = current_run.get()
        if info is not None and (people := self.people.get(info.number)) is not None:
            await people.speak(index + 1)
        if request.response is not None:
            # As LangChain makes it: an instance of a pydantic class, or a dict.
            schema = response_format[1] if isinstance(response_format, tuple) else response_format
            is_class = isinstance(schema, type) and issubclass(schema, BaseModel)
            return schema.model_validate(request.response) if is_class else request.response
        (message,) = convert_to_messages([{**request.reply, "id": story.reply_id(index)}])
        reply = cast("AIMessage", message)
        if request.input_tokens is not None or request.output_tokens is not None:
            input_count, output_count = request.input_tokens or 0, request.output_tokens or 0
            reply.usage_metadata = {
                "input_tokens": input_count,
                "output_tokens": output_count,
                "total_tokens": input_count + output_count,
            }
        return reply

    async def output(
        self, prompt: object, request_model: Callable[[], Awaitable[Any]], is_node: bool, form: Any
    ) -> Any:
        """Return a recorded reply in the form that the agent expects: the reply itself, or a model node's output."""
        reply = await self.reply(prompt, form)
        if not is_node:
            return reply
        if form is None:
            return {"messages": [reply]}
        # LangChain's node makes the structured response of the reply, or answers a reply that does not fit the schema.
        token = _reply.set(reply)
        try:
            return await request_model()
        finally:
            _reply.reset(token)

    def start_again(self, stories: Sequence[Story]) -> None:
        """After a kill, replay the recorded runs `stories` from their beginnings."""
        self.was_killed = True
        self.remaining_stories = list(stories)
        for story in stories:
            story.start_again()

    async def go(self, run: Run, go: Callable[[], Awaitable[Any]]) -> Any:
        """Run the steps of an agent, and send the messages to it that people sent to the recorded run."""
        info = current_run.get()
        is_recorded = any(not story.is_nested for story in self.remaining_stories)
        if run.context.inbox is None or info is None or not is_recorded:
            return await go()
        story = self.story(info)
        later_messages, receive = anyio.create_memory_object_stream[tuple[float, HumanMessage]](math.inf)
        self.people[info.number] = people = _People(run, story, self.delays_of(story), later_messages)
        with later_messages, receive:
            async with SideTask(partial(people.speak_later, receive)):
                await people.speak(story.answered_requests(run.thread.state.get(MESSAGES) or []))
                return await go()

    def delays_of(self, story: Story) -> Mapping[float, float]:
        """Return the times of messages that a recorded run read while it waited for background calls.

        The values are the seconds since the last reply. The replay waits as long, so that it reads the results of the
        background calls in the same order.
        """
        background_calls = [
            call
            for other in self.stories
            if other.run.thread == story.run.thread
            for call in other.calls
            if any(note.kind == "backgrounded" for note in call.notes)
        ]
        delays: dict[float, float] = {}
        for message in story.run.messages if self.keeps_times else ():
            reply_time = story.run.requests[message.requests - 1].end if message.requests else None
            is_open = any(call.start < message.time < (call.end or math.inf) for call in background_calls)
            if message.point == "end" and reply_time is not None and is_open and message.time - reply_time > QUICK:
                delays[message.time] = message.time - reply_time
        return delays

    @contextmanager
    def replies(self) -> Generator[None]:
        """Replace the requests of all agents to their models by recorded replies, inside the `with` block."""
        original_ask, original_ainvoke, original_go = RunReporter.ask, BaseChatModel.ainvoke, Run.go

        async def go(run: Run, config: RunnableConfig) -> Any:
            return await self.go(run, partial(original_go, run, config))

        async def ask(
            reporter: Any, model: Any, prompt: Any, real: Any, reply_in: Any = None, *, response_format: Any = None
        ) -> Any:
            recorded = partial(self.output, prompt, real, reply_in is not None, response_format)
            return await original_ask(reporter, model, prompt, recorded, reply_in)

        async def ainvoke(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
            reply = _reply.get()
            return await original_ainvoke(model, *args, **kwargs) if reply is None else reply

        with (
            patch.object(Run, "go", go),
            patch.object(RunReporter, "ask", ask),
            patch.object(BaseChatModel, "ainvoke", ainvoke),
        ):
            yield


class _People:
    """Sender of the recorded messages of people to one run of the replay."""

    def __init__(
        self,
        run: Run,
        story: Story,
        delays: Mapping[float, float],
        later_messages: MemoryObjectSendStream[tuple[float, HumanMessage]],
    ) -> None:
        self._run = run
        self._story = story
        self._delays = delays
        self._later_messages = later_messages

    async def speak(self, requests: int) -> None:
        """Send the messages that the recorded run read after this number of model requests.

        They are stored when this returns, except those for which the run has to wait.
        """
        inbox = self._run.context.inbox
        assert inbox is not None
        # After a kill, some may be said again: a message replaces the earlier one with its id.
        for read in self._story.messages_of_people(requests):
            message = person_message(read.message)
            if (delay := self._delays.get(read.time)) is not None:
                self._later_messages.send_nowait((anyio.current_time() + delay, message))
            elif inbox.put(letter := Letter(message)):
                await letter.wait()

    async def speak_later(self, messages: MemoryObjectReceiveStream[tuple[float, HumanMessage]]) -> None:
        """Send messages, each at its time on the clock of the event loop."""
        inbox = self._run.context.inbox
        assert inbox is not None
        async for time, message in messages:
            await anyio.sleep_until(time)
            inbox.put(Letter(message))


_reply: ContextVar[AIMessage | None] = ContextVar("callboard_recorded_reply", default=None)
"""Recorded reply that chat models return inside of LangChain's node; `None` outside of it."""


def _reason_of_cancel(call: RecordedCall) -> str | None:
    """Return the reason with which the application cancelled a call alone; `None` if it did not."""
    if call.cancelled_by == "application":
        return call.reason or ""
    # An older recording does not tell who cancelled: the model read a message about a call that was cancelled alone.
    return "" if call.cancelled_by is None and call.result is not None else None


def _read_result(call: RecordedCall) -> Any:
    result = call.result
    if isinstance(result, dict) or (
        isinstance(result, list) and any(isinstance(part, dict) and "goto" in part for part in result)
    ):
        raise ValueError(
            f"the recorded call {call.id!r} of {call.tool!r} returned a Command, of which a recording has no complete "
            f"copy; let the tool run: real=[{call.tool!r}]"
        )
    return "" if result is None else result


def _make_error(name: str) -> Exception:
    """Return an error of the class `name`; if no imported module has it, of a new class with the same name."""
    module, _, kind = name.rpartition(".")
    try:
        # Never imported: somebody else may have made the recording, and an import runs the code of the module. Code
        # that handles errors of this class has imported its module.
        error_class: Any = getattr(sys.modules[module or "builtins"], kind)
        return error_class("recorded") if issubclass(error_class, Exception) else RuntimeError(name)
    except Exception:  # no such class, or its constructor takes other arguments
        stand_in: type[Exception] = type(kind, (Exception,), {"__module__": module or "builtins"})
        return stand_in("recorded")


# The runs


def _input_of(run: RecordedRun) -> Any:
    """Return the input of a recorded run, after the messages that an earlier run had received and left unread."""
    unread_messages = [read.message for read in run.messages if read.point == "input" and read.background is None]
    if not unread_messages or not isinstance(run.input, dict):
        return run.input
    messages = run.input.get(MESSAGES, [])
    return {**run.input, MESSAGES: [*unread_messages, *(messages if isinstance(messages, list) else [messages])]}


class _Runs:
    """Runs of the agent with the inputs of a recording, one after the other."""

    def __init__(
        self, agent: Agent, player: _Player, record: Path, real_tools: Sequence[str], kill_at: int | None
    ) -> None:
        self._agent = agent
        self._player = player
        self._record = record
        self._real_tools = real_tools
        self.kill = Kill(kill_at)
        self.state: Any = None
        self.errors: list[Exception] = []
        self._questions: dict[str, str] = {}
        """Ids of the recorded questions, each with the id of the same question in the replay."""

    async def all(self) -> None:
        """Run the agent with each recorded input."""
        async with AsyncExitStack() as stack:
            stack.enter_context(fake_tools({"*": self._player.result}, real=self._real_tools))
            stack.enter_context(self._player.replies())
            if not self._real_tools:
                set_patience(_PATIENCE)
            clock = anyio.current_time
            stack.enter_context(RecordingWriter(self._record, capture=True, redact=False, clock=clock))
            stack.enter_context(observe(self.kill.on_event, runs=self.kill.on_event))
            stack.enter_context(observe(self._player.on_call))
            if self._real_tools and self.kill.event_number is None:
                # Real actors keep their state between runs, unless they are killed.
                await stack.enter_async_context(self._agent)
            for number, story in enumerate(self._player.stories):
                answers = story.run.command is not None and story.run.command.get("resume") is not None
                # Because of a kill, the replay may never have asked the question.
                is_lost = self._player.was_killed and answers and "__interrupt__" not in (self.state or {})
                if not story.is_nested and not is_lost:
                    await self._run(story.run, f"replay {number}")
                    self._player.discard(story)

    async def _run(self, run: RecordedRun, default_thread: str) -> None:
        config: RunnableConfig = {"configurable": {"thread_id": run.thread or default_thread}}
        run_input = _input_of(run) if run.command is None else self._command(run.command)
        self.state = None
        remaining_stories = list(self._player.remaining_stories)
        state: Any = None

        def choose_input(stored: StateSnapshot) -> Any:
            self._player.start_again(remaining_stories)
            if run.command is not None and stored.interrupts:  # the person is asked again
                self.state = {"__interrupt__": stored.interrupts}
                return self._command(run.command)
            return None if stored.next else run_input

        try:
            with (
                anyio.fail_after(None if self._real_tools else _TIME_LIMIT),
                anyio.CancelScope() as scope,
            ):
                self._player.cancel_run = scope.cancel
                state = await self.kill.run(self._agent, run_input, config, choose_input)
        except Exception as error:
            self.errors.append(error)
        self.state = state
        if len(run.question_ids) == len(open_questions := self._open_questions()):
            self._questions |= zip(run.question_ids, open_questions, strict=True)
        if self.kill.event_number is None:
            return
        if self.state is not None:
            self.kill.check(self.state)
        elif run.outcome in ("ok", "interrupted"):
            self.kill.violations.append("the run failed")

    def _open_questions(self) -> list[str]:
        return [question.id for question in (self.state or {}).get("__interrupt__", ())]

    def _command(self, command: Mapping[str, Any]) -> Command[Any]:
        """Return the recorded command, with the ids of recorded questions replaced by those of the open questions."""
        resume = command.get("resume")
        open_questions = self._open_questions()
        if isinstance(resume, dict) and self._questions.keys() >= resume.keys():
            # After a kill, an answered question may no longer be open.
            answers = {self._questions[recorded]: answer for recorded, answer in resume.items()}
            resume = {question: answers[question] for question in open_questions if question in answers}
        elif isinstance(resume, dict) and all(len(key) == 32 for key in resume):
            # An older recording has no ids of questions; a kill may have left only some of the recorded questions.
            is_fitting = self._player.was_killed or len(resume) == len(open_questions)
            resume = dict(zip(open_questions, resume.values(), strict=False)) if is_fitting else resume
        return Command(resume=resume, update=command.get("update"), goto=command.get("goto", ()))
