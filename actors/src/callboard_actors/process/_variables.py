"""Context variables of users, which go with their calls: `carries=["package.module:variable"]`."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from callboard_actors.process._main_module import module_named


class Variables:
    """The context variables that a pool carries to its workers."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise TypeError(f"carries={names!r} is one string; give a list of names of variables")
        self._variables = {name: _variable(name) for name in names}

    def values(self) -> dict[str, Any]:
        """What those are set to here and now that are."""
        found = {name: variable.get(_UNSET) for name, variable in self._variables.items()}
        return {name: value for name, value in found.items() if value is not _UNSET}


_UNSET = object()


def set_all(values: Mapping[str, Any]) -> None:
    """Set variables by their names."""
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
