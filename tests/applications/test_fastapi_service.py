"""The FastAPI example in two workers of uvicorn: streams that stay open, clients of either worker, wrong requests."""

import json
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from .record_services import example

pytestmark = [pytest.mark.exhaustive, pytest.mark.real_clock, pytest.mark.hangs_after(250)]

MODULE: Any = example("fastapi_service")
ALL_TEXTS = ["one book about tea", "one book about cups", "I found two books."]


@contextmanager
def connections(folder: Path, seconds: float) -> Generator[tuple[Any, Any]]:
    """Start two workers, whose searches take this time; yield a connection to each."""
    with (
        MODULE.workers(folder, seconds) as port,
        closing(MODULE.connect(port, bool)) as first,
        closing(MODULE.connect(port, lambda worker: worker != first.worker)) as second,
    ):
        yield first, second


def send(connection: Any, text: str = "Books, please.") -> int:
    status, _ = connection.ask("POST", "/threads/1/messages", {"text": text})
    return int(status)


def test_a_stream_without_events_has_comments(tmp_path: Path) -> None:
    """A proxy ends a connection on which nothing comes for a minute, or less."""
    with connections(tmp_path, seconds=60.0) as (first, second):
        assert send(first) == 202
        for connection in (second, first):
            assert "comment" in (kind for _, kind, _ in connection.events("1"))


def test_a_client_of_the_other_worker_gets_each_message_when_it_is_stored(tmp_path: Path) -> None:
    with connections(tmp_path, seconds=4.0) as (first, second):
        assert send(first) == 202
        events = second.events("1")
        early_events = [next(events), next(events)]
        assert MODULE.texts(early_events) == ALL_TEXTS[:1]
        assert MODULE.texts([*early_events, *events]) == ALL_TEXTS


def test_a_worker_does_not_show_its_old_run_after_a_newer_one_of_the_other(tmp_path: Path) -> None:
    with connections(tmp_path, seconds=0.1) as (first, second):
        for connection in (first, second):
            assert send(connection) == 202
            assert MODULE.texts(connection.events("1"))[-1:] == ALL_TEXTS[-1:]
        assert MODULE.texts(first.events("1")) == ALL_TEXTS * 2
        status, thread = first.ask("GET", "/threads/1")
        assert (status, thread["is_over"], thread["questions"]) == (200, True, {})


def test_what_the_service_refuses_is_answered_with_the_reason(tmp_path: Path) -> None:
    with connections(tmp_path, seconds=0.1) as (first, _):
        for body, status, reason in (
            ({"text": ""}, 422, "at least 1 character"),
            ({"text": 3}, 422, "valid string"),
            ([], 422, "valid dictionary"),
            ({"text": "a" * 20_000}, 422, "at most 10000 characters"),
        ):
            answer = first.ask("POST", "/threads/1/messages", body)
            assert answer[0] == status
            assert reason in json.dumps(answer[1])
        first.request("POST", "/threads/1/messages", b'"' + b"a" * 60_000, {"Content-Type": "application/json"})
        assert first.getresponse().status == 413
