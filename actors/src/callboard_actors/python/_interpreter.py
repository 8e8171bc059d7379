"""An interpreter: code in, a record out. It owns its process, and knows of no event loop but that of its cells."""

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
"""The number of the cell that shows whether the interpreter is whole."""
_PROBE_TIME = 30.0
_STAYS = "The interpreter goes on, and its names stay."


class BrokenInterpreterError(Exception):
    """A cell has changed what the interpreter itself needs, such as `sys.modules`; no cell can be trusted to run."""


class Record(TypedDict):
    """What became of a cell, as plain data."""

    number: int
    output: str
    value: str | None
    """The `repr` of its last expression, if it has one that is not None."""
    error: str
    """A short traceback, or what ended it; empty if nothing did."""
    missing: str
    """The module that it could not import."""
    pictures: list[str]
    """PNG, in base64."""
    notes: list[str]


class Interpreter:
    """Names, and cells that see them.

    Args:
        keeps_state: whether names stay from cell to cell.
        max_output: bytes of the output of a cell that are kept, head and tail.
        max_value: characters of its value.
        pictures: how many figures are shown, and how large one may be.
        grace: seconds between the interruption of a cell that is late and the end of the process; `None` for no end.
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
        """End the event loop in which cells have left something running, and read their output no more."""
        if self._runner is not None:
            self._runner.close()
        self._capture.close()

    def interrupt(self) -> None:
        """End the cell that runs, if one does, by a KeyboardInterrupt; from another thread, or a handler of signals."""
        if self._limit is not None:
            self._limit.interrupt(KeyboardInterrupt)

    def run(self, code: str, timeout: float | None = None) -> Record:
        """Run a cell; whatever it raises is in the record.

        Raises:
            BrokenInterpreterError: an empty cell fails after it, so every later one would; names are lost.
            Exception: the interpreter's own code has failed, which is the same.
        """
        self._number += 1
        record = self._captured(code, self._number, timeout)
        # Now, because the cell that did it has to be blamed, and not the next one.
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
        if record["number"] != _PROBE:  # an interruption that comes late is not the probe's
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
            for name, module in self._modules.items():  # a cell may have deleted what this process needs
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
            directory.update(whole)  # no builtin may be used before: the cell may have deleted them

    def _show(self, value: object, record: Record) -> None:
        if value is not None:
            record["value"] = _faults.shown(value, self._max_value)
        record["pictures"], record["notes"] = _pictures.taken(self._budget)


def _fresh_main() -> types.ModuleType:
    """A module for names; that of the cells, so that what they define can be pickled."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    return module


def own_process() -> None:
    """Have crashes tell where the code was, on what was stderr before any cell ran."""
    faulthandler.enable(file=os.dup(2), all_threads=False)
    warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")
    # It would be about our threads, which no child needs.
    warnings.filterwarnings("ignore", message=".*is multi-threaded, use of fork", category=DeprecationWarning)
