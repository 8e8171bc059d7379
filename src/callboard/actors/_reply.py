"""A reply that a handler has taken along."""

from typing import Generic, Protocol, TypeVar, cast

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Owed(Protocol[T_contra]):
    """A call whose reply is owed."""

    title: str

    def settle(self, value: T_contra | None, error: BaseException | None) -> bool:
        """End the call; False if it has ended."""
        ...


class Reply(Generic[T]):
    """What the caller of a deferred handler waits for; sent once, from anywhere.

    Whoever lets go of it without sending it leaves the caller with an error that says so.
    """

    __slots__ = ("_owed", "_title")

    def __init__(self, owed: Owed[T]) -> None:
        self._owed: Owed[T] | None = owed
        self._title = owed.title

    def send(self, value: T) -> bool:
        """Give the caller its result; False if it does not wait any more.

        Raises:
            RuntimeError: if this reply was sent before.
        """
        return self._taken().settle(value, None)

    def fail(self, error: Exception) -> bool:
        """Raise an error where the caller waits; False if it does not wait any more.

        Raises:
            RuntimeError: if this reply was sent before.
            TypeError: for what is no exception.
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
        owed = getattr(self, "_owed", None)
        if owed is not None:
            owed.settle(None, RuntimeError(f"{owed.title} took its reply along and let go of it without sending it"))
