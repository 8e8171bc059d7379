"""Command `callboard run`: sends a message to an agent, shows its calls, and asks the user the agent's questions."""

import copy
import importlib.util
import inspect
import json
import shlex
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    aclosing,
    contextmanager,
    nullcontext,
)
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import anyio
from anyio import CancelScope
from anyio.from_thread import BlockingPortal, start_blocking_portal
from langchain_core.messages import BaseMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import is_invalid_resume
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot
from pydantic import ValidationError
from rich.console import Console

from callboard import Agent, IdleMiddlewareWarning, commands, observe
from callboard._cli._command_options import RunOptions
from callboard._cli._grid import call_label
from callboard._cli._keyboard import Keyboard, open_keyboard
from callboard._cli._screen import Calls, Screen
from callboard._cli._shown_text import (
    CommandError,
    as_json,
    as_text,
    count,
    error_text,
    escape_name,
    one_line,
    print_json,
)
from callboard._cli._signals import Stopped, interruptible_input, stoppable, wait_for
from callboard._cli._storage import open_database, record_calls, recording_path
from callboard._cli._typed_lines import STOP, Line, TypedLines
from callboard._cli._view import open_console, supports_pictures
from callboard._cli._web import WebPage, web_page
from callboard.commands import NotThereError, load_named
from callboard.questions import Action, Answer, Word, approval_in, free_answer, printable
from callboard.threads import masked, unanswered_calls

# Loading of the agent that `MODULE:AGENT` names.

AnyAgent = Agent | Pregel[Any, Any, Any, Any]
"""Agent of callboard, or compiled graph of LangGraph. Both types have the same methods to stream and to resume runs."""


def load_agent(name: str, app_dir: Path, portal: BlockingPortal, stack: ExitStack) -> AnyAgent:
    """Return the agent with the name `module:name`; raise `CommandError` if this fails."""
    # The name may be a function: it returns the agent, or a context manager that stays open until `stack` is closed.
    try:
        with warnings.catch_warnings():
            # Irrelevant: `callboard run` sets a checkpointer itself, for questions to be stored or asked.
            warnings.filterwarnings(
                "ignore", ".* asks a person, and this agent has no checkpointer", IdleMiddlewareWarning
            )
            return _load(name, app_dir, portal, stack)
    except CommandError:
        raise
    except Exception as error:
        print_traceback(error)  # an error in the user's code: they need its traceback
        raise CommandError(f"{name} could not be made: {error_text(error)}") from error


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error to stderr, without the first frames, which are callboard's and importlib's."""
    summary = traceback.TracebackException.from_exception(error)
    skipped_files = (str(Path(__file__).parent), str(commands.__file__))
    while summary.stack and (
        summary.stack[0].filename.startswith(skipped_files) or "importlib" in summary.stack[0].filename
    ):
        summary.stack.pop(0)
    print("".join(summary.format()), file=sys.stderr, end="")


def _load(name: str, app_dir: Path, portal: BlockingPortal, stack: ExitStack) -> AnyAgent:
    try:
        module, value = load_named(name, app_dir, example="agent")
    except NotThereError as error:
        raise CommandError(f"{error}; {_offers(error.module)}" if error.module else f"{error}") from None
    if value is module:
        raise CommandError(f"which agent of {module.__name__}? Write {module.__name__}:NAME; {_offers(module)}")
    agent = value
    if callable(value) and not inspect.isclass(value) and not isinstance(value, Agent | Pregel | StateGraph):
        if needed := _parameters(value):
            raise CommandError(
                f"{name} is a function that needs {', '.join(needed)}; callboard calls it without arguments"
            )
        result: Any = value()
        agent = portal.call(lambda: result) if inspect.isawaitable(result) else result
    if isinstance(agent, AbstractAsyncContextManager) and not isinstance(agent, Agent) and agent is not value:
        agent = stack.enter_context(_open_agent(name, portal.wrap_async_context_manager(agent)))
    if isinstance(agent, Agent | Pregel):
        return agent
    if isinstance(agent, StateGraph):
        raise CommandError(f"{name} is a graph that is not compiled: call its compile()")
    kind = agent.__name__ if inspect.isclass(agent) else type(agent).__name__
    raise CommandError(f"{name} is no agent, but {kind}; {_offers(module)}")


@contextmanager
def _open_agent(name: str, opener: AbstractContextManager[Any]) -> Generator[Any]:
    """Open the agent of a user's context manager; raise `CommandError` if the agent cannot be closed."""
    agent = opener.__enter__()
    try:
        yield agent
    except BaseException as error:
        if not opener.__exit__(type(error), error, error.__traceback__):
            raise
        return
    try:
        opener.__exit__(None, None, None)
    except Exception as error:
        print_traceback(error)
        raise CommandError(f"{name} could not be closed: {error_text(error)}") from error


