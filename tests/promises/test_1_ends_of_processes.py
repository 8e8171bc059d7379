"""Promises 1 and 3 at the end of a process: no thread of callboard delays the end, and Ctrl-C arrives unwrapped."""

import subprocess
import sys
import textwrap

import pytest

from callboard.testing import backend_names

REAL = backend_names(real_clock=True)


def run_script(script: str, *args: str, seconds: float = 50) -> "subprocess.CompletedProcess[str]":
    """Run a script in a process of its own, with a time limit in seconds."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


HUNG = """
    import sys, threading
    import anyio
    from callboard import ToolNode, tool_call
    from callboard.testing import backend

    def hung() -> str:
        '''Wait for what never comes.'''
        threading.Event().wait()

    def hung_wrapper(request, execute):
        threading.Event().wait()

    node = ToolNode([hung], timeout=0.3)
    wrapped = ToolNode([hung], wrap_tool_call=hung_wrapper)

    async def main():
        await node.ainvoke([tool_call("hung", "1")])
        with anyio.move_on_after(0.3):
            await wrapped.ainvoke([tool_call("hung", "2")])

    if sys.argv[1] == "sync":
        node.invoke([tool_call("hung", "1")])
    else:
        name, options = backend(sys.argv[1], real_clock=True)
        anyio.run(main, backend=name, backend_options=options)
    print("the loop has ended", flush=True)
"""


@pytest.mark.parametrize("door", [*(name for name in REAL if name != "asyncio-eager"), "sync"])
@pytest.mark.exhaustive
def test_a_process_ends_although_a_thread_hangs(door: str) -> None:
    """Promise 1: Python waits at exit for threads that are not daemons, and this thread would never end."""
    ended = run_script(HUNG, door)
    assert (ended.returncode, ended.stdout) == (0, "the loop has ended\n")
    [line] = [line for line in ended.stderr.splitlines() if "the process ends" in line]
    assert "tool 'hung' (call '1'), which had run for" in line
    assert door == "sync" or "hung_wrapper" in line


QUICK = """
    import anyio, threading
    from callboard import AbandonedThreadWarning, ToolNode, tool_call

    release = threading.Event()
    ended = threading.Event()

    def slow() -> str:
        '''Wait for a while.'''
        release.wait()
        ended.set()

    node = ToolNode([slow], timeout=0.2)

    async def main():
        await node.ainvoke([tool_call("slow", "1")])
        release.set()
        while node.statistics().abandoned_threads:
            await anyio.sleep(0.005)

    anyio.run(main)
"""


@pytest.mark.exhaustive
def test_nothing_is_said_to_be_lost_when_the_thread_came_back() -> None:
    ended = run_script(QUICK)
    assert ended.returncode == 0
    assert "AbandonedThreadWarning" in ended.stderr
    assert "the process ends" not in ended.stderr


CTRL_C = """
    import os, signal, sys, threading
    import anyio
    from callboard import ToolNode, create_react_agent, tool_call
    from callboard.testing import ScriptedModel, backend, calls

    async def other() -> str:
        '''Wait for ever.'''
        await anyio.sleep_forever()

    async def inside() -> str:
        '''Press Ctrl-C while a body runs.'''
        await anyio.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    def outside() -> str:
        '''Press Ctrl-C while the event loop waits.'''
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.2)

    def elsewhere() -> str:
        '''Have the system deliver Ctrl-C to a thread that is not the main thread, which nothing wakes.'''
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        threading.Event().wait(0.2)

    tools = [other, inside, outside, elsewhere]

    async def batch(name):
        await ToolNode(tools).ainvoke([tool_call("other", "1"), tool_call(name, "2")])

    async def alone(name):
        await ToolNode(tools).ainvoke([tool_call(name, "2")])

    async def batches(name):
        await ToolNode(tools).abatch([[tool_call("other", "1")], [tool_call(name, "2")]])

    async def agent(name):
        asked = {"messages": [("user", "go")]}
        await create_react_agent(ScriptedModel([calls("other", name)]), tools).ainvoke(asked)

    async def stream(name):
        agent = create_react_agent(ScriptedModel([calls("other", name)]), tools)
        async for _ in agent.astream({"messages": [("user", "go")]}):
            pass

    def by_sync_door(name):
        ToolNode(tools).invoke([tool_call("other", "1"), tool_call(name, "2")])

    def press(fn, *args, **options):
        try:
            fn(*args, **options)
        except BaseException as error:
            return repr(error)

    backend_name, options = backend(sys.argv[1], real_clock=True)
    for run in (batch, alone, batches, agent, stream):
        for name in ("inside", "outside"):
            found = press(anyio.run, run, name, backend=backend_name, backend_options=options)
            print(run.__name__, name, found, flush=True)
    for name in ("outside", "elsewhere"):
        print("by_sync_door", name, press(by_sync_door, name), flush=True)
"""


@pytest.mark.parametrize("name", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_ctrl_c_arrives_bare(name: str) -> None:
    ended = run_script(CTRL_C, name)
    parts = [line.rpartition(" ") for line in ended.stdout.splitlines()]
    assert len(parts) == 12, ended.stderr
    assert [line for line in parts if line[2] != "KeyboardInterrupt()"] == []
