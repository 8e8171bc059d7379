"""Order of messages in a mailbox, tested without an event loop."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors._mailbox import Mailbox


@dataclass(eq=False)
class Handler:
    """Stand-in for a handler, with the fields that a mailbox reads."""

    group: str | None


@dataclass(eq=False)
class Fake:
    """Stand-in for a message."""

    number: int
    handler: Handler


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
            alike = group is not None and all(one.handler.group == group for one in running)
            may = first is not None and (not running or (alike and (group == "looks" or len(running) < 2)))
            assert mailbox.next() is (first if may else None)
            if may:
                running.append(waiting.pop(0))
        elif isinstance(step, int):
            if waiting and step % 2:
                mailbox.withdraw(waiting.pop(step % len(waiting)))
            elif running:
                mailbox.ended(running.pop(step % len(running)))
        else:
            count += 1
            waiting.append(message(count, step))
            assert mailbox.put(waiting[-1]) == (True, None)
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
            mailbox.ended(next(iter(mailbox.running)))
        elif not isinstance(step, int):
            count += 1
            mailbox.put(message(count, step))
        for one in mailbox.waiting:
            needs = mailbox.needs(one)
            assert set(needs.messages) <= set(mailbox.running)
            assert not needs.one_is_enough or len(needs.messages) == 2
    first = next(iter(mailbox.waiting), None)
    if first is not None:
        needs = mailbox.needs(first)
        for one in needs.messages[:1] if needs.one_is_enough else needs.messages:
            mailbox.ended(one)
        assert mailbox.next() is first


def test_a_full_mailbox_rejects_or_drops_the_oldest_or_lets_it_wait() -> None:
    one, two = message(1), message(2)
    for when_full, expected in (("wait", (True, None)), ("reject", (False, None)), ("drop_oldest", (True, one))):
        mailbox = box(1, when_full)
        mailbox.put(one)
        assert mailbox.put(two) == expected


def test_one_that_was_taken_back_is_the_first_again() -> None:
    mailbox, many = box(), [message(number, "looks") for number in range(3)]
    for one in many:
        mailbox.put(one)
    taken = [mailbox.next(), mailbox.next()]
    for one in reversed(taken):
        assert one is not None
        mailbox.take_back(one)
    assert [mailbox.next() for _ in many] == many
