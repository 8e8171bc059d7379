"""Where bodies run, if not here: what an engine is, and what it is given."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A function and its arguments, to be run somewhere else.

    Args:
        fn: what to run, sync or async.
        args: for it.
        kwargs: for it.
        title: what to call it in errors, such as the name of the tool.
        call_id: of the tool call that it is for, for errors.
        grace: seconds that it has to end when it is cancelled, before it is killed; `None` for the engine's own.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    title: str
    call_id: str | None = None
    grace: float | None = None


class Seat(Protocol):
    """A worker that one owner has for itself, such as an actor: what functions keep in its modules stays there."""

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function there, beside those that run; return what it returns, raise what it raises.

        All of them run on one event loop. If the caller is cancelled, the function is, and has its grace to end; one
        that does not ends the seat.

        Raises:
            EngineError: if the seat has ended, or ends before there is a result.
            TypeError: for what cannot cross; nothing was sent.
        """
        ...

    async def until_ended(self) -> str:
        """Wait until the worker has ended by itself, or was killed; says how, in words."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Where bodies run, if not here: in processes, or on other machines.

    Whoever uses it has it open (`async with`), in each event loop in which it is used. It may be opened by several at
    once: it begins with the first of them and ends with the last.
    """

    async def __aenter__(self) -> Any:
        """Have it ready in this event loop.

        Raises:
            ActorStartError: if it cannot be.
        """
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Need it no more; the last one waits until everything of it has ended."""
        ...

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise TypeError for a function that could not run there, as far as this can be known before it is called."""
        ...

    async def run_body(self, body: Body, /) -> Any:
        """Run a function, sync or async; return what it returns, raise what it raises.

        If the caller is cancelled, the function is ended, with whatever it has started, and waited for.

        Raises:
            EngineError: if it has no result; `ended` says whether it had begun.
            TypeError: for what cannot cross; nothing was sent.
        """
        ...

    def seat(self, title: str, /) -> AbstractAsyncContextManager[Seat]:
        """Have a worker for oneself while the block runs; it is ended when the block is left.

        Raises:
            EngineError: if there is none.
            ActorStartError: if it does not start.
        """
        ...
