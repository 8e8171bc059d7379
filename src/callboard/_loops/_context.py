"""Execution of async code in one task with the context variables of another task."""

from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

from callboard._loops._protocol import EventLoop

T = TypeVar("T")


class InContext(Generic[T]):
    """Awaitable that runs the async function `fn` in the calling task, with the context variables of `context`.

    A task that works for another one, such as an actor for its callers, needs its own cancel scopes and the caller's
    variables. `asyncio.Task` accepts a context for its whole life, and no loop accepts one for a part of it. `loop` is
    `None` if the context is a copy of the calling task's own, which has the cancel scopes already.
    """

    __slots__ = ("_context", "_fn", "_loop")

    def __init__(self, loop: EventLoop | None, context: Context, fn: Callable[[], Awaitable[T]]) -> None:
        self._loop = loop
        self._context = context
        self._fn = fn

    def __await__(self) -> Generator[Any, Any, T]:
        context = self._context
        if self._loop is not None:
            # Before the first step: the code must find the cancel scopes of this task in the borrowed context.
            self._loop.adopt(context)
        # Each step enters the context anew: while the coroutine is suspended, the task has its own context again.
        steps = context.run(lambda: self._fn().__await__())
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
                        # On trio it is an outcome that may hold a cancellation, whose traceback refers to this frame.
                        del answer
        except StopIteration as end:
            value: T = end.value
            return value
