"""Engine without processes: runs bodies in tasks and threads of this process, where threads cannot be killed."""

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token
from anyio.to_thread import run_sync

from callboard.extend import Body, EngineError, Seat, arrived, carried, deliver


class InProcess:
    """Engine that runs a limited number of bodies in this process.

    A cancelled async body is cancelled. A cancelled thread continues without a caller, and occupies a thread until it
    ends.

    Args:
        workers: number of concurrent bodies, and of threads.
    """

    def __init__(self, *, workers: int) -> None:
        self._limiter = anyio.CapacityLimiter(workers)
        # Apart from the bodies' limit: an abandoned thread keeps its token here, while its body gives back the other
        # one.
        self._threads = anyio.CapacityLimiter(workers)

    async def __aenter__(self) -> Self:
        """Do nothing: there is nothing to start."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        pass

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Accept any function, since nothing is transferred."""

    async def run_body(self, body: Body, /) -> Any:
        """Run a body: async functions as part of this task, sync ones in a thread."""
        async with self._limiter:
            if body.on_begin is not None:
                body.on_begin()
            with arrived(carried(), _teller()), _exits_are_of(body):
                [value] = await run_sync(_called, body, abandon_on_cancel=True, limiter=self._threads)
                return await value if isinstance(value, Coroutine) else value

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Seat]:
        """Yield a seat without a process: its owner shares the modules of this process with all others."""
        yield _InProcessSeat()


class _InProcessSeat:
    """Seat in this process; bodies run on the event loop and cannot be killed."""

    async def run_body(self, body: Body, /) -> Any:
        if body.on_begin is not None:
            body.on_begin()
        with arrived(carried(), _teller()), _exits_are_of(body):
            [value] = _called(body)
            return await value if isinstance(value, Coroutine) else value

    async def until_ended(self) -> str:
        # It ends with its block only.
        await anyio.sleep_forever()
        raise AssertionError("nobody comes here")


@contextmanager
def _exits_are_of(body: Body) -> Generator[None]:
    """Turn `SystemExit` and `KeyboardInterrupt` of a body into an error of this body, since other bodies run here."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        reason = f"it raised {error!r}, which would have ended its worker"
        raise EngineError(body.title, body.call_id, reason, ended="unknown", recurs=True) from error


def _called(body: Body) -> list[Any]:
    """Call a body; wrap the result in a list, because trio rejects coroutine objects returned from threads."""
    return [body.fn(*body.args, **body.kwargs)]


def _teller() -> Callable[[dict[str, Any]], None]:
    """Return a function for any thread that delivers events in this event loop and context."""
    here, token, home = copy_context(), current_token(), threading.get_ident()

    def tell(told: dict[str, Any]) -> None:
        def deliver_here() -> None:
            # A copy, because a context cannot be entered twice at the same time.
            here.copy().run(deliver, told)

        if threading.get_ident() == home:
            deliver_here()
        else:
            from_thread.run_sync(deliver_here, token=token)

    return tell
