"""Recorded runs of the agents in `examples`, for tests that replay them.

`python -m tests.applications.record_agents [NAME ...]` makes the files in `tests/recordings` again.
"""

import importlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from callboard.telemetry import RecordingWriter
from callboard.testing import ScriptedModel, calls

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings"


@cache
def example(name: str) -> Any:
    """Return an example as a module. It is loaded only when it is needed, because some examples import much."""
    folder = str(ROOT / "examples")
    if folder not in sys.path:
        sys.path.append(folder)  # a worker process imports a function of an example by its name
    return importlib.import_module(name)


async def research(folder: Path) -> None:
    app = example("research_agent")
    await app.answer(app.QUESTIONS, None, folder)


async def data(folder: Path) -> None:
    app = example("data_agent")
    app.make_orders(folder)
    await app.answer(app.QUESTION, app.script(), folder)


async def data_without_groups(folder: Path) -> None:
    """Draw the chart of a query with too many rows, which the tool refuses, and then of a query with groups."""
    app = example("data_agent")
    app.make_orders(folder)
    every = {"statement": "SELECT a.price, b.price FROM orders AS a, orders AS b WHERE a.shop = :shop"}
    model = ScriptedModel(
        [
            calls(("read_sqlite", every)),
            calls(("bar_chart", {"title": "Prices", "label": "price", "value": "price"})),
            calls(("read_sqlite", {"statement": app.BY_MONTH})),
            calls(("bar_chart", {"title": "Sales", "label": "month", "value": "sales"})),
            "Here is a chart of each month.",
        ]
    )
    await app.answer("Draw our sales.", model, folder)


async def coding(folder: Path) -> None:
    app = example("coding_agent")
    app.make_project(folder)
    await app.work(app.TASK, app.script(), folder, app.person)


async def coding_with_a_correction(folder: Path) -> None:
    """Let the person correct an edit before it is made."""
    app = example("coding_agent")
    app.make_project(folder)
    tests = {"program": "python", "arguments": ["-m", "unittest"]}
    wrong = {**app.REPAIR, "new": "sum(prices) - discount"}
    model = ScriptedModel(
        [
            calls(("read_file", {"path": "price.py"})),
            calls(("edit_file", wrong)),
            calls(("run_command", tests)),
            "Done.",
        ]
    )

    def person(question: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "edit", "args": {"args": app.REPAIR}}

    await app.work(app.TASK, model, folder, person)


RUNS: Mapping[str, Callable[[Path], Awaitable[None]]] = {
    "research_agent": research,
    "data_agent": data,
    "data_agent_without_groups": data_without_groups,
    "coding_agent": coding,
    "coding_agent_with_a_correction": coding_with_a_correction,
}


def record(name: str) -> None:
    """Record a run; in the file, words stand for the folder and the ports of this machine."""

    async def record_run(folder: Path) -> None:
        def without_places(value: Any) -> Any:
            text = json.dumps(value).replace(str(folder), "project")
            return json.loads(re.sub(r"(127\.0\.0\.\d+):\d+", r"\1", text))

        with RecordingWriter(RECORDINGS / f"{name}.jsonl", capture=True, redact=without_places):
            await RUNS[name](folder)

    with TemporaryDirectory() as folder:
        anyio.run(record_run, Path(folder))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or RUNS:
        record(chosen)
