"""Decoding of the replies of confined workers, on the pool's side: JSON, read in linear time; nothing is unpickled."""

import builtins
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import from_json

from callboard.extend import Body
from callboard_actors._engine._codec import decode_reply
from callboard_actors._engine._errors import ResultLostError, WorkerCallError, add_output_note
from callboard_actors._engine._frames import Kind, decode_loss
from callboard_actors._engine._plain_replies import MAX_TEXT
from callboard_actors._util._value_counter import ValueCounter

_MAX_VALUES: Final = 1_000_000
"""Largest number of JSON values in one reply: two bytes of JSON can become a hundred bytes of memory."""
_PIECE_BYTES: Final = 256 * 1024
"""Bytes of a reply processed at a time, while the interpreter's lock is held. Longer replies are read in a thread."""
_MAX_ERROR_BYTES: Final = 1024 * 1024
"""Largest size of a reply with an exception, in bytes; the four texts in it, each as long as allowed, need less."""
_MAX_SHOWN_ERRORS: Final = 100
"""Largest number of validation errors that an error text lists. A reply could cause a million, with 200 MB of text."""

_NOT_MADE_FROM_TEXT: Final = (UnicodeError, BaseExceptionGroup, StopIteration, StopAsyncIteration)
"""Built-in exceptions that cannot be made from a text alone, or would change the control flow of the awaiting task."""
_BUILTIN_ERRORS: Final = {
    name: error_class
    for name, error_class in vars(builtins).items()
    if isinstance(error_class, type)
    and issubclass(error_class, Exception)
    and not issubclass(error_class, _NOT_MADE_FROM_TEXT)
}

_Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]


class _ErrorReply(BaseModel):
    model_config = ConfigDict(strict=True)

    module: _Text
    type: _Text
    text: _Text
    traceback: _Text


async def decode_worker_reply(kind: Kind, reply: bytes, body: Body, *, is_plain: bool, output: str = "") -> Any:
    """Decode the reply of any worker, confined or trusted: return the result of the call, or raise its exception."""
    if not is_plain:
        return decode_reply(kind, reply, body, output=output)
    decode = partial(decode_plain_reply, kind, reply, body, output=output)
    if len(reply) <= _PIECE_BYTES:
        return decode()
    # A large reply is read in a thread; if the caller is cancelled, the thread ends by itself, in linear time. It has a
    # limiter of its own: abandoned threads must not use up the program's.
    return await to_thread.run_sync(decode, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))


def decode_plain_reply(kind: Kind, reply: bytes, body: Body, *, output: str) -> Any:
    """Decode the reply of a confined worker: return the result, or raise the exception that the reply describes."""
    if kind is Kind.LOST:
        reason, _ = decode_loss(reply[:MAX_TEXT])
        raise ResultLostError(body.title, reason, call_id=body.call_id, output=output)
    try:
        if kind is Kind.VALUE:
            # Before parsing, which would allocate all of them.
            check_value_count(reply)
            fn = body.fn
            while isinstance(fn, partial):
                fn = fn.func
            validator = _return_type_validator(fn)
            return from_json(reply) if validator is None else validator.validate_json(reply)
        if len(reply) > _MAX_ERROR_BYTES:
            raise ValueError(f"an exception of {len(reply)} bytes, and {_MAX_ERROR_BYTES} are the most")
        # Only four bounded texts are taken over. The class is looked up by name among Python's own.
        reply_error = _ErrorReply.model_validate_json(reply)
    except Exception as error:
        cause: Exception | None = error
        if isinstance(error, ValidationError) and error.error_count() > _MAX_SHOWN_ERRORS:
            # Its full text may be huge.
            reason, cause = f"{error.error_count()} validation errors for {error.title}", None
        else:
            reason = str(error)
        reason = f"it cannot be read here: {reason[:MAX_TEXT]}"
        raise ResultLostError(body.title, reason, call_id=body.call_id, output=output) from cause
    error_class = _BUILTIN_ERRORS.get(reply_error.type) if reply_error.module == "builtins" else None
    exception = (
        WorkerCallError(body.title, reply_error.type, reply_error.text)
        if error_class is None
        else error_class(reply_error.text)
    )
    exception.add_note(f"In a confined worker process:\n{reply_error.traceback}")
    add_output_note(exception, output)
    raise exception


def check_value_count(reply: bytes) -> None:
    """Raise `ValueError` if a JSON text has more than `_MAX_VALUES` values; count them in one pass."""
    # An upper bound, since marks within texts count, too. Most replies are decided here.
    if reply.count(b",") + reply.count(b"[") + reply.count(b"{") < _MAX_VALUES:
        return
    counter = ValueCounter()
    for begin in range(0, len(reply), _PIECE_BYTES):
        counter.add(reply[begin : begin + _PIECE_BYTES])
        if counter.count > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES} values")


@lru_cache(maxsize=256)
def _return_type_validator(fn: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """Return a pydantic validator for a function's return type; `None` if no type is annotated, or it is unusable."""
    try:
        annotation = get_type_hints(fn, include_extras=True).get("return", Any)
        if get_origin(annotation) in (Coroutine, Awaitable):
            annotation = get_args(annotation)[-1]
        return None if annotation in (Any, object, inspect.Signature.empty) else TypeAdapter(annotation)
    except Exception:  # names that do not exist at run time, or types that pydantic does not know
        return None
