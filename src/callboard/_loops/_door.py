"""By which door a run was entered.

Code that a user gives comes in two halves, sync and async, and each may have a client, a connection or a lock of
its own. What was entered from sync code reaches the sync half of it, in a worker thread, and what was awaited the
async half, where there are both; one that stands alone is used for either.
"""

from contextvars import ContextVar, Token
from typing import Any, Literal

Door = Literal["sync", "async"]

_door: ContextVar[Door] = ContextVar("callboard_door", default="async")


class entered:  # noqa: N801 (used as a function, in `with`; a generator would cost a call of a node too much)
    """A block that is entered by one of the doors, whatever is around it.

    Args:
        door: by which.
    """

    __slots__ = ("_door", "_token")

    _token: Token[Door]

    def __init__(self, door: Door) -> None:
        self._door: Door = door

    def __enter__(self) -> None:
        self._token = _door.set(self._door)

    def __exit__(self, *exc: object) -> None:
        _door.reset(self._token)


def from_sync() -> bool:
    """Whether what runs here was entered from sync code."""
    return _door.get() == "sync"


def is_missing(half: Any) -> bool:
    """Whether a function can do nothing but raise NotImplementedError, as people write where a base wants one."""
    code = getattr(half, "__code__", None)
    return code is not None and code.co_names == ("NotImplementedError",)
