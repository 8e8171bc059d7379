"""Mutation run: `python -m tests.mutants callboard.actors._restarts tests/actors/test_restarts.py` breaks a module.

Each mutant is the module with one small change: another operator, another constant, a removed statement. The tests run
once for each mutant, in a forked process that imports the mutant instead of the module; no file is written. A mutant
that no test notices is printed with its line; so is one that hangs, because its tests may only be slow. POSIX only.

cosmic-ray does the same, but rewrites the files of the checkout, and starts an interpreter for each mutant: with the
imports of this project that takes longer than the tests of a decision module.

The goal is 95 % for each decision module. A long run is divided with `--lines`. Last scores, without equivalent
mutants, with `-m "not exhaustive"` and these tests:

- `callboard.actors._mailbox`, not measured since its tests are those of actors:
  `tests/actors/test_mailbox.py tests/actors/test_deadlocks.py tests/actors/test_seen.py tests/actors/test_lives.py`
- `callboard._calls._limits`: 398 of 398, 12 of them hung.
  `tests/calls/test_gate.py tests/calls/test_loans.py`
"""

import argparse
import ast
import copy
import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Pow: ast.Mult,
}
REMOVABLE = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Return, ast.Continue, ast.Break)
SOURCES = (Path("src"), Path("actors/src"))
PRELOAD_NOT = ("callboard", "tests", "conftest", "__main__", "__mp_main__")
REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"
"""pytest warns about plugins that are imported before it starts."""

_LIMITS = "callboard._calls._limits"
_CIRCUIT = "callboard.middleware._breaker"
_LEASE = "callboard_actors._server.fleet._lease"
_COMPARED = "The numbers of changes are only compared with each other: all that matters is that they differ."
_WINDOW_WAIT = "if self._window is not None and (wait := self._window.opens_at() - _common_time(loop)) > 0:"
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("callboard.actors._mailbox", "times = self.times.get(_key(handler, args, kwargs), 0)", "0 -> -1"): (
        "The number is compared with a limit of 1 or more."
    ),
    (_LIMITS, "if not waiter.awake and not (turn is not None and turn.is_granted):", "And -> Or"): (
        "The wakeup of a waiter that is awake, or whose loan is granted, is set already: the wait returns at once."
    ),
    (_LIMITS, _WINDOW_WAIT, "Gt -> GtE"): "A sleep until now is no sleep.",
    (_LIMITS, _WINDOW_WAIT, "0 -> -1"): "A sleep until a time that has passed is no sleep.",
    **{
        (
            _LEASE,
            "self._renewed_at = 0.0",
            change,
        ): "Without a heartbeat the process is no member, whatever the time is."
        for change in ("0.0 -> 1.0", "0.0 -> -1.0")
    },
    **{
        (_CIRCUIT, "attempts = 0 if call is None else call.attempts", change): "The number is read for a call only."
        for change in ("0 -> 1", "0 -> -1")
    },
    **{(_CIRCUIT, "self.changes += 1", change): _COMPARED for change in ("Add -> Sub", "1 -> 2")},
    (_CIRCUIT, "return left if left > _INSTANT else 0.0", "Gt -> GtE"): (
        "The time left would have to be the tolerance, to the last digit."
    ),
}
"""Mutants that behave like the module, or differ in nothing that is promised: module, line, change -> reason."""


@dataclass(frozen=True)
class Mutant:
    """Module with one change."""

    line: int
    source: str
    change: str
    tree: ast.Module


Change = tuple[str, Callable[[], object]]


