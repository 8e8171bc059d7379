"""Function that a worker's engine runs for each call of an agent. Imports little: every worker process loads it."""

from collections.abc import Callable, Coroutine
from typing import Any

_OUTCOME = tuple[int, bytes]


def run_in_worker(subject: str, is_plain: bool, pickled: bytes) -> _OUTCOME:
    """Run a call in a worker process; return its encoded reply, which the server forwards without decoding it.

    For an async function, return a coroutine, which every engine awaits. The pool reads the return annotation: it
    validates a confined worker's JSON against this type.

    Args:
        subject: name of the served function or actor.
        is_plain: encode the reply as JSON, because this worker is not trusted.
        pickled: function, arguments and context variables.
    """
    from callboard_actors._engine._pickles import loads
    from callboard_actors._engine._replies import replies, without_own_frame
    from callboard_actors._engine._variables import set_all

    encode = replies(is_plain=is_plain)
    try:
        fn, args, kwargs, variables = loads(pickled)
        _check(fn, subject)
        set_all(variables)
        value = fn(*args, **kwargs)
    except MemoryError:
        raise  # its engine replaces a worker that may hold on to this memory
    except Exception as error:
        return encode.raised(without_own_frame(error))
    if not isinstance(value, Coroutine):
        return encode.returned(value)

    async def later() -> _OUTCOME:
        try:
            found = await value
        except MemoryError:
            raise
        except Exception as error:
            return encode.raised(without_own_frame(error))
        return encode.returned(found)

    return later()  # type: ignore[return-value]  # see above


def name_of(subject: Callable[..., Any]) -> str:
    """Return the name by which a function or actor is served: `module:qualname`."""
    while (inner := getattr(subject, "func", None)) is not None and not hasattr(subject, "__qualname__"):
        subject = inner
    module = getattr(subject, "__module__", None) or type(subject).__module__
    return f"{module}:{getattr(subject, '__qualname__', None) or type(subject).__qualname__}"


def _check(fn: Callable[..., Any], subject: str) -> None:
    """Raise `TypeError` if the function is not the one that the call names.

    Functions of callboard itself are allowed: they wrap the named one, such as an actor's methods.
    """
    # Against mistakes, not attacks: unpickling has already run code of the agent, which has the secret. Use `--confine`
    # against agents that are not trusted.
    if name_of(fn) != subject and not str(getattr(fn, "__module__", "")).startswith("callboard."):
        raise TypeError(f"{name_of(fn)} came with a call of {subject}")
