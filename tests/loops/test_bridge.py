"""The bridges: async code from sync code, with and without a running loop, and asyncio from trio."""

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import sniffio
from langchain_core.tools import StructuredTool

from callboard import CallPolicy, Statistics, ToolNode, create_react_agent, remaining
from callboard.extend import run_on_asyncio
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import ask, make, make_sync, run_in_threads

QUESTION = {"messages": [("user", "go")]}
IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)
user: ContextVar[str] = ContextVar("user", default="nobody")


def within(seconds: float, fn: Callable[[], object]) -> object:
    """Run a function in a thread and fail if it does not end: a deadlock must not stop the suite."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(fn())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, "deadlock"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def echo_node() -> ToolNode:
    async def echo() -> str:
        await anyio.sleep(0.001)
        return user.get()

    return ToolNode([make(echo)])


def content(messages: list[object]) -> object:
    [message] = messages
    return message.content


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_invoke_works_in_the_thread_of_a_running_loop(backend: str) -> None:
    node = echo_node()

    async def main() -> object:
        user.set("ada")
        first_content = content(node.invoke(ask("echo")))
        await anyio.sleep(0.001)
        return [first_content, content(node.invoke(ask("echo")))]

    assert within(10, lambda: anyio.run(main, backend=backend)) == ["ada", "ada"]


def test_invoke_works_from_many_threads_at_once() -> None:
    node = echo_node()
    outputs: list[object] = []

    def go() -> None:
        outputs.append(content(node.invoke(ask("echo"))))

    run_in_threads(*(threading.Thread(target=go) for _ in range(20)))
    assert outputs == ["nobody"] * 20


def nest_nodes(depth: int, kinds: str) -> ToolNode:
    """Return a node whose tool invokes a node, and so on: `a` async, `s` sync, `w` from a worker thread below."""

    def step(inner: ToolNode, kind: str) -> StructuredTool:
        def down() -> str:
            return f"{kind}{content(inner.invoke(ask('down')))}"

        async def down_async() -> str:
            return down()

        async def down_in_worker() -> str:
            return await anyio.to_thread.run_sync(down)

        if kind == "s":
            return make_sync(down)
        return make(down_async if kind == "a" else down_in_worker, "down")

    async def bottom() -> str:
        await anyio.sleep(0.001)
        return user.get()

    node = ToolNode([make(bottom, "down")])
    for level in range(depth):
        node = ToolNode([step(node, kinds[level % len(kinds)])])
    return node


@pytest.mark.parametrize("kinds", ["a", "s", "w", "as", "sw", "wa", "aws"])
def test_invoke_nests_without_deadlock(kinds: str) -> None:
    """Promise 11: a tool on the background loop may invoke a node, and so may all code that this node runs."""
    node = nest_nodes(5, kinds)

    def go() -> object:
        user.set("ada")
        return content(node.invoke(ask("down")))

    expected = "".join(kinds[level % len(kinds)] for level in reversed(range(5))) + "ada"
    assert within(30, go) == expected


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_nested_invokes_work_below_a_running_loop(backend: str) -> None:
    """Promise 11: a chain of nodes may begin with `ainvoke` and continue with `invoke`."""
    node = nest_nodes(4, "aws")

    async def main() -> object:
        return content(await node.ainvoke(ask("down")))

    assert within(30, lambda: anyio.run(main, backend=backend)) == "aswanobody"


def test_the_threads_of_nested_invokes_end() -> None:
    node = nest_nodes(3, "a")
    within(30, lambda: node.invoke(ask("down")))
    deadline = time.monotonic() + 5
    while sum(thread.name == "callboard-asyncio" for thread in threading.enumerate()) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class _CtrlCWhileWaiting(threading.Event):
    """An event that raises `KeyboardInterrupt` in the first waits after the calls began, as the interpreter would."""

    presses = 0
    running: Callable[[], int]

    def wait(self, timeout: float | None = None) -> bool:
        while self.presses and not super().wait(0.1):
            if self.running():
                _CtrlCWhileWaiting.presses -= 1
                raise KeyboardInterrupt
        return super().wait(timeout)


@pytest.mark.parametrize(("is_stream", "presses"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_an_interrupted_run_cancels_its_calls_and_waits_for_them_until_it_is_interrupted_again(
    is_stream: bool, presses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second Ctrl-C, the calls end by themselves; a stream is not closed while it goes on."""
    rec = Recorder()
    node = ToolNode([rec.tool("stuck", hang=True, cleanup=0.5)])
    agent = create_react_agent(ScriptedModel([calls("stuck", "stuck")]), node)
    within(10, lambda: echo_node().invoke(ask("echo")))  # the background loop runs before Event is replaced

    def go() -> None:
        monkeypatch.setattr(_CtrlCWhileWaiting, "presses", presses)
        monkeypatch.setattr(_CtrlCWhileWaiting, "running", lambda self: rec.running, raising=False)
        monkeypatch.setattr(threading, "Event", _CtrlCWhileWaiting)
        try:
            list(agent.stream(QUESTION)) if is_stream else node.invoke(ask("stuck", "stuck"))
        finally:
            monkeypatch.undo()

    with pytest.raises(KeyboardInterrupt):
        within(10, go)
    assert presses == 2 or not rec.running
    deadline = time.monotonic() + 5
    while rec.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rec.count("cleaned up") == 2
    assert (rec.running, node.statistics()) == (0, IDLE)


