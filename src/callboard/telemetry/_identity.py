"""Objects as keys of a dict, where each counts as equal to itself only."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """One object, whatever it compares equal to: Logfire's providers are dataclasses, and have no hash."""

    one: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.one is self.one

    def __hash__(self) -> int:
        return id(self.one)
