"""The text that a model reads of a result that is none: its JSON, or else what `str` makes of it.

To write a large one takes tens of milliseconds, and in one go nobody else has a turn meanwhile, threads neither. So it
is written part by part; the text is the one that `json.dumps` or `str` writes at once.
"""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.tools.base import _is_message_content_block, _stringify

from callboard.tools._call_output import items_in
from callboard.tools._large_work import left_of
from callboard.tools._portions import Steps, each

C = TypeVar("C", dict[Any, Any], list[Any])

_PART = 200_000
"""Characters that are written in a row, or values that take as long; that takes a millisecond or two."""
_FEW = 20
"""Values of a container that are weighed together."""


def takes_long(value: object) -> bool:
    """Whether a value is more than is written in a row."""
    return left_of(_PART, value) <= 0


def writing(value: object) -> Steps[str]:
    """Write a value as `json.dumps(value, ensure_ascii=False)` does, or as `str` where there is no JSON of it.

    Raises:
        Exception: what `str` raises of it.
    """
    try:
        try:
            return (yield from _written(value, _JSON))
        except _ChangedError:
            raise
        except Exception:  # there is no JSON of it, of which code of its own may say so in any way
            if type(value) is not bytes and type(value) not in _STR.brackets:
                return str(value)  # which only within a container is what `repr` says
            return (yield from _written(value, _STR))
    except _ChangedError:
        return _stringify(value)


def as_content(value: object) -> Steps[str | list[Any] | None]:
    """What a message takes as its content as it is, a copy that is the message's own; `None` where it does not."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)) or not (yield from _all(_is_message_content_block, value)):
        return None
    return (yield from each(_own, value))


def in_words(response: object) -> Steps[None]:
    """Write the large contents of messages that a model may not be able to take as they are."""
    for message in items_in(response):
        if not isinstance(message, ToolMessage) or isinstance(message.content, str) or not takes_long(message.content):
            continue
        if not (yield from _all(_is_block, message.content)):
            message.content = yield from writing(message.content)


def _all(fn: Callable[[object], bool], values: Sequence[object]) -> Steps[bool]:
    return all(map(fn, values[:1])) and all((yield from each(fn, values)))


def _own(block: str | dict[Any, Any]) -> str | dict[Any, Any]:
    return {**block} if isinstance(block, dict) else block


def _is_block(value: object) -> bool:
    """Whether a value is a block of message content, by LangGraph's rule for `msg_content_output`."""
    return isinstance(value, dict) and _is_message_content_block(value)


class _ChangedError(Exception):
    """A container became larger or smaller while others had their turn."""


class _Form(NamedTuple):
    """How values become text in one notation: JSON, or that of Python."""

    at_once: Callable[[object], str]
    slices: Callable[[Any], Iterator[str]]
    """The parts of a long text."""
    brackets: Mapping[type, tuple[str, str]]
    """Around the values of those containers that are written part by part, which have no code of somebody else's."""
    is_python: bool
    """Whether there are dots for a container within itself, and a comma in a tuple of one."""


def _written(value: object, form: _Form) -> Steps[str]:
    parts: list[str] = []
    yield from _write(value, form, parts, set())
    return "".join(parts)


def _write(value: Any, form: _Form, parts: list[str], around: set[int]) -> Steps[None]:
    """Write a large value in small steps, between which others have their turn.

    Args:
        value: is written at once if there are no parts of it that could be written by themselves.
        form: how.
        parts: of the whole text; is added to.
        around: the ids of the containers that it stands in.
    """
    kind = type(value)
    if (kind is str or kind is bytes) and value:
        for part in form.slices(value):
            parts.append(part)
            yield
        return
    if kind not in form.brackets or not value:
        parts.append(form.at_once(value))
        return
    before, after = form.brackets[kind]
    if id(value) in around:
        if not form.is_python:
            raise ValueError("Circular reference detected")
        parts.append(f"{before}...{after}")
        return
    around.add(id(value))
    parts.append(before)
    inner = _members if isinstance(value, dict) else _elements
    yield from inner(value, form, parts, around)
    is_lone = form.is_python and kind is tuple and len(value) == 1
    parts[-1] = f",{after}" if is_lone else after  # in place of the comma
    around.remove(id(value))


