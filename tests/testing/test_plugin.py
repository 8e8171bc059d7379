"""The pytest plugin, in projects of users: each test runs pytest in a project of its own."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "callboard.testing._plugin"
TOOLS = """
    import asyncio
    import pytest
    from callboard import ToolNode, tool_call
    from callboard.testing import calls

    def search(query: str) -> str:
        "Search."
        raise AssertionError("the real tool ran")

    def http_get(url: str) -> str:
        "Get."
        raise AssertionError("the real tool ran")

    node = ToolNode([search, http_get])

    def texts(found):
        return [message.content for message in found]
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose pytest loads the plugins of anyio and callboard only, whatever is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = --strict-markers -W error")
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "anyio.pytest_plugin", "-p", PLUGIN, *options, timeout=100)


def test_the_distribution_names_the_plugin() -> None:
    """pytest finds plugins by the entry points of installed distributions."""
    written = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]

    assert written == {"callboard": PLUGIN}
    assert import_module(PLUGIN)


def test_the_plugin_loads_next_to_nothing_before_a_test_uses_it(project: pytest.Pytester) -> None:
    """It is loaded in every test session of an environment with callboard; most tests do not use it."""
    project.makepyfile("""
        import sys

        def test_modules():
            assert not {"anyio", "langchain_core", "langgraph", "pydantic", "trio"} & set(sys.modules)
            assert {name for name in sys.modules if name.startswith("callboard.testing.")} == {
                "callboard.testing._plugin"
            }
    """)
    project.runpytest_subprocess("-p", PLUGIN, timeout=100).assert_outcomes(passed=1)


@pytest.mark.exhaustive
def test_markers_and_fixtures_are_explained(project: pytest.Pytester) -> None:
    help_text = run(project, "--markers").stdout.str() + run(project, "--fixtures").stdout.str()

    assert "@pytest.mark.callboard(path): recording that" in help_text
    assert "@pytest.mark.callboard_schedules(number): number of" in help_text
    fixtures = "virtual_clock real_clock seeded_clock kill_at fake_tools no_orphans scripted_model recorder replay"
    assert [name for name in fixtures.split() if f"\n{name} -- " not in help_text] == []


