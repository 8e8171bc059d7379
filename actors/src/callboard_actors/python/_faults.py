"""What a model reads of an exception: the lines of its own code that led there."""

import traceback
from collections.abc import Iterable

from callboard_actors._excerpts import Excerpt
from callboard_actors.python._cells import again, is_cell

_MOST = 4000
"""Bytes of a traceback."""
_MOST_GROUP = 20


def told(error: BaseException) -> str:
    """A short traceback; frames of libraries, and ours, are left out."""
    try:
        found = traceback.TracebackException.from_exception(error, compact=True, max_group_width=_MOST_GROUP)
        _leave_own_frames(found)
        return cut(again(lambda: "".join(found.format())).rstrip("\n"), _MOST)
    except BaseException as problem:  # by its `__str__`, or its `__class__`
        return f"{type(error).__name__}, which cannot be shown: {type(problem).__name__}"


def _leave_own_frames(found: traceback.TracebackException) -> None:
    due = [found]
    while due:
        one = due.pop()
        one.stack = traceback.StackSummary.from_list(frame for frame in one.stack if is_cell(frame.filename))
        due += [next_one for next_one in (one.__cause__, one.__context__) if next_one is not None]
        due += _members(one.exceptions)


def _members(exceptions: Iterable[traceback.TracebackException] | None) -> Iterable[traceback.TracebackException]:
    return exceptions or ()


def shown(value: object, most: int) -> str:
    """The `repr` of a value, or what is the matter with it."""
    try:
        text = repr(value)
        if type(text) is not str:
            text = str.__str__(text)
    except BaseException as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return cut(text, most)


def cut(text: str, most: int) -> str:
    """The head and the tail of a text that is too long."""
    if len(text) <= most // 4:
        return text.encode(errors="backslashreplace").decode()
    head, tail = text[: most // 2], text[len(text) - min(len(text), most // 2) :]
    if len(text) <= most:
        head, tail = text, ""
    data = head.encode(errors="backslashreplace"), tail.encode(errors="backslashreplace")
    return Excerpt(data[0], len(text) - len(head) - len(tail), data[1]).text()
