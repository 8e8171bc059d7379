"""Command `callboard run`: send a message to an agent, show its calls, and ask its questions."""

import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from anyio.from_thread import BlockingPortal, start_blocking_portal
from langgraph.errors import is_invalid_resume
from langgraph.types import Command
from pydantic import ValidationError
from rich.console import Console

from callboard import Agent
from callboard._cli._ask import Asker, line_reader
from callboard._cli._command_options import RunOptions
from callboard._cli._database_option import open_database
from callboard._cli._load import AnyAgent, load_agent, print_traceback
from callboard._cli._questions import accepted, in_short
from callboard._cli._recording import Recording, recorded
from callboard._cli._shown_text import (
    CommandError,
    as_json,
    as_text,
    call_text,
    count,
    error_text,
    named,
    one_line,
    printable,
)
from callboard._cli._signals import Stopped, stoppable, wait_for
from callboard._cli._turn import Conversation, RunResult, Standing, open_calls
from callboard._cli._view import QuietlyClosedConsole
from callboard.threads import masked

DONE, FAILED, WAITING = 0, 1, 3

_LONG = 1000
"""Limit of a waiting question or call, in characters; long, because a person must read it to decide."""


def run_agent(options: RunOptions) -> int:
    """Run an agent and return the exit code; raise `CommandError` for an invalid command line."""
    _check(options)
    thread_id = options.thread or uuid4().hex[:12]
    wanted = Recording(wanted=options.record, folder=options.record_to, capture=options.capture)
    path = wanted.path(options.db, thread_id)
    console = open_console(stderr=options.as_json)
    try:
        with stoppable(), ExitStack() as stack:
            threads = stack.enter_context(open_database(options.db, must_exist=options.resume)) if options.db else None
            # The event loop runs in a thread of its own, so that the main thread can read the terminal and get signals.
            portal = stack.enter_context(start_blocking_portal(options.backend.value))
            agent = _agent(options, portal, stack)
            saver = None if threads is None else threads.saver_for(agent)
            recording = partial(recorded, path, capture=options.capture)
            conversation = Conversation(agent, saver, thread_id, console, live=options.live, recording=recording)
            if path is not None and not conversation.is_kept:  # otherwise the printed thread name leads to the file
                console.print(f"recording to {printable(str(path))}", style="dim", soft_wrap=True)
            return _Session(options, portal, conversation, thread_id, console).play()
    except Stopped as stopped:
        return stopped.exit_code


def _agent(options: RunOptions, portal: BlockingPortal, stack: ExitStack) -> AnyAgent:
    def enter(opened: AbstractAsyncContextManager[Any]) -> Any:
        return stack.enter_context(portal.wrap_async_context_manager(opened))

    agent = load_agent(options.agent, options.app_dir, portal.call, enter)
    if options.backend == "trio" and not isinstance(agent, Agent):
        raise CommandError(f"{options.agent} is a graph of LangGraph's, which runs on asyncio only")
    return agent


def _check(options: RunOptions) -> None:
    if options.message is None and not options.resume:
        raise CommandError("say something to the agent, or --resume a thread: callboard run module:agent 'message'")
    if options.message is not None and options.resume:
        raise CommandError(
            "a message or --resume, not both; a message starts a new turn, also where questions are open"
        )
    if options.resume and options.thread is None:
        raise CommandError("--resume needs --thread; callboard threads lists those of a database")


