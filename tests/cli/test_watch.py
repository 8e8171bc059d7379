"""`callboard.watch()`: the live view of a program, its lines without a terminal, and its page."""

import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.cells import cell_len

import callboard
from callboard import CallPolicy, ToolNode, tool_call
from callboard.middleware import Retry

from ._commands import PATIENCE, Project
from .test_web import Client, until


async def echo(text: str) -> str:
    """Return the text."""
    return text


NODE = ToolNode([echo])


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def rows_of(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the cells of the last table, by tool."""
    start = max(number for number, line in enumerate(lines) if line.startswith("tool "))
    return {line.split()[0]: line.split()[1:] for line in lines[start:]}


# Without a terminal.


async def test_the_final_counts_stay_and_stdout_is_the_program_s(capsys: pytest.CaptureFixture[str]) -> None:
    with callboard.watch():
        print("mine")
        await NODE.ainvoke([tool_call("echo", str(number), text="tea") for number in range(3)])
    output = capsys.readouterr()

    assert output.out == "mine\n"
    assert rows_of(output.err.splitlines())["echo"][:2] == ["3", "3"]


async def test_the_views_of_successive_blocks_start_anew(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        with callboard.watch():
            await NODE.ainvoke([tool_call("echo", str(number), text="tea")])
        assert rows_of(lines_of(capsys))["all"][0] == "1"
    await NODE.ainvoke([tool_call("echo", "1", text="tea")])
    assert lines_of(capsys) == []


def test_a_block_without_calls_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A view of nothing would leave open whether the block watches at all."""
    with callboard.watch():
        pass

    assert lines_of(capsys) == ["callboard: no calls"]


@pytest.mark.real_clock
async def test_calls_of_other_threads_are_shown_also_of_threads_from_before(capsys: pytest.CaptureFixture[str]) -> None:
    """A context variable would not reach a thread that the program starts by itself."""
    begin, threads = threading.Event(), []
    for number in range(2):
        call = tool_call("echo", str(number), text="tea")
        threads.append(threading.Thread(target=lambda call=call: begin.wait(PATIENCE) and NODE.invoke([call])))
        threads[-1].start()
    with callboard.watch():
        begin.set()
        await NODE.ainvoke([tool_call("echo", "2", text="tea")])
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)

    assert rows_of(lines_of(capsys))["echo"][:2] == ["3", "3"]


async def test_retries_leave_their_mark_in_the_row_of_the_tool(capsys: pytest.CaptureFixture[str]) -> None:
    """A call that succeeds at its third attempt would otherwise look as good as one that succeeds at once."""
    attempts = 0

    @CallPolicy(idempotent=True)
    async def flaky() -> str:
        """Fail twice."""
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ConnectionError("gone")
        return "there"

    with callboard.watch():
        await ToolNode([flaky, echo], middleware=[Retry(3)]).ainvoke(
            [tool_call("flaky", "1"), tool_call("echo", "2", text="tea")]
        )
    lines = lines_of(capsys)

    heading = next(line for line in lines if line.startswith("tool ")).split()
    assert rows_of(lines)["flaky"][heading.index("retries") - 1] == "2"
    assert rows_of(lines)["echo"][heading.index("retries") - 1] == "0"


async def test_hostile_values_neither_act_on_the_terminal_nor_fill_it(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = ["\x1b[2J\x1b]0;owned\x07", "\ud800", "\u202e\u2066", "line\nline", "x" * 1_000_000, "界" * 1_000_000]
    calls = [tool_call(name, f"{number}", text=name) for number, name in enumerate(hostile)]
    calls += [tool_call("echo", f"e{number}", text=text) for number, text in enumerate(hostile)]
    with callboard.watch():
        await ToolNode([echo], handle_tool_errors=True).ainvoke(calls)
    text = capsys.readouterr().err

    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\u2066\ud800]", text)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert rows_of(text.splitlines())["all"][0] == "12"


async def test_an_error_of_the_program_is_raised_and_the_counts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError, match="mine"), callboard.watch():
        await NODE.ainvoke([tool_call("echo", "1", text="tea")])
        raise KeyError("mine")

    assert rows_of(lines_of(capsys))["echo"][0] == "1"


async def test_an_inner_block_is_refused_and_the_outer_one_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Two views would overwrite each other, and count each call twice."""
    with callboard.watch():
        with pytest.raises(RuntimeError, match=r"watch\(\) is active already.*leave out the inner block"):
            with callboard.watch():
                raise AssertionError
        await NODE.ainvoke([tool_call("echo", "1", text="tea")])

    assert rows_of(lines_of(capsys))["echo"][0] == "1"


def test_an_option_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"watch\(web=\.\.\.\) is True or False; got 8080"):
        with callboard.watch(web=8080):  # type: ignore[arg-type]
            raise AssertionError


# Programs, with and without a terminal.

PROGRAM = """
import sys, time
import anyio, callboard
from callboard import ToolNode, tool_call

async def slow(text: str) -> str:
    '''Return the text after some time.'''
    await anyio.sleep(2.5)
    return text