@pytest.mark.exhaustive
def test_anyios_plugin_takes_the_clock_from_the_fixture(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import pytest

        @pytest.fixture
        def anyio_backend(virtual_clock):
            return virtual_clock
    """)
    project.makepyfile("""
        import anyio
        import pytest

        @pytest.mark.anyio
        async def test_an_hour():
            await anyio.sleep(3600)
    """)
    run(project).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("mark", "plugins", "failed", "expected_line"),
    [
        ("anyio", "", 4, "def anyio_backend(virtual_clock): return virtual_clock"),
        ("anyio", "anyio.pytest_plugin", 4, "def anyio_backend(virtual_clock): return virtual_clock"),
        ("trio", "pytest_trio.plugin", 2, "another plugin runs this async test, without the fixture 'virtual"),
    ],
    ids=["anyio", "anyio first", "another"],
)
def test_another_plugin_that_runs_a_test_does_not_silence_the_fixtures(
    project: pytest.Pytester, mark: str, plugins: str, failed: int, expected_line: str
) -> None:
    """Without this, the test would sleep on the real clock, and leave tasks, without a word."""
    project.makepyfile(f"""
        import asyncio, pytest, sniffio

        pytestmark = pytest.mark.{mark}

        async def test_it(virtual_clock):
            pass

        async def test_task(no_orphans):
            if sniffio.current_async_library() == "asyncio":
                test_task.kept = asyncio.create_task(asyncio.sleep(1e6), name="left behind")
            else:
                import trio
                trio.lowlevel.spawn_system_task(trio.sleep, 1e6, name="left behind")
    """)
    # Of plugins, the one that is registered last is asked first.
    result = project.runpytest_subprocess(
        *("-p", "anyio.pytest_plugin") * (not plugins), "-p", PLUGIN, *("-p", plugins) * bool(plugins), timeout=100
    )

    result.assert_outcomes(failed=failed + (2 if mark == "anyio" else 1))
    result.stdout.fnmatch_lines([f"*{expected_line}*"])
    result.stdout.fnmatch_lines(["*OrphansError: tasks that the test has left running: left behind"])


@pytest.mark.exhaustive
def test_a_tool_without_a_fake_fails_the_test_even_if_its_error_is_handled(project: pytest.Pytester) -> None:
    project.makepyfile(
        TOOLS
        + """
    quiet = ToolNode([search, http_get], handle_tool_errors=True)

    def test_it(fake_tools):
        fake_tools({"http_*": "page"})
        quiet.invoke([calls(("search", {"query": "tea"}))])
    """
    )
    result = run(project)

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*the tool 'search' has no fake ('http_*'): add fake_tools({'search': ...}), or let it*"]
    )


@pytest.mark.exhaustive
def test_orphans_fail_a_test(project: pytest.Pytester) -> None:
    """Tasks are found in the event loop of the test, threads and processes after it."""
    project.makepyfile("""
        import asyncio, subprocess, sys, threading, time
        import anyio, pytest, sniffio

        kept = []
        pytestmark = pytest.mark.usefixtures("no_orphans")

        async def test_task(virtual_clock):
            if sniffio.current_async_library() == "asyncio":
                kept.append(asyncio.create_task(asyncio.sleep(1e6), name="left behind"))
            else:
                import trio
                trio.lowlevel.spawn_system_task(trio.sleep, 1e6, name="left behind")

        def test_thread():
            threading.Thread(target=time.sleep, args=(5,), name="left thread", daemon=True).start()

        async def test_thread_of_a_pool(real_clock):
            with anyio.move_on_after(0.05):
                await anyio.to_thread.run_sync(time.sleep, 5, abandon_on_cancel=True)

        def test_process():
            kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]))

        async def test_clean(real_clock):
            await anyio.to_thread.run_sync(time.sleep, 0.01)
            threading.Thread(target=time.sleep, args=(0.1,)).start()
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0.01)

        def teardown_module():
            for one in kept:
                if isinstance(one, subprocess.Popen):
                    one.kill()
                    one.wait()
    """)
    result = run(project, "-W", "default")

    result.assert_outcomes(passed=1 + 2 + 1 + 2, failed=2, errors=1 + 1 + 1)
    result.stdout.fnmatch_lines(
        [
            "*OrphansError: threads that the test has left running: left thread",
            "*OrphansError: processes that the test has left running: *time.sleep(30)*",
            "*OrphansError: tasks that the test has left running: left behind",
        ]
    )


SHOP = """
    from callboard import create_react_agent
    from callboard.testing import ScriptedModel, calls

    def search(query: str) -> str:
        "Search."
        return f"order {query}"

    def refund(order: str) -> str:
        "Refund."
        return f"refunded {order}"

    def reverse(state):
        last = state["messages"][-1].model_copy(deep=True)
        last.tool_calls.reverse()
        return {"messages": [last]}

    looked = calls(("search", {"query": "o1"}), ("search", {"query": "o2"}))
    script = [looked, calls(("refund", {"order": "o1"})), "Done."]
    agent = create_react_agent(ScriptedModel(script), [search, refund], name="shop")
"""
REPLAYS = """

@pytest.mark.callboard("runs/refund.jsonl")
@pytest.mark.parametrize("event", range(1, 18, 5))
def test_killed(replay, event):
    replay(shop.agent, kill_at=event)


def test_unmarked(replay):
    pass
"""
BUGS = {
    "a tool renamed": ("script =", "refund.__name__ = 'pay_back'\nscript ="),
    "an argument renamed": ("def refund(order: str) -> str:", "def refund(number: str, order: int = 0) -> str:"),
    "another order": ('name="shop"', 'name="shop", version="v1", post_model_hook=reverse'),
    "no calls": ("[search, refund], name", "[search, refund], interrupt_before=['tools'], name"),
}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-agents.md"


def code_of_page(info: str) -> str:
    """Return the blocks of the page with this text after the fence; users copy them."""
    return "\n".join(re.findall(rf"^```{info}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.exhaustive
def test_a_recording_of_callboard_run_is_a_regression_test(project: pytest.Pytester) -> None:
    """Planted bugs are reported: the recording was made before them."""
    project.makepyfile(
        shop=SHOP,
        test_shop=code_of_page("python no-run") + REPLAYS,
    )
    command = ("run", "shop:agent", "Refund me.", "--thread", "refund", "--record-to", "runs", "--capture")
    recording_result = project.run(sys.executable, "-m", "callboard._cli", *command, timeout=100)
    assert recording_result.ret == 0

    result = run(project, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2 + 8, errors=2)
    result.stdout.fnmatch_lines(["*the fixture 'replay' needs a recording: @pytest.mark.callboard(*"])
    right = Path("shop.py").read_text()
    for before, after in BUGS.values():
        Path("shop.py").write_text(right.replace(before, after))
        result = run(project, "-p", "no:cacheprovider", "-k", "test_refund")
        result.assert_outcomes(failed=2)
        result.stdout.fnmatch_lines(
            ["E *the replay of *refund.jsonl differs in *", "E *run 1 of 'shop', *", "E *got *"]
        )


@pytest.mark.exhaustive
def test_the_tests_on_the_page_pass(project: pytest.Pytester) -> None:
    """Users copy them."""
    project.makepyfile(code_of_page("python"))

    run(project).assert_outcomes(passed=1 + 2 + 2 + 40 + 2)


RACES = """
    import anyio
    import pytest
    from callboard import ToolNode
    from callboard.testing import calls

    class Client:
        def __init__(self, turns):
            self.turns, self.session, self.ready = turns, None, anyio.Event()

        async def connect(self) -> str:
            "Connect."
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            self.session = "session"
            self.ready.set()
            return "connected"

        async def query(self) -> str:
            "Query: after some turns of the event loop, the session is expected to be there."
            for _ in range(self.turns):
                await anyio.lowlevel.checkpoint()
            if self.turns == 0:
                await self.ready.wait()
            assert self.session is not None, "no session"
            return "rows"

    @pytest.mark.callboard_schedules(30)
    @pytest.mark.parametrize("turns", [TURNS])
    async def test_query(seeded_clock, turns):
        client = Client(turns)
        node = ToolNode([client.connect, client.query], handle_tool_errors=False)
        await node.ainvoke([calls("connect", "query")])
