"""Walk through a call's arguments: it measures and cleans them, and lists the checks that the caller must run."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from callboard.guards._sanitize._hosts import Url
from callboard.guards._sanitize._paths import PathIn
from callboard.guards._sanitize._text import RefusedError, Text, shown

Rule = Text | Url | PathIn | Callable[[Any], object]
"""Rule for an argument. A function returns the value or a replacement, or raises `ValueError` to refuse it."""

Place = tuple[str | int, ...]
"""Keys and indices of a value, from the outside in."""

_NAME = re.compile(r"[^.\[\]]+(?:\[\])*(?:\.[^.\[\]]+(?:\[\])*)*")
_PART = re.compile(r"[^.\[\]]+|\[\]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class Rules:
    """Rules by the places to which they apply.

    Args:
        by_name: rules by name: `url` is that argument, `files[].path` the `path` of every item of `files`, and
            `headers.*` everything in `headers`.
        spelled: the name of an argument for each name under which it may be written, such as an alias.
    """

    def __init__(self, by_name: Mapping[str, Rule], spelled: Mapping[str, str]) -> None:
        self._spelled = spelled
        self._exact: dict[tuple[str, ...], Rule] = {}
        self._wild: list[tuple[tuple[str, ...], Rule]] = []
        for name, rule in by_name.items():
            # A JSON schema may have an argument whose own name looks like a path, such as `headers.*`.
            self._exact[self._one_spelling((name,))] = rule
            parts = self._one_spelling(parts_of(name))
            if "*" in parts:
                self._wild.append((parts, rule))
            else:
                self._exact[parts] = rule

    def at(self, place: Place) -> Rule | None:
        """Return the rule of a place; a rule that names the place precedes one with a `*`."""
        parts = self._one_spelling(tuple("[]" if isinstance(part, int) else part for part in place))
        rule = self._exact.get(parts)
        if rule is not None or not self._wild:
            return rule
        return next((rule for pattern, rule in self._wild if _fits(pattern, parts)), None)

    def _one_spelling(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        return (self._spelled.get(parts[0], parts[0]), *parts[1:])


def parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a rule's name; a name in another form is a single part."""
    return tuple(_PART.findall(name)) if _NAME.fullmatch(name) else (name,)


def _fits(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(pattern) == len(parts) and all(p in ("*", part) for p, part in zip(pattern, parts, strict=True))


@dataclass(frozen=True, slots=True)
class Due:
    """Check of one value that must still run, and the container and key for its result."""

    place: Place
    rule: Url | PathIn | Callable[[Any], object]
    into: Any
    key: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """Argument that is refused."""

    place: Place
    error: RefusedError


@dataclass(slots=True, kw_only=True)
class Walk:
    """Walk through the arguments of one call; call `arguments` once.

    Args:
        rules: rules by place.
        text: rule for keys, and for every text without a rule of its own.
        max_depth: maximum nesting of lists and mappings.
        max_size: maximum characters of all texts and keys, plus one for each value.
        skip: names of injected arguments.
    """

    rules: Rules
    text: Text
    max_depth: int
    max_size: int
    skip: frozenset[str] = frozenset()
    due: list[Due] = field(default_factory=list[Due])
    """Checks that the caller must run, the innermost first."""
    refused: list[Refused] = field(default_factory=list[Refused])
    cleaned: set[str] = field(default_factory=set[str])
    """Names of the arguments in which something was changed."""
    _around_refused: set[Place] = field(default_factory=set[Place])
    _size: int = 0

    def arguments(self, written: object) -> dict[str, Any]:
        """Return a cleaned copy. Texts with a pending check are still unchanged; if anything was refused, ignore it."""
        if not isinstance(written, Mapping):
            self.refuse((), RefusedError("type", "they have to be an object with a name for each"))
            return {}
        try:
            return self._mapping(written, ())
        except _TooMuchError:
            # The walk was cut off and the call will be refused, so no check needs to run.
            self.due.clear()
            return {}

    def is_refused(self, place: Place) -> bool:
        """Return whether a value, or a part of it, is refused."""
        return place in self._around_refused

    def refuse(self, place: Place, error: RefusedError) -> None:
        """Refuse a value, and with it every value that contains it."""
        self.refused.append(Refused(place, error))
        self._around_refused.update(place[:end] for end in range(len(place) + 1))

    def _mapping(self, value: Mapping[Any, Any], place: Place) -> dict[Any, Any]:
        new: dict[Any, Any] = {}
        for key, item in value.items():
            if not place and key in self.skip:
                new[key] = item
                continue
            clean = self._key(key, place)
            # Two keys differ only by invisible characters. It would be accidental which value the tool gets.
            if clean in new:
                self.refuse(place, RefusedError("keys", "two of its keys are the same but for invisible characters"))
            self._visit(new, clean, item, (*place, clean if isinstance(clean, str) else str(clean)))
        return new

    def _key(self, key: object, place: Place) -> object:
        if not isinstance(key, str):
            return key
        self._count(len(key), place)
        return self._cleaned(key, self.text, (*place, key))

    def _items(self, value: Iterable[Any], place: Place) -> list[Any]:
        new: list[Any] = []
        for index, item in enumerate(value):
            new.append(None)
            self._visit(new, index, item, (*place, index))
        return new

    def _visit(self, into: Any, key: object, value: object, place: Place) -> None:
        # Called before the children are visited, but appended after them: inner checks come first.
        rule = self.rules.at(place)
        into[key] = self._copy(value, rule, place)
        if rule is not None and not isinstance(rule, Text):
            self.due.append(Due(place, rule, into, key))

    def _copy(self, value: object, rule: Rule | None, place: Place) -> object:
        # Every value counts, or a huge list of empty texts would be free.
        self._count(1 + (len(value) if isinstance(value, str) else 0), place)
        text = rule if isinstance(rule, Text) else self.text
        if isinstance(value, str):
            # URLs and paths are not cleaned first: their checks must see what was written, and refuse what is hidden.
            return value if isinstance(rule, (Url, PathIn)) else self._cleaned(value, text, place)
        if isinstance(rule, Text):
            return self._cleaned(value, rule, place)  # not a text, so `Text` refuses it
        if len(place) > self.max_depth and isinstance(value, (dict, list, tuple)):
            self._give_up(place, RefusedError("depth", f"it is nested more than {self.max_depth} deep"))
        if isinstance(value, dict):
            return self._mapping(value, place)
        return self._items(value, place) if isinstance(value, (list, tuple)) else value

    def _cleaned(self, value: object, text: Text, place: Place) -> object:
        try:
            clean = text.check(value)
        except RefusedError as error:
            self.refuse(place, error)
            return value
        if clean != value:
            self.cleaned.add(dotted(place[:1]))
        return clean

    def _count(self, size: int, place: Place) -> None:
        self._size += size
        if self._size > self.max_size:
            reason = f"with it the arguments are larger than {self.max_size:,} characters and values in all"
            self._give_up(place, RefusedError("size", reason))

    def _give_up(self, place: Place, error: RefusedError) -> NoReturn:
        self.refuse(place, error)
        raise _TooMuchError


class _TooMuchError(Exception):
    """Raised inside the walk to stop it: the arguments are too large or too deeply nested."""


def dotted(place: Place, max_chars: int = 120) -> str:
    """Return a readable place such as `files[2].path`; unusual keys are quoted and cut."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
