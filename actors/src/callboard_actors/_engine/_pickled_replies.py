"""Replies of a trusted worker, on its side: pickles."""

import os
import pickle
import traceback

from callboard_actors._engine import _exceptions
from callboard_actors._engine._frames import Kind, lost

_TRACEBACK_BOUND = 16 * 1024


def returned(value: object) -> tuple[Kind, bytes]:
    """Return the reply for a result."""
    try:
        return Kind.VALUE, pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        text = f"it returned an object of type {type(value).__qualname__}, which cannot be pickled: {_said(error)}"
        return Kind.LOST, lost(text)


def raised(error: Exception, where: str = "worker process") -> tuple[Kind, bytes]:
    """Return the reply for an exception, with the traceback as a note; `where` names the process in the note."""
    told = "".join(traceback.format_exception(error))[-_TRACEBACK_BOUND:]
    note = f"In {where} {os.getpid()}:\n{told}"
    try:
        error.add_note(note)
        body = _exceptions.pickled(error)
        found = pickle.loads(body)  # noqa: S301 - many exceptions can be pickled, but not unpickled
        if not isinstance(found, Exception):
            raise TypeError(f"it would be read as an object of type {type(found).__qualname__}")
    except Exception as problem:
        return Kind.LOST, lost(f"it raised {_said(error)}, which cannot be pickled: {_said(problem)}", note)
    return Kind.RAISED, body


def _said(error: Exception) -> str:
    try:
        return f"{type(error).__qualname__}({error})"
    except Exception:  # user-defined `__str__`
        return type(error).__qualname__
