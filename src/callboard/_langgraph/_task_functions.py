"""LangGraph's `@task` functions inside calls and hooks: each runs once, also if its call goes on after a question."""

import threading
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from anyio import to_thread

from callboard._loops._bridge import run_from_sync


class TaskResult:
    """Result of a `@task` function, which runs when this object is awaited, or when its `result()` is called.

    `keep` stores the result, so that the function does not run again with its call.
    """

    def __init__(self, function: Callable[[], Any], *, name: str, is_async: bool, keep: Callable[[Any], None]) -> None:
        self._function = function
        self._name = name
        self._is_async = is_async
        self._keep = keep
        self._future: Future[Any] = Future()
        self._begin_lock = threading.Lock()  # taken by the first of several tasks or threads that want the result

    @classmethod
    def of_value(cls, value: object) -> "TaskResult":
        """Return the stored result of a function that an earlier run of the call has run."""
        result = cls(lambda: value, name="", is_async=False, keep=lambda _: None)
        result.result()
        return result

    def __await__(self) -> Generator[Any, None, Any]:
        return self._run().__await__()

    async def _run(self) -> Any:
        if self._future.done():
            return self._future.result()
        if not self._begin_lock.acquire(blocking=False):
            return await to_thread.run_sync(self._future.result, abandon_on_cancel=True)
        try:
            value = await (self._function() if self._is_async else to_thread.run_sync(self._function))
        except BaseException as error:
            self._future.set_exception(error)
            raise
        return self._store(value)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result; run the function first, unless it runs already."""
        if self._is_async and not self._future.done():
            return run_from_sync(self._run)
        if not self._begin_lock.acquire(blocking=False):
            return self._future.result(timeout)
        try:
            value = self._function()
        except BaseException as error:
            self._future.set_exception(error)
            raise
        return self._store(value)

    def _store(self, value: Any) -> Any:
        self._keep(value)
        self._future.set_result(value)
        return value

    def __del__(self) -> None:
        if not self._begin_lock.locked():
            warnings.warn(
                f"The @task {self._name!r} has not run: await what it returns, or call result()",
                RuntimeWarning,
                stacklevel=2,
            )


def task_result(
    results: dict[int, Any], number: int, function: Callable[..., Any], arguments: tuple[Any, Any], **options: Any
) -> TaskResult:
    """Return the result of a `@task` function, the one with this number in its call, in the form that LangGraph has.

    `results` has the results of the call by number. `arguments` are the positional and the named arguments.
    """
    name = getattr(function, "__name__", repr(function))
    for option in ("retry_policy", "cache_policy", "timeout"):
        if options.get(option):
            raise NotImplementedError(
                f"@task({option}=...) of {name!r} within a call or a hook of callboard: give the option to the tool, "
                "such as by CallPolicy(timeout=...) or callboard.middleware.Retry"
            )
    if number in results:
        return TaskResult.of_value(results[number])
    args, kwargs = arguments
    return TaskResult(
        partial(function, *args, **kwargs),
        name=name,
        is_async=iscoroutinefunction(function),
        keep=partial(results.__setitem__, number),
    )
