"""`callboard demo` as users run it: a real service, a real file, and subprocesses for signals and terminals."""

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

import anyio
import pytest
from click.testing import Result
from typer.testing import CliRunner

from callboard import ToolNode, create_react_agent
from callboard._cli._app import app
from callboard._cli._demo import Session
from callboard.extend import install_command
from callboard.testing import ScriptedModel, calls

from ._commands import PATIENCE, Project, environment, stop

SCRIPTED = "The model is scripted: it asks for 84 calls at once and then reads the answers."
ENDINGS = ("ok", "timeout", "rejected", "error")
WITHOUT = "import sys; sys.modules[{module!r}] = None; from callboard._cli import main; sys.argv = {argv!r}; main()"


@cache
def demo(backend: str) -> Result:
    """Return the result of one run, shared by all tests that only read it."""
    arguments = ("demo", "--backend", backend, "--calls", "60")
    return CliRunner().invoke(app, arguments, env=environment(), catch_exceptions=False)


def table(output: str) -> dict[str, dict[str, int]]:
    """Return the numbers of the final table, by tool and heading."""
    lines = iter(output.splitlines())
    headings = next(line for line in lines if line.split()[:2] == ["tool", "calls"]).split()[1:-4]
    rows = {}
    for line in lines:
        cells = line.split()
        if len(cells) > len(headings) and cells[-1] in ("s", "ms"):
            rows[cells[0]] = dict(zip(headings, (int(cell.replace(",", "")) for cell in cells[1:]), strict=False))
    return rows


def check_sums(rows: Mapping[str, Mapping[str, int]]) -> None:
    for row in rows.values():
        assert row["calls"] == sum(number for heading, number in row.items() if heading != "calls")
    tools = [row for name, row in rows.items() if name != "all"]
    assert rows["all"] == {heading: sum(row[heading] for row in tools) for heading in rows["all"]}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_demo_shows_how_every_call_ended(backend: str) -> None:
    finished = demo(backend)

    assert (finished.exit_code, finished.stderr) == (0, "")
    output = finished.stdout
    assert SCRIPTED in output
    assert f"fetch 60, query 12, archive 12; on {backend}." in output
    rows = table(output)
    assert list(rows) == ["fetch", "query", "archive", "all"]
    assert [row["calls"] for row in rows.values()] == [60, 12, 12, 84]
    assert tuple(rows["all"]) == ("calls", *ENDINGS)
    check_sums(rows)
    assert rows["fetch"]["timeout"] >= 2  # two belong to the page that hangs
    assert rows["query"]["ok"] == 12
    assert rows["archive"]["rejected"] == 4  # two run and six wait
    results = rows["all"]["ok"]
    assert f"The model says: I have read 84 answers: {results} results, {84 - results} errors." in output
    assert "answers: 84 messages for 84 calls" in output
    assert re.search(r"wall clock: \S+ s; one after the other: \S+ s; \S+ times as fast", output)
    match = re.search(r"the service saw (\d+) requests, at most (\d+) at once; (\d+) were given up, (\d+) are", output)
    assert match is not None
    requests, peak, given_up, still_open = map(int, match.groups())
    assert requests == 72 - rows["archive"]["rejected"]
    assert peak <= 34
    assert (given_up, still_open) == (rows["all"]["timeout"], 0)
    assert "\ntasks left over: 0\n" in output
    assert "calls left over: 0 running, 0 waiting; threads left over: 0" in output


def test_without_a_terminal_progress_is_plain_lines() -> None:
    output = demo("asyncio").stdout

    lines = [line for line in output.splitlines() if " of 84 ended, " in line]
    assert lines
    assert all(line.startswith("calls ") and " running" in line and len(line) <= 80 for line in lines)
    assert "\x1b" not in output


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_at_a_terminal_the_live_view_gives_way_to_the_result(project: Project, backend: str) -> None:
    with project.terminal("demo", "--live", "--backend", backend, "--calls", "60") as terminal:
        terminal.until(" of 84 calls ended, ")
        terminal.until("slowest now")
        assert terminal.end() == 0
    assert "tasks left over: 0" in terminal.seen
    assert table(terminal.seen)["all"]["calls"] == 84


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.exhaustive
def test_a_signal_ends_the_run(project: Project, backend: str, number: signal.Signals) -> None:
    process = project.start("demo", "--backend", backend, "--calls", "3000")
    assert process.stdout is not None
    while " running, " not in process.stdout.readline():
        assert process.poll() is None
    code, output, errors = stop(process, number)
    assert (code, errors) == (128 + number, "")
    assert f"Stopped by {number.name}" in output
    assert "\ntasks left over: 0\n" in output
    check_sums(table(output))


@pytest.mark.parametrize("module", ["typer", "rich", "httpx2"])
@pytest.mark.exhaustive
def test_without_the_extra_one_line_says_what_to_install(module: str) -> None:
    program = WITHOUT.format(module=module, argv=["callboard", "demo"])
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr == f"The callboard command needs {module}: {install_command('callboard', 'cli')}\n"


async def test_a_task_that_is_left_over_is_found_and_named() -> None:
    async with anyio.create_task_group() as outside:

        async def leave() -> str:
            """Leave a task behind."""
            outside.start_soon(anyio.sleep_forever, name="left behind")
            return "done"

        session = Session(["leave"])
        agent = create_react_agent(ScriptedModel([calls("leave"), "Done."]), ToolNode([leave]))
        await session.measure(agent)
        outside.cancel_scope.cancel()

    assert session.left_over == ["left behind"]
    assert session.calls.counts.rows["leave"].states["ok"] == 1
