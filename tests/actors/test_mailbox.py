"""Decisions of a mailbox, tested without an event loop: order of messages, circles of waiting ones, and poison."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pytest
from anyio import ClosedResourceError
from hypothesis import given
from hypothesis import strategies as st

from callboard import Actor
from callboard._loops._current import current_loop
from callboard.actors._cell import Cell
from callboard.actors._deadlocks import find_circle, find_obstacle
from callboard.actors._mailbox import (
    NOTHING,
    Mailbox,
    Message,
    Needs,
    Poison,
    check_mailbox,
)


@dataclass(eq=False)
class Handler:
    """Stand-in for a handler, with the fields that a mailbox reads."""

    group: str | None


@dataclass(eq=False)
class Fake:
    """Stand-in for a message."""

    number: int
    handler: Handler
    target: str = "a"
    above: list[Any] = field(default_factory=list)
    is_awaited_here: bool = False
    is_taken_only: bool = False
    state: str = "waiting"

    def ancestors(self) -> list[Any]:
        return self.above


GROUPS = {"reads": 2}
steps = st.lists(st.sampled_from([None, "reads", "looks"]) | st.just("next") | st.integers(0, 9), max_size=40)


def box(size: int = 100, when_full: Any = "wait") -> Mailbox:
    return Mailbox(size, when_full, GROUPS)


def message(number: int, group: str | None = None) -> Any:
    return Fake(number, Handler(group))


@given(plan=steps)
def test_messages_begin_in_order_alone_or_with_their_group(plan: list[Any]) -> None:
    """A message begins if nothing runs, or if its group runs and has a free place.

    Checked against this rule directly.
    """
    mailbox, waiting, running, count = box(), [], [], 0
    for step in plan:
        if step == "next":
            first = waiting[0] if waiting else None
            group = first and first.handler.group
            is_same_group = group is not None and all(
                running_message.handler.group == group for running_message in running
            )
            may = first is not None and (not running or (is_same_group and (group == "looks" or len(running) < 2)))
            assert mailbox.next() is (first if may else None)
            if may:
                running.append(waiting.pop(0))
        elif isinstance(step, int):
            if waiting and step % 2:
                mailbox.withdraw(waiting.pop(step % len(waiting)))
            elif running:
                mailbox.release(running.pop(step % len(running)))
        else:
            count += 1
            waiting.append(message(count, step))
            assert mailbox.put(waiting[-1])
        assert list(mailbox.waiting) == waiting
        assert list(mailbox.running) == running


@given(plan=steps)
def test_what_a_message_needs_is_what_keeps_it_from_beginning(plan: list[Any]) -> None:
    """The deadlock check relies on the messages that `needs` returns.

    Once these messages have ended, the waiting message or an earlier one may begin.
    """
    mailbox, count = box(), 0
    for step in plan:
        if step == "next":
            mailbox.next()
        elif isinstance(step, int) and mailbox.running:
            mailbox.release(next(iter(mailbox.running)))
        elif not isinstance(step, int):
            count += 1
            mailbox.put(message(count, step))
        for entry in mailbox.waiting:
            needs = mailbox.needs(entry)
            assert set(needs.messages) <= set(mailbox.running)
            assert not len(needs.alternatives) > 1 or len(needs.messages) == 2
    first = next(iter(mailbox.waiting), None)
    if first is not None:
        needs = mailbox.needs(first)
        for entry in needs.messages[:1] if len(needs.alternatives) > 1 else needs.messages:
            mailbox.release(entry)
        assert mailbox.next() is first


def test_a_message_may_be_withdrawn_after_it_was_taken() -> None:
    mailbox, (first, second) = box(), map(message, range(2))
    mailbox.put(first)
    mailbox.put(second)
    assert mailbox.next() is first
    assert mailbox.next() is None
    mailbox.withdraw(first)
    assert mailbox.next() is second


def test_messages_that_have_not_begun_are_the_first_again_after_their_actor_died() -> None:
    cell, messages = Cell("a", Actor, box(), Poison(3)), [message(number, "looks") for number in range(3)]
    for entry in messages:
        cell.mailbox.put(entry)
    taken_messages: list[Any] = [cell.next(), cell.next()]
    for entry in taken_messages:
        entry.is_taken_only = True
    cell.die("it crashed")
    assert not cell.mailbox.running
    assert list(cell.mailbox.waiting) == messages


def test_one_that_a_handler_here_awaits_may_be_taken_before_the_others() -> None:
    mailbox, first, second = box(), message(1), message(2)
    second.is_awaited_here = True
    mailbox.put(first)
    mailbox.put(second)
    assert mailbox.next(only_awaited_here=True) is second
    assert mailbox.next(only_awaited_here=True) is None
    mailbox.release(second)
    assert mailbox.next() is first


@pytest.mark.every_variant
@pytest.mark.parametrize(
    ("waits", "when_full", "error"),
    [(0, "wait", ValueError), ("many", "wait", TypeError), (1, "drop_newest", ValueError)],
)
def test_wrong_options_are_refused(waits: Any, when_full: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="the actor"):
        check_mailbox("the actor", waits, when_full)
    check_mailbox("the actor", 1, "reject")


# Circles: messages "a" to "d", by what each of them waits for


def find_chain(needs: dict[str, Any], asked_name: str, *above: str) -> str | None:
    """Return the chain of the circle that a call closes; `above` are the messages whose handlers wait for it."""
    every = {name: Fake(0, Handler(None), name.rstrip("12")) for name in [*needs, asked_name, *above]}
    every[asked_name].above = [every[name] for name in above]

    def needs_of(message: Any) -> Needs:
        name = next(name for name, candidate in every.items() if candidate is message)
        ways = needs.get(name, [()])
        return Needs(tuple(tuple(every[part] for part in alternative) for alternative in ways))

    chain: Any = find_circle(every[asked_name], needs_of)
    return chain and " ".join(next(name for name, candidate in every.items() if candidate is link) for link in chain)


CIRCLES: dict[str, tuple[dict[str, Any], str, tuple[str, ...], str | None]] = {
    "no handler waits for it": ({"b": [("b",)]}, "b", (), None),
    "it can begin": ({"b": [()]}, "b", ("a",), None),
    "it waits for its asker": ({"b": [("a",)]}, "b", ("a",), "a b a"),
    "through another": ({"b": [("c",)], "c": [("a",)]}, "b", ("a",), "a b c a"),
    "an actor that calls itself": ({"a2": [("a1",)]}, "a2", ("a1",), "a1 a2"),
    "an actor that calls itself for another": ({"a2": [("a1",)]}, "a2", ("a1", "z"), "a1 a2"),
    "it waits for the asker of its asker": ({"c": [("a",)]}, "c", ("b", "a"), "a b c a"),
    "one of two ways is free": ({"b": [("a",), ("c",)], "c": [()]}, "b", ("a",), None),
    "one of two needed is stuck": ({"b": [("a", "c")], "c": [()]}, "b", ("a",), "a b a"),
    "the shorter of two": ({"b": [("c",), ("a",)], "c": [("d",)], "d": [("a",)]}, "b", ("a",), "a b a"),
    "a circle of others": ({"b": [("c",)], "c": [("d",)], "d": [("c",)]}, "b", ("a",), "b b"),
}


@pytest.mark.every_variant
@pytest.mark.parametrize(("needs", "asked_name", "above", "chain"), CIRCLES.values(), ids=CIRCLES)
def test_a_call_that_would_wait_for_itself_is_found(
    needs: dict[str, Any], asked_name: str, above: tuple[str, ...], chain: str | None
) -> None:
    assert find_chain(needs, asked_name, *above) == chain


def test_the_room_that_a_message_needs_is_named() -> None:
    needs = {1: NOTHING, 2: Needs(((),), "no room"), 3: Needs(((),), "nor here")}
    chain: Any = [1, 2, 3]
    assert find_obstacle(chain, needs.__getitem__) == "no room"
    assert not find_obstacle(chain[:1], needs.__getitem__)


def test_the_calls_that_crashed_last_are_counted() -> None:
    poison = Poison(1)
    for number in range(100):
        poison.count_crash("read", (number,), {})
    poison.count_crash("read", (0,), {})
    poison.count_crash("read", (100,), {})
    assert [poison.refuses("read", (number,), {}) for number in (0, 1, 2, 100)] == [2, None, 1, 1]


def test_arguments_that_are_not_json_count_by_their_type() -> None:
    poison = Poison(1)
    poison.count_crash("read", (object(),), {})
    assert poison.refuses("read", (object(),), {}) == 1
    assert poison.refuses("read", (Poison(1),), {}) is None


def real_message() -> Any:
    handler: Any = Handler("reads")
    handler.title, handler.name = "Notebook.read", "read"
    target: Any = None
    terms = {"title": "read", "call_id": "1", "passes": None, "on_begin": None, "watch": None}
    return Message(target, handler, (1,), {"a": 2}, loop=current_loop(), **terms)


async def test_a_message_that_has_ended_keeps_only_its_outcome() -> None:
    """Arguments and asker may be large, and a context that refers to the message would be a reference cycle."""
    message = real_message()
    message.caller, message.named_by = real_message(), {"a": 2}
    message.scope = message.loop.scope(1.0, 1.0)
    assert not message.has_ended
    message.end("found", None)
    assert message.has_ended
    assert (message.state, message.outcome()) == ("ended", "found")
    assert (message.scope, message.caller, message.args, message.kwargs, message.named_by) == (None, None, (), {}, None)
    assert not hasattr(message, "context")


async def test_an_error_is_freed_as_soon_as_it_was_raised() -> None:
    """A reference cycle would keep the frames of the handler, and all that they refer to, until a collection."""
    message, error = real_message(), ClosedResourceError()
    is_alive = ref(error)
    message.end(None, error)
    del error
    with suppress(ClosedResourceError):
        message.outcome()
    assert is_alive() is None


def test_a_message_needs_nothing_of_the_messages_behind_it() -> None:
    """A message that runs alone, further back in the queue, waits for this one and not the other way round."""
    mailbox, running = box(), [message(number, "reads") for number in range(2)]
    waiting, behind = message(2, "reads"), message(3)
    for entry in (*running, waiting, behind):
        mailbox.put(entry)
    assert [mailbox.next() for _ in running] == running
    assert mailbox.needs(waiting) == Needs(tuple((entry,) for entry in running))
    assert mailbox.needs(behind) == Needs((tuple(running),))


async def test_a_new_message_waits_without_task_scope_and_outcome() -> None:
    message = real_message()
    assert (message.state, message.task, message.scope, message.value, message.error, message.kill_error) == (
        "waiting",
        *[None] * 5,
    )
    assert message.identity == ("read", (1,), {"a": 2})
    message.named_by = {"page": 3}
    assert message.identity == ("read", (), {"page": 3})
    assert not message.is_awaited_here
    assert message.loop_holder == ("Notebook.read", "the handler Notebook.read", message.loop_holder.remedy)