def open_console(*, stderr: bool = False) -> Console:
    """Return a console without markup, for a stream of any encoding."""
    stream: Any = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    console = QuietlyClosedConsole(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal:  # a file or a pipe gets whole lines
        console.soft_wrap = True
        console.width = _LONG
    return console


class _Session:
    """Dialogue from one message to its answer, with any number of questions in between."""

    def __init__(
        self, options: RunOptions, portal: BlockingPortal, conversation: Conversation, thread_id: str, console: Console
    ) -> None:
        self._options = options
        self._portal = portal
        self._conversation = conversation
        self._thread_id = thread_id
        self._console = console
        self._has_person = sys.stdin.isatty() and console.is_terminal
        self._asker = Asker(console, line_reader(console))

    def play(self) -> int:
        """Run the agent and ask its questions in turn, until the turn is complete; return the exit code."""
        before = self._wait(self._conversation.standing)
        if self._conversation.is_kept:
            self._say(f"thread {named(self._thread_id)}")
        try:
            if self._options.resume:
                return self._resume(before)
            if before.questions:
                self._say(f"{count(len(before.questions), 'question')} left unanswered: the message takes their place")
            return self._run({"messages": [("user", self._options.message)]})
        except Stopped:
            self._say_how_to_go_on("Stopped")
            raise

    def _resume(self, standing: Standing) -> int:
        if not standing.exists:
            raise CommandError(
                f"there is no thread {self._thread_id!r} to resume; callboard threads lists those there are"
            )
        if not standing.questions and not standing.next:
            self._say("nothing to resume: the last turn is complete")
            return self._finished(standing, DONE)
        if standing.questions:
            return self._go_on(standing)
        return self._run(None)

    def _run(self, given: Any) -> int:
        outcome = self._wait(partial(self._conversation.run, given))
        if outcome.failure is not None:
            return self._failed(outcome, outcome.failure)
        return self._go_on(outcome.standing)

    def _go_on(self, standing: Standing) -> int:
        """Get answers and continue the run; finish at the end of a turn, or without answers."""
        if not standing.questions and not standing.next:
            return self._finished(standing, DONE)
        try:
            given = self._answered(standing) if standing.questions else self._approved(standing)
        except EOFError:
            given = None
            self._console.print()
        if given is None:
            self._say_questions(standing)
            self._say_how_to_go_on("Waiting for a person")
            return self._finished(standing, WAITING)
        return self._run(given.value)

    def _answered(self, standing: Standing) -> "_Given | None":
        """Return the answers to the open questions; `None` without any answer."""
        answers: dict[str, Any] = {}
        if self._options.yes:
            found = {question.id: accepted(question) for question in standing.questions}
            answers = {name: answer for name, answer in found.items() if answer is not None}
        left = [question for question in standing.questions if question.id not in answers]
        if left and self._has_person:
            answers |= self._asker.ask(left)
        return _Given(Command(resume=answers)) if answers else None

    def _approved(self, standing: Standing) -> "_Given | None":
        """Ask whether to continue at a breakpoint; return `None` for no."""
        what = f"Stopped before {', '.join(standing.next)}. Go on?"
        for call in open_calls(standing.values):
            self._say(f"call    {call_text(call['name'], call['args'], _LONG)}")
        if self._options.yes or (self._has_person and self._asker.confirm(what)):
            return _Given(None)
        return None

    def _failed(self, outcome: RunResult, error: Exception) -> int:
        if self._has_person and isinstance(error, ValidationError) and is_invalid_resume(error):
            self._console.print(f"That answer was refused: {printable(str(error))}", style="red")
            return self._go_on(outcome.standing)
        if self._options.traceback:
            print_traceback(error)
        print(f"Error: the run failed: {error_text(error)}", file=sys.stderr)
        self._say_how_to_go_on("Failed")
        return FAILED

    def _finished(self, standing: Standing, code: int) -> int:
        values = standing.values
        if self._options.as_json:
            print(as_json(self._as_json(standing), indent=2))
        elif isinstance(values, Mapping) and code == DONE and values.get("structured_response") is not None:
            self._console.print(as_text(values["structured_response"]))
        return code

    def _as_json(self, standing: Standing) -> Any:
        questions = [{"id": question.id, "value": question.value} for question in standing.questions]
        thread = self._thread_id if self._conversation.is_kept else None
        return {"thread": thread, "state": standing.values, "next": standing.next, "questions": questions}

    def _say_questions(self, standing: Standing) -> None:
        for question in standing.questions:
            self._console.print(f"waits   {one_line(in_short(question.value), _LONG)}", soft_wrap=True)

    def _say_how_to_go_on(self, why: str) -> None:
        if not self._conversation.is_kept:
            self._say(f"{why}. Nothing is kept without a database: give --db next time.")
            return
        options = self._options
        words = ["callboard", "run", options.agent, "--thread", self._thread_id, "--resume"]
        words += ["--db", masked(options.db)] if options.db else []
        words += ["--app-dir", str(options.app_dir)] if options.app_dir != Path() else []
        self._say(f"{why}. To go on: {shlex.join(words)}")

    def _say(self, text: str) -> None:
        self._console.print(printable(text), style="dim", soft_wrap=True)

    def _wait(self, task: Callable[[], Awaitable[Any]]) -> Any:
        return wait_for(self._portal, task, self._conversation.cancel, self._say)


@dataclass(frozen=True, slots=True)
class _Given:
    """Input of the next run. Wrapped, because the input itself may be `None`."""

    value: Any
