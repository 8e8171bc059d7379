"""Commands `callboard threads` and `callboard show`, which print the conversations in a database."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import anyio
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from rich.console import Console
from rich.table import Table
from rich.text import Text

from callboard._cli._command_options import ShowOptions, ThreadsOptions
from callboard._cli._grid import call_label
from callboard._cli._run_command import describe_question
from callboard._cli._shown_text import CommandError, as_json, count, escape_name, one_line
from callboard._cli._storage import open_database, read_threads
from callboard._cli._view import open_console, text_width
from callboard.questions import printable
from callboard.threads import StoredThread

_LABEL = 160
"""Maximum width, in terminal cells, of a call that the table of threads shows if the last message has no text."""

_STYLES = {"done": "green", "failed": "red", "waits": "yellow", "open": "dim"}


def list_threads(options: ThreadsOptions) -> int:
    """Print a table of the conversations (threads) in a database, latest first; return the exit code."""
    with open_database(options.db, must_exist=True) as threads:
        conversations = sorted(_read(partial(read_threads, threads)), key=lambda thread: thread.when, reverse=True)
    console = open_console()
    if not conversations:
        console.print("no threads")
        return 0
    table = _table("thread", "turns", "when", "open", "last message")
    length = max(20, text_width(console) - 60)
    for thread in conversations:
        last = one_line(_last_text(thread.messages), length)
        left_open = f"before {_join_names(thread.next)}" if thread.next else ""
        left_open = count(len(thread.questions), "question") if thread.questions else left_open
        cells = (escape_name(thread.thread_id), str(thread.turns), _time(thread.when), left_open, last)
        table.add_row(*map(Text, cells))
    console.print(table)
    return 0


def show_thread(options: ShowOptions) -> int:
    """Print one conversation with its calls and their results; return the exit code."""
    with open_database(options.db, must_exist=True) as threads:
        conversation = _read(partial(threads.read, options.thread, options.at))
    if conversation is None:
        raise _no_thread(options.thread)
    _Printer(open_console(), conversation, full=options.full).print(options.last)
    return 0


def show_history(options: ShowOptions) -> int:
    """Print a table of the checkpoints of one conversation (thread), latest first; return the exit code."""
    with open_database(options.db, must_exist=True) as threads:
        states = _read(partial(threads.history, options.thread))
    if not states:
        raise _no_thread(options.thread)
    console = open_console()
    table = _table("checkpoint", "when", "messages", "next", "last message")
    length = max(20, text_width(console) - 90)
    for state in states[: options.last]:
        messages: Sequence[BaseMessage] = state.values.get("messages") or []
        name = escape_name(str((state.config.get("configurable") or {}).get("checkpoint_id")))
        cells = (name, _time(state.created_at or ""), str(len(messages)), _join_names(dict.fromkeys(state.next)))
        table.add_row(*map(Text, (*cells, one_line(_last_text(messages), length))))
    console.print(table)
    return 0


def _read(operation: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return anyio.run(operation)
    except ValueError as error:
        raise CommandError(printable(str(error))) from error


def _no_thread(thread_id: str) -> CommandError:
    return CommandError(f"there is no thread {thread_id!r}; callboard threads lists those there are")


class _Printer:
    """Printer of one stored conversation: the messages, the calls and their results."""

    def __init__(self, console: Console, conversation: StoredThread, *, full: bool) -> None:
        self._console = console
        self._conversation = conversation
        self._full = full
        self._length = max(30, (text_width(console) - 16) // 2)

    def print(self, last: int | None) -> None:
        """Print the last `last` messages of the conversation (`None` for all), then open questions and next nodes."""
        conversation, messages = self._conversation, self._conversation.messages
        left_out = max(0, len(messages) - (last or len(messages)))
        facts = (
            f"thread {escape_name(conversation.thread_id)}",
            count(conversation.turns, "turn"),
            count(len(messages), "message"),
            _time(conversation.when),
        )
        self._line("  ".join(facts), "bold")
        if left_out:
            self._line(f"({count(left_out, 'message')} before)", "dim")
        shown_ids = {id(message) for message in messages[left_out:]}
        for exchange in conversation.exchanges():
            message = exchange.message
            if id(message) not in shown_ids:
                for answer in exchange.answers:
                    if id(answer) in shown_ids:  # its call is among the messages that are left out
                        self._result(answer)
            elif isinstance(message, ToolMessage):
                self._result(message)
            else:
                self._speaker(message)
                if text := message.text.strip():
                    self._line(text)
                for call, result in exchange.answers_by_call():
                    self._call(call["name"], call["args"], call["id"], result)
        if not messages:
            keys_text = f": {_join_names(conversation.other_keys)}" if conversation.other_keys else ""
            self._line(
                f"no messages; the state has {count(len(conversation.other_keys), 'other key')}{keys_text}", "dim"
            )
        self._end()

    def _result(self, message: ToolMessage) -> None:
        self._speaker(message)
        self._call(message.name or "call", None, message.tool_call_id, message)

    def _speaker(self, message: BaseMessage) -> None:
        self._console.print()
        self._line(_speaker(message), "bold")

    def _call(self, name: str, args: object, call_id: str | None, result: ToolMessage | None) -> None:
        state = self._conversation.state_of(call_id, result)
        result_text = result.text if result is not None else self._conversation.errors.get(call_id, "")
        row = Text(f"  {state:<7}", style=_STYLES[state])
        row.append(f" {call_label(name, args, self._length)}", style="default")
        if not self._full:
            row.append(f"  {one_line(result_text, self._length)}" if result_text else "", style="dim")
        self._console.print(row, soft_wrap=True)
        if self._full:
            for text in (as_json(args, indent=2) if args else "", result_text):
                for part in text.splitlines():
                    self._line(f"          {part}", "dim")

    def _end(self) -> None:
        conversation = self._conversation
        if not (conversation.next or conversation.questions):
            return
        self._console.print()
        failed = {name: error for name, error in conversation.errors.items() if name in conversation.next}
        for name, error in failed.items():
            self._line(f"{escape_name(str(name))} failed: {one_line(error, 2 * self._length)}", "red")
        if conversation.questions:
            self._line(f"waits for a person: {count(len(conversation.questions), 'question')}", "yellow")
            for question in conversation.questions:
                self._line(f"  {one_line(describe_question(question.value), 2 * self._length)}")
        elif conversation.next:
            self._line(f"stopped before {_join_names(conversation.next)}", "yellow")

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(printable(text), style=style, soft_wrap=not self._console.is_terminal)


def _speaker(message: BaseMessage) -> str:
    if isinstance(message, HumanMessage):
        return escape_name(message.name or "you")
    if isinstance(message, AIMessage):
        return escape_name(message.name or "agent")
    if isinstance(message, SystemMessage):
        return "system"
    return "result" if isinstance(message, ToolMessage) else escape_name(message.type)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(map(escape_name, names))


def _last_text(messages: Sequence[BaseMessage]) -> str:
    for message in reversed(messages):
        if text := message.text.strip():
            return text
        if isinstance(message, AIMessage) and (calls := message.tool_calls):
            return ", ".join(call_label(call["name"], call["args"], _LABEL) for call in calls)
    return ""


def _time(when: str) -> str:
    """Return a time in ISO format as text in the local time zone, to the minute."""
    try:
        return f"{datetime.fromisoformat(when).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return escape_name(when)


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        numbers = heading in ("turns", "messages")
        # All columns but the last are shown whole on any terminal: names and ids are there to be copied.
        table.add_column(
            heading,
            justify="right" if numbers else "left",
            overflow="fold" if heading != headings[-1] else "ellipsis",
            no_wrap=heading == headings[-1],
        )
    return table
