"""Reply of a deferred handler."""

from typing import Generic, Protocol, TypeVar, cast

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Owed(Protocol[T_contra]):
    """Call that waits for a deferred reply."""

    title: str

    def settle(self, value: T_contra | None, error: BaseException | None) -> bool:
        """Settle the call; return False if it was settled before."""
        ...


class Reply(Generic[T]):
    """Reply of a deferred handler, sent once, from any task or thread.

    If the reply is garbage-collected without being sent, the caller receives an error that says so.
    """

    __slots__ = ("_owed", "_title")

    def __init__(self, owed: Owed[T]) -> None:
        self._owed: Owed[T] | None = owed
        self._title = owed.title

    def send(self, value: T) -> bool:
        """Send the result to the caller; return False if the caller no longer waits.

        Args:
            value: the result.

        Raises:
            RuntimeError: if this reply was sent before.
        """
        return self._taken().settle(value, None)

    def fail(self, error: Exception) -> bool:
        """Raise an error in the caller; return False if the caller no longer waits.

        Args:
            error: the exception.

        Raises:
            RuntimeError: if this reply was sent before.
            TypeError: if `error` is no exception.
        """
        if not isinstance(cast("object", error), Exception):
            raise TypeError(f"{self._title}: Reply.fail() takes an exception, such as ValueError('no'); got {error!r}")
        return self._taken().settle(None, error)

    def _taken(self) -> Owed[T]:
        owed, self._owed = self._owed, None
        if owed is None:
            raise RuntimeError(f"the reply of {self._title} has been sent already; a call has one result")
        return owed

    def __del__(self) -> None:
        # Runs in any thread, even while it holds the cell's lock, which is reentrant for this. The attribute is missing
        # if `__init__` failed.
        owed = getattr(self, "_owed", None)
        if owed is not None:
            owed.settle(None, RuntimeError(f"{owed.title} took its reply along and let go of it without sending it"))
