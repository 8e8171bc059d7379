"""Deadlock detection: finds calls that would wait for themselves through other calls."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from callboard.actors._message import Message


@dataclass(frozen=True, slots=True)
class Needs:
    """Alternatives of a message: it can go on as soon as all messages of one alternative have ended."""

    ways: tuple[tuple[Message, ...], ...]
    room: str = ""
    """Explanation for errors, if the message needs room for its actor."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of all alternatives, in order."""
        return tuple(one for way in self.ways for one in way)

    @property
    def one_is_enough(self) -> bool:
        """Return whether there are several alternatives."""
        return len(self.ways) > 1

    def are_met(self, ended: Container[Message]) -> bool:
        """Return whether the message can go on after these messages have ended."""
        return any(all(one in ended for one in way) for way in self.ways)


NOTHING = Needs(((),))  # one alternative without messages: always met


NeedsOf = Callable[[Message], Needs]
"""Needs of a message: while it waits, the messages before it; while it runs, the calls that its handler awaits."""


def circle(asked: Message, needs_of: NeedsOf) -> list[Message] | None:
    """Return the messages that would wait for each other if this call were awaited; `None` if there is no circle.

    A caller registers its call before it searches. So if two calls close a circle at once, one of the searches finds
    it.
    """
    ancestors = asked.ancestors()
    if not ancestors:
        return None
    # The ancestors are left out: they cannot end before this call does. If it can end without them, there is no circle.
    found = _found(asked, frozenset(ancestors), needs_of)
    if asked in _go_on(found):
        return None
    way = _way(asked, frozenset(ancestors), found)
    # The chain for the error: from the ancestor at which the circle closes, down to the asker, and back to it.
    between = ancestors[: ancestors.index(way[-1])] if way[-1] in ancestors else []
    if way == [asked, ancestors[0]] and asked.target is ancestors[0].target:
        return [ancestors[0], asked]  # an actor that calls itself: show both messages
    return [way[-1], *reversed(between), *way]


def room_wanted(chain: Iterable[Message], needs_of: NeedsOf) -> str:
    """Return why one of the messages has no room for its actor, for errors; an empty text if all have."""
    return next((needs.room for one in chain if (needs := needs_of(one)).room), "")


def _found(asked: Message, ancestors: frozenset[Message], needs_of: NeedsOf) -> dict[Message, Needs]:
    """Collect the needs of all messages that this call would wait for, without its ancestors."""
    found: dict[Message, Needs] = {}
    todo = [asked]
    while todo:
        one = todo.pop()
        if one not in found and one not in ancestors:
            found[one] = needs_of(one)
            # Other threads go on during the search. A complete circle stays as it is unless one of its calls is
            # cancelled.
            todo += found[one].messages
    return found


def _go_on(found: Mapping[Message, Needs]) -> set[Message]:
    """Return the messages that can end without the ancestors: the least fixed point of `are_met`."""
    free: set[Message] = set()
    while more := {one for one, needs in found.items() if one not in free and needs.are_met(free)}:
        free |= more
    return free


def _way(asked: Message, ancestors: frozenset[Message], found: Mapping[Message, Needs]) -> list[Message]:
    """Return the shortest path from the call to a message that waits for it."""
    # Breadth first: the shortest chain is the easiest to understand in an error.
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
