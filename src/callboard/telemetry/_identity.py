"""Dict keys that compare objects by identity."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity:
    """Dict key that stands for one object, compared by identity. Logfire's providers are dataclasses without a hash."""

    one: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.one is self.one

    def __hash__(self) -> int:
        return id(self.one)