async def main():
    node = ToolNode([slow])
    print("before")
    with callboard.watch():
        async with anyio.create_task_group() as group:
            group.start_soon(node.ainvoke, [tool_call("slow", str(number), text="tea") for number in range(3)])
            await anyio.sleep(0.8)
            print("a line of the program,", "and more" * 12)
            print("no end of line", end="")
            if "silent" not in sys.argv:
                print("to stderr", file=sys.stderr)
            if "fail" in sys.argv:
                raise ValueError("of the program")
            if "hang" in sys.argv:
                print("\\nwaiting for Ctrl-C")
                await anyio.sleep_forever()
    print("after")

anyio.run(main, backend=sys.argv[1])
"""
LONG_LINE = f"a line of the program, {'and more' * 12}"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def program(project: Project) -> Sequence[str]:
    return (sys.executable, f"{project.module(PROGRAM)}.py")


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_without_a_terminal_tells_short_lines(project: Project, program: Sequence[str], backend: str) -> None:
    """Its stdout is as without `watch`, so that it can be piped."""
    process = project.start(backend, program=program)
    output, errors = process.communicate(timeout=PATIENCE)

    assert output.splitlines() == ["before", LONG_LINE, "no end of lineafter"]
    assert process.returncode == 0
    lines = errors.splitlines()
    pattern = r"^callboard: [\d.]+ m?s: 0 of 3 ended, 3 running; slow\(text='tea'\) [\d.]+ m?s$"
    assert re.search(pattern, errors, re.MULTILINE)
    assert max(map(len, lines)) <= 80
    assert rows_of(lines)["slow"][:2] == ["3", "3"]


def raw_terminal(project: Project, program: Sequence[str], *arguments: str, interrupt_at: str = "") -> tuple[str, int]:
    """Run a program at a terminal, and return its output with the escape sequences, and its exit code."""
    with project.terminal(*arguments, program=program) as terminal:
        if interrupt_at:
            terminal.until(interrupt_at)
            terminal.press("\x03")
        code = terminal.end()
        return terminal.raw, code


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
def test_a_terminal_shows_the_view_and_keeps_what_the_program_prints(
    project: Project, program: Sequence[str], backend: str
) -> None:
    raw, code = raw_terminal(project, program, backend)

    assert code == 0
    assert re.search(r"slow\(text='tea'\) +x 3 +[\d.]+ m?s +running", raw)
    # In one piece, above the view: a line that was wrapped by the program could not be copied.
    assert f"{LONG_LINE}\r\n" in raw
    assert "no end of line\r\n" in raw
    assert raw.index("to stderr") < raw.index("no end of line")
    assert raw.rindex(HIDE) < raw.rindex(SHOW)
    ending = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", raw[raw.rindex("3 of 3 calls ended") :]).split("\n")
    assert [line.split()[0] for line in ending if line.strip()][-3:] == ["slow", "all", "after"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("argument", "interrupt_at"), [("fail", ""), ("hang", "waiting for Ctrl-C")])
def test_an_error_and_ctrl_c_leave_the_terminal_as_it_was(
    project: Project, program: Sequence[str], backend: str, argument: str, interrupt_at: str
) -> None:
    raw, code = raw_terminal(project, program, backend, argument, interrupt_at=interrupt_at)

    assert code != 0
    assert raw.rindex(HIDE) < raw.rindex(SHOW) < raw.rindex("Traceback")
    assert "of 3 calls ended" in raw
    assert ("KeyboardInterrupt" if interrupt_at else "ValueError: of the program") in raw[raw.rindex("Traceback") :]
    # Rich has replaced `sys.stdout` and `sys.stderr`; the traceback comes from the interpreter's own.
    assert "after" not in raw


@pytest.mark.exhaustive
def test_text_for_a_file_is_not_sent_to_the_terminal(project: Project, program: Sequence[str], tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as file, project.terminal("asyncio", program=program, stdout=file) as terminal:
        assert terminal.end() == 0

    assert (tmp_path / "output").read_text().splitlines() == ["before", LONG_LINE, "no end of lineafter"]
    assert "a line of the program" not in terminal.seen
    assert "3 of 3 calls ended" in terminal.seen


@pytest.mark.exhaustive
def test_a_reader_that_has_gone_does_not_end_the_program(
    project: Project, program: Sequence[str], tmp_path: Path
) -> None:
    """As with `program 2>&1 >file | head`: the calls of the program matter more than their view."""
    with (tmp_path / "output").open("w") as file:
        process = project.start("asyncio", "silent", program=program, stdout=file)
        assert process.stderr is not None
        process.stderr.close()
        process.wait(PATIENCE)

    assert (tmp_path / "output").read_text().splitlines()[0] == "before"
    assert (tmp_path / "output").read_text().endswith("after\n")


# The page.


@pytest.mark.real_clock
async def test_the_page_shows_the_calls_of_the_process_and_ends_with_the_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with callboard.watch(web=True):
        url = re.fullmatch(r"callboard: page (http://127\.0\.0\.1:\d+/#\S+)", lines_of(capsys)[0])
        assert url is not None
        client = Client(url[1])
        await NODE.ainvoke([tool_call("echo", "1", text="confidential tea")])
        thread = threading.Thread(target=NODE.invoke, args=([tool_call("echo", "2", text="tea")],))
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        await anyio.to_thread.run_sync(lambda: until(client, echo="ok"))
        data: Any = await anyio.to_thread.run_sync(client.data)

    assert data["tools"]["rows"][0][:2] == ["echo", "2"]
    assert "confidential" not in str(data)
    with pytest.raises(ConnectionRefusedError):
        client.connect()
