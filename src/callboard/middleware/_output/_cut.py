"""How much of a text fits a budget, and where to cut it. Knows neither messages nor tools."""

import unicodedata
from bisect import bisect_right
from collections.abc import Callable

from callboard._calls._call import note
from callboard._calls._thread_pool import Threads

CountTokens = Callable[[str], int]

CHARACTERS_PER_TOKEN = 4
"""Of English, roughly; what `langchain_core.messages.utils.count_tokens_approximately` takes too."""

_MOST_CHARACTERS_PER_TOKEN = 8
"""So much is looked at for each token of the budget, that a huge text costs no more than a large one."""

_MOST_TOKENS_PER_CHARACTER = 4
"""A token of a byte-level tokenizer is a byte at least, and a character at most four."""

_NEAR = 5
"""A line break in the last fifth of what fits is a better place to cut than its end."""

_LONGEST_CHARACTER = 32
"""Code points that are kept together; whoever piles up more accents gets them cut."""


class Measure:
    """A budget in characters, or in tokens that somebody counts.

    Args:
        characters: at most so many.
        tokens: and at most so many of these, where there is a counter.
        count: may be slow, and runs in a thread; if it fails, four characters are a token.
    """

    def __init__(self, characters: int, tokens: int, count: CountTokens | None) -> None:
        self._characters = characters
        self._tokens = tokens
        self._count = count
        self._threads = Threads("a counter of tokens", 4)

    @property
    def page(self) -> int:
        """How many characters fit as a rule."""
        return self._characters if self._count is None else max(1, self._tokens * CHARACTERS_PER_TOKEN)

    async def fits(self, text: str) -> bool:
        """Whether a text is within the budget."""
        size = len(text)
        if size > self._characters:
            return False
        if self._count is None or size * _MOST_TOKENS_PER_CHARACTER <= self._tokens:
            return True
        return await self.most(size, lambda length: text[:length]) == size

    async def most(self, size: int, part: Callable[[int], str], share: int = 1) -> int:
        """The largest number of characters that fits.

        Args:
            size: at most so many.
            part: the part of the text that has so many.
            share: take this fraction of the budget, such as 2 for half of it.
        """
        size, count, tokens = min(size, self._characters // share), self._count, self._tokens // share
        if count is None:
            return size

        def search() -> int:
            if count(part(size)) <= tokens:
                return size
            return bisect_right(range(1, size), tokens, key=lambda length: count(part(length)))

        try:
            return await self._threads.run(search)
        except Exception as error:
            note("count_failed", error=type(error).__name__)
            return min(size, tokens * CHARACTERS_PER_TOKEN)


def measure_of(characters: int | None, tokens: int | None, count: CountTokens | None) -> Measure:
    """The measure for a budget; the one that is not `None` counts."""
    if characters is not None:
        return Measure(characters, 0, None)
    assert tokens is not None
    per_token = CHARACTERS_PER_TOKEN if count is None else _MOST_CHARACTERS_PER_TOKEN
    return Measure(tokens * per_token, tokens, count)


def end_before(text: str, at: int) -> int:
    """A good place to end at or before `at`: after a line, or at least not within a character."""
    line = text.rfind("\n", at - at // _NEAR, at)
    return line + 1 if line >= 0 else _between_characters(text, at, -1)


def begin_after(text: str, at: int) -> int:
    """A good place to begin at or after `at`."""
    line = text.find("\n", at, at + (len(text) - at) // _NEAR)
    return line + 1 if line >= 0 else _between_characters(text, at, +1)


def _between_characters(text: str, at: int, step: int) -> int:
    """The nearest place that splits no pair and no accent from its letter, if one is near."""
    place = at
    for _ in range(_LONGEST_CHARACTER):
        if not 0 < place < len(text) or not _belong_together(text[place - 1], text[place]):
            return place
        place += step
    return at


def _belong_together(before: str, after: str) -> bool:
    """Most of what Unicode's annex 29 does not break between; the rest is rare, and nothing is lost by it."""
    return (
        unicodedata.category(after).startswith("M")
        or "\u200d" in (before, after)  # joins emoji
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin colours
        or (_is_half_a_flag(before) and _is_half_a_flag(after))
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or (before == "\r" and after == "\n")
    )


def _is_half_a_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
