"""What a model is told of a statement that failed, and what may have been meant."""

import difflib
from collections.abc import Iterable

from langchain_core.tools import ToolException


class SqlError(ToolException):
    """A statement that the database refused or did not finish; the text says what can be done about it.

    As a tool's error it becomes a message that the model reads. It has no password in it.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that does not exist, up to three that are like it; empty if none is."""
    plain = name.rpartition(".")[2].strip('"').casefold()
    by_folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(plain, by_folded, n=3)
    return f"; did you mean {' or '.join(by_folded[one] for one in near)}?" if near else ""


def pointed(statement: str, position: int) -> str:
    """The line of a statement with an error, and below it a mark where.

    Args:
        statement: as the database read it.
        position: of the character, counted from 1.
    """
    before = statement[: position - 1]
    start = before.rfind("\n") + 1
    line = statement[start:].partition("\n")[0]
    column = len(before) - start
    cut = max(0, column - 60)
    return f"\n{line[cut : cut + 120]}\n{' ' * (column - cut)}^"