def test_an_exit_out_of_a_tool_reaches_the_one_who_invoked_it() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    for _ in range(2):
        with pytest.raises(SystemExit):
            within(10, lambda: ToolNode([make(leave)]).invoke(ask("leave")))
    assert within(10, lambda: content(echo_node().invoke(ask("echo")))) == "nobody"


def test_a_loop_of_the_tools_stays_the_same_from_call_to_call() -> None:
    """A pooled client that a tool keeps belongs to one event loop, so later calls need the same loop."""
    loops: list[object] = []

    async def which() -> None:
        loops.append(asyncio.get_running_loop())

    node = ToolNode([make(which)])
    for _ in range(3):
        within(10, lambda: node.invoke(ask("which")))
    assert loops[0] is loops[1] is loops[2]


@pytest.mark.real_clock
async def test_code_that_needs_asyncio_gets_it_with_its_context() -> None:
    async def main() -> tuple[object, str]:
        await asyncio.sleep(0.001)
        user_name = user.get()
        user.set("changed")
        return user_name, type(asyncio.get_running_loop()).__module__

    token = user.set("ada")
    try:
        with anyio.fail_after(10):
            user_name, module = await run_on_asyncio(main)
    finally:
        user.reset(token)
    assert user_name == "ada"
    assert module.startswith(("asyncio", "uvloop"))


@pytest.mark.real_clock
async def test_an_error_from_the_other_side_is_the_same_object() -> None:
    error = ValueError("boom")

    async def main() -> None:
        await asyncio.sleep(0.001)
        raise error

    with pytest.raises(ValueError, match="boom") as caught:
        await run_on_asyncio(main)
    assert caught.value is error


@pytest.mark.real_clock
async def test_a_cancelled_caller_waits_for_the_clean_up_on_the_other_side() -> None:
    """Promise 1: a cancelled call leaves nothing on the background loop, because its caller waits for the clean-up."""
    steps: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            if anyio.get_cancelled_exc_class() is asyncio.CancelledError and caller == "trio":
                await asyncio.sleep(0.2)
            steps.append("cleaned up")

    caller = sniffio.current_async_library()
    with anyio.move_on_after(0.05) as scope:
        await run_on_asyncio(main)
    assert scope.cancelled_caught
    assert steps == ["cleaned up"]


@pytest.mark.backends("trio")
@pytest.mark.real_clock
async def test_a_caller_that_is_cancelled_already_begins_nothing_on_the_other_side() -> None:
    """The other thread is fast: without the check it has run the function before the caller notices."""
    begun: list[int] = []

    async def main() -> None:
        begun.append(1)

    for _ in range(20):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_on_asyncio(main)
    await run_on_asyncio(main)
    assert begun == [1]


class Foreign(StructuredTool):
    """A tool with an `ainvoke` of its own, which callboard leaves to asyncio."""

    async def ainvoke(self, *args: object, **kwargs: object) -> object:
        return await super().ainvoke(*args, **kwargs)


def test_a_call_that_is_cancelled_before_its_first_step_never_begins() -> None:
    """The caller goes on at once, so a call that began later would act without anyone who waits for it."""
    begun, blocking, gate = list[str](), threading.Event(), threading.Event()

    async def blocks() -> None:
        blocking.set()
        gate.wait(10)

    async def begins() -> None:
        begun.append("begun")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(run_on_asyncio, blocks)
            await anyio.to_thread.run_sync(blocking.wait)
            with anyio.CancelScope() as scope:
                group.start_soon(release, scope)
                await run_on_asyncio(begins)
        await run_on_asyncio(nothing)  # every callback before this one has run

    async def release(scope: anyio.CancelScope) -> None:
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        gate.set()

    async def nothing() -> None: ...

    within(20, partial(anyio.run, main, backend="trio"))
    assert begun == []


