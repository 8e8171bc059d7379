"""Lines that a person types while an agent works, and commands of the page: messages, and cancels of calls."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup
from langchain_core.runnables import RunnableConfig

from callboard import Agent, LiveCall
from callboard._cli._page_commands import PageCommand
from callboard._cli._screen import Screen
from callboard._cli._shown_text import duration, error_text, escape_name, one_line
from callboard.questions import printable

_CHECK = 0.05
"""Seconds between two looks for a new line."""
_LONGEST = 200
"""Largest length of the shown text of a line, in characters."""

Line: TypeAlias = str | PageCommand

STOP = "/stop"
"""Command that stops the run; the main thread executes it, as it does for Ctrl-C."""
_CANCEL = "/cancel"
_HELP = "the commands are /cancel, /cancel NUMBER|ID [REASON] and /stop; //text sends /text"


class TypedLines:
    """Handler of the lines that a person types during one run.

    Args:
        agent: agent of the run.
        config: config of the run, with the `thread_id`.
        screen: screen of the run, which shows the effect of each line.
    """

    def __init__(self, agent: Agent, config: RunnableConfig, screen: Screen) -> None:
        self._agent = agent
        self._config = config
        self._screen = screen
        self._listed_calls: Sequence[LiveCall] = ()
        """Calls that the last list showed: its numbers stay valid while other calls end."""
        self._run_end = anyio.Event()

    async def handle(self, lines: deque[Line]) -> None:
        """Handle lines in the order in which they come, until the run has ended and no line is left."""
        async with anyio.create_task_group() as cancels:
            while lines or not self._run_end.is_set():
                if not lines:
                    with anyio.move_on_after(_CHECK):
                        await self._run_end.wait()
                elif isinstance(line := lines.popleft(), PageCommand):
                    await self._perform(line, cancels)
                else:
                    await self._handle_line(line.strip(), cancels)
            cancels.cancel_scope.cancel()

    def end(self) -> None:
        """Report that the run has ended: it takes no more lines."""
        self._run_end.set()

    async def _handle_line(self, line: str, cancels: TaskGroup) -> None:
        command, _, argument = line.partition(" ")
        if command == _CANCEL and not argument.strip():
            self._list_calls()
        elif command == _CANCEL:
            self._cancel(argument.strip(), cancels)
        elif line.startswith("/") and not line.startswith("//"):
            self._screen.note("not sent", f"{one_line(line, _LONGEST)}: {_HELP}", failed=True)
        elif line:
            await self._send(line.removeprefix("/"))

    async def _perform(self, command: PageCommand, cancels: TaskGroup) -> None:
        """Perform a command of the page, and report its result to the page."""
        if command.kind == "say":
            failure = await self._send(command.text.strip())
            command.report(failure is None, failure or "Sent. The run reads it at its next turn.")
        # The page has the escaped form of each id.
        elif (call := self._find_call(lambda call_id: printable(call_id) == command.text)) is None:
            command.report(False, "This call is not running any more.")
        else:
            cancels.start_soon(self._cancel_call, call, "")
            command.report(True, "The call is being cancelled.")

    async def _send(self, text: str) -> str | None:
        """Send a message to the run, and show that; return the reason if it was not sent."""
        try:
            # A run that has only begun takes no messages yet.
            while (run := await self._agent.say(text, self._config)) is None and not self._run_end.is_set():
                with anyio.move_on_after(_CHECK):
                    await self._run_end.wait()
            failure = "the run has ended" if run is None else None
        except Exception as error:
            failure = error_text(error)
        if failure is None:
            self._screen.note("sent", one_line(text, _LONGEST))
        else:
            self._screen.note("not sent", f"{one_line(text, _LONGEST)}: {failure}", failed=True)
        return failure

    def _list_calls(self) -> None:
        self._listed_calls = [call for call in self._agent.running() if call.call_id is not None]
        if not self._listed_calls:
            self._screen.note("calls", "no call is running")
        for number, call in enumerate(self._listed_calls, start=1):
            waits_for = f" for {escape_name(call.limit)}" if call.limit else ""
            facts = [
                f"{number}",
                escape_name(call.call_id or ""),
                self._screen.label(call.call_id, call.tool),
                duration(call.seconds),
                call.place + waits_for,
                one_line(call.progress, _LONGEST),
            ]
            self._screen.note("calls", "  ".join(filter(None, facts)))

    def _cancel(self, arguments: str, cancels: TaskGroup) -> None:
        name, _, reason = arguments.partition(" ")
        call = self._find(name)
        if call is None:
            text = f"{one_line(name, _LONGEST)} names no running call; /cancel lists the calls"
            self._screen.note("cancel", text, failed=True)
        else:
            cancels.start_soon(self._cancel_call, call, reason.strip())

    def _find(self, name: str) -> LiveCall | None:
        """Return the call with a number in the last list, or else the running call with an id; `None` without one."""
        with suppress(ValueError):  # the name is no number
            if 1 <= (number := int(name)) <= len(self._listed_calls):
                return self._listed_calls[number - 1]
        return self._find_call(lambda call_id: call_id == name)

    def _find_call(self, has_id: Callable[[str], bool]) -> LiveCall | None:
        calls = self._agent.running()
        return next((call for call in calls if call.call_id is not None and has_id(call.call_id)), None)

    async def _cancel_call(self, call: LiveCall, reason: str) -> None:
        assert call.call_id is not None
        label = self._screen.label(call.call_id, call.tool)
        self._screen.note("cancel", label)
        try:
            if not await self._agent.cancel(call.call_id, reason, thread_id=call.thread_id):
                self._screen.note("cancel", f"{label}: it has ended already")
        except Exception as error:
            self._screen.note("cancel", f"{label}: {error_text(error)}", failed=True)
