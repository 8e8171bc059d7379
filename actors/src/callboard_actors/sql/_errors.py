"""Errors of statements for a model, with suggestions."""

import difflib
from collections.abc import Iterable

from langchain_core.tools import ToolException


class SqlError(ToolException):
    """Statement that the database refused or did not finish; the text says what can be done about it.

    As the error of a tool it becomes a message for the model. It never contains a password.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, with up to three similar names; empty if none is similar."""
    plain = name.rpartition(".")[2].strip('"').casefold()
    by_folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(plain, by_folded, n=3)
    return f"; did you mean {' or '.join(by_folded[one] for one in near)}?" if near else ""


def pointed(statement: str, position: int) -> str:
    """Return the line of a statement with an error, and a mark below its position, which counts from 1."""
    before = statement[: position - 1]
    start = before.rfind("\n") + 1
    line = statement[start:].partition("\n")[0]
    column = len(before) - start
    cut = max(0, column - 60)
    return f"\n{line[cut : cut + 120]}\n{' ' * (column - cut)}^"
