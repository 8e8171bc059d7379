"""Search for the part of a text that fits a budget, and for a good place to cut it."""

import unicodedata
from bisect import bisect_right
from collections.abc import Callable

from callboard._calls._call import note
from callboard._calls._thread_pool import Threads

CountTokens = Callable[[str], int]

CHARACTERS_PER_TOKEN = 4
"""Average for English text, as in `langchain_core.messages.utils.count_tokens_approximately`."""

_MOST_CHARACTERS_PER_TOKEN = 8
"""Characters examined per token of the budget. The bound keeps counting cheap for huge texts."""

_MOST_TOKENS_PER_CHARACTER = 4
"""Upper bound: a token of a byte-level tokenizer has at least one byte, and UTF-8 at most four per character."""

_NEAR = 5
"""A line break within the last fifth (1 / 5) of the part that fits is preferred as the place to cut."""

_LONGEST_CHARACTER = 32
"""Maximum code points that are kept together; a longer pile of combining accents may be cut."""


class Measure:
    """Budget in characters, or in tokens that a function counts.

    Args:
        characters: maximum number of characters.
        tokens: maximum number of tokens; used only with a counter.
        count: counter of tokens. It may be slow, so it runs in a thread. If it fails, a token is 4 characters.
    """

    def __init__(self, characters: int, tokens: int, count: CountTokens | None) -> None:
        self._characters = characters
        self._tokens = tokens
        self._count = count
        self._threads = Threads("a counter of tokens", 4)

    @property
    def page(self) -> int:
        """Number of characters that usually fit."""
        return self._characters if self._count is None else max(1, self._tokens * CHARACTERS_PER_TOKEN)

    async def fits(self, text: str) -> bool:
        """Return whether a text is within the budget."""
        size = len(text)
        if size > self._characters:
            return False
        if self._count is None or size * _MOST_TOKENS_PER_CHARACTER <= self._tokens:
            # Even the most expensive text of this size fits, so the counter need not run.
            return True
        return await self.most(size, lambda length: text[:length]) == size

    async def most(self, size: int, part: Callable[[int], str], share: int = 1) -> int:
        """Return the largest number of characters that fits.

        `part(n)` is the part of the text with n characters, up to `size`. A `share` of 2 allows half of the budget.
        """
        size, count, tokens = min(size, self._characters // share), self._count, self._tokens // share
        if count is None:
            return size

        def search() -> int:
            if count(part(size)) <= tokens:
                return size
            # The whole does not fit. Assumes that a longer part never has fewer tokens than a shorter one.
            return bisect_right(range(1, size), tokens, key=lambda length: count(part(length)))

        try:
            return await self._threads.run(search)
        except Exception as error:
            note("count_failed", error=type(error).__name__)
            return min(size, tokens * CHARACTERS_PER_TOKEN)


def measure_of(characters: int | None, tokens: int | None, count: CountTokens | None) -> Measure:
    """Return the measure of a budget, given either in characters or in tokens."""
    if characters is not None:
        return Measure(characters, 0, None)
    assert tokens is not None
    per_token = CHARACTERS_PER_TOKEN if count is None else _MOST_CHARACTERS_PER_TOKEN
    return Measure(tokens * per_token, tokens, count)


def end_before(text: str, at: int) -> int:
    """Return a good end at or before `at`: after a line break, or else not within a visible character."""
    line = text.rfind("\n", at - at // _NEAR, at)
    return line + 1 if line >= 0 else _between_characters(text, at, -1)


def begin_after(text: str, at: int) -> int:
    """Return a good beginning at or after `at`."""
    line = text.find("\n", at, at + (len(text) - at) // _NEAR)
    return line + 1 if line >= 0 else _between_characters(text, at, +1)


def _between_characters(text: str, at: int, step: int) -> int:
    """Return the nearest position that splits neither a surrogate pair nor a letter from its accent, or `at`."""
    place = at
    for _ in range(_LONGEST_CHARACTER):
        if not 0 < place < len(text) or not _belong_together(text[place - 1], text[place]):
            return place
        place += step
    return at


def _belong_together(before: str, after: str) -> bool:
    """Return whether two code points form one visible character: the frequent cases of Unicode's annex 29."""
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
