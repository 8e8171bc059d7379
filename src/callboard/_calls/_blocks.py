"""Blocks of `with` and `async with` that have no effect before a program enters them: a warning says so."""

import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from callboard.exceptions import CallboardWarning

P = ParamSpec("P")
T = TypeVar("T")


class _Block:
    """Part of a block that remembers whether it was entered; `statement` is the line that enters it."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._is_entered = False

    def __del__(self) -> None:
        if not self._is_entered:
            text = f"a block that is not entered has no effect: write `{self._statement}`"
            warnings.warn(text, CallboardWarning, stacklevel=2)


class _SyncBlock(_Block, AbstractContextManager[T]):
    def __init__(self, block: AbstractContextManager[T], statement: str) -> None:
        super().__init__(statement)
        self._block = block

    def __enter__(self) -> T:
        self._is_entered = True
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, traceback)


class _AsyncBlock(_Block, AbstractAsyncContextManager[T]):
    def __init__(self, block: AbstractAsyncContextManager[T], statement: str) -> None:
        super().__init__(statement)
        self._block = block

    async def __aenter__(self) -> T:
        self._is_entered = True
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)


def has_to_be_entered(
    statement: str,
) -> Callable[[Callable[P, AbstractContextManager[T]]], Callable[P, AbstractContextManager[T]]]:
    """Return a decorator of functions that return a `with` block; a block that is not entered leads to a warning."""

    def decorate(function: Callable[P, AbstractContextManager[T]]) -> Callable[P, AbstractContextManager[T]]:
        @wraps(function)
        def make_block(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
            return _SyncBlock(function(*args, **kwargs), statement)

        return make_block

    return decorate


def has_to_be_entered_async(
    statement: str,
) -> Callable[[Callable[P, AbstractAsyncContextManager[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Return a decorator as `has_to_be_entered` does, for functions that return an `async with` block."""

    def decorate(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
        @wraps(function)
        def make_block(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
            return _AsyncBlock(function(*args, **kwargs), statement)

        return make_block

    return decorate
