"""`callboard run` that is interrupted or killed: the stored state, and how the thread continues."""

import json
import signal
import subprocess
import sys
import time

import pytest

from ._agents import AGENT, log
from ._commands import PATIENCE, Project, stop

pytestmark = pytest.mark.exhaustive


SLOW = (
    AGENT
    + """
    import anyio, time

    async def slow() -> str:
        '''Take long.'''
        note("begun")
        try:
            await anyio.sleep(600)
        finally:
            note("cleaned up")
        return "done"

    def stuck() -> str:
        '''Never end.'''
        note("begun")
        time.sleep(600)

    async def rude() -> str:
        '''Keep the event loop for itself.'''
        note("begun")
        time.sleep(600)

    def agent_with(*tools, **options):
        script = [calls(("weather", {"city": "Oslo"}), *[tool.__name__ for tool in tools])]
        return create_react_agent(ScriptedModel(script), [weather, *tools], **options)

    slowly, stuckly, rudely = agent_with(slow), agent_with(stuck), agent_with(rude)
"""
)


def await_start(project: Project, process: "subprocess.Popen[str]", *lines: str) -> None:
    """Wait until the slow tool has started."""
    until = time.monotonic() + PATIENCE
    while not {"begun", *lines} <= set(log(project)):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def line_with(process: "subprocess.Popen[str]", text: str) -> None:
    """Wait for an output line with this text."""
    assert process.stdout is not None
    while text not in process.stdout.readline():
        assert process.poll() is None


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_cancels_the_run_and_the_thread_goes_on(project: Project, backend: str, number: signal.Signals) -> None:
    module = project.module(SLOW)
    options = ("--db", project.db, "--thread", "1", "--backend", backend)
    process = project.start("run", f"{module}:slowly", "hi", *options)
    await_start(project, process, "weather Oslo")
    line_with(process, "sun in Oslo")

    code, output, errors = stop(process, number)

    assert (code, errors) == (128 + number, "")
    assert f"Stopping by {number.name}" in output
    assert f"--thread 1 --resume --db {project.db}" in output
    assert log(project)[-1] == "cleaned up"
    after = project.call("run", f"{module}:echo", "again", *options, "--json")
    assert after.exit_code == 0
    results = [
        message["content"] for message in json.loads(after.stdout)["state"]["messages"] if message["type"] == "tool"
    ]
    assert results[0] == "sun in Oslo"
    assert "no result" in results[1]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_cannot_be_stopped_does_not_keep_the_command(project: Project, backend: str) -> None:
    process = project.start("run", f"{project.module(SLOW)}:stuckly", "hi", "--backend", backend)
    await_start(project, process)
    since = time.monotonic()

    code, _, _ = stop(process, signal.SIGINT)

    assert code == 130
    assert time.monotonic() - since < 20


def test_a_second_ctrl_c_ends_the_process_at_once(project: Project) -> None:
    """A tool that blocks the event loop cannot be stopped in another way."""
    module = project.module(SLOW)
    process = project.start("run", f"{module}:rudely", "hi", "--db", project.db, "--thread", "1")
    await_start(project, process)
    process.send_signal(signal.SIGINT)
    line_with(process, "Stopping by SIGINT")

    code, _, errors = stop(process, signal.SIGINT)

    assert code == 130
    assert "Stopped at once" in errors
    assert project.call("run", f"{module}:echo", "again", "--db", project.db, "--thread", "1").exit_code == 0


def test_a_reader_that_goes_away_does_no_harm(project: Project, agents: str) -> None:
    process = project.start("run", f"{agents}:sunny", "hi", "--db", project.db, "--thread", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    assert process.stderr.read() == ""
    assert process.wait(PATIENCE) == 0
    process.stderr.close()
    assert "Sun, it says." in project.call("show", "1", "--db", project.db).stdout


INTERRUPTED = '''
import signal, sys
import anyio
from anyio.from_thread import start_blocking_portal
from callboard._cli._signals import Stopped, stoppable, wait_for

def interrupt(frame, event, function):
    """Send SIGINT when the main thread has just taken a lock in this function."""
    if (event, frame.f_code.co_qualname) == ("c_return", sys.argv[1]) and function.__name__ in ("acquire", "__enter__"):
        sys.setprofile(None)
        print("interrupted")
        signal.raise_signal(signal.SIGINT)

async def run():
    with scope:
        await anyio.sleep_forever()

with stoppable(), start_blocking_portal(sys.argv[2]) as portal:
    scope = portal.call(anyio.CancelScope)
    sys.setprofile(interrupt)
    try:
        wait_for(portal, run, scope.cancel, print, lambda: None)
    except Stopped as stopped:
        print(stopped)
'''


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("function", ["_AcquireFutures.__enter__", "Condition.__enter__"])
def test_a_signal_while_a_lock_is_taken_stops_the_run(project: Project, function: str, backend: str) -> None:
    """The event loop needs the locks of the future for which the main thread waits."""
    program = (sys.executable, "-c", INTERRUPTED)
    process = project.start(function, backend, program=program)

    output, errors = process.communicate(timeout=PATIENCE)

    first, _, last = output.splitlines()
    assert (first, last, errors) == ("interrupted", "SIGINT", "")
