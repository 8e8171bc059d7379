"""Stored record of one tool call, from which a later run continues, and the names of such records.

Agents use the same record for their nodes. A name is a key in a batch, and a segment in a checkpoint namespace.
"""

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self

from langchain_core.messages import ToolCall
from langgraph.types import Command, Interrupt

from callboard.exceptions import DuplicateCallIdWarning

NOT_YET: Final = object()
"""Placeholder for a missing output, because `None` is a valid output of a node."""


class CallRecord(NamedTuple):
    """Stored state of one tool call, from which a later run continues: answers of a person, open questions, result.

    A named tuple: a frozen dataclass takes five times as long to create.
    """

    answers: tuple[Any, ...] = ()
    """Answers of persons that the call has accepted, in the order of the questions."""
    digests: tuple[str | None, ...] = ()
    """Digest of the question for each answer, or `None`; the answer is valid only for a question with this digest."""
    pending: tuple[Interrupt, ...] = ()
    """Open questions of the call."""
    own: bool = False
    """`True` if the call itself asked the open question, `False` if a graph inside of it did."""
    mark: str | None = None
    """Text that an observer stored when the call stopped, such as a trace id, or `None`."""
    claimed: bool = False
    """`True` if the body was about to start or has started. If no end is recorded, the call's outcome is unknown."""
    error: str | None = None
    """Error of the last run, as a text; the next run runs the call again."""
    output: object = NOT_YET
    """Result of the finished call, `NOT_YET` before; a finished call has no open questions."""
    parent: Command[Any] | None = None
    """Command for the parent graph with which the call ended, or `None`."""
    tasks: tuple[tuple[int, Any], ...] = ()
    """Results of LangGraph's `@task` functions in the call, each with the number of the function in the call."""
    tool: str | None = None
    """Name of the tool whose body the claim is for, if it is not the tool that the call names: a middleware or a person
    has put it in its place. Its policy decides about an unknown outcome."""

    @property
    def is_finished(self) -> bool:
        return self.output is not NOT_YET

    @property
    def has_ended(self) -> bool:
        """`True` if the call has a result, or has ended with a command for the parent graph; it must not run again."""
        return self.output is not NOT_YET or self.parent is not None

    def with_answers_only(self) -> "CallRecord":
        """Return a copy with only the answers, the results of tasks, and the observer's mark, such as a trace id."""
        # For a call that runs again from its beginning, and gets the answers again.
        return CallRecord(answers=self.answers, digests=self.digests, mark=self.mark, tasks=self.tasks)

    def encode(self) -> dict[str, Any]:
        """Return the record as a plain dict for storage, with only the fields that the next run of the call needs."""
        if self.output is not NOT_YET:
            # A finished call stores nothing else: its answers and questions are settled, and storage grows only with
            # what is needed.
            return {"output": self.output}
        if self.parent is not None:
            return {"parent": self.parent}
        values: dict[str, Any] = {
            "answers": [*self.answers],
            "digests": [*self.digests],
            "pending": [*self.pending],
            "own": self.own,
            "mark": self.mark,
            "claimed": self.claimed,
            "error": self.error,
            "tasks": [[*task] for task in self.tasks],
            "tool": self.tool,
        }
        return {name: value for name, value in values.items() if value or value == ""}  # an empty text is one

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> Self:
        """Return the record that stored data of any version contains; missing fields get their defaults."""
        return cls(
            answers=tuple(stored.get("answers", ())),
            digests=tuple(stored.get("digests", ())),
            pending=tuple(stored.get("pending", ())),
            own=bool(stored.get("own")),
            mark=stored.get("mark"),
            claimed=bool(stored.get("claimed")),
            error=stored.get("error"),
            output=stored.get("output", NOT_YET),
            parent=stored.get("parent"),
            tasks=tuple((number, result) for number, result in stored.get("tasks", ())),
            tool=stored.get("tool"),
        )


