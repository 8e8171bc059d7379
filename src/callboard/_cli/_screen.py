"""Output of a run on the terminal: the streamed text of the model, and the states and results of calls."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from textwrap import wrap
from typing import Any

import anyio
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCall, ToolMessage
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from callboard._cli._call_counts import CallCounts
from callboard._cli._grid import argument_texts, call_label, call_labels
from callboard._cli._shown_text import duration, escape_name, one_line
from callboard._cli._view import equal_calls, line, live_table, open_calls, picture, supports_pictures, text_width
from callboard.questions import printable

# Calls of a run with their labels and durations.

_ROWS = 12
"""Largest number of open calls that have a row each; for more calls, a table shows counts by tool."""


class Calls:
    """Labels and counts of the calls of a run; the counts come from an observer."""

    def __init__(self, tools: Iterable[str]) -> None:
        self.counts = CallCounts(tools)
        self._labels_by_id: dict[str | None, tuple[Callable[[int], Sequence[str]], int]] = {}
        """Function from a width to the labels of all calls of a reply, and the index of the call, by the call's id."""

    def add_reply(self, calls: Sequence[ToolCall]) -> None:
        """Store the calls of one reply of the model, to make labels for the calls later."""
        # A graph of LangGraph sends no events, so only its messages contain the names of its calls.
        named_arguments = [(call["name"], argument_texts(call["args"])) for call in calls]
        labels = lru_cache(maxsize=1)(partial(call_labels, named_arguments))
        self._labels_by_id.update((call["id"], (labels, index)) for index, call in enumerate(calls))

    def took(self, call_id: str | None) -> str:
        """Return the duration of an ended call as text, waits included; an empty text if the duration is unknown.

        The number of attempts follows, if there were several.
        """
        if call_id not in self.counts.took:
            return ""
        took, attempts = duration(self.counts.took[call_id]), self.counts.attempts.get(call_id)
        return took if attempts is None else f"{took}, {attempts} attempts"

    def text(self, call_id: str | None, tool: str, width: int) -> str:
        """Return a label of a call, which differs from the labels of the other calls of the same reply."""
        if call_id not in self._labels_by_id:
            return call_label(tool, None, width)
        labels, index = self._labels_by_id[call_id]
        return labels(width)[index]

    def table(self, now: float, width: int) -> RenderableType:
        """Return the open calls as rows, or as counts by tool if there are many; `now` is a time of the event loop."""
        groups = equal_calls(self.counts.slowest(_ROWS * _ROWS))
        if len(groups) > _ROWS or len(self.counts.open) > _ROWS * _ROWS:
            return live_table(self.counts.rows_at(now).items(), width)
        return Group(*open_calls(groups, now, width))


# The screen.

_MANY = 20
"""Largest number of calls in one reply whose successes are printed one by one."""

_WORD = 8
"""Width in terminal cells of the first column of an output line, which shows the state of a call, such as "done"."""
_RESULT = 24
"""Smallest length to which the result of a call is shortened, in characters."""
_REASON = 400
"""Largest length of the shown reason of a failed call, in characters."""

_REFRESH = 1 / 8
"""Seconds between two updates of the live view on a terminal."""
_LINE = 80
"""Width of a line of the live view, in terminal cells, if the output is not a terminal."""
_LINE_EVERY = 1.0
"""Seconds between two lines of the live view, if the output is not a terminal."""

_NOT_THE_ANSWER = frozenset(("tools", "pre_model_hook", "post_model_hook", "generate_structured_response"))
_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")
"""Names of nodes, and their ends, in which the output of a model is no answer to the user, and is not printed."""


