"""Dict keys that compare objects by identity."""

from typing import Any


class ByIdentity:
    """Dict key for one object, compared by identity. The object needs no hash: Logfire's providers have none."""

    # No dataclass: dataclasses have a canonical JSON form, so a shared store would give one process the results of
    # another one for an object that only the first knows.
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