def foreign(fn: Callable[..., object]) -> StructuredTool:
    return Foreign.from_function(coroutine=fn, name=fn.__name__, description="A tool of a test.")


@pytest.mark.real_clock
async def test_a_tool_that_needs_asyncio_completes_its_clean_up_within_the_grace() -> None:
    steps: list[str] = []

    async def stuck() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.1)
            steps.append("cleaned up")

    node = ToolNode([foreign(stuck)], timeout=0.4)
    [message] = await node.ainvoke(ask("stuck"))
    assert message.additional_kwargs == {"callboard": {"ended": "timeout"}}
    assert steps == ["cleaned up"]
    assert node.statistics() == IDLE


@pytest.mark.real_clock
async def test_the_grace_of_the_policy_crosses_the_bridge() -> None:
    async def stuck() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(100)

    node = ToolNode([foreign(stuck)], policies={"stuck": CallPolicy(timeout=0.4, grace=0.2)})
    start = time.monotonic()
    await node.ainvoke(ask("stuck"))
    assert time.monotonic() - start < 2


@pytest.mark.real_clock
async def test_remaining_crosses_the_bridge() -> None:
    remaining_times: list[float] = []

    async def look() -> None:
        remaining_times.append(remaining())

    await ToolNode([foreign(look)], timeout=20).ainvoke(ask("look"))
    assert 19 < remaining_times[0] <= 20.1  # an event loop may round its time to milliseconds


@pytest.mark.real_clock
async def test_a_tool_that_needs_asyncio_and_cancels_itself_ends_alone() -> None:
    rec = Recorder()

    async def confused() -> None:
        raise asyncio.CancelledError

    first, second = await ToolNode([foreign(confused), rec.tool("slow", seconds=0.1)]).ainvoke(ask("confused", "slow"))
    assert first.additional_kwargs == {"callboard": {"ended": "cancelled"}}
    assert second.content == "slow"


def test_a_coroutine_that_never_began_is_closed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        async def main() -> None:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await echo_node().ainvoke(ask(*["echo"] * 10))

        for backend in ("asyncio", "trio"):
            within(10, partial(anyio.run, main, backend=backend))


LOST = "the call was cancelled from outside on t"


def program(text: str) -> list[str]:
    """Run a program, and return the lines that it prints."""
    code = [sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_call_is_lost_with_the_background_loop_and_the_next_one_has_a_new_loop() -> None:
    """A SystemExit in a tool's task ends the loop. Calls of other threads do not wait for its end."""
    lines = program("""
        import asyncio, threading
        from callboard._loops._bridge import run_from_sync

        ending = threading.Event()

        async def work():
            return "done"

        async def exit_it():
            raise SystemExit

        async def clean_up():
            try:
                await asyncio.sleep(60)
            finally:
                ending.set()
                await asyncio.to_thread(begun.wait, 30)  # the loop ends after this

        async def end_the_loop():
            cleaning = asyncio.ensure_future(clean_up())
            await asyncio.sleep(0)
            await asyncio.wait([cleaning, asyncio.ensure_future(exit_it())])

        async def begin():
            begun.set()
            return "done"

        def hand_over():
            ending.wait()
            try:
                print(run_from_sync(begin))
            except RuntimeError as error:
                print(error)

        begun = threading.Event()
        threading.excepthook = lambda _: None
        other = threading.Thread(target=hand_over, daemon=True)
        other.start()
        try:
            run_from_sync(end_the_loop)
        except RuntimeError as error:
            other.join(30)
            print(error)
        other.join(30)
        assert not other.is_alive(), "the other call hangs"
        print(run_from_sync(work))
    """)
    assert [line[: len(LOST)] for line in lines] == ["done", LOST, "done"]


def test_a_call_whose_task_is_cancelled_before_its_first_step_is_lost() -> None:
    """A tool may cancel all tasks of its loop."""
    [line] = program("""
        import asyncio, threading, time
        from callboard._loops._bridge import run_from_sync

        async def work():
            return "done"

        async def cancel_others():
            before = asyncio.all_tasks()
            other.start()
            while not asyncio.get_running_loop()._ready:
                time.sleep(0.001)
            await asyncio.sleep(0)  # the task of the other call is made, and has taken no step
            [task] = asyncio.all_tasks() - before
            task.cancel()

        def hand_over():
            try:
                print(run_from_sync(work))
            except RuntimeError as error:
                print(error)

        other = threading.Thread(target=hand_over, daemon=True)
        run_from_sync(cancel_others)
        other.join(30)
        assert not other.is_alive(), "the other call hangs"
    """)
    assert line.startswith(LOST)
