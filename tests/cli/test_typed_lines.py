"""`callboard run` at a terminal: what a person types while the agent works."""

import re
import signal
import sys
import time
from collections import deque
from io import StringIO
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from rich.cells import cell_len
from rich.console import Console

from callboard import create_react_agent
from callboard._cli._keyboard import LineEditor
from callboard._cli._screen import Calls, Screen
from callboard._cli._typed_lines import TypedLines
from callboard.questions import printable
from callboard.telemetry import read_recording
from callboard.testing import ScriptedModel, calls

from ._agents import BUILDING, let_end, log
from ._commands import PATIENCE, Project, Terminal

AT_TERMINAL = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals"),
]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture
def agents(project: Project) -> str:
    return project.module(BUILDING)


def echoes(terminal: Terminal) -> bool:
    """Return whether the terminal shows what is typed by itself, as before and after a run."""
    import termios  # not on Windows

    flags: int = termios.tcgetattr(terminal.descriptor)[3]
    return bool(flags & termios.ECHO) and bool(flags & termios.ICANON)


class TestAtATerminal:
    """Commands at a pseudo-terminal."""

    pytestmark = AT_TERMINAL

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_a_line_reaches_the_run_at_its_next_turn(self, project: Project, agents: str, backend: str) -> None:
        with project.terminal("run", f"{agents}:once", "Build it.", "--backend", backend) as terminal:
            terminal.until("> write to the agent")
            terminal.press("Leave out")
            terminal.play("> Leave out", " the tests.", "sent    Leave out the tests.")
            let_end(project)
            terminal.until("I read 3: Build it. | built all | Leave out the tests..")
            assert terminal.end() == 0

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_one_call_is_cancelled_and_the_run_goes_on(self, project: Project, agents: str, backend: str) -> None:
        with project.terminal("run", f"{agents}:twice", "Build.", "--backend", backend) as terminal:
            terminal.play("running", "/cancel")
            listed = terminal.until("calls   2  call_b  build(target='b')")
            assert "calls   1  call_a  build(target='a')" in listed
            terminal.type("/cancel 2 b is not needed")
            terminal.until("cancel  build(target='b')")
            let_end(project, "a")
            terminal.until("done    build(target='a')")
            terminal.until("I read 3: Build. | built a | Error: Tool 'build' was cancelled by the application")
            terminal.until("b is not needed")
            assert terminal.end() == 0

    def test_a_call_is_cancelled_by_its_id(self, project: Project, agents: str) -> None:
        with project.terminal("run", f"{agents}:twice", "Build.") as terminal:
            terminal.until("running")
            terminal.type("/cancel call_c")
            terminal.play("cancel  call_c names no running call", "/cancel call_a", "cancel  build(target='a')")
            let_end(project, "b")
            terminal.until("built b.")
            assert terminal.end() == 0

    @pytest.mark.parametrize("name", ["once", "behind"])
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_stop_ends_the_run_as_ctrl_c_does(self, project: Project, agents: str, name: str, backend: str) -> None:
        """Background calls end, too."""
        options = ("--db", project.db, "--thread", "1", "--backend", backend)
        with project.terminal("run", f"{agents}:{name}", "Build it.", *options) as terminal:
            terminal.play("running", "/stop", "Stopped. To go on: callboard run")
            assert terminal.end() == 130

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_a_background_call_is_shown_until_its_result(self, project: Project, agents: str, backend: str) -> None:
        """The run waits for the call, takes messages meanwhile, and can cancel the call."""
        with project.terminal("run", f"{agents}:behind", "Build it.", "--backend", backend) as terminal:
            terminal.until("goes on pack()  in the background")
            terminal.until("It is being packed.")
            terminal.play("background", "How far is it?", "sent    How far is it?")
            terminal.until("I read 3: Build it.")
            let_end(project, "pack")
            terminal.until("done    pack()")
            terminal.until("  packed")
            terminal.until("I read 4: Build it.")
            assert terminal.end() == 0

    def test_a_background_call_is_cancelled(self, project: Project, agents: str) -> None:
        with project.terminal("run", f"{agents}:behind", "Build it.") as terminal:
            terminal.play("It is being packed.", "/cancel", "calls   1  ", "/cancel 1", "failed  pack()")
            terminal.until("was cancelled by the application")
            terminal.until("I read 3: Build it.")
            assert terminal.end() == 0

    def test_an_unfinished_line_is_no_answer_to_a_question(self, project: Project, agents: str) -> None:
        """The person did not see the question when they typed. The end of the run does not wait for the line."""
        with project.terminal("run", f"{agents}:asking", "Build it.") as terminal:
            terminal.until("running")
            terminal.press("by the w")
            terminal.until("> by the w")
            let_end(project)
            terminal.until("not sent by the w: the run has ended")
            terminal.play("answer (JSON, or text): ", "by hand", "they said 'by hand'")
            assert terminal.end() == 0

    def test_what_was_typed_before_the_run_is_sent_to_it(self, project: Project) -> None:
        """A module may take seconds to load."""
        module = project.module(
            BUILDING
            + """
    note("loads")
    while not (HERE / "typed").exists():
        time.sleep(0.02)
"""
        )
        with project.terminal("run", f"{module}:once", "Build it.") as terminal:
            terminal.type("Quickly!")
            let_end(project, "typed")
            terminal.until("sent    Quickly!")
            let_end(project)
            terminal.until("I read 3: ")
            assert terminal.end() == 0

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_pasted_lines_are_read_in_their_order(self, project: Project, agents: str, backend: str) -> None:
        with project.terminal("run", f"{agents}:once", "Build it.", "--backend", backend) as terminal:
            terminal.until("running")
            terminal.press("one\ntwo\nthree\n\n")
            terminal.until("sent    three")
            let_end(project)
            terminal.until("I read 5: Build it. | built all | one | two | three.")
            assert terminal.end() == 0

    def test_an_unknown_command_is_not_sent(self, project: Project, agents: str) -> None:
        with project.terminal("run", f"{agents}:once", "Build it.") as terminal:
            terminal.until("running")
            terminal.type("/cancle 1")
            terminal.play("not sent /cancle 1: the commands are /cancel", "//etc is full", "sent    /etc is full")
            let_end(project)
            terminal.until("I read 3: Build it. | built all | /etc is full.")
            assert terminal.end() == 0

    def test_the_terminal_is_as_before_after_a_stop(self, project: Project, agents: str) -> None:
        with project.terminal("run", f"{agents}:once", "Build it.") as terminal:
            terminal.until("running")
            assert not echoes(terminal)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 130
            assert echoes(terminal)

    def test_the_terminal_is_as_before_after_a_second_ctrl_c(self, project: Project, agents: str) -> None:
        """The process then ends at once, without its clean-up. The tool blocks the event loop until that."""
        with project.terminal("run", f"{agents}:rudely", "Build it.") as terminal:
            wait_for_log(project, "blocks")
            assert not echoes(terminal)
            terminal.type("/stop")
            terminal.until("Stopping by SIGINT")
            terminal.process.send_signal(signal.SIGINT)
            terminal.until("Stopped at once")
            assert terminal.end() == 130
            assert echoes(terminal)

    def test_a_dumb_terminal_shows_the_line_itself(self, project: Project, agents: str) -> None:
        with project.terminal("run", f"{agents}:once", "Build it.", term="dumb") as terminal:
            terminal.until("call    build()")
            assert echoes(terminal)
            terminal.type("Leave out the tests.")
            terminal.until("sent    Leave out the tests.")
            let_end(project)
            terminal.until("I read 3")
            assert terminal.end() == 0

    def test_typed_text_cannot_act_on_the_terminal(self, project: Project, agents: str) -> None:
        with project.terminal("run", f"{agents}:once", "Build it.") as terminal:
            terminal.until("running")
            terminal.press("evil \u202egnp.exe\x9b\x07")
            terminal.play(r"> evil \u202egnp.exe", "", r"sent    evil \u202egnp.exe")
            let_end(project)
            assert terminal.end() == 0
            assert not set("\u202e\x9b\x07") & set(terminal.seen)

    def test_the_terminal_of_a_graph_of_langgraph_is_left_alone(self, project: Project, agents: str) -> None:
        """Such a run takes no messages."""
        module = project.module(
            f"""
            from {agents} import build, note
            from langgraph.graph import START, MessagesState, StateGraph

            async def work(state):
                await build()
                return {{}}

            graph = StateGraph(MessagesState).add_node(work).add_edge(START, "work").compile()
            """
        )
        with project.terminal("run", f"{module}:graph", "Build it.") as terminal:
            wait_for_log(project, "build all")
            assert echoes(terminal)
            let_end(project)
            assert terminal.end() == 0

    def test_a_command_in_the_background_of_a_shell_is_not_stopped(self, project: Project, agents: str) -> None:
        """The system stops a process in the background that reads from its terminal, or changes the modes of it."""
        let_end(project)
        shell = project.directory / "shell.py"
        shell.write_text(
            f"""
import os, subprocess, sys
command = [sys.executable, "-m", "callboard._cli", "run", "{agents}:once", "Build it."]
process = subprocess.Popen(command, process_group=0)
_, status = os.waitpid(process.pid, os.WUNTRACED)
print("stopped" if os.WIFSTOPPED(status) else "exit", flush=True)
process.kill()
"""
        )
        with project.terminal(program=[sys.executable, str(shell)]) as terminal:
            terminal.until("I read 2: Build it. | built all.")
            terminal.until("exit")


