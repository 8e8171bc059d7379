"""Search for the only repair that makes arguments valid."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from callboard.guards._repair._contract import Args, Contract, is_small
from callboard.guards._repair._slips import (
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
from callboard.guards._repair._validator import Path, Schema
from callboard.tools._errors import is_control_flow

MAX_TRIES = 48
"""Maximum number of validations per call."""
MAX_VISITS = 2_000
"""Maximum number of faulty places examined per call. Beyond the limits the arguments count as not repairable."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Change at one place of the arguments."""

    kind: Kind
    place: str
    """Dotted names of the schema; `*` for an item, and for a name that only the model used."""
    written: str = ""
    """Name that the model wrote, if the name was wrong."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Repaired arguments and the changes."""

    args: Args
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, slots=True)
class _Fix:
    """Replacement of the value at one place."""

    path: Path
    value: Any
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """Candidate arguments, the repairs that led to them, and their remaining faults."""

    args: Args
    repairs: tuple[Repair, ...]
    faults: tuple[Path, ...]


def repair(contract: Contract, args: Args) -> Repaired | None:
    """Return the arguments as they must have been meant, without changing `args`.

    The result is `None` if they are valid, cannot be repaired, or have several possible meanings.
    """
    try:
        faults = contract.faults(args)
        if not faults or not is_small(args):
            return None
        return _Search(contract).run(_State(args, (), faults))
    except Exception as error:
        if is_control_flow(error):
            raise
        return None  # an invalid schema, or one with too many alternatives


class _Search:
    """Breadth-first search over all repairs. It succeeds only if exactly one valid result exists.

    Independent faults are repaired in one step. So the number of validations depends on how deep mistakes are nested,
    not on their number.
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
                    return None  # a limit is reached, so another valid result cannot be excluded
                if faults := self._faults(args):
                    queue.append(_State(args, repairs, faults))
                elif found is not None:
                    return None  # a second valid result: the meaning is ambiguous, so nothing is repaired
                else:
                    found = Repaired(args, tuple(dict.fromkeys(repairs)))
        # At the limit, `_may_mean_another()` may have answered without validating.
        return found if self._tries < MAX_TRIES else None

    def _faults(self, args: Args) -> tuple[Path, ...]:
        self._tries += 1
        return self._contract.faults(args)

    def _after(self, state: _State) -> Iterator[tuple[Args, tuple[Repair, ...]]]:
        """Yield the arguments after each possible next repair; nothing if a fault has no repair."""
        if (inner := self._unwrapped(state.args)) is not None:
            (name,) = state.args
            yield inner, (*state.repairs, Repair("wrapper", "*", name))
            if name not in self._shape.root.get("properties", {}):
                return
        choices = [self._fixes(state, paths) for paths in self._groups(state)]
        # A fault without a repair stays in every combination, so this state is a dead end.
        if not all(choices):
            return
        # Repairs without an alternative are applied together; otherwise branch over the repairs of one group.
        certain = [fixes[0] for fixes in choices if len(fixes) == 1]
        for fixes in [certain] if certain else [[fix] for fix in choices[0]]:
            args: Any = state.args
            repairs = list(state.repairs)
            for fix in fixes:
                args = _replaced(args, fix.path, fix.value)
                repairs += fix.repairs
            yield args, tuple(repairs)

    def _groups(self, state: _State) -> list[list[Path]]:
        """Group faults that one repair may mend together; faults inside of another faulty place wait."""
        groups: dict[Path, list[Path]] = {}
        for fault in state.faults:
            path = self._known(fault)
            group = groups.setdefault(self._whole(path), [])
            if path not in group:
                group.append(path)
        return [group for key, group in groups.items() if not any(key[:length] in groups for length in range(len(key)))]

    def _known(self, path: Path) -> Path:
        """Return the path, cut before the first key that the schema does not allow."""
        steps = self._shape.along(path)
        return path[: next((at for at, step in enumerate(steps) if not step), len(steps)) - 1]

    def _whole(self, path: Path) -> Path:
        """Return the outermost place around a path with several alternatives, or the path itself.

        A value that breaks one alternative may be valid in another, so the whole place is repaired at once.
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
        """Return the inner arguments if all are wrapped in a single one, such as `{"input": {...}}`."""
        if len(args) != 1:
            return None
        ((name, inner),) = args.items()
        if not is_wrapper(name, self._contract.name):
            return None
        inner = read(inner) if isinstance(inner, str) else inner
        if not isinstance(inner, dict) or inner.keys() & self._contract.injected:
            # Unwrapping must not let the model set an injected argument.
            return None
        return inner

    def _of_names(self, args: Args, path: Path, value: Args, schema: Schema) -> Iterator[_Fix]:
        """Yield an object with corrected property names, and without properties that the schema forbids."""
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
        """Return whether an unknown argument may stand for a known one; if so, it must not be dropped.

        That is: its name is similar, or its value is valid for one that is absent, such as `filter` for `where`.
        """
        if the_one(name, schema["properties"]) is not None:
            return True
        for target in absent(value, schema):
            if self._tries == MAX_TRIES:
                return True  # cannot be tested any more, so do not drop it
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
    """Return a copy of a value with another value at one place; shared parts are not changed."""
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copied


def _text(args: Args) -> str:
    return json.dumps(args, sort_keys=True)
