"""`Python`: actor that runs Python code written by a model, and answers with text and figures."""

import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from os import _exit  # imported now, because a cell may replace it in `os`
from typing import Any, cast

from callboard import Actor, handler, remaining
from callboard_actors._util._options import check_counts, check_seconds
from callboard_actors.process._worker import is_worker
from callboard_actors.python._interpreter import Interpreter, Record, prepare_process

# Answer to a model about a cell.


def answer(record: Record, packages: Sequence[str]) -> str | list[dict[str, Any]]:
    """Convert the record of a code cell to a tool result: text, or content blocks if the cell has shown figures."""
    parts = [record["output"].rstrip("\n")]
    if record["value"] is not None:
        parts.append(f"Out[{record['number']}]: {record['value']}")
    parts += [record["error"], *record["notes"]]
    if record["missing"]:
        available = f"there are: {', '.join(packages)}" if packages else "there is the standard library"
        parts.append(f"[{record['missing']!r} is not there and cannot be installed; {available}]")
    if record["pictures"]:
        parts.append(f"[{len(record['pictures'])} figures]" if len(record["pictures"]) > 1 else "[1 figure]")
    text = "\n".join(part for part in parts if part) or "Done; no output."
    if not record["pictures"]:
        return text
    images = [{"type": "image", "base64": data, "mime_type": "image/png"} for data in record["pictures"]]
    return [{"type": "text", "text": text}, *images]


# The actor.

_BROKEN = 70
"""Exit code of a process in which a code cell has broken the interpreter: EX_SOFTWARE of sysexits.h."""
_TIME_SHARE = 0.8
"""Share of the call's remaining time that the code may use; the rest is for the tool's answer."""


class Python(Actor):
    """Actor that runs Python code written by a model, in a separate process.

    It refuses to start in any other process. `python_tool` gives it one, which is confined. With a pool of your own,
    `child(Python(...), runs_in=pool)`, the pool decides about the permissions of the code.

    Args:
        keeps_state: whether names are kept from call to call. Imported modules stay loaded in any case.
        packages: names of installed packages that the model reads when an import fails. No permission: the code can
            import every installed package.
        timeout: seconds for a cell; after that it is interrupted, and names are kept.
        grace: seconds for an interrupted cell to end, before its process is killed and names are lost.
        max_output: bytes of a cell's output that a model reads, head and tail.
        pictures: whether figures of matplotlib are shown, or how many of a cell, each of at most 1 MB as PNG.

    Raises:
        ValueError: if a package is not installed, or a number is out of range.
        TypeError: if a number of seconds is not a number.
    """

    fatal = (Exception,)  # errors of cells are in records; any other error means that a cell broke the interpreter

    def __init__(
        self,
        *,
        keeps_state: bool = True,
        packages: Sequence[str] = (),
        timeout: float = 60.0,
        grace: float = 2.0,
        max_output: int = 20_000,
        pictures: bool | int = True,
    ) -> None:
        if isinstance(packages, str):
            raise TypeError(f"Python(packages={packages!r}) is one string; give a list of names")
        if missing := [name for name in packages if find_spec(name.partition(".")[0]) is None]:
            raise ValueError(f"Python(packages=[...]): {missing[0]!r} is not installed here")
        check_seconds("Python", timeout=timeout, grace=grace)
        check_counts("Python", [("max_output", max_output, 100)])
        if not isinstance(cast("object", pictures), int) or pictures < 0:
            raise ValueError(f"Python(pictures={pictures!r}) is True, False, or how many figures are shown")
        self._packages = tuple(packages)
        self._timeout, self._grace = timeout, grace
        self._keeps_state, self._max_output = keeps_state, max_output
        self._pictures = 4 if pictures is True else int(pictures)

    async def start(self) -> None:
        """Create the interpreter. This runs in the main thread, because only this thread handles signals.

        Raises:
            ValueError: if this process is not a worker.
        """
        if not is_worker():
            raise ValueError(
                "Python(...) would run what a model writes in this process. Give it one of its own: "
                "ToolNode([python_tool(...)]), or child(Python(...), runs_in=pool)"
            )
        prepare_process()
        self._interpreter = Interpreter(
            keeps_state=self._keeps_state,
            max_output=self._max_output,
            pictures=self._pictures,
            grace=self._grace,
        )
        signal.signal(signal.SIGINT, lambda *_: self._interpreter.interrupt())

    def stop(self) -> None:
        """Close the interpreter, and cancel the tasks that cells have left running in its event loop."""
        self._interpreter.close()

    @handler(on_cancel="restart")
    def run_python(self, code: str) -> str | list[dict[str, Any]]:
        """Run Python code in an interpreter that keeps its names, like a notebook.

        The answer has what it printed, the value of the last expression, and matplotlib's figures. Top-level await
        works. There is no input.
        """
        timeout = max(0.1, min(self._timeout, _TIME_SHARE * remaining()))
        try:
            return answer(self._interpreter.run(code, timeout), self._packages)
        except BaseException:
            # The exit tells the pool that names are lost and that this call is the cause. `fatal` gets other errors.
            with suppress(BaseException):  # a cell may have replaced stderr, and the exit has to follow
                traceback.print_exc()
            _exit(_BROKEN)