def wait_for_log(project: Project, line: str) -> None:
    """Wait until a tool has recorded a line."""
    deadline = time.monotonic() + PATIENCE
    while line not in log(project):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.real_clock
async def test_a_line_that_comes_after_the_end_is_not_sent() -> None:
    console = Console(file=StringIO(), width=1_000)
    agent = create_react_agent(ScriptedModel(["Hello."]), [], checkpointer="memory")
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    await agent.ainvoke({"messages": [("user", "hi")]}, config)
    lines = TypedLines(agent, config, Screen(console, Calls([]), []))
    lines.end()

    with anyio.fail_after(5):
        await lines.handle(deque(["too late", "/cancel", "/cancel 1"]))

    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "not sent too late: the run has ended",
        "calls   no call is running",
        "cancel  1 names no running call; /cancel lists the calls",
    ]
    assert len((await agent.aget_state(config)).values["messages"]) == 2


@pytest.mark.real_clock
async def test_a_line_that_comes_before_the_run_waits_for_it() -> None:
    """A run that has only begun takes no messages yet."""
    line_sent = anyio.Event()

    class WatchedScreen(Screen):
        def note(self, word: str, text: str, *, failed: bool = False) -> None:
            assert (word, text, failed) == ("sent", "early", False)
            line_sent.set()

    async def work() -> str:
        """Wait for the message."""
        await line_sent.wait()
        return "done"

    agent = create_react_agent(ScriptedModel([calls("work"), "I see."]), [work], checkpointer="memory")
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    state: dict[str, Any] = {}
    lines = TypedLines(agent, config, WatchedScreen(Console(file=StringIO()), Calls([]), []))
    async with anyio.create_task_group() as group:
        group.start_soon(lines.handle, deque(["early"]))
        await anyio.wait_all_tasks_blocked()
        state |= await agent.ainvoke({"messages": [("user", "hi")]}, config)
        lines.end()

    assert [message.text for message in state["messages"]] == ["hi", "", "done", "early", "I see."]


