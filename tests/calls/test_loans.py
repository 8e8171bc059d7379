"""Decisions of a loan: a permit that an attempt lends to the attempts nested in it, one at a time."""

from typing import Any

import pytest

from callboard import Limit, Rate
from callboard._calls._limits import Gate, Loan, LoanTurn, SharedPermit, Wait


class Holder:
    """Attempt, as a loan sees it."""

    waits_for = stalled = None
    title = "an attempt"


@pytest.fixture
def given_back() -> list[str]:
    return []


@pytest.fixture
def gate() -> Gate:
    return Gate(Limit(concurrency=1), "the queue")


@pytest.fixture
def loan(gate: Gate, given_back: list[str]) -> Loan:
    return Loan(gate, lambda: given_back.append("permit"))


def waiting(loan: Loan, woken: list[LoanTurn]) -> LoanTurn:
    """Return the turn of an attempt that waits for the loan; it is added to `woken` for each wakeup."""
    turn = LoanTurn(Holder())
    loan.wait_for(turn)
    turn.when_granted(lambda: woken.append(turn))
    return turn


def test_one_attempt_at_a_time_has_the_loan_and_the_lender_releases_it(loan: Loan, given_back: list[str]) -> None:
    first, second = Holder(), Holder()
    assert loan.try_borrow(first)
    assert loan.borrower is first
    assert not loan.try_borrow(second)
    loan.leave()
    assert loan.borrower is None
    assert loan.try_borrow(second)
    loan.leave()
    assert given_back == []
    loan.lender_leaves()
    assert given_back == ["permit"]


def test_a_free_loan_is_granted_before_the_attempt_says_how_to_wake_it(loan: Loan) -> None:
    """The attempt joins the queue of the loan first, and that of the gate, which sets the wakeup, afterwards."""
    woken: list[LoanTurn] = []
    turn = waiting(loan, woken)
    assert turn.is_granted
    assert woken == [turn]
    assert loan.borrower is turn.borrower


def test_waiting_attempts_get_the_loan_in_the_order_of_their_arrival(loan: Loan, given_back: list[str]) -> None:
    woken: list[LoanTurn] = []
    loan.try_borrow(Holder())
    turns = [waiting(loan, woken) for _ in range(3)]
    assert woken == []
    for number, turn in enumerate(turns, 1):
        loan.leave()
        assert woken == turns[:number]
        assert loan.borrower is turn.borrower
    loan.leave()
    assert loan.borrower is None
    assert given_back == []


def test_an_attempt_that_gives_up_is_passed_over_and_returns_what_it_was_granted(loan: Loan) -> None:
    woken: list[LoanTurn] = []
    loan.try_borrow(Holder())
    first, second, third = (waiting(loan, woken) for _ in range(3))
    loan.withdraw(first)
    loan.leave()
    assert woken == [second]
    loan.withdraw(second)  # granted, and given up at the same moment
    assert woken == [second, third]
    assert loan.borrower is third.borrower


def test_the_last_borrower_releases_the_permit_of_a_lender_that_has_left(loan: Loan, given_back: list[str]) -> None:
    """Attempts that wait for the loan then wait for the gate only, and no attempt borrows any more."""
    woken: list[LoanTurn] = []
    loan.try_borrow(Holder())
    waiting(loan, woken)
    assert not loan.is_closed
    loan.lender_leaves()
    assert loan.is_closed
    assert given_back == []
    late = waiting(loan, woken)
    assert not late.is_granted
    loan.leave()
    assert given_back == ["permit"]
    assert woken == []
    assert not loan.try_borrow(Holder())
    loan.withdraw(late)
    assert given_back == ["permit"]


def test_a_loan_is_the_permit_that_it_lends(gate: Gate, loan: Loan) -> None:
    assert loan.identity is gate
    assert loan.token is None
    assert loan.is_lost is False
    with_rate = Gate(Limit(concurrency=1, rate=Rate(1)), "the queue")
    lent_on = Loan(Loan(with_rate, bool), bool)
    assert lent_on.identity is with_rate
    assert lent_on.starts is with_rate.starts is not None


class Stay:
    """Permit that a store has granted."""

    token, is_lost = 7, True


def test_a_loan_of_a_shared_permit_has_its_token_and_is_lost_with_it() -> None:
    wanted: Any = None
    permit = SharedPermit(wanted, wanted)
    loan = Loan(permit, bool)
    assert (loan.token, loan.is_lost, permit.is_lost) == (None, False, False)
    stay: Any = Stay()
    permit._stay = stay
    assert (loan.token, loan.is_lost, permit.is_lost) == (7, True, True)


def test_a_wait_ends_by_a_holder_of_the_permits_or_by_the_borrower_of_the_loan(gate: Gate, loan: Loan) -> None:
    holder, borrower = Holder(), Holder()
    gate.holders.add(holder)
    assert Wait(gate, None).may_end_by() == ([holder], None)
    assert Wait(gate, loan).may_end_by() == ([holder], None)
    loan.try_borrow(borrower)
    assert Wait(gate, loan).may_end_by() == ([holder], borrower)
