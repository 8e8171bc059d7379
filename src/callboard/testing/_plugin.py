"""pytest plugin of callboard: fixtures for tests of tools and agents. It imports other modules at their first use."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack
from functools import partial, wraps
from inspect import iscoroutinefunction, unwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from callboard.testing import Backend, FakedTools, Recorder, Replay, ScriptedModel

_CLOCKS = ("virtual_clock", "seeded_clock", "real_clock")
_MARKERS = (
    "callboard(path): recording that the fixture `replay` compares an agent with, relative to pytest's rootdir",
    "callboard_schedules(number): number of schedules on each backend for a test with the fixture `seeded_clock`",
)
_SCHEDULES = 10
"""Default number of schedules of a test on each backend."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--callboard-seed`."""
    text = "run each test with the fixture 'seeded_clock' under this schedule only, such as one that has failed"
    parser.getgroup("callboard").addoption("--callboard-seed", type=int, metavar="SEED", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin's markers: with `--strict-markers`, pytest refuses markers that are not registered."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise each test that uses the fixture `seeded_clock`: one case for each schedule (order of tasks)."""
    mark = metafunc.definition.get_closest_marker("callboard_schedules")
    number = mark.args[0] if mark is not None and mark.args else _SCHEDULES
    if "seeded_clock" not in metafunc.fixturenames:
        return
    if not isinstance(number, int) or number < 1:
        pytest.fail(f"callboard_schedules(number) is a number of schedules, from 1, got {number!r}", pytrace=False)
    seed = metafunc.config.getoption("callboard_seed")
    seeds = range(number) if seed is None else [seed]
    cases = [(name, seed) for name in ("asyncio", "trio") for seed in seeds]
    names = [f"{name}-seed{seed}" for name, seed in cases]
    metafunc.parametrize("seeded_clock", cases, ids=names, indirect=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any]:
    """Add to a failed test's report the command that runs the test again under the same schedule."""
    report: pytest.TestReport = (yield).get_result()
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    if report.failed and "seeded_clock" in params:
        name, seed = params["seeded_clock"]
        test = item.nodeid.partition("[")[0]
        text = f"{name}, under the schedule of seed {seed}; again: pytest {test} --callboard-seed {seed}"
        report.sections.append(("schedule", text))


@pytest.fixture(params=["asyncio", "trio"])
def virtual_clock(request: pytest.FixtureRequest) -> "Backend":
    """Run an async test on asyncio and on trio, on a virtual clock: a sleep of an hour ends immediately.

    The test needs no other plugin and no mark. With anyio's plugin, let its fixture return this one:
    `@pytest.fixture` above `def anyio_backend(virtual_clock): return virtual_clock`.
    """
    from callboard.testing import backend

    return backend(request.param)


@pytest.fixture
def seeded_clock(request: pytest.FixtureRequest) -> "Backend":
    """Run an async test under ten schedules of its tasks, on asyncio and on trio, on a virtual clock.

    A schedule is the order in which an event loop runs its tasks; each seed makes another one, and always the same.
    `@pytest.mark.callboard_schedules(50)` runs 50, `--callboard-seed 7` one. Otherwise like `virtual_clock`.
    """
    from callboard.testing import backend

    name, seed = request.param
    return backend(name, seed=seed)


@pytest.fixture(params=["asyncio", "trio"])
def real_clock(request: pytest.FixtureRequest) -> "Backend":
    """Run an async test on asyncio and on trio, on the real clock, for code with threads, processes or sockets.

    Otherwise like `virtual_clock`.
    """
    from callboard.testing import backend

    return backend(request.param, real_clock=True)


@pytest.fixture
def scripted_model() -> "type[ScriptedModel]":
    """Model that answers from a script: `scripted_model([calls("search"), "Done."])`. See `callboard.testing`."""
    from callboard.testing import ScriptedModel

    return ScriptedModel


@pytest.fixture
def recorder() -> "Recorder":
    """Factory of scripted tools that records the events of their calls; see `callboard.testing.Recorder`."""
    from callboard.testing import Recorder

    return Recorder()


@pytest.fixture
def fake_tools() -> "Generator[Callable[..., FakedTools]]":
    """Replace the functions of tools until the test ends: `fake_tools({"search": "42", "http_*": ConnectionError()})`.

    Any other tool raises an error, unless `real=["..."]` names it. Returns the record of the calls. See
    `callboard.testing.fake_tools`.
    """
    from callboard.testing import fake_tools

    with ExitStack() as stack:
        yield lambda fakes, **options: stack.enter_context(fake_tools(fakes, **options))


@pytest.fixture
def kill_at() -> "Callable[..., Awaitable[Any]]":
    """Kill a run of an agent at an event, and resume it as after a crash.

    `await kill_at(5, agent, {"messages": [...]})` returns the final state, or `None` if the run has fewer events. Fails
    if a finished call runs again. See `callboard.testing.kill_at`.
    """
    from callboard.testing import kill_at

    return kill_at


@pytest.fixture
def no_orphans() -> Generator[None]:
    """Fail the test if it leaves tasks, threads or child processes running. See `callboard.testing.no_orphans`."""
    from callboard.testing import no_orphans

    with no_orphans():
        yield


@pytest.fixture
def replay(request: pytest.FixtureRequest, virtual_clock: "Backend") -> "Callable[..., Replay]":
    """Compare an agent with a recording, on asyncio and on trio: `replay(agent)` in a sync test.

    The mark `@pytest.mark.callboard("runs/refund.jsonl")` names the recording. Options are those of
    `callboard.testing.replay`: `real=["search"]` runs tools, and `kill_at=5` kills the run at an event.
    """
    from callboard.testing import replay

    mark = request.node.get_closest_marker("callboard")
    if mark is None or len(mark.args) != 1:
        pytest.fail(
            "the fixture 'replay' needs a recording: @pytest.mark.callboard('runs/refund.jsonl')", pytrace=False
        )
    return partial(replay, request.config.rootpath / mark.args[0], backend=virtual_clock[0])


def _clock_of(item: pytest.Function) -> str | None:
    return next((name for name in _CLOCKS if name in item.funcargs), None)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Check the clock of an async test; with `no_orphans`, check that the test leaves no tasks."""
    __tracebackhide__ = True
    # Before `pytest_pyfunc_call`: another plugin, whose hook may come first, ends the search there with its own run.
    if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
        clock, anyio_backend = _clock_of(item), item.funcargs.get("anyio_backend")
        if clock is not None and anyio_backend is not None and anyio_backend is not item.funcargs[clock]:
            pytest.fail(
                f"anyio's plugin runs this test on {anyio_backend!r}, without the fixture {clock!r}: remove the mark "
                f"'anyio', or override its fixture: def anyio_backend({clock}): return {clock}",
                pytrace=False,
            )
        if "no_orphans" in item.funcargs:
            item.obj = _with_task_check(item.obj)
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests that use a clock of this plugin."""
    __tracebackhide__ = True
    clock = _clock_of(pyfuncitem)
    if not iscoroutinefunction(pyfuncitem.obj):
        if clock is not None and iscoroutinefunction(unwrap(pyfuncitem.obj)):
            pytest.fail(f"another plugin runs this async test, without the fixture {clock!r}", pytrace=False)
        return None
    if clock is None or "anyio_backend" in pyfuncitem.funcargs:
        return None
    import anyio

    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    backend: Any = pyfuncitem.funcargs[clock]
    name, options = backend
    anyio.run(partial(pyfuncitem.obj, **arguments), backend=name, backend_options=options)
    return True


def _with_task_check(test: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        from callboard.testing._orphans import check_tasks, task_ids

        ids = task_ids()
        await test(*args, **kwargs)
        await check_tasks(ids)

    return run
