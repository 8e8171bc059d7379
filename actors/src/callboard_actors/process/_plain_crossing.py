"""What a confined worker answered, on the pool's side: nothing of it is unpickled, whatever it says it is."""

import builtins
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Protocol, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter
from pydantic_core import from_json

from callboard.engines import Body
from callboard_actors.process._crossing import opened
from callboard_actors.process._errors import ResultLostError, WorkerCallError, add_output
from callboard_actors.process._frames import Kind
from callboard_actors.process._plain_replies import TEXT_BOUND
from callboard_actors.process._settings import Terms

_MOST_VALUES: Final = 1_000_000
"""That one reply may have: two bytes of JSON can be a hundred of memory."""
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BETWEEN: Final = (b",", b"[", b"{")

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


class Opened(Protocol):
    """Returns what a call has returned, or raises what it has raised."""

    def __call__(self, kind: Kind, reply: bytes | bytearray, body: Body, /, *, output: str) -> Any: ...


def opener(terms: Terms) -> Opened:
    """How the replies of workers are read: pickles are only of those that are trusted."""
    return opened if terms.confine is None else opened_plain


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
        found = _Raised.model_validate_json(bytes(reply))
    except Exception as error:
        said = f"it cannot be read here: {str(error)[:TEXT_BOUND]}"
        raise ResultLostError(body.title, said, call_id=body.call_id, output=output) from error
    raise _error(found, body.title, output)


def _value(reply: bytes, adapter: TypeAdapter[Any] | None) -> Any:
    if _values_in(reply) > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES} values")
    return from_json(reply) if adapter is None else adapter.validate_json(reply)


def _values_in(reply: bytes) -> int:
    count = sum(reply.count(mark) for mark in _BETWEEN)
    if count <= _MOST_VALUES:
        return count
    bare = _STRING.sub(b"", reply)
    return sum(bare.count(mark) for mark in _BETWEEN)


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