def _members(value: dict[Any, Any], form: _Form, parts: list[str], around: set[int]) -> Steps[None]:
    for group, is_large in _groups(value.items(), dict):
        if is_large:
            [(key, member)] = group.items()
            parts.append(form.at_once({key: 0})[1:-2])
            yield from _write(member, form, parts, around)
        else:
            parts.append(form.at_once(group)[1:-1])
        parts.append(", ")
        yield


def _elements(value: Collection[object], form: _Form, parts: list[str], around: set[int]) -> Steps[None]:
    for group, is_large in _groups(value, list):
        if is_large:
            yield from _write(group[0], form, parts, around)
        else:
            parts.append(form.at_once(group)[1:-1])
        parts.append(", ")
        yield


def _groups(values: Iterable[Any], kind: type[C]) -> Iterator[tuple[C, bool]]:
    """The values of a container in smaller ones that are written at once, and whether it is a single large value."""
    group, weight = list[Any](), 0
    for some in _few_at_a_time(values):
        together = [(some, _weight(kind(some)))]
        for few, more in together if together[0][1] < _PART else [([one], _weight(kind([one]))) for one in some]:
            if group and weight + more >= _PART:
                yield kind(group), False
                group, weight = [], 0
            if more >= _PART:
                yield kind(few), True
            else:
                group += few
                weight += more
    if group:
        yield kind(group), False


def _weight(value: object) -> int:
    return _PART - left_of(_PART, value)


def _few_at_a_time(values: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(values)
    try:
        while some := [*islice(left, _FEW)]:
            yield some
    except RuntimeError as error:
        raise _ChangedError from error


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _slices_of_json(text: str) -> Iterator[str]:
    yield '"'
    yield from (_json(part)[1:-1] for part in _slices(text))
    yield '"'


def _slices_of_str(text: Any) -> Iterator[str]:
    """As `repr`: which quotes it takes depends on the whole text, so each part is given some to have the same."""
    prefix: str
    single: Any
    double: Any
    prefix, single, double = ("", "'", '"') if isinstance(text, str) else ("b", b"'", b'"')
    quote, given, end = ('"', single, -2) if single in text and double not in text else ("'", single + double, -4)
    yield prefix + quote
    yield from (repr(part + given)[len(prefix) + 1 : end] for part in _slices(text))
    yield quote


def _slices(text: Any) -> Iterator[Any]:
    return (text[start : start + _PART] for start in range(0, len(text), _PART))


_JSON = _Form(
    _json,
    _slices_of_json,
    {
        **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), ("{", "}")),
        **dict.fromkeys((list, tuple), ("[", "]")),
    },
    is_python=False,
)
_STR = _Form(
    repr,
    _slices_of_str,
    {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")},
    is_python=True,
)


class _FinishedNote(str):
    """A note of an error that was raised after the body of a tool had returned."""

    __slots__ = ("told",)
    told: str
    """The sentence for the model, which has to know that the tool has run."""


def note_without_text(error: Exception, tool: str, call_id: str | None, kind: str) -> None:
    """Note on an error that the result of a tool, of this type, could not be turned into a text."""
    note = _FinishedNote(
        f"Raised when what the tool {tool!r} returned for the call {call_id!r}, of the type {kind}, was turned into a "
        "text. Return a text, or repair its __str__."
    )
    note.told = (
        f"The tool {tool!r} has run and finished, but its result is lost: an object of the type {kind} could not be "
        f"turned into a text ({error!r}). Do not assume that it had no effect."
    )
    error.add_note(note)


def finished_without_text(error: Exception) -> str | None:
    """The sentence for the model about an error that was raised after the tool had finished; `None` for others."""
    notes = getattr(error, "__notes__", ())
    return next((note.told for note in notes if isinstance(note, _FinishedNote)), None)
