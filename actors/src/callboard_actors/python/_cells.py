"""The code of a cell: compiled so that its last expression has a value, and so that tracebacks show its lines."""

import ast
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import TypeVar

T = TypeVar("T")

_MOST = 200
"""Cells whose lines are remembered for tracebacks."""
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that can run."""

    name: str
    body: CodeType
    last: CodeType | None
    """Its last expression, if it ends with one."""


def name_of(number: int) -> str:
    """What tracebacks call a cell."""
    return f"<cell {number}>"


def is_cell(filename: str) -> bool:
    """Whether that is a file of the user's code."""
    return filename.startswith("<cell ")


def again(parsing: Callable[[], T]) -> T:
    """What may have failed because a collection of garbage parsed something meanwhile.

    In CPython 3.11 that is a SystemError ("AST constructor recursion depth mismatch", python/cpython#106905).
    """
    try:
        return parsing()
    except SystemError:
        return parsing()


def compiled(code: str, number: int) -> Cell:
    """A cell, ready to run.

    Raises:
        SyntaxError: it is no Python.
        ValueError: neither is that: a NUL in it, or nested too deeply.
    """
    name = name_of(number)
    linecache.cache[name] = (len(code), None, f"{code}\n".splitlines(keepends=True), name)
    linecache.cache.pop(name_of(number - _MOST), None)
    tree = again(partial(ast.parse, code, name))
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = tree.body.pop()
        assert isinstance(expression, ast.Expr)
        last = compile(ast.Expression(expression.value), name, "eval", flags=_FLAGS, dont_inherit=True)
    return Cell(name, compile(tree, name, "exec", flags=_FLAGS, dont_inherit=True), last)
