"""Each cell of the table on the security page names tests that exist, and each default there is that of the code.

Some of the named tests are in this file.
"""

import ast
import importlib.util
import inspect
import os
import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import callboard
import callboard.guards
import callboard.middleware
import callboard.telemetry
import callboard_actors.http
import callboard_actors.mcp
import callboard_actors.postgres
import callboard_actors.process
import callboard_actors.python
import callboard_actors.redis
from callboard import ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp_service import serve_mcp
from tests.cli._commands import command_line

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()
PARTIES = (
    "model",
    "author of a tool",
    "confined code",
    "MCP server",
    "MCP client",
    "shared store",
    "database",
)


def rows() -> dict[str, list[str]]:
    """Return the cells of the table by the party in the first column."""
    lines = [line.strip("|").split(" | ") for line in PAGE.splitlines() if re.match(r"\| (the|an?)? ?\*\*", line)]
    return {re.findall(r"\*\*(.+?)\*\*", cells[0])[0]: cells[1:] for cells in lines}


def notes() -> dict[str, list[str]]:
    """Return the tests that each note names."""
    footnotes = re.findall(r"^\[\^([\w-]+)\]: (.+)$", PAGE, re.MULTILINE)
    return {name: re.findall(r"`([^`]+)`", text) for name, text in footnotes}


MODULES = (
    callboard,
    callboard.guards,
    callboard.middleware,
    callboard.telemetry,
    callboard_actors.http,
    callboard_actors.mcp,
    callboard_actors.postgres,
    callboard_actors.process,
    callboard_actors.python,
    callboard_actors.redis,
)


def defaults_on_the_page() -> list[ast.Call]:
    """Return the calls in the columns "default", such as `ToolNode(timeout=None)`."""
    section = PAGE.partition("## Defaults\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[1] for line in section.splitlines() if line.startswith("| ")]
    expressions = [
        ast.parse(code, mode="eval").body for cell in cells for code in re.findall(r"`(\w+\([^`]*\))`", cell)
    ]
    return [expression for expression in expressions if isinstance(expression, ast.Call)]


def parameters_of(kind: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or of a class whose metaclass or `__new__` hides them."""
    return {
        **inspect.signature(kind).parameters,
        **(inspect.signature(kind.__init__).parameters if inspect.isclass(kind) else {}),
    }


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of tests in a file without importing it."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_the_table_is_about_everybody_and_has_no_empty_cell() -> None:
    """A missing row or an empty cell means that a party was not considered."""
    table = rows()

    assert tuple(table) == PARTIES
    assert {len(cells) for cells in table.values()} == {4}
    assert all(len(re.sub(r"\[\^.*?\]", "", cell).strip()) > 20 for cells in table.values() for cell in cells)


def test_each_cell_has_tests() -> None:
    """A promise needs a test, and a note without a cell is obsolete."""
    notes_of_cells = [re.findall(r"\[\^([\w-]+)\]", cell) for cells in rows().values() for cell in cells]

    assert [len(names) for names in notes_of_cells] == [1] * len(PARTIES) * 4
    assert sorted(name for names in notes_of_cells for name in names) == sorted(notes())
    assert all(notes().values())


def test_each_party_has_an_owner() -> None:
    """A bound without a module that keeps it is nobody's to repair."""
    table = PAGE.partition("| party | its bounds are kept by |\n")[2].partition("\n\n")[0]
    owners = {row.split(" | ")[0].strip("| "): re.findall(r"`([\w.]+)`", row) for row in table.splitlines()[1:]}

    assert tuple(owners) == PARTIES
    assert all(owners.values())
    assert [room for rooms in owners.values() for room in rooms if importlib.util.find_spec(room) is None] == []


def test_the_tests_of_every_cell_are_there() -> None:
    """Each test that a note names exists; the test run itself shows whether the test passes."""
    missing = []
    for test in {test for tests in notes().values() for test in tests}:
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file() or name not in names_in(file):
            missing.append(test)

    assert missing == []


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    """A default that has changed in the code would leave a boundary open that the page calls closed."""
    wrong = []
    for call in defaults_on_the_page():
        name = ast.unparse(call.func)
        [kind] = {getattr(module, name) for module in MODULES if hasattr(module, name)}
        for keyword in call.keywords:
            default = parameters_of(kind)[str(keyword.arg)].default
            if default != ast.literal_eval(keyword.value):
                wrong.append(f"{name}({keyword.arg}={default!r})")

    assert len(defaults_on_the_page()) >= 19  # the page was found and parsed
    assert wrong == []


def test_commands_are_for_this_machine_by_default() -> None:
    """A service that other machines reach needs an option."""
    options = {option.name: option.default for option in command_line().commands["mcp"].params}

    assert options["http"] is False
    assert options["host"] is None
    assert inspect.signature(serve_mcp).parameters["host"].default == "127.0.0.1"


async def test_a_tool_reads_whatever_its_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool in your process can read everything in the process; only a separate engine prevents that."""
    monkeypatch.setenv("A_PASSWORD", "hunter2")

    async def look() -> str:
        """Look around."""
        return os.environ["A_PASSWORD"]

    answered = await ToolNode([look]).ainvoke([tool_call("look", "1")])

    assert answered["messages"][0].content == "hunter2"


def test_a_conversation_is_stored_in_clear(tmp_path: Path) -> None:
    """Whoever can read the database file can read the conversation and the tool arguments."""
    file = tmp_path / "agent.db"

    def pay(card: str) -> str:
        """Pay."""
        return f"paid by {card}"

    model = ScriptedModel([calls(("pay", {"card": "4111-1111"})), "Done."])
    with_database: Any = create_react_agent(model, [pay], checkpointer=f"sqlite:///{file}")
    with_database.invoke({"messages": [("user", "Pay, please.")]}, {"configurable": {"thread_id": "1"}})
    with_database.close()
    with sqlite3.connect(file) as connection:
        stored = "\n".join(connection.iterdump())
    connection.close()

    for text in (b"Pay, please.", b"4111-1111", b"paid by"):
        assert text.hex() in stored.lower()  # values are blobs, which a dump writes in hexadecimal digits
