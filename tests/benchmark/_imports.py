"""Duration of the first import."""

import subprocess
import sys

from ._measure import Budget, Table

_STATEMENTS = (
    "import langgraph.types",
    "import callboard",
    "import callboard, langgraph.types",
    "from langgraph.prebuilt import ToolNode",
    "from callboard import ToolNode",
)
_PROGRAM = "import time; began = time.process_time(); {}; print(time.process_time() - began)"


def imports(*, repetitions: int) -> Table:
    """Measure the processor time of an import in a fresh interpreter, the best of several."""
    best = dict.fromkeys(_STATEMENTS, float("inf"))
    for _ in range(repetitions):
        for statement in _STATEMENTS:
            best[statement] = min(best[statement], _seconds(statement))
    reference = best["import langgraph.types"]
    table = Table("Imports", ["", "CPU ms", ": langgraph.types"])
    for statement, seconds in best.items():
        table.add(f"`{statement}`", seconds * 1e3, seconds / reference)
    table.budgets.append(
        Budget("import callboard : import langgraph.types", 1.10, best["import callboard"] / reference)
    )
    return table


def _seconds(statement: str) -> float:
    command = [sys.executable, "-c", _PROGRAM.format(statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
