"""Methods `open()` and `aclose()` for objects with `async with`, so that they can stay open between notebook cells.

A cancel scope must be left by the task that entered it, and each cell may be a task of its own. So an owner task enters
the object's `async with` block, waits, and leaves it.
"""

import atexit
import logging
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, cast
from weakref import WeakSet

from anyio import Event

from callboard._loops._current import current_loop, is_over
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope, Spawned
from callboard._loops._side_tasks import end_task

_log = logging.getLogger("callboard")


class OwnerTask:
    """Task that enters the `async with` block of an object, and leaves it when a task of the same loop requests it."""

    def __init__(self, block: AbstractAsyncContextManager[object]) -> None:
        self._loop = current_loop()
        self._block = block
        self._started, self._leave, self._over = Event(), Event(), Event()
        self._is_entered = False
        self._error: BaseException | None = None
        self._task: Spawned | None = None

    @property
    def is_open(self) -> bool:
        """True while the block is entered, and nothing has asked the task to leave it."""
        return self._is_entered and not self._leave.is_set()

    @property
    def is_over(self) -> bool:
        """True if the block was left, or its event loop has ended."""
        return self._over.is_set() or is_over(self._loop)

    @property
    def is_here(self) -> bool:
        """True if the calling task runs in the event loop of the block."""
        return current_loop() is self._loop

    async def open(self) -> None:
        """Start the task, and wait until it has entered the block; raise the error of a failed entry."""
        task = self._task = self._loop.spawn(self._own, DEFAULT_GRACE)
        try:
            await self._started.wait()
        except self._loop.cancelled_class:
            # The caller is interrupted: without a caller nobody would close what is half open.
            self._leave.set()
            await end_task(task)  # not `_over`: a task that never began does not set it
            raise
        if not self._is_entered:
            self._raise_error()
            raise RuntimeError(f"{self._block!r} was cancelled while it opened")
        _open.add(self)

    async def close(self) -> None:
        """Ask the task to leave the block, and wait for the end of the block; raise the block's error, if any."""
        assert self._task is not None
        self._leave.set()
        try:
            await self._over.wait()
        except self._loop.cancelled_class:
            self._task.cancel()
            # Bounded: the caller may be a handler of the object, for which the end of the block waits.
            with self._loop.shield(self._loop.now() + DEFAULT_GRACE):
                await self._over.wait()
            raise
        self._raise_error()

    async def _own(self, scope: Scope) -> None:
        try:
            with scope:
                async with self._block:
                    self._is_entered = True
                    self._started.set()
                    await self._leave.wait()
        except self._loop.cancelled_class:
            raise  # the event loop ends, and cancels all its tasks
        except BaseException as error:  # raised by `open` or `close`; a spawned task must not raise
            self._error = error
        finally:
            _open.discard(self)
            if self._is_entered and not self._leave.is_set():
                why = "its event loop has ended" if self._error is None else f"of {type(self._error).__qualname__}"
                _log.warning("%r has closed without aclose(), because %s", self._block, why)
            self._is_entered = False
            self._started.set()
            self._over.set()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                error = None  # its traceback refers to this frame: a reference cycle


_open: WeakSet[OwnerTask] = WeakSet()


@atexit.register
def _warn_of_open_blocks() -> None:
    for task in list(_open):
        text = f"{task._block!r} was open when the program ended; end it with `await ....aclose()`"
        if _log.hasHandlers():
            _log.warning("%s", text)
        elif sys.__stderr__ is not None:  # `sys.stderr` of a kernel leads to a notebook that listens no more
            print(text, file=sys.__stderr__)


class Openable:
    """Base class that gives an object with `async with` also `open()` and `aclose()`, for example for notebooks."""

    _owner_task: OwnerTask | None = None

    async def open(self) -> Self:
        """Open the object as `async with` does, until `aclose()`; return the object itself.

        A task of its own enters the block and leaves it. So any task of this event loop may call `aclose()`, such as
        another cell of a notebook. If the object was opened by `open()` already, nothing happens.

        Raises:
            RuntimeError: if an `async with` block of the object is open, if another task opens or closes it at the same
                time, or if each cell of this notebook has its own event loop, as after `%autoawait trio`.
            BaseException: the error of `async with`, if the object cannot be opened.
        """
        owner = self._owner_task
        if owner is not None and owner.is_open and owner.is_here:
            return self
        ipython: Any = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None and current_loop().name == "trio" else None
        if shell is not None and shell.loop_runner is shell.loop_runner_map["trio"][0]:
            raise RuntimeError(
                f"{self!r} cannot stay open: with `%autoawait trio`, each cell runs an event loop of its own. Use "
                "`%autoawait asyncio`, or `async with` within one cell"
            )
        owner = OwnerTask(cast("AbstractAsyncContextManager[object]", self))
        await owner.open()
        self._owner_task = owner
        return self

    async def aclose(self) -> None:
        """Close the object after `open()`, as the end of `async with` does; without `open()`, nothing happens.

        Raises:
            RuntimeError: if the object was opened in another event loop.
            BaseException: the error of the end of `async with`.
        """
        owner = self._current_owner()
        if owner is not None:
            try:
                await owner.close()
            finally:
                self._owner_task = None

    def _current_owner(self) -> OwnerTask | None:
        """Return the task that keeps the object open, or `None`; raise `RuntimeError` in another event loop."""
        owner = self._owner_task
        if owner is None or (not owner.is_here and owner.is_over):
            return None
        if not owner.is_here:
            raise RuntimeError(f"{self!r} was opened in another event loop: `await ....aclose()` there")
        return owner