def _offers(module: ModuleType) -> str:
    """Return a text that lists the agents of a module, and the module's functions that need no arguments."""
    # If there are none, the text lists all public names.
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    agents = [name for name, value in public.items() if isinstance(value, Agent | Pregel)]
    makers = [
        name
        for name, value in public.items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not _parameters(value)
    ]
    if not (agents or makers):
        return f"it has {', '.join(sorted(public)) or 'nothing'}"
    name_groups = [("agents", agents), ("functions without parameters", makers)]
    return "it has " + ", and ".join(f"the {kind} {', '.join(names)}" for kind, names in name_groups if names)


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters that have no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [param.name for param in parameters if param.default is param.empty and param.kind not in optional]


# Questions of a run: short texts, and the accepting answer.

_LONGEST_ACTION = 500
"""Maximum length of the text of one action in a question, in characters."""

_NO_REASON = "Tool execution requires approval"
"""Default description of a request for approval, in callboard and in LangChain; it is not printed."""


def accept_all(question: Interrupt) -> Any:
    """Return the answer that accepts all actions of a question; `None` if the question does not allow this answer."""
    approval = approval_in(question)
    if approval is None or any("accept" not in action.allowed for action in approval.actions):
        return None
    yes: Answer = ("accept", None)
    return approval.encode([yes] * len(approval.actions))


def describe_question(value: object) -> str:
    """Return an agent's question as short text: the actions to approve, with reasons, or else the question's value."""
    approval = approval_in(value)
    if approval is None:
        return as_text(value)
    actions = ", ".join(call_label(action.name, action.args, _LONGEST_ACTION) for action in approval.actions)
    reasons = dict.fromkeys(action.description.partition("\n")[0] for action in approval.actions if action.description)
    return " ".join([f"approve {actions}", *(f"({reason})" for reason in reasons if reason != _NO_REASON)])


# Questions of a run: the dialogue.

ReadLine = Callable[[str, str], str]
"""Function that prints a prompt and returns the line that the user enters.

Its parameters are the prompt and an initial text to edit. It raises EOFError at the end of input.
"""

_WHAT_FOR: Mapping[Word, str] = {
    "accept": "run it as it is",
    "edit": "run it with other arguments",
    "respond": "do not run it; your text is its result",
    "ignore": "do not run it",
}


def line_reader(console: Console) -> ReadLine:
    """Return a function that prints a prompt to the console and reads a line from the terminal."""

    def read(prompt: str, start: str) -> str:
        if not (sys.stdout.isatty() and console.file is sys.stdout):
            console.print(prompt, end="")
            with interruptible_input():
                text = sys.stdin.readline()
            if not text:
                raise EOFError
            return text.rstrip("\n")
        with _prefilled_line(start), interruptible_input():
            return input(prompt)

    return read


@contextmanager
def _prefilled_line(start: str) -> Generator[None]:
    """Let the lines that `input` reads in the `with` block start with a text, if the system has readline."""
    if sys.platform != "win32" and importlib.util.find_spec("readline") is not None:
        import readline

        # A C function, and no Python code: readline would drop an exception that a signal handler raises in it.
        readline.set_startup_hook(partial(readline.insert_text, start))
        try:
            yield
        finally:
            readline.set_startup_hook()
    else:
        yield


