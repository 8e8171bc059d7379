"""What a worker's own engine runs for a body that came from another machine. Loads little: each of its workers does."""

from collections.abc import Callable, Coroutine
from typing import Any

_OUTCOME = tuple[int, bytes]


def run_there(subject: str, is_plain: bool, pickled: bytes) -> _OUTCOME:
    """Run a body; what it ends with is a reply as it is sent, which nobody reads on the way.

    A coroutine is returned where the body is async, which every engine awaits. The annotation says what comes of it,
    and is read: what a confined worker answers in JSON becomes a value of that type again.

    Args:
        subject: the name of what it is about.
        is_plain: whether to answer in JSON, because this worker is not trusted.
        pickled: function, arguments and context variables.
    """
    from callboard_actors.process._pickles import loads
    from callboard_actors.process._variables import set_all

    try:
        fn, args, kwargs, variables = loads(pickled)
        _check(fn, subject)
        set_all(variables)
        value = fn(*args, **kwargs)
    except MemoryError:
        raise  # what this worker holds, it may hold for ever: its engine has to know
    except Exception as error:
        return _raised(error, is_plain)
    if isinstance(value, Coroutine):
        return _later(value, is_plain)  # type: ignore[return-value]  # see above
    return _returned(value, is_plain)


async def _later(value: Coroutine[Any, Any, Any], is_plain: bool) -> _OUTCOME:
    try:
        found = await value
    except MemoryError:
        raise
    except Exception as error:
        return _raised(error, is_plain)
    return _returned(found, is_plain)


def name_of(subject: Callable[..., Any]) -> str:
    """The name by which something is served: `module:qualname`."""
    while (inner := getattr(subject, "func", None)) is not None and not hasattr(subject, "__qualname__"):
        subject = inner
    module = getattr(subject, "__module__", None) or type(subject).__module__
    return f"{module}:{getattr(subject, '__qualname__', None) or type(subject).__qualname__}"


def _check(fn: Callable[..., Any], subject: str) -> None:
    """Raise TypeError if something else would run than what was asked for; callboard's own code runs the rest."""
    if name_of(fn) != subject and not str(getattr(fn, "__module__", "")).startswith("callboard."):
        raise TypeError(f"{name_of(fn)} came with a call of {subject}")


def _returned(value: Any, is_plain: bool) -> _OUTCOME:
    kind, reply = _replies(is_plain).returned(value)
    return int(kind), reply


def _raised(error: Exception, is_plain: bool) -> _OUTCOME:
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # without this frame of ours
    kind, reply = _replies(is_plain).raised(error)
    return int(kind), reply


def _replies(is_plain: bool) -> Any:
    if is_plain:
        from callboard_actors.process import _plain_replies

        return _plain_replies
    from callboard_actors.process import _pickled_replies

    return _pickled_replies
