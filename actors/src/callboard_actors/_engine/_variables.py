"""Users' context variables that are sent with calls: `carries=["package.module:variable"]`."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from callboard_actors._engine._main_module import module_named


class Variables:
    """Context variables that a pool sends to its workers, given as `"package.module:variable"`."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise TypeError(f"carries={names!r} is one string; give a list of names of variables")
        self._variables = {name: _variable(name) for name in names}

    def values(self) -> dict[str, Any]:
        """Return the current values of the variables that are set in this context."""
        found = {name: variable.get(_UNSET) for name, variable in self._variables.items()}
        return {name: value for name, value in found.items() if value is not _UNSET}


_UNSET = object()
"""Default that no user can set: `None` is a possible value."""


def set_all(values: Mapping[str, Any]) -> None:
    """Set context variables by their names; called in a worker, in the context of the call."""
    for name, value in values.items():
        _variable(name).set(value)


def _variable(name: str) -> ContextVar[Any]:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"carries={name!r} names no variable; write it as 'package.module:variable'")
    try:
        found = getattr(module_named(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"carries={name!r} cannot be found: {error}") from error
    if not isinstance(found, ContextVar):
        raise TypeError(f"carries={name!r} is no ContextVar, but of type {type(found).__qualname__}")
    return found