class Asker:
    """Terminal dialogue that asks the user the questions of a run, one after the other."""

    def __init__(self, console: Console, read: ReadLine) -> None:
        self._console = console
        self._read = read

    def ask(self, questions: Sequence[Interrupt]) -> dict[str, Any]:
        """Ask all questions, and return the answers by question id; raise EOFError at the end of input."""
        answers: dict[str, Any] = {}
        for number, question in enumerate(questions, start=1):
            self._console.print()
            if len(questions) > 1:
                self._console.print(f"Question {number} of {len(questions)}", style="bold")
            approval = approval_in(question)
            if approval is None or any(not action.allowed for action in approval.actions):
                self._console.print(as_text(question.value))
                answers[question.id] = free_answer(self._text("answer (JSON, or text): "), question)
            else:
                answers[question.id] = approval.encode([self._ask_action(action) for action in approval.actions])
        return answers

    def confirm(self, question: str) -> bool:
        """Ask a yes/no question, and return whether the answer is yes; raise EOFError at the end of input."""
        self._console.print()
        while True:
            answer = self._read(f"{question} [yes/no] ", "").strip().lower()
            if answer and answer in ("yes"[: len(answer)], "no"[: len(answer)]):
                return answer[0] == "y"

    def _ask_action(self, action: Action) -> Answer:
        show(self._console, action)
        for word in action.allowed:
            self._console.print(f"  {word:<8}{_WHAT_FOR[word]}", style="dim")
        while True:
            word = self._choose_word(action.allowed)
            if word == "edit":
                if (args := self._edit_arguments(action.args)) is not None:
                    return word, args
            elif word == "respond":
                return word, self._text("text: ")
            elif word == "ignore":
                return word, self._read("reason (or nothing): ", "").strip() or None
            else:
                return word, None

    def _choose_word(self, allowed: Sequence[Word]) -> Word:
        while True:
            answer = self._read(f"{'/'.join(allowed)}? ", "").strip().lower()
            for word in allowed:
                if answer and word.startswith(answer):
                    return word
            self._console.print(f"Answer with {' or '.join(allowed)}; the first letter will do.")

    def _text(self, prompt: str) -> str:
        while not (text := self._read(prompt, "").strip()):
            pass
        return text

    def _edit_arguments(self, args: Mapping[str, Any]) -> dict[str, Any] | None:
        """Ask the user to edit the arguments of an action, and return the edited arguments."""
        # Returns `None` for an empty line, with which the user goes back to the choice of an answer.
        start = printable(as_json(args))
        while text := self._read("arguments (nothing: go back): ", start).strip():
            try:
                edited = json.loads(text)
            except ValueError as error:
                self._console.print(f"That is no JSON: {error}")
                start = text
                continue
            if isinstance(edited, dict):
                return edited
            self._console.print('The arguments are a JSON object, such as {"path": "a.txt"}.')
            start = text
        return None


def show(console: Console, action: Action) -> None:
    """Print an action with all of its arguments in full, because a person must see everything that they approve."""
    console.print(escape_name(action.name), style="bold")
    if action.description:
        console.print(printable(action.description.strip()), style="dim")
    console.print(as_text(dict(action.args)))


# Runs of an agent in one thread of conversation. Used inside the event loop.

_MODES = ["messages", "updates"]