def test_without_a_terminal_nothing_is_read(project: Project, agents: str) -> None:
    """The lines of a pipe may be for other programs."""
    let_end(project)
    result = project.call("run", f"{agents}:once", "Build it.")

    assert result.stdout.splitlines()[-1] == "I read 2: Build it. | built all."
    assert log(project) == ["build all"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_background_call_has_a_line_when_it_goes_on_and_when_it_ends(
    project: Project, agents: str, backend: str
) -> None:
    options = ("--thread", "1", "--backend", backend, "--db", project.db)
    result = project.call("run", f"{agents}:freed", "Build it.", *options)

    lines = result.stdout.splitlines()
    assert lines[1:4] == ["call    pack()", "goes on pack()  in the background", "It is being packed."]
    assert re.fullmatch(r"done    pack\(\)  [\d.]+ m?s  packed", lines[4])
    # The recording, which the page of `--web` shows, has the whole call.
    [call] = read_recording(project.directory / "threads.db.calls" / "1.jsonl").calls()
    assert ([note.kind for note in call.notes], call.outcome) == (["backgrounded"], "ok")


# Keys.


def test_keys_edit_the_end_of_the_line() -> None:
    editor = LineEditor()

    assert editor.press("buy\x7f\x08uild \x1b[1;5D\x1bOAthis\x17all\x1bb") == []
    assert editor.text == "build all"
    assert editor.press("!\rno\x15yes\n") == ["build all!", "yes"]
    assert editor.text == ""


@given(
    st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("\x1b[O\x7f\x17\r1A"))), st.integers(0, 40)
)
def test_keys_have_the_same_effect_in_any_pieces(keys: str, cut: int) -> None:
    """A read of the terminal may end within the escape sequence of a key."""
    at_once, pieces = LineEditor(), LineEditor()

    assert at_once.press(keys) == pieces.press(keys[:cut]) + pieces.press(keys[cut:])
    assert at_once.text == pieces.text
    assert "\x1b" not in at_once.text


@pytest.mark.parametrize("width", [6, 40, 100])
@pytest.mark.parametrize(
    "text", ["x", "Leave out the tests. " * 20, "\u5927\u5c0f" * 60, "e\u0301" * 120, "\u202e" * 30]
)
def test_the_unfinished_line_takes_one_line_of_the_terminal(text: str, width: int) -> None:
    """The end of the line is shown, where the person types. A second line would push the table out of its place."""
    console = Console(file=StringIO(), force_terminal=True, width=width, height=10, color_system=None)
    screen = Screen(console, Calls([]), [], typed_text=lambda: text)

    async def draw() -> None:
        with anyio.move_on_after(0):
            await screen.keep_up()

    anyio.run(draw)
    lines = [line for line in _ESCAPES.sub("\n", console.file.getvalue()).split("\n") if line]  # type: ignore[attr-defined]
    assert lines  # the line is drawn more than once
    assert all(line.startswith("> ") and cell_len(line) <= width for line in lines)
    assert all(line.rstrip().endswith(printable(text).rstrip()[-1:]) for line in lines)
