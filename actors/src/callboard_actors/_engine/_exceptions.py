"""Pickles of exceptions that Python's default cannot restore, because `__init__` takes more than `args`.

Such an exception is reduced as its nearest built-in base class does it, and restored without calling its own
`__init__`.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, cast

_Parts = tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]
"""Class, arguments for `__new__`, attributes."""
_Reduced = tuple[Callable[..., BaseException], _Parts]


def pickled(error: BaseException) -> bytes:
    """Pickle an exception so that it can be unpickled; a note lists parts that had to be left out."""
    return _pickled_with(error, {})


def remade(cls: type[BaseException], args: tuple[Any, ...], state: Mapping[str, Any]) -> BaseException:
    """Restore an exception from its parts; called when unpickling."""
    error = cls.__new__(cls, *args)
    _own_of_python(cls).__init__(error, *args)
    error.__setstate__(dict(state))
    return error


def survives_pickle(error: BaseException) -> bool:
    """Return whether the exception survives a default pickle and unpickle."""
    try:
        found = pickle.loads(pickle.dumps(error, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - it is our own
    except Exception:  # sent in parts instead
        return False
    return isinstance(found, BaseException)


class _Pickler(pickle.Pickler):
    """Pickler that reduces exceptions to parts where the default fails; `known` are the exceptions met so far."""

    def __init__(self, file: io.BytesIO, known: dict[int, tuple[BaseException, _Reduced | None]]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        # By id, with the exception itself, so that the id is not reused. `None` marks one that is being reduced.
        self._known = known

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return NotImplemented
        if id(obj) in self._known:
            _, reduced = self._known[id(obj)]
            if reduced is None:
                raise pickle.PicklingError("it refers back to the exception whose it is")
            return reduced
        if survives_pickle(obj):
            return NotImplemented
        self._known[id(obj)] = obj, None
        reduced = remade, _parts_of(obj, self._sendable)
        self._known[id(obj)] = obj, reduced  # once: nested groups would reduce it again on each level
        return reduced

    def _sendable(self, value: object) -> bool:
        try:
            pickle.loads(_pickled_with(value, self._known))  # noqa: S301 - it is our own
        except Exception:  # left out
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
    """Return the nearest base class that is built into Python."""
    return next(one for one in cls.__mro__ if one.__module__ == "builtins" and issubclass(one, BaseException))
