"""Execution of calls in a worker, and encoding of replies as pickles; `_plain_replies.py` encodes them as JSON."""

import io
import os
import pickle
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, cast

from callboard_actors._engine._frames import Kind, encode_loss
from callboard_actors._engine._pickles import dumps, loads

_MAX_TRACEBACK = 16 * 1024
"""Largest length of a traceback in a note, in characters."""

Reply = tuple[Kind, bytes]
"""Encoded outcome of a call: the kind and the payload of the reply's frame."""


class ReplyEncoder(NamedTuple):
    """Pair of functions that encode the result and the exception of a call."""

    encode_result: Callable[[Any], Reply]
    encode_error: Callable[[Exception], Reply]


def reply_encoder(*, is_plain: bool) -> ReplyEncoder:
    """Return the functions that encode replies: as JSON if `is_plain` (for untrusted workers), otherwise as pickles."""
    if not is_plain:
        return ReplyEncoder(encode_result, encode_error)
    # Imported only if needed; the zygote of confined workers has loaded it.
    from callboard_actors._engine import _plain_replies

    return ReplyEncoder(_plain_replies.encode_result, _plain_replies.encode_error)


def run_call(pickled: memoryview | bytes, encoder: ReplyEncoder) -> Reply | Coroutine[Any, Any, Reply]:
    """Unpickle a call and run its function; return the encoded reply, or a coroutine that returns it."""
    try:
        fn, args, kwargs = loads(pickled)
        value = fn(*args, **kwargs)
    except Exception as error:
        return encoder.encode_error(_remove_first_frame(error))
    return _await_call(value, encoder) if isinstance(value, Coroutine) else encoder.encode_result(value)


async def _await_call(coroutine: Coroutine[Any, Any, Any], encoder: ReplyEncoder) -> Reply:
    try:
        value = await coroutine
    except Exception as error:
        return encoder.encode_error(_remove_first_frame(error))
    return encoder.encode_result(value)


def _remove_first_frame(error: Exception) -> Exception:
    """Remove the first frame, which is callboard's, from an exception's traceback; return the exception."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def limit_reply(kind: Kind, payload: bytes, max_bytes: int) -> Reply:
    """Return a reply unchanged, or a LOST reply with an error text if the payload is longer than `max_bytes`."""
    if len(payload) <= max_bytes:
        return kind, payload
    if kind is Kind.LOST:
        return kind, payload[:max_bytes]
    verb = "returned" if kind is Kind.VALUE else "raised"
    return Kind.LOST, encode_loss(f"what it {verb} is {len(payload)} bytes as a pickle, and max_result is {max_bytes}")[
        :max_bytes
    ]


def encode_result(value: object, dump: Callable[[object], bytes] = dumps) -> Reply:
    """Pickle the result of a call as a reply; if this fails, return a LOST reply with an error text."""
    try:
        return Kind.VALUE, dump(value)
    except Exception as error:
        text = f"it returned an object of type {type(value).__qualname__}, which cannot be pickled: {_text_of(error)}"
        return Kind.LOST, encode_loss(text)


def encode_error(
    error: Exception, location: str = "worker process", dump: Callable[[object], bytes] | None = None
) -> Reply:
    """Pickle a call's exception as a reply, with its traceback as a note; if this fails, return a LOST reply."""
    text = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]
    note = f"In {location} {os.getpid()}:\n{text}"
    try:
        error.add_note(note)
        if dump is not None and _survives_pickle(error):
            payload = dump(error)
        else:
            # Without the parts that cannot be pickled; a note lists these parts.
            payload = _pickle_sendable_parts(error, reductions={})
        unpickled = pickle.loads(payload)  # noqa: S301 - many exceptions can be pickled, but not unpickled
        if not isinstance(unpickled, Exception):
            raise TypeError(f"it would be read as an object of type {type(unpickled).__qualname__}")
    except Exception as pickle_error:
        return Kind.LOST, encode_loss(
            f"it raised {_text_of(error)}, which cannot be pickled: {_text_of(pickle_error)}", note
        )
    return Kind.RAISED, payload


def _text_of(error: Exception) -> str:
    try:
        return f"{type(error).__qualname__}({error})"
    except Exception:  # user-defined `__str__`
        return type(error).__qualname__


# Pickles of exceptions that Python's default cannot restore, because `__init__` takes more than `args`. Such an
# exception is reduced as its nearest built-in base class does it, and restored without calling its own `__init__`.

_Parts = tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]
"""Parts from which an exception is restored: its class, arguments for `__new__`, and attributes."""
_Reduction = tuple[Callable[..., BaseException], _Parts]


def restore_error(cls: type[BaseException], args: tuple[Any, ...], state: Mapping[str, Any]) -> BaseException:
    """Restore an exception from its class, arguments and attributes; called when unpickling."""
    error = cls.__new__(cls, *args)
    # The exception's own `__init__` may take other arguments than `args`.
    _builtin_base(cls).__init__(error, *args)
    error.__setstate__(dict(state))
    return error


def _survives_pickle(error: BaseException) -> bool:
    """Return whether default pickling and unpickling restore the exception."""
    try:
        unpickled = pickle.loads(pickle.dumps(error, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - it is our own
    except Exception:  # sent in parts instead
        return False
    return isinstance(unpickled, BaseException)


class _Pickler(pickle.Pickler):
    """Pickler for exceptions that default pickling cannot restore.

    `reductions` holds, by id, the exceptions that were already taken apart for the pickle.
    """

    def __init__(self, file: io.BytesIO, reductions: dict[int, tuple[BaseException, _Reduction | None]]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        # By id, with the exception itself, so that the id is not reused. `None` marks one that is being reduced.
        self._reductions = reductions

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return NotImplemented
        if id(obj) in self._reductions:
            _, reduction = self._reductions[id(obj)]
            if reduction is None:
                raise pickle.PicklingError("it refers back to the exception whose it is")
            return reduction
        if _survives_pickle(obj):
            return NotImplemented
        self._reductions[id(obj)] = obj, None
        # As the built-in base class reduces it. The state is missing if the exception has no attributes.
        _, args, *optional_state = cast("tuple[Any, ...]", _builtin_base(type(obj)).__reduce__(obj))
        state = dict[str, Any](optional_state[0] if optional_state else {})
        unsendable_names = [name for name, value in state.items() if not self._is_sendable(value)]
        unsendable_names += [f"args[{index}]" for index, value in enumerate(args) if not self._is_sendable(value)]
        sendable_state = {name: value for name, value in state.items() if name not in unsendable_names}
        if unsendable_names:
            note = f"Left out on its way, because it cannot be pickled: {', '.join(unsendable_names)}"
            sendable_state["__notes__"] = [*sendable_state.get("__notes__", ()), note]
        sendable_args = tuple(value if self._is_sendable(value) else repr(value) for value in args)
        reduction = restore_error, (type(obj), sendable_args, sendable_state)
        self._reductions[id(obj)] = obj, reduction  # once: nested groups would reduce it again on each level
        return reduction

    def _is_sendable(self, value: object) -> bool:
        try:
            pickle.loads(_pickle_sendable_parts(value, reductions=self._reductions))  # noqa: S301 - it is our own
        except Exception:  # left out
            return False
        return True


def _pickle_sendable_parts(value: object, reductions: dict[int, tuple[BaseException, _Reduction | None]]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, reductions).dump(value)
    return buffer.getvalue()


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """Return an exception class itself if it is built into Python, otherwise its nearest built-in base class."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))
