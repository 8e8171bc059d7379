"""Gate of one process: its messages to the server, and no call with an expired permit; tested without a server."""

from typing import Any

from callboard import Limit, Rate
from callboard.extend import PermitRequest
from callboard_actors._server._limits import Gate, LimitSettings, LocalPermit, Phase, StepAnswer

LIMIT = Limit(concurrency=1, rate=Rate(5))
LEASE = 9.0


class World:
    """Gate with its own clock, whose permits record their answers."""

    def __init__(self) -> None:
        self.time = 100.0
        self.request = PermitRequest(limit=LIMIT, name="tool:t", title="the queue of tool 't'")
        settings = LimitSettings.of(LIMIT, lease=LEASE)
        self.gate = Gate("tool:t", settings, "a server", clock=lambda: self.time)
        self.answered: list[str] = []

    def enter(self, name: str) -> LocalPermit:
        permit = LocalPermit(self.request, lambda: self.answered.append(name), lambda callback: callback())
        permit.id, permit.gate = name, self.gate
        self.gate.request_permit(permit)
        return permit

    def says(self, now: float | None = None) -> list[tuple[str, str]]:
        step = self.gate.take_next_step(self.time if now is None else now)
        return [(change.kind, change.permit_id) for change in step.changes]

    def hears(self, now: float | None = None, **answer: Any) -> None:
        self.gate.apply_answer(StepAnswer(**{"epoch": "1", **answer}), self.time if now is None else now)


def test_all_places_of_a_process_are_said_at_once_after_the_line_broke() -> None:
    """A server that knew only some of the permits would grant the others a second time."""
    world = World()
    holders = [f"h{n}" for n in range(1200)]
    for name in holders:
        world.enter(name)
    while world.says(0):
        world.hears(0)
    world.hears(0, granted_tokens={name: n for n, name in enumerate(holders)})
    world.enter("late")

    world.gate.forget_connection()

    assert {holder for kind, holder in world.says(1) if kind == "hold"} == set(holders)
    world.hears(1)
    assert world.says(1) == [("enter", "late")]


def test_a_process_gives_a_sign_of_life_three_times_a_lease_and_asks_what_it_has() -> None:
    """A process renews three times per lease and asks for its permits, because a grant may have been lost."""
    world = World()
    world.enter("a")
    assert world.gate.take_next_step(0).wants_all_permits
    world.hears(0, queue_positions={"a": "0/a"})
    assert world.gate.next_message_time(0) == 3.0

    world.enter("b")
    assert not world.gate.take_next_step(2).wants_all_permits
    world.hears(2)
    world.enter("c")
    assert world.gate.take_next_step(3.5).wants_all_permits
    world.hears(3.5, granted_tokens={"a": 9})

    assert world.answered == ["a"]


def test_a_gate_that_nobody_needs_is_forgotten_after_a_lease() -> None:
    """Keys come from models and are unlimited, so unused gates are deleted."""
    world = World()
    permit = world.enter("a")
    world.says(0)
    world.hears(0, granted_tokens={"a": 1})
    permit.leave()
    world.says(1)
    world.hears(1)

    assert permit.phase is Phase.GONE
    assert not world.gate.can_drop(9.5)
    assert world.gate.can_drop(10.5)


def test_word_of_a_place_that_is_read_after_the_lease_is_no_place() -> None:
    """The grant was sent while the process stood still; the request keeps its position in the queue."""
    world = World()
    permit = world.enter("a")
    world.says()
    world.hears(queue_positions={"a": "0/a"})
    world.time += LEASE

    world.gate.accept_grant("a", 7)

    assert (world.answered, permit.is_waiting) == ([], True)
    assert world.says() == [("wait", "a")]


def test_an_answer_that_is_read_after_the_lease_gives_no_place() -> None:
    """The process stood still between the request and the answer."""
    world = World()
    world.enter("a")
    world.says()
    world.time += LEASE

    world.hears(granted_tokens={"a": 7})

    assert world.answered == []
    assert world.says() == [("enter", "a")]


def test_a_place_is_lost_that_no_body_began_with_when_the_lease_was_over() -> None:
    """The permit is lost as soon as the lease ends, for good; for calls that have started it is reported again."""
    world = World()
    waits, runs = world.enter("a"), world.enter("b")
    world.says()
    world.hears(granted_tokens={"a": 7, "b": 8})
    runs.begin()
    assert not waits.is_lost
    world.time += LEASE

    assert waits.is_lost
    assert [message for message in world.says() if message[0] == "hold"] == [("hold", "b")]
    world.hears()
    assert waits.is_lost
    waits.leave()
    assert world.says() == []
