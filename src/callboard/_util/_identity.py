"""Dict keys that compare objects by identity."""

from typing import Any


class ByIdentity:
    """Dict key for one object, compared by identity. The object needs no hash: Logfire's providers have none."""

    # No dataclass: dataclasses have a canonical JSON form, so a shared store would give one process the results of
    # another one for an object that only the first knows.
    __slots__ = ("one",)

    def __init__(self, one: Any) -> None:
        self.one = one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.one is self.one

    def __hash__(self) -> int:
        return id(self.one)