class ThreadRunner:
    """Runner of an agent in one conversation (thread); shows the output of each run."""

    def __init__(
        self,
        agent: AnyAgent,
        saver: Any,
        thread_id: str,
        console: Console,
        *,
        live: bool = False,
        recording: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        own_checkpointer = agent.checkpointer if isinstance(agent.checkpointer, BaseCheckpointSaver) else None
        checkpointer = saver or own_checkpointer
        self.is_stored = saver is not None or not isinstance(own_checkpointer, InMemorySaver | None)
        self._agent = copy.copy(agent)
        # Questions need a checkpointer even if nothing is stored. With pickle: the state may have values of any type.
        self._agent.checkpointer = checkpointer or InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
        self._config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        self._console = console
        self._live = live
        self._recording = recording
        self._scope: CancelScope | None = None
        self._cancelled = False

    async def snapshot(self) -> StateSnapshot:
        """Return the current state of the conversation; each question is listed once, even if several tasks ask it."""
        state: StateSnapshot = await self._agent.aget_state(self._config)
        return state._replace(interrupts=tuple({question.id: question for question in state.interrupts}.values()))

    @property
    def takes_lines(self) -> bool:
        """`True` if a person can write to a run while it works, which runs of LangGraph's graphs cannot."""
        return isinstance(self._agent, Agent)

    async def run(
        self, update: Any, lines: deque[Line] | None = None, typed_text: Callable[[], str] | None = None
    ) -> tuple[StateSnapshot, Exception | None]:
        """Run the agent until it stops, and show its output; return the new state and the error of the run, if any.

        Args:
            update: input of the run.
            lines: messages to the run and commands, to which other threads append; `None` if nobody can write.
            typed_text: function that returns the unfinished line of a person at the terminal.
        """
        before = await self.snapshot()
        calls = Calls(self._agent.tools.tools_by_name if isinstance(self._agent, Agent) else ())
        calls.add_reply(open_calls(before.values))
        shown_ids = [message.id for message in _messages(before.values)]
        screen = Screen(self._console, calls, shown_ids, live=self._live, typed_text=typed_text)
        self._scope = CancelScope()
        if self._cancelled:  # the signal came before the run had a scope
            self._scope.cancel()
        failure: Exception | None = None
        with self._recording():
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(screen.keep_up)
                failure = await self._run_in_scope(self._scope, update, calls, screen, lines)
                watchers.cancel_scope.cancel()
        return await self.snapshot(), failure

    async def _run_in_scope(
        self, scope: CancelScope, update: Any, calls: Calls, screen: Screen, lines: deque[Line] | None
    ) -> Exception | None:
        """Run the agent in a scope, with a handler for lines beside it; return the error of the run, if any."""
        failure: Exception | None = None
        async with anyio.create_task_group() as handlers:
            typed_lines: TypedLines | None = None
            if lines is not None and isinstance(self._agent, Agent):
                typed_lines = TypedLines(self._agent, self._config, screen)
                handlers.start_soon(typed_lines.handle, lines)
            with scope:
                try:
                    await self._show(update, calls, screen)
                except Exception as error:
                    failure = error  # returned below: the task group would wrap it in a group
            if typed_lines is not None:
                typed_lines.end()
        return failure

    def cancel(self) -> None:
        """Cancel the current run, and each later run as soon as it starts. Running calls get their time to clean up."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def _show(self, update: Any, calls: Calls, screen: Screen) -> None:
        agent: Any = self._agent
        stream = agent.astream(update, self._config, stream_mode=_MODES)
        with observe(calls.counts, actors=calls.counts.actors):
            async with aclosing(stream) as chunks:
                async for mode, payload in chunks:
                    screen.take(mode, payload)


def open_calls(values: Any) -> list[ToolCall]:
    """Return the tool calls without a result in the model's last reply; `values` are the values of a run's state."""
    return unanswered_calls(_messages(values))


def _messages(values: Any) -> Sequence[BaseMessage]:
    written: Any = values.get("messages") if isinstance(values, Mapping) else getattr(values, "messages", None)
    return [message for message in written or () if isinstance(message, BaseMessage)]


DONE, FAILED, WAITING = 0, 1, 3

_LONG = 1000
"""Maximum length of the text of a waiting question or call, in characters. A person must read the text to decide."""


def run_agent(options: RunOptions) -> int:
    """Run the command `callboard run` and return its exit code; raise `CommandError` for an invalid command line."""
    if options.message is None and not options.resume:
        raise CommandError("say something to the agent, or --resume a thread: callboard run module:agent 'message'")
    if options.message is not None and options.resume:
        raise CommandError(
            "a message or --resume, not both; a message starts a new turn, also where questions are open"
        )
    try:
        (options.thread or "").encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are no text
        raise CommandError(
            f"--thread {options.thread!r} is no text in UTF-8; name the thread with whole characters"
        ) from error
    if options.resume and options.thread is None:
        raise CommandError("--resume needs --thread; callboard threads lists those of a database")
    for option, value in (("--web-port", options.web_port), ("--wait or --no-wait", options.wait)):
        if value is not None and not options.web:
            raise CommandError(f"{option} needs --web, which shows the run on a page")
    console = open_console(stderr=options.as_json)
    try:
        with stoppable(), ExitStack() as stack:
            if not options.web:
                return _run_in_loop(options, console, None)
            try:
                page = stack.enter_context(web_page(options.agent, options.web_port or 0, has_controls=True))
            except OSError as error:
                raise CommandError(f"--web {error}") from error
            console.print(f"page {page.url}", style="dim", soft_wrap=True)
            code = _run_in_loop(options, console, page)
            if _has_person(console) if options.wait is None else options.wait:
                page.stay(partial(console.print, style="dim"))
            return code
    except Stopped as stopped:
        return stopped.exit_code


def _run_in_loop(options: RunOptions, console: Console, page: WebPage | None) -> int:
    """Run an event loop, and the agent in it, until the agent has finished or a question stays open."""
    thread_id = options.thread or uuid4().hex[:12]
    path = recording_path(options, thread_id)
    with ExitStack() as stack:
        threads = stack.enter_context(open_database(options.db, must_exist=options.resume)) if options.db else None
        # The event loop runs in a thread of its own, so that the main thread can read the terminal and get signals.
        portal = stack.enter_context(start_blocking_portal(options.backend))
        agent = load_agent(options.agent, options.app_dir, portal, stack)
        if options.backend == "trio" and not isinstance(agent, Agent):
            raise CommandError(f"{options.agent} is a graph of LangGraph's, which runs on asyncio only")
        saver = None if threads is None else threads.saver_for(agent)
        recording = partial(record_calls, path, page.recording if page else None, capture=options.capture)
        conversation = ThreadRunner(agent, saver, thread_id, console, live=options.live, recording=recording)
        if path is not None and not conversation.is_stored:  # otherwise the printed thread name leads to the file
            console.print(f"recording to {printable(str(path))}", style="dim", soft_wrap=True)
        return _Session(options, portal, conversation, thread_id, console, page=page).play()


def _has_person(console: Console) -> bool:
    """Return whether a person sees the output and can type."""
    return sys.stdin.isatty() and console.is_terminal


class _Session:
    """Dialogue with an agent from one message to its answer, with any number of questions in between."""

    def __init__(
        self,
        options: RunOptions,
        portal: BlockingPortal,
        conversation: ThreadRunner,
        thread_id: str,
        console: Console,
        *,
        page: WebPage | None,
    ) -> None:
        self._options = options
        self._portal = portal
        self._conversation = conversation
        self._thread_id = thread_id
        self._console = console
        self._page = page
        self._has_person = _has_person(console)
        self._asker = Asker(console, line_reader(console))

    def play(self) -> int:
        """Run the agent and ask its questions, until it has finished or a question stays open; return the exit code."""
        before = self._wait(self._conversation.snapshot)
        if self._conversation.is_stored:
            self._say(f"thread {escape_name(self._thread_id)}")
        try:
            if self._options.resume:
                return self._resume(before)
            if before.interrupts:
                self._say(f"{count(len(before.interrupts), 'question')} left unanswered: the message takes their place")
            return self._run({"messages": [("user", self._options.message)]})
        except Stopped:
            self._say_how_to_go_on("Stopped")
            raise

    def _resume(self, snapshot: StateSnapshot) -> int:
        if snapshot.created_at is None:
            raise CommandError(
                f"there is no thread {self._thread_id!r} to resume; callboard threads lists those there are"
            )
        if not snapshot.interrupts and not snapshot.next:
            self._say("nothing to resume: the last turn is complete")
            return self._finish(snapshot, DONE)
        if snapshot.interrupts:
            return self._go_on(snapshot)
        return self._run(None)

    def _run(self, update: Any) -> int:
        takes_lines = self._conversation.takes_lines
        can_type = self._has_person and takes_lines
        lines: deque[Line] = deque()
        with ExitStack() as stack:
            if self._page is not None and takes_lines:
                stack.enter_context(self._page.inbox.open(lines))
            echo = not supports_pictures(self._console)
            keyboard = stack.enter_context(open_keyboard(lines, echo=echo)) if can_type else None
            run = partial(self._conversation.run, update, lines if takes_lines else None)
            poll = None
            if keyboard is not None:
                stack.callback(self._report_unsent, keyboard)
                run = partial(run, typed_text=lambda: keyboard.text)
                poll = partial(self._take_lines, keyboard)
            snapshot, failure = self._wait(run, poll)
        if failure is None:
            return self._go_on(snapshot)
        if self._has_person and isinstance(failure, ValidationError) and is_invalid_resume(failure):
            self._console.print(f"That answer was refused: {printable(str(failure))}", style="red")
            return self._go_on(snapshot)
        print(f"Error: the run failed: {error_text(failure)}", file=sys.stderr)
        self._say_how_to_go_on("Failed")
        return FAILED

    def _take_lines(self, keyboard: Keyboard) -> None:
        """Pass the lines that were typed to the run; execute the command that stops the run."""
        for line in keyboard.poll():
            if line.strip() == STOP:
                signal.raise_signal(signal.SIGINT)
            else:
                keyboard.lines.append(line)

    def _report_unsent(self, keyboard: Keyboard) -> None:
        """Report what was typed too late for the run: it must not become the answer to a question."""
        typed_lines = [line for line in keyboard.lines if isinstance(line, str)]
        for line in filter(str.strip, [*typed_lines, *keyboard.poll(), keyboard.text]):
            self._say(f"not sent {one_line(line, _LONG)}: the run has ended")

    def _go_on(self, snapshot: StateSnapshot) -> int:
        """Get answers to open questions and resume the run, until the agent has finished or a question stays open."""
        # Returns the exit code of the command.
        if not snapshot.interrupts and not snapshot.next:
            return self._finish(snapshot, DONE)
        goes_on = False
        resume: Any = None
        try:
            if snapshot.interrupts:
                answers: dict[str, Any] = {}
                if self._options.yes:
                    accepting = {question.id: accept_all(question) for question in snapshot.interrupts}
                    answers = {name: answer for name, answer in accepting.items() if answer is not None}
                open_questions = [question for question in snapshot.interrupts if question.id not in answers]
                if open_questions and self._has_person:
                    answers |= self._asker.ask(open_questions)
                goes_on, resume = bool(answers), Command(resume=answers)
            else:
                # A breakpoint: the user, or `--yes`, allows the run to continue.
                for call in open_calls(snapshot.values):
                    self._say(f"call    {call_label(call['name'], call['args'], _LONG)}")
                question = f"Stopped before {', '.join(snapshot.next)}. Go on?"
                goes_on = self._options.yes or (self._has_person and self._asker.confirm(question))
        except EOFError:
            self._console.print()
        if goes_on:
            return self._run(resume)
        for interrupt in snapshot.interrupts:
            self._console.print(f"waits   {one_line(describe_question(interrupt.value), _LONG)}", soft_wrap=True)
        self._say_how_to_go_on("Waiting for a person")
        return self._finish(snapshot, WAITING)

    def _finish(self, snapshot: StateSnapshot, code: int) -> int:
        values = snapshot.values
        if self._options.as_json:
            questions = [{"id": question.id, "value": question.value} for question in snapshot.interrupts]
            thread = self._thread_id if self._conversation.is_stored else None
            state = {"thread": thread, "state": values, "next": snapshot.next, "questions": questions}
            print_json(state)
        elif isinstance(values, Mapping) and code == DONE and values.get("structured_response") is not None:
            self._console.print(as_text(values["structured_response"]))
        return code

    def _say_how_to_go_on(self, reason: str) -> None:
        if not self._conversation.is_stored:
            self._say(f"{reason}. Nothing is kept without a database: give --db next time.")
            return
        options = self._options
        command = ["callboard", "run", options.agent, "--thread", self._thread_id, "--resume"]
        command += ["--db", masked(options.db)] if options.db else []
        command += ["--app-dir", str(options.app_dir)] if options.app_dir != Path() else []
        self._say(f"{reason}. To go on: {shlex.join(command)}")

    def _say(self, text: str) -> None:
        self._console.print(printable(text), style="dim", soft_wrap=True)

    def _wait(self, task: Callable[[], Awaitable[Any]], poll: Callable[[], object] | None = None) -> Any:
        return wait_for(self._portal, task, self._conversation.cancel, self._say, poll)
