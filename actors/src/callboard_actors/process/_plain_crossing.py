"""Replies of confined workers, on the pool's side: JSON, read in linear time; nothing is ever unpickled."""

import builtins
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Protocol, get_args, get_origin, get_type_hints

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import from_json

from callboard.engines import Body
from callboard_actors.process._crossing import opened
from callboard_actors.process._errors import ResultLostError, WorkerCallError, add_output
from callboard_actors.process._frames import Kind
from callboard_actors.process._plain_replies import TEXT_BOUND

_MOST_VALUES: Final = 1_000_000
"""That one reply may have: two bytes of JSON can be a hundred of memory."""
_BETWEEN: Final = (b",", b"[", b"{")
_PIECE: Final = 256 * 1024
"""Bytes that are looked at in one step, which holds the interpreter's lock; a reply of more is read in a thread."""
_MOST_RAISED: Final = 1024 * 1024
"""Bytes of a reply that tells of an exception; four texts as long as they may be have less."""
_MOST_ERRORS: Final = 100
"""Errors of validation that are written out; a reply can have a million, whose text is 200 MB."""

_NOT_BY_TEXT: Final = (UnicodeError, BaseExceptionGroup, StopIteration, StopAsyncIteration)
"""They take more than a text, or mean something else to who awaits."""
_BUILTIN: Final = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, _NOT_BY_TEXT)
}

_Text = Annotated[str, StringConstraints(max_length=TEXT_BOUND)]


class _Raised(BaseModel):
    model_config = ConfigDict(strict=True)

    module: _Text
    type: _Text
    text: _Text
    traceback: _Text


class Opener(Protocol):
    """Returns what a call has returned, or raises what it has raised."""

    async def __call__(self, kind: Kind, reply: bytes | bytearray, body: Body, /, *, output: str) -> Any: ...


def opener(*, is_plain: bool) -> Opener:
    """Return the function that reads the replies of workers; `is_plain` for workers that are not trusted."""
    return _open_plain if is_plain else _open_pickled


async def _open_pickled(kind: Kind, reply: bytes | bytearray, body: Body, *, output: str) -> Any:
    return opened(kind, reply, body, output=output)


async def _open_plain(kind: Kind, reply: bytes | bytearray, body: Body, *, output: str) -> Any:
    """Read a large reply in a thread, which a cancelled caller leaves to itself: it ends in linear time."""
    work = partial(opened_plain, kind, reply, body, output=output)
    if len(reply) <= _PIECE:
        return work()
    return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))


def opened_plain(kind: Kind, reply: bytes | bytearray, body: Body, *, output: str) -> Any:
    """Return what a call has returned, or raise an error that tells what it has raised.

    Raises:
        ResultLostError: neither can be had.
        WorkerCallError: it raised what is no exception of Python itself.
    """
    if kind is Kind.LOST:
        said = reply[:TEXT_BOUND].decode(errors="replace")
        raise ResultLostError(body.title, said, call_id=body.call_id, output=output)
    try:
        if kind is Kind.VALUE:
            return _value(bytes(reply), _adapter_of(_plain_function(body.fn)))
        if len(reply) > _MOST_RAISED:
            raise ValueError(f"an exception of {len(reply)} bytes, and {_MOST_RAISED} are the most")
        found = _Raised.model_validate_json(bytes(reply))
    except Exception as error:
        said, cause = _told(error)
        raise ResultLostError(
            body.title, f"it cannot be read here: {said}", call_id=body.call_id, output=output
        ) from cause
    raise _error(found, body.title, output)


def _value(reply: bytes, adapter: TypeAdapter[Any] | None) -> Any:
    if has_more_values(reply, _MOST_VALUES):
        raise ValueError(f"it has more than {_MOST_VALUES} values")
    return from_json(reply) if adapter is None else adapter.validate_json(reply)


def has_more_values(reply: bytes, most: int) -> bool:
    """Return whether JSON has more values than so many, counted by the marks before them; in one linear pass.

    Texts are left out where that matters. Bytes that are no JSON are counted somehow: reading them fails afterwards.
    """
    if sum(reply.count(mark) for mark in _BETWEEN) <= most:
        return False
    marks, quotes = 0, 0
    for piece in without_escapes(reply):
        parts = piece.split(b'"')
        # Every second part is a text; the first one is, where an odd number of quotes came before.
        bare = b"".join(parts[quotes % 2 :: 2])
        marks += sum(bare.count(mark) for mark in _BETWEEN)
        quotes += len(parts) - 1
        # A value and its key have at most four quotes.
        if marks > most or quotes > 4 * (most + 1):
            return True
    return False


def without_escapes(reply: bytes) -> Iterator[bytes]:
    """Yield the pieces of JSON without escaped backslashes and quotes, so that each quote begins or ends a text."""
    at = 0
    while at < len(reply):
        end = at + _PIECE
        piece = reply[at:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape would be cut: its second byte belongs to the piece
            piece += reply[end : end + 1]
        at += len(piece)
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"")


def _told(error: Exception) -> tuple[str, Exception | None]:
    """Return a short text of an error, and the error itself unless its own text may be huge."""
    if isinstance(error, ValidationError) and error.error_count() > _MOST_ERRORS:
        return f"{error.error_count()} validation errors for {error.title}"[:TEXT_BOUND], None
    return str(error)[:TEXT_BOUND], error


def _error(found: _Raised, title: str, output: str) -> Exception:
    cls = _BUILTIN.get(found.type) if found.module == "builtins" else None
    error = WorkerCallError(title, found.type, found.text) if cls is None else cls(found.text)
    error.add_note(f"In a confined worker process:\n{found.traceback}")
    add_output(error, output)
    return error


def _plain_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, partial):
        fn = fn.func
    return fn


@lru_cache(maxsize=256)
def _adapter_of(fn: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """What makes of JSON what the function says that it returns; `None` if it does not say, or nothing could."""
    try:
        annotation = get_type_hints(fn, include_extras=True).get("return", Any)
        if get_origin(annotation) in (Coroutine, Awaitable):
            annotation = get_args(annotation)[-1]
        return None if annotation in (Any, object, inspect.Signature.empty) else TypeAdapter(annotation)
    except Exception:  # names that are not there at run time, types that pydantic does not know
        return None
