"""How a block is run: the names that its page assumes, and what is true after it."""

import inspect
import re
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Names = dict[str, Any]
Steps = Generator[Names, Names, None]
AsyncSteps = AsyncGenerator[Names, Names]
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Code block of a page."""

    page: str
    line: int
    code: str


@dataclass(frozen=True)
class World:
    """Parts of a test that a surrounding may use, and the names that the earlier blocks of the page have made."""

    folder: Path
    patch: pytest.MonkeyPatch
    request: pytest.FixtureRequest
    names: Names
    backend: str
    """Backend of this run; empty for a block without an event loop."""


@dataclass(frozen=True)
class Fragment:
    """Block that is not a program by itself.

    The surrounding yields the names that the reader has, and gets all names of the block when it has run. An async
    surrounding runs on an event loop, with its block.
    """

    page: str
    part: str
    surrounding: Callable[[World], Steps | AsyncSteps]
    faked: str = ""
    """Foreign object that is not the real one here, and the reason."""
    backends: tuple[str, ...] = ()
    """Backends, if they are not both, or if a block that is not async starts an event loop."""
    after_page: bool = False
    """Run the earlier blocks of the page first."""
    exhaustive: bool = False
    """Leave the fragment to the exhaustive run, because it needs a server or seconds."""
    exit_code: int | None = None
    """Exit code with which the block ends its process."""

    @property
    def is_async(self) -> bool:
        return inspect.isasyncgenfunction(self.surrounding)

    @property
    def runs_on(self) -> tuple[str, ...]:
        return self.backends or (("asyncio", "trio") if self.is_async else ("",))


@dataclass
class Fragments:
    """Register of the fragments of some pages."""

    all: list[Fragment] = field(default_factory=list[Fragment])

    def of(self, page: str, part: str, **options: Any) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
        """Register the decorated function for the block of a page that contains a text."""

        def register(surrounding: Callable[[World], Any]) -> Callable[[World], Any]:
            self.all.append(Fragment(page, part, surrounding, **options))
            return surrounding

        return register


def blocks_of(page: str, info: str) -> list[Block]:
    """Return the blocks of a page with this text after the fence."""
    text = (ROOT / page).read_text()
    matches = [match for match in _FENCE.finditer(text) if match["info"].strip() == info]
    return [Block(page, text.count("\n", 0, match.start()) + 2, match["code"]) for match in matches]
