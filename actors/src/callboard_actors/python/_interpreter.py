"""Interpreter of cells: takes code and returns a record. It owns its process, and runs only its cells' event loop."""

import asyncio
import builtins
import contextvars
import faulthandler
import inspect
import os
import sys
import types
import warnings
from typing import TypedDict

from callboard_actors.python import _faults, _pictures
from callboard_actors.python._capture import Capture
from callboard_actors.python._cells import Cell, compiled
from callboard_actors.python._pictures import Budget
from callboard_actors.python._time_limit import CellTimeoutError, TimeLimit

_EMPTY = "None"
_PROBE = 0
"""Number of the empty cell that checks whether the interpreter still works."""
_PROBE_TIME = 30.0
_STAYS = "The interpreter goes on, and its names stay."


class BrokenInterpreterError(Exception):
    """Raised after a cell has changed something that the interpreter needs, such as `sys.modules`; no cell can run."""


class Record(TypedDict):
    """Result of a cell, as plain data."""

    number: int
    output: str
    value: str | None
    """`repr` of the last expression, if its value is not None."""
    error: str
    """Short traceback, or another reason for the end of the cell; empty if it succeeded."""
    missing: str
    """Module that could not be imported."""
    pictures: list[str]
    """PNG files, in base64."""
    notes: list[str]


class Interpreter:
    """Namespace, and the cells that run in it.

    Args:
        keeps_state: whether names are kept from cell to cell.
        max_output: bytes of a cell's output that are kept, head and tail.
        max_value: characters of its value.
        pictures: number of figures that are shown, and their largest size.
        grace: seconds between the interruption of a late cell and the end of the process; `None` never ends it.
    """

    def __init__(
        self,
        *,
        keeps_state: bool = True,
        max_output: int = 20_000,
        max_value: int = 10_000,
        pictures: Budget = Budget(4, 1_000_000),  # noqa: B008 - frozen
        grace: float | None = None,
    ) -> None:
        self._keeps_state = keeps_state
        self._max_value = max_value
        self._budget = pictures
        self._grace = grace
        self._number = 0
        self._capture = Capture(max_output)
        self._limit: TimeLimit | None = None
        self._context = contextvars.Context()
        self._runner: asyncio.Runner | None = None
        self._module = _fresh_main()
        self._builtins = dict(vars(builtins))
        self._modules = {name: module for name, module in sys.modules.items() if name != "__main__"}
        os.environ.setdefault("MPLBACKEND", "Agg")

    def close(self) -> None:
        """Close the event loop, with tasks that cells have left running, and stop to read their output."""
        if self._runner is not None:
            self._runner.close()
        self._capture.close()

    def interrupt(self) -> None:
        """Interrupt the running cell with a KeyboardInterrupt; called from another thread or a signal handler."""
        if self._limit is not None:
            self._limit.interrupt(KeyboardInterrupt)

    def run(self, code: str, timeout: float | None = None) -> Record:
        """Run a cell; its errors are part of the record.

        Raises:
            BrokenInterpreterError: if an empty cell fails afterwards, as every later cell would; names are lost.
            Exception: if the interpreter's own code has failed, with the same consequence.
        """
        self._number += 1
        record = self._captured(code, self._number, timeout)
        # Checked now, so that the error belongs to the cell that caused it and not to the next one.
        if error := self._captured(_EMPTY, _PROBE, _PROBE_TIME)["error"]:
            raise BrokenInterpreterError(f"after this cell not even an empty one runs: {error}")
        return record

    def _captured(self, code: str, number: int, timeout: float | None) -> Record:
        record = Record(number=number, output="", value=None, error="", missing="", pictures=[], notes=[])
        if not self._keeps_state:
            self._module = _fresh_main()
        recursion_limit = sys.getrecursionlimit()
        self._capture.begin()
        try:
            self._run(code, timeout, record)
        finally:
            sys.setrecursionlimit(recursion_limit)
            record["output"] = self._capture.end().text()
        return record

    def _run(self, code: str, timeout: float | None, record: Record) -> None:
        modules = sys.modules
        main, modules["__main__"] = modules["__main__"], self._module
        limit = TimeLimit(timeout, self._grace)
        if record["number"] != _PROBE:  # a late interruption must not hit the probe
            self._limit = limit
        try:
            cell = compiled(code, record["number"])
            with limit:
                self._show(self._value_of(cell), record)
        except CellTimeoutError as error:
            record["error"] = f"{_faults.told(error)}\n[interrupted after its {round(timeout or 0.0, 1):g} s. {_STAYS}]"
        except SystemExit as error:
            record["error"] = f"SystemExit({_faults.shown(error.code, 200)}) [the cell ended there. {_STAYS}]"
        except KeyboardInterrupt as error:
            record["error"] = f"{_faults.told(error)}\n[the cell ended there. {_STAYS}]"
        except BaseException as error:
            record["error"] = _faults.told(error)
            if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
                record["missing"] = error.name
        finally:
            limit.end()
            modules["__main__"] = main
            for name, module in self._modules.items():  # a cell may have deleted modules that this process needs
                modules.setdefault(name, module)

    def _value_of(self, cell: Cell) -> object:
        self._evaluated(cell.body)
        return None if cell.last is None else self._evaluated(cell.last)

    def _evaluated(self, code: types.CodeType) -> object:
        names, directory, whole = vars(self._module), builtins.__dict__, self._builtins
        names["__builtins__"] = builtins
        run, evaluate = self._context.run, eval
        is_coroutine = bool(code.co_flags & inspect.CO_COROUTINE)
        try:
            if not is_coroutine:
                return run(evaluate, code, names)
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(evaluate(code, names), context=self._context)
        finally:
            directory.update(whole)  # before any builtin is used: the cell may have deleted them

    def _show(self, value: object, record: Record) -> None:
        if value is not None:
            record["value"] = _faults.shown(value, self._max_value)
        record["pictures"], record["notes"] = _pictures.taken(self._budget)


def _fresh_main() -> types.ModuleType:
    """Return a new `__main__` module for the cells, so that objects that they define can be pickled."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    return module


def own_process() -> None:
    """Let crashes print a traceback to the original stderr, and silence warnings that do not apply here."""
    faulthandler.enable(file=os.dup(2), all_threads=False)
    warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")
    # That warning would be about threads of this package, which no child needs.
    warnings.filterwarnings("ignore", message=".*is multi-threaded, use of fork", category=DeprecationWarning)
