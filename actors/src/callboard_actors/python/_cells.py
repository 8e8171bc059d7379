"""Code of a cell, compiled so that its last expression has a value and tracebacks show its lines."""

import ast
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import TypeVar

T = TypeVar("T")

_MOST = 200
"""Cells with lines that are kept for tracebacks."""
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True, slots=True)
class Cell:
    """Compiled cell."""

    name: str
    body: CodeType
    last: CodeType | None
    """Last expression, if the cell ends with one."""


def name_of(number: int) -> str:
    """Return the file name of a cell in tracebacks."""
    return f"<cell {number}>"


def is_cell(filename: str) -> bool:
    """Return whether a file name is that of a cell."""
    return filename.startswith("<cell ")


def again(parsing: Callable[[], T]) -> T:
    """Parse, and try a second time after a SystemError, which a garbage collection during the parsing may cause.

    CPython 3.11 raises "AST constructor recursion depth mismatch" then (python/cpython#106905).
    """
    try:
        return parsing()
    except SystemError:
        return parsing()


def compiled(code: str, number: int) -> Cell:
    """Compile a cell; raise SyntaxError or, for a NUL character or deep nesting, ValueError."""
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
