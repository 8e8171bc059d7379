"""The search for the one repair that makes arguments valid."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from callboard.middleware._repair._contract import Args, Contract, is_small
from callboard.middleware._repair._slips import (
    Kind,
    absent,
    is_closed,
    is_wrapper,
    read,
    renamed,
    slips,
    the_one,
    unknown,
)
from callboard.middleware._repair._validator import Path, Schema
from callboard.tools._errors import is_control_flow

MAX_TRIES = 48
"""Validations of one call, and"""
MAX_VISITS = 2_000
"""places looked at: whoever needs more is not understood, and the event loop waits."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done at one place of the arguments."""

    kind: Kind
    place: str
    """In the schema's words, dotted; `*` for an item, and for a name that only the model knows."""
    written: str = ""
    """The name that the model had written, where that was wrong."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Arguments, and what was done to them."""

    args: Args
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, slots=True)
class _Fix:
    """One value for another, at one place."""

    path: Path
    value: Any
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """What has been made of the arguments so far."""

    args: Args
    repairs: tuple[Repair, ...]
    faults: tuple[Path, ...]


def repair(contract: Contract, args: Args) -> Repaired | None:
    """The arguments as they must have been meant.

    Args:
        contract: what they have to satisfy.
        args: without those that are injected; stay as they are.

    Returns:
        `None` if they are valid, beyond repair, or might have meant two things.
    """
    try:
        faults = contract.faults(args)
        if not faults or not is_small(args):
            return None
        return _Search(contract).run(_State(args, (), faults))
    except Exception as error:
        if is_control_flow(error):
            raise
        return None  # a schema that is none, or has too many alternatives


class _Search:
    """Tries every repair of what is wrong, breadth first, until one is found and no other can be.

    What is wrong at places that have nothing to do with each other is repaired at once, so that the number of
    validations depends on how deep slips are nested, not on how many there are.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._shape = contract.shape
        self._tries = 0
        self._visits = 0

    def run(self, start: _State) -> Repaired | None:
        found: Repaired | None = None
        seen = {_text(start.args)}
        queue = deque([start])
        while queue:
            for args, repairs in self._after(queue.popleft()):
                if (key := _text(args)) in seen:
                    continue
                seen.add(key)
                if not is_small(args) or self._tries == MAX_TRIES or self._visits > MAX_VISITS:
                    return None
                if faults := self._faults(args):
                    queue.append(_State(args, repairs, faults))
                elif found is not None:
                    return None
                else:
                    found = Repaired(args, tuple(dict.fromkeys(repairs)))
        return found if self._tries < MAX_TRIES else None

    def _faults(self, args: Args) -> tuple[Path, ...]:
        self._tries += 1
        return self._contract.faults(args)

    def _after(self, state: _State) -> Iterator[tuple[Args, tuple[Repair, ...]]]:
        """What the next repair may lead to; nothing if there is a fault that none repairs."""
        if (inner := self._unwrapped(state.args)) is not None:
            (name,) = state.args
            yield inner, (*state.repairs, Repair("wrapper", "*", name))
            if name not in self._shape.root.get("properties", {}):
                return
        choices = [self._fixes(state, paths) for paths in self._groups(state)]
        if not all(choices):
            return
        certain = [fixes[0] for fixes in choices if len(fixes) == 1]
        for fixes in [certain] if certain else [[fix] for fix in choices[0]]:
            args: Any = state.args
            repairs = list(state.repairs)
            for fix in fixes:
                args = _replaced(args, fix.path, fix.value)
                repairs += fix.repairs
            yield args, tuple(repairs)

    def _groups(self, state: _State) -> list[list[Path]]:
        """The faults, those together of which one repair may mend several; inner ones wait for outer ones."""
        groups: dict[Path, list[Path]] = {}
        for fault in state.faults:
            path = self._known(fault)
            group = groups.setdefault(self._whole(path), [])
            if path not in group:
                group.append(path)
        return [group for key, group in groups.items() if not any(key[:length] in groups for length in range(len(key)))]

    def _known(self, path: Path) -> Path:
        """The place, or the object around it if that forbids it."""
        steps = self._shape.along(path)
        return path[: next((at for at, step in enumerate(steps) if not step), len(steps)) - 1]

    def _whole(self, path: Path) -> Path:
        """The outermost place around it for which there are several alternatives, or itself.

        What breaks one of them may be quite right in another, so that it need not be what is to be repaired.
        """
        for at, step in enumerate(self._shape.along(path)):
            if sum(one.get("type") != "null" for one in step) > 1:
                return path[:at]
        return path

    def _fixes(self, state: _State, paths: list[Path]) -> list[_Fix]:
        self._visits += len(paths)
        return [fix for path in paths for fix in self._fixes_at(state.args, path)]

    def _fixes_at(self, args: Args, path: Path) -> Iterator[_Fix]:
        value: Any = args
        for key in path:
            value = value[key]
        alternatives = self._shape.along(path)[-1]
        place = self._place(path)
        for slip in slips(value, alternatives) if path else ():
            yield _Fix(path, slip.value, (Repair(slip.kind, place),))
        for one in alternatives if isinstance(value, dict) else ():
            if "properties" in one:
                yield from self._of_names(args, path, value, one)

    def _unwrapped(self, args: Args) -> Args | None:
        """All the arguments, if they are inside of a single one."""
        if len(args) != 1:
            return None
        ((name, inner),) = args.items()
        if not is_wrapper(name, self._contract.name):
            return None
        inner = read(inner) if isinstance(inner, str) else inner
        if not isinstance(inner, dict) or inner.keys() & self._contract.injected:
            return None
        return inner

    def _of_names(self, args: Args, path: Path, value: Args, schema: Schema) -> Iterator[_Fix]:
        """An object with its properties by their names, and without those that it forbids."""
        names = renamed(value, schema)
        if names is None:
            return
        right = {names.get(name, name): item for name, item in value.items()}
        repairs = [Repair("name", self._place((*path, target)), name) for name, target in names.items()]
        if is_closed(schema):
            for name in unknown(right, schema):
                if self._may_mean_another(args, path, right, name, schema):
                    return
                repairs.append(Repair("unknown", self._place((*path, name)), name))
            right = {name: item for name, item in right.items() if name in schema["properties"]}
        if repairs:
            yield _Fix(path, right, tuple(repairs))

    def _may_mean_another(self, args: Args, path: Path, value: Args, name: str, schema: Schema) -> bool:
        """Whether an argument that does not exist may stand for one that does.

        Because it has nearly the name of one, or would do as one that is not given: `filter`, say, as `where`.
        """
        if the_one(name, schema["properties"]) is not None:
            return True
        for target in absent(value, schema):
            if self._tries == MAX_TRIES:
                return True
            trial = {**value, target: value[name]}
            del trial[name]
            faults = self._faults(_replaced(args, path, trial))
            if not any(fault[: len(path) + 1] == (*path, target) for fault in faults):
                return True
        return False

    def _place(self, path: Path) -> str:
        steps = self._shape.along(path)
        return ".".join(
            key if isinstance(key, str) and any(key in one.get("properties", {}) for one in step) else "*"
            for key, step in zip(path, steps, strict=False)
        )


def _replaced(value: Any, path: Path, new: Any) -> Any:
    """A value with another one in one place; it stays as it is."""
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copied


def _text(args: Args) -> str:
    return json.dumps(args, sort_keys=True)
