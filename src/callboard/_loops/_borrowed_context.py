"""Code that runs in one task with the context variables of another."""

from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

from callboard._loops._protocol import EventLoop

T = TypeVar("T")


class InContext(Generic[T]):
    """An awaitable that runs `fn` here, in the calling task, with the variables of `context`.

    Cancel scopes belong to tasks and variables to whoever asked: what a task does on behalf of another needs both.
    `asyncio.Task` takes a context for all that it does, and no loop has one for a part of it.

    Args:
        loop: the one that runs here.
        context: nobody else's while this runs.
        fn: what to run.
    """

    __slots__ = ("_context", "_fn", "_loop")

    def __init__(self, loop: EventLoop, context: Context, fn: Callable[[], Awaitable[T]]) -> None:
        self._loop = loop
        self._context = context
        self._fn = fn

    def __await__(self) -> Generator[Any, Any, T]:
        context = self._context
        self._loop.adopt(context)
        steps = context.run(self._begin)
        send, throw = steps.send, steps.throw
        try:
            waits_for = context.run(send, None)
            while True:
                try:
                    answer = yield waits_for
                except GeneratorExit:
                    context.run(steps.close)
                    raise
                except BaseException as error:
                    waits_for = context.run(throw, error)
                else:
                    try:
                        waits_for = context.run(send, answer)
                    finally:
                        # On trio it holds a cancellation, whose traceback leads here.
                        del answer
        except StopIteration as end:
            value: T = end.value
            return value

    def _begin(self) -> Generator[Any, Any, T]:
        return self._fn().__await__()
