"""Errors of a cell for a model: the lines of its own code that led to them."""

import traceback
from collections.abc import Iterable

from callboard_actors._util._excerpts import Excerpt
from callboard_actors.python._cells import again, is_cell

_MOST = 4000
"""Characters of a traceback."""
_MOST_GROUP = 20


def told(error: BaseException) -> str:
    """Return a short traceback, without frames of libraries and of this package."""
    try:
        found = traceback.TracebackException.from_exception(error, compact=True, max_group_width=_MOST_GROUP)
        _leave_own_frames(found)
        return cut(again(lambda: "".join(found.format())).rstrip("\n"), _MOST)
    except BaseException as problem:  # raised by the error's own `__str__` or `__class__`
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
    """Return the `repr` of a value, or a note if it fails."""
    try:
        text = repr(value)
        if type(text) is not str:
            text = str.__str__(text)
    except BaseException as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return cut(text, most)


def cut(text: str, most: int) -> str:
    """Return the head and the tail of a text that is too long."""
    if len(text) <= most // 4:
        return text.encode(errors="backslashreplace").decode()
    head, tail = text[: most // 2], text[len(text) - min(len(text), most // 2) :]
    if len(text) <= most:
        head, tail = text, ""
    data = head.encode(errors="backslashreplace"), tail.encode(errors="backslashreplace")
    return Excerpt(data[0], len(text) - len(head) - len(tail), data[1]).text()