class Screen:
    """Display of an agent's run on the console, made from LangGraph's stream modes "messages" and "updates"."""

    # `shown_ids`: ids of messages from before the run, which are not printed again.
    # `typed_text`: function that returns the unfinished line of a person, which the live view shows; `None` if nobody
    # can type.

    def __init__(
        self,
        console: Console,
        calls: Calls,
        shown_ids: Iterable[str | None],
        *,
        live: bool = False,
        typed_text: Callable[[], str] | None = None,
    ) -> None:
        self._console = console
        self._calls = calls
        self._shown_ids = set(shown_ids)
        self._announced_ids = set(self._shown_ids)
        self._quiet_call_ids: set[str | None] = set()
        self._mid_line = False
        self._all = live
        self._typed_text = typed_text
        self._background_calls: dict[str, tuple[str, str]] = {}
        """Id and tool of each call that went on in the background, by its handle."""
        self._next_line = 0.0
        self._live: Live | None = None

    def take(self, mode: str, payload: Any) -> None:
        """Show one chunk of the run's stream, given as its stream mode and its payload."""
        if mode == "messages":
            self._take_token(*payload)
            return
        for update in payload.values():
            for message in messages_in(update):
                self._take_message(message)

    def _take_message(self, message: BaseMessage) -> None:
        """Show one message of an update, unless it was shown already."""
        if isinstance(message, AIMessage):
            self._take_reply(message)
            self._announce(message)
        elif isinstance(message, ToolMessage) and message.id not in self._shown_ids:
            self._shown_ids.add(message.id)
            self._show_result(message)
        elif isinstance(message, HumanMessage) and message.id not in self._shown_ids:
            self._shown_ids.add(message.id)
            self._show_background_result(message)

    def label(self, call_id: str | None, tool: str) -> str:
        """Return the label of a call of the run, as in the lines about its result."""
        return self._calls.text(call_id, tool, self._length * 2 // 3)

    async def keep_up(self) -> None:
        """Redraw the live view of open calls at intervals until cancelled, then remove it."""
        try:
            while True:
                now = anyio.current_time()
                if supports_pictures(self._console):
                    self._draw(now)
                elif self._all and self._calls.counts.open and now >= self._next_line:
                    self._next_line = now + _LINE_EVERY
                    self.note("calls", line(self._calls.counts, now, _LINE - _WORD))
                await anyio.sleep(_REFRESH)
        finally:
            self.close()

    def close(self) -> None:
        """Remove the live view of open calls, and end the current line."""
        self._hide_calls()
        self._end_line()

    def _draw(self, now: float) -> None:
        typed_text = "" if self._typed_text is None else self._typed_text()
        if self._mid_line or not (self._calls.counts.open or typed_text):
            self._hide_calls()
            return
        if self._live is None:
            # Without rich's refresh thread: the event loop draws, so that no picture mixes old and new counts.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        width, height = self._console.size
        views: list[RenderableType] = []
        if self._calls.counts.open:
            free_height = height if self._typed_text is None else height - 1
            views.append(
                picture(self._calls.counts, now, width, free_height) if self._all else self._calls.table(now, width)
            )
        if self._typed_text is not None:
            views.append(_typed_line(typed_text, width))
        self._live.update(Group(*views), refresh=True)

    def _hide_calls(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _take_token(self, message: BaseMessage, metadata: Mapping[str, Any]) -> None:
        node: str = metadata.get("langgraph_node", "")
        if node in _NOT_THE_ANSWER or node.endswith(_HOOKS):
            return
        if isinstance(message, AIMessageChunk):
            self._shown_ids.add(message.id)
            self._say(message.text)
        elif isinstance(message, AIMessage):
            self._take_reply(message)

    def _take_reply(self, message: AIMessage) -> None:
        """Print a complete reply of the model, unless its text was streamed already."""
        if message.id is None or message.id not in self._shown_ids:
            self._shown_ids.add(message.id)
            self._say(message.text)
        self._end_line()

    def _announce(self, message: AIMessage) -> None:
        """Print the calls of a reply, unless they were printed already."""
        if message.id is not None and message.id in self._announced_ids:
            return  # written again, as by a hook that shortens the conversation
        self._announced_ids.add(message.id)
        # Many calls are printed as numbers by tool. Few calls are printed one by one, unless a live view shows them.
        calls = message.tool_calls
        self._calls.add_reply(calls)
        if len(calls) > _MANY:
            self._quiet_call_ids.update(call["id"] for call in calls)
            names = Counter(call["name"] for call in calls)
            numbers = ", ".join(f"{number} of {escape_name(name)}" for name, number in names.items())
            self.note("calls", f"{len(calls)}: {numbers}")
        elif not supports_pictures(self._console):
            for call in calls:
                self.note("call", self._calls.text(call["id"], call["name"], self._length))

    def _show_result(self, message: ToolMessage) -> None:
        call_id, name = message.tool_call_id, message.name or "call"
        handle = _background_facts(message).get("background")
        if handle is None:
            self._show_end(call_id, name, message.text, failed=message.status == "error")
            return
        self._background_calls[handle] = call_id, name
        if call_id not in self._quiet_call_ids:
            self.note("goes on", f"{self.label(call_id, name)}  in the background")

    def _show_background_result(self, message: HumanMessage) -> None:
        """Show the end of a background call, if the message tells of one."""
        facts = _background_facts(message)
        if (handle := facts.get("background")) is not None:
            call_id, name = self._background_calls.get(handle, (None, handle))
            header = facts.get("header")
            result = message.text[header if isinstance(header, int) else 0 :]
            self._show_end(call_id, name, result, failed=facts.get("status") == "error")

    def _show_end(self, call_id: str | None, name: str, result: str, *, failed: bool) -> None:
        """Print the state, the label, the duration and the result of an ended call."""
        if call_id in self._quiet_call_ids and not failed:
            return
        label = "  ".join(filter(None, (self.label(call_id, name), self._calls.took(call_id))))
        state = "failed" if failed else "done"
        free_width = self._length - len(label) - 2
        text = one_line(result, _REASON if failed else max(free_width, _RESULT))
        if not text or cell_len(text) <= free_width:
            self.note(state, "  ".join(filter(None, (label, text))), failed=failed)
            return
        self.note(state, label, failed=failed)
        # The reason of a failure is wrapped over several lines: a shortened reason would not help.
        for part in wrap(text, max(_RESULT, self._length)):
            self.note("", part, failed=failed)

    @property
    def _length(self) -> int:
        return max(_RESULT, text_width(self._console) - _WORD)

    def note(self, word: str, text: str, *, failed: bool = False) -> None:
        """Print a line about the run, above the live view: a word for its kind, and a printable text."""
        self._end_line()
        # The style is that of the text: a style of `print` would also colour the live view, which Rich prints below it.
        styled_text = Text(f"{word:<{_WORD - 1}} {text}", style="red" if failed else "dim")
        self._console.print(styled_text, soft_wrap=True)

    def _say(self, text: str) -> None:
        if not text:
            return
        self._hide_calls()
        self._console.print(printable(text), end="", soft_wrap=True)
        self._mid_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._console.print()
            self._mid_line = False


def _background_facts(message: BaseMessage) -> Mapping[str, Any]:
    """Return what a message says about a background call: its handle (`background`), and of a result more."""
    facts = message.additional_kwargs.get("callboard")
    return facts if isinstance(facts, dict) and isinstance(facts.get("background"), str) else {}


_PROMPT = "> "
_HINT = "write to the agent, or /cancel, or /stop"


def _typed_line(text: str, width: int) -> Text:
    """Return the last line of the live view: the end of the unfinished line, or a hint if nothing is typed."""
    if not text:
        return Text(one_line(_PROMPT + _HINT, width - 1), style="dim", no_wrap=True)
    shown_text = escape_name(text[-width:])[-width:]
    while cell_len(shown_text) > max(1, width - len(_PROMPT) - 1):
        shown_text = shown_text[1:]
    return Text(_PROMPT + shown_text, no_wrap=True)


def messages_in(update: Any) -> Iterator[BaseMessage]:
    """Yield the messages in a graph node's update, which may also be a list of updates."""
    if isinstance(update, list | tuple):
        for part in update:
            yield from messages_in(part)
    elif isinstance(update, Mapping):
        written = update.get("messages")
        listed = written if isinstance(written, list | tuple) else [written]
        yield from (message for message in listed if isinstance(message, BaseMessage))
