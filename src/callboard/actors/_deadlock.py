"""Whether a call would wait for itself, through calls that wait for each other."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from callboard.actors._message import Message


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to end before a message goes on: all messages of one of these ways."""

    ways: tuple[tuple[Message, ...], ...]
    room: str = ""
    """Why they have to, in words, if it has no actor to run in before they have."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message that is on one of the ways, one way after the other."""
        return tuple(one for way in self.ways for one in way)

    @property
    def one_is_enough(self) -> bool:
        """Whether there is more than one way."""
        return len(self.ways) > 1

    def are_met(self, ended: Container[Message]) -> bool:
        """Whether it goes on when those have ended."""
        return any(all(one in ended for one in way) for way in self.ways)


NOTHING = Needs(((),))


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
    if way == [asked, ancestors[0]] and asked.target is ancestors[0].target:
        return [ancestors[0], asked]  # an actor that asks itself is named twice
    return [way[-1], *reversed(between), *way]


def room_wanted(chain: Iterable[Message], needs_of: NeedsOf) -> str:
    """Why one of them has no actor to run in, in words; nothing if all have."""
    return next((needs.room for one in chain if (needs := needs_of(one)).room), "")


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
    """The messages that would end even if none of the others does, whoever they are."""
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
