"""Context that is sent to a worker with a call, and messages that come back before the result."""

import logging
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import structlog
from opentelemetry import trace

from callboard.extend import dispatch_event
from callboard_actors.process import WorkerDiedError

from . import _bodies as bodies
from . import _hostile as hostile
from ._processes import open_pool, wait_for_starts

pytestmark = pytest.mark.real_clock


async def test_log_lines_are_those_of_this_process(caplog: pytest.LogCaptureFixture) -> None:
    """Log records have the level requested here, tracebacks as text, and a bounded length."""
    caplog.set_level(logging.INFO)
    async with open_pool() as pool:
        [worker] = pool.pids
        await pool.run(bodies.log_much)

    late, lost = [record for record in caplog.records if record.processName == "worker"]
    assert (late.name, late.getMessage(), late.levelno) == ("callboard.tests.process", "it is late", logging.WARNING)
    assert (late.process, late.funcName) == (worker, "log_much")
    assert lost.name == "made.only.there"
    assert lost.getMessage().count("\0") > 5_000
    assert "made.only.there" not in logging.Logger.manager.loggerDict


async def test_a_log_line_of_code_with_a_long_name_comes_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Template engines name compiled code as they like. The worker tried to shorten this name for ever."""
    async with open_pool() as pool:
        with anyio.fail_after(30):
            assert await pool.run(bodies.log_from_compiled_code) == "done"
    assert [record.getMessage() for record in caplog.records if record.processName == "worker"] == ["from a template"]


async def test_log_lines_come_by_the_levels_that_loggers_have_here(caplog: pytest.LogCaptureFixture) -> None:
    """Levels of individual loggers apply, not only the root's, also to threads that the function starts."""
    caplog.set_level(logging.DEBUG, "callboard.tests.loud")
    async with open_pool() as pool:
        await pool.run(bodies.log_as_told)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("callboard.tests")] == [
        "in the open",
        "in a thread",
    ]


async def test_the_trace_and_what_structlog_has_bound_go_along() -> None:
    """Spans of a tool in a worker belong to the call, and its log lines name the user."""
    context = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    async with open_pool() as pool:
        with trace.use_span(trace.NonRecordingSpan(context)):
            assert await pool.run(bodies.trace) == "abc"
        with structlog.contextvars.bound_contextvars(user="ann", connection=object()):
            assert await pool.run(bodies.context_variables) == {"user": "ann"}
        assert await pool.run(bodies.context_variables) == {}
        assert await pool.run(bodies.trace) == "0"


async def test_a_context_variable_that_a_call_sets_is_unset_in_the_next_one() -> None:
    async with open_pool(workers=1) as pool:
        assert [await pool.run(bodies.user) for _ in range(2)] == ["nobody", "nobody"]


async def test_a_worker_that_never_stops_talking_keeps_nobody_from_working(tmp_path: Any) -> None:
    """Other calls continue while messages flood in, and the worker can be ended."""
    async with open_pool(workers=2, grace=0) as pool, anyio.create_task_group() as group:
        group.start_soon(pool.run, bodies.flood, str(tmp_path))
        await wait_for_starts(tmp_path)
        longest = 0.0
        for _ in range(200):
            began = time.monotonic()
            await anyio.lowlevel.checkpoint()
            longest = max(longest, time.monotonic() - began)
        assert await pool.run(bodies.add, 1, 2) == 3
        group.cancel_scope.cancel()

    assert longest < 0.2


@pytest.mark.parametrize("body", [bodies.talk_on, bodies.speak_in_a_signal_handler, bodies.speak_in_a_fork])
async def test_words_never_come_between_others(body: Callable[[], object]) -> None:
    """Messages of threads, signal handlers and forks never corrupt each other."""
    async with open_pool() as pool:
        before = pool.pids
        await pool.run(body)
        for number in range(20):
            assert await pool.run(bodies.add, number, 1) == number + 1
        assert pool.pids == before


_DIGITS = b"9" * 400


@pytest.mark.parametrize(
    "data",
    [
        hostile.frame("EVENT", 1, b"no json"),
        hostile.frame("EVENT", 1, b"[" * 60_000),
        hostile.frame("EVENT", 1, b"[]"),
        hostile.frame("EVENT", 1, b'{"progress": [["no text"], null, null]}'),
        hostile.frame("EVENT", 1, b'{"progress": ["", "1", null]}'),
        hostile.frame("EVENT", 1, b'{"progress": ["", -1, null]}'),
        hostile.frame("EVENT", 1, b'{"log": ["root", 30, "words", %s, 1, ["", 1, ""]]}' % _DIGITS),
        hostile.frame("EVENT", 1, b'{"log": ["root", Infinity, "words", 1, 1, ["", 1, ""]]}'),
        hostile.frame("EVENT", 1, b'{"else": []}'),
        hostile.frame("EVENT", 2, b"{}"),
        hostile.frame("EVENT", 1, b"", hostile.LONGEST_EVENT + 1),
    ],
)
async def test_a_word_that_says_nothing_ends_its_worker(data: bytes) -> None:
    """A malformed message counts as a protocol error."""
    async with open_pool(grace=0.2) as pool:
        with pytest.raises(WorkerDiedError, match="sent what is no reply"):
            await pool.run(hostile.send, data)
        assert await pool.run(bodies.add, 1, 2) == 3


class _Counting(dict[str, Any]):
    """Dict of loggers that counts its look-ups."""

    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> _Counting:
    table = _Counting(logging.Logger.manager.loggerDict)
    monkeypatch.setattr(logging.Logger.manager, "loggerDict", table)
    return table


@pytest.mark.parametrize("name", ["." * 60_000, "a." * 30_000, "x" * 60_000], ids=["dots", "parts", "one part"])
def test_a_long_name_of_a_logger_is_looked_up_in_few_steps(name: str, loggers: _Counting) -> None:
    """A name of 60 kB of dots once blocked the event loop for a second, because each dot cost a copy and a look-up."""
    dispatch_event({"log": [name, logging.WARNING, "said", 0.0, 1, ["there.py", 1, "fn"]]})

    assert loggers.lookups <= 201


def test_a_name_of_a_logger_leads_to_the_nearest_one_that_is_there(caplog: pytest.LogCaptureFixture) -> None:
    """A record goes to the nearest existing parent logger; no new logger is created."""
    logging.getLogger("near")
    dispatch_event({"log": ["near.by.far", logging.WARNING, "said", 0.0, 1, ["there.py", 1, "fn"]]})

    assert [record.name for record in caplog.records] == ["near.by.far"]
    assert "near.by.far" not in logging.Logger.manager.loggerDict