def changes(node: ast.AST, parent: ast.AST, field: str, index: int | None, returns: str) -> Iterator[Change]:
    """Yield the changes of one node: a description, and a function that makes the change."""

    def put(new: ast.AST) -> None:
        if index is None:
            setattr(parent, field, ast.copy_location(new, node))
        else:
            getattr(parent, field)[index] = ast.copy_location(new, node)

    if type(node) in OPERATORS:
        new = OPERATORS[type(node)]
        yield f"{type(node).__name__} -> {new.__name__}", lambda: put(new())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", lambda: put(ast.Constant(not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        for step in (1, -1):
            yield f"{node.value} -> {node.value + step}", lambda step=step: put(ast.Constant(node.value + step))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "no `not`", lambda: put(node.operand)
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        for value in (True, False) if returns == "bool" else (None,):
            if ast.unparse(node.value) != str(value):
                yield f"return {value}", lambda value=value: put(ast.Return(ast.Constant(value)))
    if isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield "not (condition)", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    is_stored = isinstance(node, (ast.Assign, ast.AnnAssign)) and not any(
        isinstance(target, (ast.Name, ast.Tuple))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_at_end = isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and node is parent.body[-1]
    is_nothing = is_text or (is_at_end and ast.unparse(node) == "return None")
    if (isinstance(node, REMOVABLE) or is_stored) and not is_nothing and getattr(node, "value", node) is not None:
        yield "removed", lambda: put(ast.Pass())


def points(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str, int | None, str]]:
    """Yield every node in functions with its place: parent, field, index; and what the function is said to return."""

    def walk(node: ast.AST, returns: str | None) -> Iterator[tuple[ast.AST, ast.AST, str, int | None, str]]:
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list", "bases"}:
                continue
            for index, one in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(one, ast.AST) or isinstance(one, (ast.Assert, ast.JoinedStr)):
                    continue
                inner = returns
                if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    inner = "" if one.returns is None else ast.unparse(one.returns)
                elif returns is not None:
                    yield one, node, field, index if isinstance(value, list) else None, returns
                yield from walk(one, inner)

    yield from walk(tree, None)


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    lines = source.splitlines()
    original = ast.parse(source)
    for number, place in enumerate(points(original)):
        line = next((one.lineno for one in place[:2] if hasattr(one, "lineno")), 0)
        for which, (change, _) in enumerate(changes(*place)):
            tree = copy.deepcopy(original)
            found = next(islice(points(tree), number, None))
            next(islice(changes(*found), which, None))[1]()
            yield Mutant(line, lines[line - 1].strip(), change, ast.fix_missing_locations(tree))


class _Finder:
    """Import hook that gives one module another code."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        code = self._code

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        assert spec is not None and spec.origin is not None
        return importlib.util.spec_from_file_location(name, spec.origin, loader=Loader(name, spec.origin))


def run(name: str, code: CodeType, tests: list[str], seconds: float, marks: str, report: Path | None = None) -> str:
    """Run the tests with another code of the module, in a forked process; return "killed", "survived" or "hung"."""
    if (child := os.fork()) == 0:
        result = 99
        try:
            if report is None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(1, 2)
            sys.meta_path.insert(0, _Finder(name, code))  # type: ignore[arg-type]
            import pytest

            # pytest's import hook for assertions may load callboard, too, and would come before the one of the mutant.
            options = "-x -q -n 0 -p no:cacheprovider --assert=plain --hypothesis-seed=0 -o timeout=0".split()
            options += ["-m", marks, "-W", REWRITTEN]
            # File by file, so that a mutant that the first file notices does not pay for the imports of the others.
            result = next((code for one in tests if (code := int(pytest.main([*options, one])))), 0)
            if report is not None:
                report.write_text("\n".join(one for one in sys.modules if not one.startswith(PRELOAD_NOT)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(result)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def main() -> int:
    """Run the mutants of a module, and print those that no test notices."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("module")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for the tests of one mutant")
    parser.add_argument("--lines", default="", help="only these, such as 10-80")
    parser.add_argument("-m", dest="marks", default="", help="pytest's expression of markers, such as 'not exhaustive'")
    given: Any = parser.parse_args()
    inside = Path(*given.module.split(".")).with_suffix(".py")
    path = next(one for source in SOURCES if (one := source / inside).exists())
    source = path.read_text()
    first, _, last = given.lines.partition("-")
    modules = Path(f"/tmp/mutants-{os.getpid()}")
    if (
        run(given.module, compile(source, path, "exec"), given.tests, 10 * given.timeout, given.marks, modules)
        != "survived"
    ):
        print("the tests fail without a change")
        return 2
    for one in modules.read_text().split():  # imported once, and not in each fork
        with suppress(BaseException):
            importlib.import_module(one)
    modules.unlink()
    if run(given.module, compile(source, path, "exec"), given.tests, given.timeout, given.marks) != "survived":
        print("the tests fail in a forked process")
        return 2
    counts = {"killed": 0, "hung": 0, "survived": 0, "equivalent": 0}
    for mutant in mutants(source):
        if first and not int(first) <= mutant.line <= int(last):
            continue
        key = (given.module, mutant.source, mutant.change)
        end = "equivalent" if key in EQUIVALENT else ""
        end = end or run(given.module, compile(mutant.tree, path, "exec"), given.tests, given.timeout, given.marks)
        counts[end] += 1
        if end in {"survived", "hung"}:
            print(f"{path}:{mutant.line}: {end:8}  {mutant.change:24} {mutant.source}", flush=True)
    ended = counts["killed"] + counts["hung"]
    share = ended / max(1, ended + counts["survived"])
    print(f"{given.module}: {', '.join(f'{n} {what}' for what, n in counts.items())}; {share:.0%} noticed")
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
