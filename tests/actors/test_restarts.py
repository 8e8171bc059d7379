"""OTP's restart rules for the children of a supervisor, tested without any task."""

from typing import Any

import pytest

from callboard import Backoff
from callboard.actors._restarts import GiveUp, Restarts, StartAgain

NO_WAIT = Backoff(first=1, factor=2, maximum=4, jitter=0)


def restarts(*kinds: Any, strategy: Any = "one_for_one", intensity: int = 3, **options: Any) -> Restarts:
    all_options = {"period": 10.0, "backoff": NO_WAIT, "chance": lambda: 0.0, **options}
    return Restarts(kinds, strategy=strategy, intensity=intensity, **all_options)


@pytest.mark.parametrize(
    ("kind", "never_starts", "is_restarted"),
    [("permanent", False, True), ("transient", False, True), ("temporary", False, False), ("permanent", True, False)],
)
def test_who_is_restarted_depends_on_its_kind_and_its_end(kind: Any, never_starts: bool, is_restarted: bool) -> None:
    """A permanent and a transient child restart after a crash, a temporary one never.

    An impossible start is final.
    """
    decision = restarts(kind).decide(0, 0.0, never_starts=never_starts)
    assert isinstance(decision, StartAgain) if is_restarted else decision == "forget"


def test_the_jitter_makes_a_wait_shorter_by_at_most_its_part() -> None:
    backoff = Backoff(first=2, factor=3, maximum=10, jitter=0.5)
    assert [backoff.delay(number, 0.0) for number in (1, 2, 3, 1000)] == [2, 6, 10, 10]
    assert backoff.delay(1, 1.0) == 1


def test_without_a_first_wait_there_is_none_however_often_it_restarts() -> None:
    assert [Backoff(first=0, factor=10.0).delay(number, 0.0) for number in (1, 10_000)] == [0, 0]


def test_a_supervisor_of_a_keyed_actor_ends_with_it_unless_it_is_restarted() -> None:
    """The next call starts the actor anew."""
    machine = restarts("permanent", ends_with_child=True)
    assert isinstance(machine.decide(0, 0.0), StartAgain)
    assert machine.decide(0, 0.0, never_starts=True) == "shut_down"


def test_deaths_of_a_poison_that_is_refused_from_now_on_are_forgiven() -> None:
    """A call refused as poison cannot kill again, so its deaths do not count toward the intensity.

    Other deaths still do.
    """
    machine = restarts("permanent", intensity=2)
    assert isinstance(machine.decide(0, 0.0, cause="x"), StartAgain)
    assert isinstance(machine.decide(0, 1.0, cause="x"), StartAgain)
    assert machine.decide(0, 2.0, cause="x", is_refused=True) == StartAgain((), (0,), 1.0)
    assert isinstance(machine.decide(0, 3.0), StartAgain)
    assert isinstance(machine.decide(0, 4.0), StartAgain)
    assert machine.decide(0, 5.0) == GiveUp(3)


def test_a_poison_of_one_child_forgives_no_death_of_another() -> None:
    """Another child that died of the same call has not refused it yet and may die again."""
    machine = restarts("permanent", "permanent", intensity=2)
    assert isinstance(machine.decide(1, 0.0, cause="x"), StartAgain)
    assert isinstance(machine.decide(0, 1.0, cause="x"), StartAgain)
    assert isinstance(machine.decide(0, 2.0, cause="x", is_refused=True), StartAgain)
    assert isinstance(machine.decide(0, 3.0), StartAgain)
    assert machine.decide(0, 4.0) == GiveUp(3)


def test_the_limits_of_a_backoff_are_allowed() -> None:
    assert Backoff(first=0, factor=1, maximum=0, jitter=1).jitter == Backoff(jitter=1).jitter


@pytest.mark.parametrize("options", [{"factor": True}, {"jitter": "much"}])
def test_a_backoff_of_a_wrong_kind_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"Backoff\({next(iter(options))}=\.\.\.\) is a number"):
        Backoff(**options)


@pytest.mark.parametrize("options", [{"first": -1}, {"factor": 0.5}, {"maximum": -1}, {"jitter": 2}, {"jitter": -0.1}])
def test_a_backoff_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Backoff(**options)
