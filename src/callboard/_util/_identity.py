"""Dict keys that compare objects by identity."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity:
    """Dict key for one object, compared by identity. The object needs no hash: Logfire's providers have none."""

    one: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.one is self.one

    def __hash__(self) -> int:
        return id(self.one)