"""


@pytest.mark.exhaustive
def test_a_race_that_depends_on_the_schedule_is_found_and_can_be_repeated(project: pytest.Pytester) -> None:
    """Without a schedule, the test of this tool always passes."""
    project.makepyfile(RACES.replace("TURNS", "6"))
    result = run(project)

    failing_seeds = {name: set[str]() for name in ("asyncio", "trio")}
    for name, seed in re.findall(r"^FAILED \S+\[(\w+)-seed(\d+)-6\]", result.stdout.str(), re.MULTILINE):
        failing_seeds[name].add(seed)
    for name, seeds in failing_seeds.items():
        assert 0 < len(seeds) < 30
        repeated_run = run(project, "--callboard-seed", min(seeds), "-k", name)
        repeated_run.assert_outcomes(failed=1, deselected=1)
        expected_line = (
            f"{name}, under the schedule of seed {min(seeds)}; again: pytest *::test_query --callboard-seed "
        )
        repeated_run.stdout.fnmatch_lines([expected_line + min(seeds)])


KILLS = """
    import itertools
    import anyio
    import pytest
    from callboard import CallPolicy, create_react_agent, tool_call
    from callboard.testing import ScriptedModel, calls

    class Bank:
        def __init__(self):
            self.paid = []

        async def pay(self, order: str) -> str:
            "Pay."
            await anyio.sleep(1)
            self.paid.append(order)
            return "paid " + order

        async def tell(self, text: str) -> str:
            "Tell."
            return "told"

    ASKED = (
        calls(tool_call("pay", "p1", order="o1"), tool_call("pay", "p2", order="o2")),
        calls(tool_call("tell", "t1", text="Paid.")),
        "Done.",
    )

    def agent_of(bank):
        def reply(messages):
            return ASKED[sum(message.type == "ai" for message in messages)]
        return create_react_agent(ScriptedModel([reply], loop=True), [bank.pay, bank.tell])

    GO = {"messages": [("user", "go")]}
"""


@pytest.mark.exhaustive
def test_a_run_is_killed_at_each_of_its_events_and_goes_on(project: pytest.Pytester) -> None:
    project.makepyfile(
        KILLS
        + """
    async def test_every_event(seeded_clock, kill_at):
        ends = set()
        for event in itertools.count(1):
            bank = Bank()
            state = await kill_at(event, agent_of(bank), GO)
            if state is None:
                break
            assert len(bank.paid) == len(set(bank.paid))
            ends.add(state["messages"][-1].content)
        assert ends == {"Done."}
        assert event > 15

    async def test_misuse(virtual_clock, kill_at):
        with pytest.raises(ValueError, match="from 1, got 0"):
            await kill_at(0, agent_of(Bank()), GO)
        with pytest.raises(TypeError, match="takes an agent of callboard, got 'agent'"):
            await kill_at(1, "agent", GO)
        with pytest.raises(TypeError, match="is the number of an event, got '1'"):
            await kill_at("1", agent_of(Bank()), GO)

    async def test_a_broken_promise(virtual_clock, kill_at, monkeypatch):
        from callboard.testing import _kills
        from langgraph.checkpoint.memory import InMemorySaver

        monkeypatch.setattr(_kills, "_copy", lambda saver: InMemorySaver())
        with pytest.raises(AssertionError, match="killed at event .*: the call .* of pay had finished, and ran again"):
            for event in range(1, 20):
                await kill_at(event, agent_of(Bank()), GO)
    """
    )
    run(project, "--callboard-seed", "3").assert_outcomes(passed=2 + 2 + 2)