EMPTY_RECORD: Final = CallRecord()
"""Record of a call that has not run yet."""


# Names


NODES = frozenset(
    (
        *("__start__", "pre_model_hook", "agent", "model", "tools"),
        *("post_model_hook", "generate_structured_response", "__end__"),
    )
)
"""Names of an agent's nodes. Nodes and calls share one store of records, so a call's key must not be a node's name."""
_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")
"""Ends of the names of further nodes, those of hooks of middleware."""

_MAX_LENGTH = 128
_id_in: Callable[[ToolCall], Any] = itemgetter("id")
_ESCAPED_IN_KEYS = re.compile(r"[%#\ud800-\udfff]")
"""Characters that are escaped in keys: `%` and `#`, which callboard adds itself, and surrogates, which UTF-8 cannot
encode."""
_ESCAPED_IN_SEGMENTS = re.compile(r"[^!-$&-{}]")
"""Characters that are escaped in segments of checkpoint namespaces: all but printable ASCII, and `|`, `%`, `~`, which
LangGraph or callboard use."""
_ALL_PLAIN = re.compile(r"[A-Za-z0-9_-]*").fullmatch


# A model may write any text as an id. Different calls always get different names: otherwise an approval of one call
# could run another. Usual ids are used unchanged; in other ids, only special characters are escaped.
def keys_of(calls: Sequence[ToolCall]) -> list[str]:
    """Return the record key of each call of a batch: its escaped id, plus its index if other calls have the same id."""
    ids: list[Any] = [*map(_id_in, calls)]
    keys = ids if None not in ids and are_plain(ids) and NODES.isdisjoint(ids) else [*map(_key, ids)]
    if len({*ids}) == len(ids):
        return keys
    repeated = {call_id for call_id, count in Counter(ids).items() if count > 1}
    texts = [call_id or "" for call_id in repeated]
    for call_id in sorted(repr(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...") for text in texts):
        warnings.warn(
            f"several calls of one batch have the id {call_id}; each runs and gets its own message, in order",
            DuplicateCallIdWarning,
            stacklevel=2,
        )
    return [f"{key}#{index}" if ids[index] in repeated else key for index, key in enumerate(keys)]


def _key(call_id: str | None) -> str:
    """Return the record key of a call id; a key contains no `#`, and is never the name of a node."""
    text = call_id or ""
    if len(text) > _MAX_LENGTH:
        return _digest(text)
    # A call with such an id must not replace the record of an agent's node.
    if text in NODES or text.endswith(_HOOKS):
        return _percent_encode(text[0]) + _ESCAPED_IN_KEYS.sub(_escape_match, text[1:])
    return _ESCAPED_IN_KEYS.sub(_escape_match, text)


def are_plain(texts: Sequence[str]) -> bool:
    """Return whether texts can be segments unchanged, and keys if they are no names of nodes."""
    # One look at all texts together: one for each text takes several per cent of the time of a call.
    text = "".join(texts)
    return _ALL_PLAIN(text) is not None and (len(text) <= _MAX_LENGTH or max(map(len, texts)) <= _MAX_LENGTH)


def segment_of(key: str, number: int) -> str:
    """Return a call's key, escaped for a checkpoint namespace, with `number` appended if it is not 0."""
    # `number` counts the earlier batches with the same keys.
    segment = _ESCAPED_IN_SEGMENTS.sub(_escape_match, key)
    if len(segment) > _MAX_LENGTH:
        segment = _digest(key)
    return f"{segment}~{number}" if number else segment


def _escape_match(match: "re.Match[str]") -> str:
    return _percent_encode(match[0])


def _percent_encode(character: str) -> str:
    # Not `urllib.parse.quote`, which leaves some of the characters as they are.
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def _digest(text: str) -> str:
    """Return a hash in place of a key that is too long. It begins with `%-`, unlike every escaped key."""
    return f"%-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
