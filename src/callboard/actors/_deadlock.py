"""Whether a call would wait for itself, through calls that wait for each other."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from callboard.actors._message import Message


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to end before a message goes on: all of these, or one of them."""

    messages: tuple[Message, ...]
    one_is_enough: bool = False

    def are_met(self, ended: Iterable[Message]) -> bool:
        """Whether it goes on when those have ended."""
        met = (one in ended for one in self.messages)
        return any(met) if self.one_is_enough else all(met)


NeedsOf = Callable[[Message], Needs]
"""A message that waits needs those to end that are before it, and one that runs needs what it asks to end."""


def circle(asked: Message, needs_of: NeedsOf) -> list[Message] | None:
    """The messages that would wait for each other if this one were waited for; `None` if none would.

    Each that asks enters what it asks before it looks: so of two that close a circle at once, one finds the other.
    """
    ancestors = asked.ancestors()
    if not ancestors:
        return None
    found = _found(asked, frozenset(ancestors), needs_of)
    if asked in _go_on(found):
        return None
    way = _way(asked, frozenset(ancestors), found)
    # From the one that the circle closes at, through whoever it waits for, and back to it.
    between = ancestors[: ancestors.index(way[-1])] if way[-1] in ancestors else []
    return [way[-1], *reversed(between), *way]


def _found(asked: Message, ancestors: frozenset[Message], needs_of: NeedsOf) -> dict[Message, Needs]:
    """All that it would wait for, as far as those that wait for it."""
    found: dict[Message, Needs] = {}
    todo = [asked]
    while todo:
        one = todo.pop()
        if one not in found and one not in ancestors:
            found[one] = needs_of(one)
            todo += found[one].messages
    return found


def _go_on(found: Mapping[Message, Needs]) -> set[Message]:
    """Those that end if none of the others, whoever they are, does."""
    free: set[Message] = set()
    while more := {one for one, needs in found.items() if one not in free and needs.are_met(free)}:
        free |= more
    return free


def _way(asked: Message, ancestors: frozenset[Message], found: Mapping[Message, Needs]) -> list[Message]:
    """The shortest way from it to one that waits for it."""
    ways = deque([[asked]])
    seen = {asked}
    while ways:
        way = ways.popleft()
        if way[-1] in ancestors:
            return way
        for one in found[way[-1]].messages:
            if one not in seen:
                seen.add(one)
                ways.append([*way, one])
    return [asked]
