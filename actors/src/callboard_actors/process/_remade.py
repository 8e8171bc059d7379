"""Exceptions whose pickles nobody could read, as those are whose `__init__` takes more than their `args`.

They are taken apart as Python's own class behind them does it, and made again without the `__init__` of their own.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, cast

_Parts = tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]
"""Class, what it is made with, and its attributes."""
_Reduced = tuple[Callable[..., BaseException], _Parts]


def pickled(error: BaseException) -> bytes:
    """Pickle an exception so that it can be read again; a note names what was left out for it.

    Raises:
        Exception: it cannot be done.
    """
    return _pickled_with(error, {})


def remade(cls: type[BaseException], args: tuple[Any, ...], state: Mapping[str, Any]) -> BaseException:
    """Make an exception of its parts."""
    error = cls.__new__(cls, *args)
    _own_of_python(cls).__init__(error, *args)
    error.__setstate__(dict(state))
    return error


def is_read_again(error: BaseException) -> bool:
    """Whether it comes back as an exception if it is pickled as it is."""
    try:
        found = pickle.loads(pickle.dumps(error, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - it is our own
    except Exception:  # that is the answer: it is sent in parts instead
        return False
    return isinstance(found, BaseException)


class _Pickler(pickle.Pickler):
    """Sends exceptions in parts that do not come back from an ordinary pickle; `known` has those that it has met."""

    def __init__(self, file: io.BytesIO, known: dict[int, tuple[BaseException, _Reduced | None]]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return NotImplemented
        if id(obj) in self._known:
            _, reduced = self._known[id(obj)]
            if reduced is None:
                raise pickle.PicklingError("it refers back to the exception whose it is")
            return reduced
        if is_read_again(obj):
            return NotImplemented
        self._known[id(obj)] = obj, None
        reduced = remade, _parts_of(obj, self._sendable)
        self._known[id(obj)] = obj, reduced  # once, because of groups in groups each is asked for again
        return reduced

    def _sendable(self, value: object) -> bool:
        try:
            pickle.loads(_pickled_with(value, self._known))  # noqa: S301 - it is our own
        except Exception:  # that is the answer: it is left out
            return False
        return True


def _pickled_with(value: object, known: dict[int, tuple[BaseException, _Reduced | None]]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, known).dump(value)
    return buffer.getvalue()


def _parts_of(error: BaseException, sendable: Callable[[object], bool]) -> _Parts:
    reduced = cast("tuple[Any, ...]", _own_of_python(type(error)).__reduce__(error))
    args, state = reduced[1], dict[str, Any](reduced[2] if len(reduced) > 2 else {})
    left_out = [name for name, value in state.items() if not sendable(value)]
    left_out += [f"args[{place}]" for place, value in enumerate(args) if not sendable(value)]
    kept = {name: value for name, value in state.items() if name not in left_out}
    if left_out:
        note = f"Left out on its way, because it cannot be pickled: {', '.join(left_out)}"
        kept["__notes__"] = [*kept.get("__notes__", ()), note]
    return type(error), tuple(value if sendable(value) else repr(value) for value in args), kept


def _own_of_python(cls: type[BaseException]) -> type[BaseException]:
    """The nearest class behind it that Python itself has."""
    return next(one for one in cls.__mro__ if one.__module__ == "builtins" and issubclass(one, BaseException))
