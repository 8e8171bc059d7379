"""Deadlocks between actors: calls that would wait for themselves are found, and refused."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from callboard.actors._mailbox import Message, Needs
from callboard.exceptions import DeadlockError

_REMEDY = (
    "Have one of them take its reply along (@handler(deferred=True)), or let it be "
    "re-entered (@handler(reentrant=True))."
)
_PATIENCE = 5.0
"""Seconds before calls that wait for each other count as a deadlock, if one of them comes from a handler's subtask."""


async def refuse_circle(message: Message) -> None:
    """Raise `DeadlockError` if a call would close a circle of calls that wait for each other."""
    chain = find_circle(message, _needs_of)
    # A handler may never await a call that its own task makes; then the handler ends first, and there is no circle.
    if chain is not None and any(link.is_beside for link in chain[1:]):
        # Wait for a while, in case the circle ends by itself.
        with message.loop.scope(message.loop.now() + _PATIENCE, 0.0):
            await message.wakeup.wait()
        with message.target.lock:
            # A wakeup serves one wait, and the timeout has ended this one. Under the lock, so that `end()` sets the new
            # one, unless the message has ended in the moment of the timeout.
            message.wakeup = message.loop.wakeup()
            if message.has_ended:
                message.wakeup.set()
        chain = find_circle(message, _needs_of)
    if chain is None:
        return
    remedy = _REMEDY
    if obstacle := find_obstacle(chain, _needs_of):
        remedy = f"{obstacle}; raise the cap, or have nobody ask another of its kind and wait for it."
    # If it has begun meanwhile there was no circle, or it dissolved: then the caller simply waits.
    if message.target.withdraw(message):
        raise DeadlockError(message.title, message.call_id, tuple(link.title for link in chain), remedy=remedy)


def _needs_of(message: Message) -> Needs:
    return message.target.needs(message)


NeedsOf = Callable[[Message], Needs]
"""Function that returns for which messages a message waits: messages before it in the queue, or its handler's calls."""


def find_circle(call: Message, needs_of: NeedsOf) -> list[Message] | None:
    """Return the messages that would wait for each other if `call` were awaited; `None` without a circle."""
    # A caller registers its call before it searches: if two calls close a circle at once, one search finds the circle.
    ancestors = call.ancestors()
    if not ancestors:
        return None
    # All messages for which the call waits, directly or not. The ancestors are left out: they cannot end before this
    # call does. If it can end without them, there is no circle.
    needs: dict[Message, Needs] = {}
    todo = [call]
    while todo:
        message = todo.pop()
        if message not in needs and message not in ancestors:
            # Other threads go on during the search. A complete circle stays as it is unless one of its calls is
            # cancelled.
            needs[message] = needs_of(message)
            todo += needs[message].messages
    free: set[Message] = set()
    while freed := {message for message, need in needs.items() if message not in free and need.are_met(free)}:
        free |= freed
    if call in free:
        return None
    path = _shortest_path(call, frozenset(ancestors), needs)
    # The chain for the error: from the ancestor at which the circle closes, down to the asker, and back to it.
    between = ancestors[: ancestors.index(path[-1])] if path[-1] in ancestors else []
    if path == [call, ancestors[0]] and call.target is ancestors[0].target:
        return [ancestors[0], call]  # an actor that calls itself: show both messages
    return [path[-1], *reversed(between), *path]


def find_obstacle(chain: Iterable[Message], needs_of: NeedsOf) -> str:
    """Return why the actor of one of these messages cannot start now, as text for an error; empty if all can start."""
    return next((needs.obstacle for message in chain if (needs := needs_of(message)).obstacle), "")


def _shortest_path(call: Message, ancestors: frozenset[Message], needs: Mapping[Message, Needs]) -> list[Message]:
    """Return the shortest path of waits from the call to a message in `ancestors`; only the call if no path exists."""
    # Breadth first: the shortest chain is the easiest to understand in an error.
    paths = deque([[call]])
    visited = {call}
    while paths:
        path = paths.popleft()
        if path[-1] in ancestors:
            return path
        for message in needs[path[-1]].messages:
            if message not in visited:
                visited.add(message)
                paths.append([*path, message])
    return [call]
