"""Recordings of `order_service` and `support_desk` are replayed with their agents, also with bugs planted in them.

`uv run python -m tests.applications.record_services` records all conversations again, with names some of them. Do so
after an intended change of an application only, and read the difference of the recordings: it is the change.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from callboard import Agent
from callboard.middleware import RequireApproval, Retry
from callboard.testing import ReplayDifferenceError, replay

from .record_services import CONVERSATIONS, RECORDINGS, example, record

answered = pytest.mark.callboard("tests/recordings/order_answered.jsonl")
approved = pytest.mark.callboard("tests/recordings/order_refund_approved.jsonl")
denied = pytest.mark.callboard("tests/recordings/order_refund_denied.jsonl")
failures = pytest.mark.callboard("tests/recordings/order_failures.jsonl")
two_customers = pytest.mark.callboard("tests/recordings/support_two_customers.jsonl")
Replayed = Callable[..., Any]


@pytest.fixture
def orders() -> ModuleType:
    return example("order_service")


@pytest.fixture
def support() -> ModuleType:
    return example("support_desk")


def agent_of(orders: ModuleType, **options: Any) -> Agent:
    agent: Agent = orders.agent_for(orders.Shop(seconds=0.02), **options)
    return agent


def difference(replay: Replayed, agent: Agent, **options: Any) -> str:
    """Return the report of a replay that fails, without its first line, which names the recording."""
    with pytest.raises(ReplayDifferenceError) as caught:
        replay(agent, **options)
    first, _, report = str(caught.value).partition("\n")
    assert "differs in" in first
    return report


# The applications as they were recorded


@answered
def test_two_orders_are_tracked_at_once_and_one_is_retried(orders: ModuleType, replay: Replayed) -> None:
    reply = replay(agent_of(orders)).state["messages"][-1].content

    assert reply == "parcel P-1 is in Berlin; parcel P-2 is in Berlin."


@approved
def test_an_approved_refund(orders: ModuleType, replay: Replayed) -> None:
    assert replay(agent_of(orders)).state["messages"][-1].content == "refunded 49.90 EUR for order A-1."


@denied
def test_a_denied_refund(orders: ModuleType, replay: Replayed) -> None:
    assert replay(agent_of(orders)).state["messages"][-1].content == "refund was not possible."


@failures
def test_a_carrier_that_does_not_answer_and_a_refund_that_fails(orders: ModuleType, replay: Replayed) -> None:
    """The timeout of 5 s passes at once, on a virtual clock."""
    assert replay(agent_of(orders)).state["messages"][-1].content == "refund was not possible."


@two_customers
def test_conversations_of_two_customers(support: ModuleType, replay: Replayed) -> None:
    assert replay(support.agent_for()).state["messages"][-1].content == "closed: My cup is broken."


@approved
def test_real_tools_return_the_recorded_results(orders: ModuleType, replay: Replayed) -> None:
    replay(agent_of(orders), real=["*"], results=True)


@two_customers
def test_real_actors_return_the_recorded_results(support: ModuleType, replay: Replayed) -> None:
    """The actors keep notes and tickets from one run to the next."""
    replay(support.agent_for(), real=["*"], results=True)


@approved
def test_a_kill_at_any_event_repeats_no_refund(orders: ModuleType, replay: Replayed) -> None:
    for event in range(1, replay(agent_of(orders)).events + 1):
        replay(agent_of(orders), kill_at=event)


def test_recordings_are_small_and_name_no_place_of_this_machine() -> None:
    for name in CONVERSATIONS:
        text = (RECORDINGS / f"{name}.jsonl").read_text()
        assert len(text) < 40_000
        assert '"captures": true' in text
        assert "/root" not in text and "/tmp" not in text and "/home" not in text


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_command_makes_recordings_that_can_be_replayed(orders: ModuleType, tmp_path: Path, backend: str) -> None:
    path = tmp_path / "runs.jsonl"
    record(path, CONVERSATIONS["order_refund_approved"], backend)

    new_events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    stored_events = [
        json.loads(line)["event"] for line in (RECORDINGS / "order_refund_approved.jsonl").read_text().splitlines()
    ]
    assert new_events == stored_events
    replay(path, agent_of(orders), backend=backend)


# Planted bugs: each replay names the place


@approved
def test_a_dropped_approval_is_found(orders: ModuleType, replay: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody lets small refunds pass, and takes cents for euros."""

    def small_refunds_pass(tools: list[str], **options: Any) -> RequireApproval:
        return RequireApproval(tools, **options, when=lambda request: request.tool_call["args"]["cents"] > 50_00_00)

    monkeypatch.setattr(orders, "RequireApproval", small_refunds_pass)
    report = difference(replay, agent_of(orders))

    assert report.startswith("run 1 of 'orders', after model request 2:\n")
    assert 'expected  call_2 refund(order="A-1", cents=4990): interrupted' in report
    assert 'got       call_2 refund(order="A-1", cents=4990): ok' in report


@failures
def test_a_doubled_refund_is_found(orders: ModuleType, replay: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody widens the errors that are retried, because a carrier has another one, and silences the warning."""
    monkeypatch.setattr(orders, "Retry", lambda attempts, on: Retry(attempts, on=Exception, any_tool=True))
    report = difference(replay, agent_of(orders))

    assert "run 3 of 'orders', at its start:\n" in report
    assert 'expected  call_4 refund(order="A-2", cents=1200): error (example_order_service.PaymentError)\n' in report
    assert 'refund(order="A-2", cents=1200): ok, after example_order_service.PaymentError' in report


@approved
def test_a_wrong_format_of_amounts_is_found(
    orders: ModuleType, replay: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tools run, and their results are compared."""
    monkeypatch.setattr(orders, "money", lambda cents: f"{cents / 100} EUR")
    report = difference(replay, agent_of(orders), real=["*"], results=True)

    assert report.splitlines()[:3] == [
        "run 1 of 'orders', after model request 1, result of call_1 find_order:",
        '  expected  "A-1: 49.90 EUR, paid, parcel P-1"',
        '  got       "A-1: 49.9 EUR, paid, parcel P-1"',
    ]


@two_customers
def test_a_lost_customer_key_is_found(support: ModuleType, replay: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes the whole thread for the customer, so a second conversation does not know the first."""
    monkeypatch.setattr(support, "by_customer", lambda call, context: context.config["configurable"]["thread_id"])
    report = difference(replay, support.agent_for(), real=["*"], results=True)

    assert report.splitlines()[:3] == [
        "run 4 of 'support', after model request 1, result of call_4 overview:",
        '  expected  "ann: ticket 1: My kettle leaks; call after five"',
        '  got       "ann/1: ticket 1: My kettle leaks"',
    ]
