"""An engine that runs bodies where it is: in tasks and threads of this process, which cannot be killed."""

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

from callboard.engines import Body, EngineError, Seat, arrived, carried, deliver


class InProcess:
    """So many bodies at once, in this process.

    One that is async is cancelled; a thread is left alone, and keeps its place until it has ended.
    """

    def __init__(self, *, workers: int) -> None:
        self._limiter = anyio.CapacityLimiter(workers)
        self._threads = anyio.CapacityLimiter(workers)

    async def __aenter__(self) -> Self:
        """Opens nothing: tasks and threads of this process are there already."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        pass

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Refuses nothing: what runs in this process need not be sent anywhere."""

    async def run_body(self, body: Body, /) -> Any:
        """Run a function, a sync one in a thread."""
        async with self._limiter:
            if body.on_begin is not None:
                body.on_begin()
            with arrived(carried(), _teller()), _exits_are_of(body):
                [value] = await run_sync(_called, body, abandon_on_cancel=True, limiter=self._threads)
                return await value if isinstance(value, Coroutine) else value

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Seat]:
        """Have what is kept in modules to oneself, as far as names there are one's own."""
        yield _InProcessSeat()


class _InProcessSeat:
    """A seat in this process, for one owner; nothing of it can be killed."""

    async def run_body(self, body: Body, /) -> Any:
        if body.on_begin is not None:
            body.on_begin()
        with arrived(carried(), _teller()), _exits_are_of(body):
            [value] = _called(body)
            return await value if isinstance(value, Coroutine) else value

    async def until_ended(self) -> str:
        await anyio.sleep_forever()
        raise AssertionError("nobody comes here")


@contextmanager
def _exits_are_of(body: Body) -> Generator[None]:
    """Let a body that would end its process end alone: others run here, too."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        reason = f"it raised {error!r}, which would have ended its worker"
        raise EngineError(body.title, body.call_id, reason, ended="unknown", recurs=True) from error


def _called(body: Body) -> list[Any]:
    """What a body returns, in a list: trio wants no coroutines out of threads."""
    return [body.fn(*body.args, **body.kwargs)]


def _teller() -> Callable[[dict[str, Any]], None]:
    """Says to whoever waits for the body what it tells, from any thread."""
    here, token, home = copy_context(), current_token(), threading.get_ident()

    def tell(told: dict[str, Any]) -> None:
        def deliver_here() -> None:
            here.copy().run(deliver, told)

        if threading.get_ident() == home:
            deliver_here()
        else:
            from_thread.run_sync(deliver_here, token=token)

    return tell
