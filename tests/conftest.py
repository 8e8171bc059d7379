"""Every async test runs on every backend, on a virtual clock unless it is marked `real_clock`."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from pathlib import Path
from typing import Any

import anyio
import pytest
import sniffio
import trio
from hypothesis import settings
from hypothesis.errors import StopTest

from callboard._loops import _watchdog
from callboard.testing import Backend, backend, backend_names
from tests.sampling import sample_of

# The tests start some 400 Python programs, and each would compile callboard again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

MAIN_BACKENDS = ("asyncio", "trio")
WITHOUT_LOOP_VARIANTS = {"drain", "server", "http", "mcp_service", "mcp"}
"""Packages that run on asyncio and on trio only, because their clients of a server use a thread with its own loop."""
BOUNDED_ON_VIRTUAL_CLOCKS = {"actors", "agent", "calls", "loops", "middleware", "promises"}
"""Packages whose tests on virtual clocks are ended when they hang.

Elsewhere threads work while the clock stands, and a deadline could make it jump; pytest-timeout ends such a test.
"""
TAKE_TURNS = {"applications", "http", "mcp", "mcp_service", "process", "python", "server"}
"""Packages whose tests start processes and servers, which takes most of the suite's time.

Such a test runs on one backend, and the next one of its file on the other; with the marker `every_variant`, so does
each variant. A sync test has its backend in the parameter `backend`. The marker `backends` with both names keeps both;
CI runs all.
"""
OWN_BOUNDS = {"agent", "middleware"}
"""Packages in which the constant `WAIT` of a module is the bound of its tests on real clocks, in seconds."""
HANGS_AFTER, HANGS_AFTER_VIRTUAL = 100.0, 1e9
"""Seconds after which an async test hangs, on its clock; the marker `hangs_after` gives a test another number."""
DEFAULT = "not exhaustive"
"""Expression of markers by which `uv run pytest` selects tests."""
BOTH_VARIANTS = {"applications", "process", "python"}
"""Packages in which both variants of a test that takes turns run, because what varies is the subject.

Elsewhere the first variant runs on asyncio and the last on trio: what varies, such as the agent, the server or the
version of a protocol, seldom depends on the backend. A test on one backend has both. Of more variants, only these two
run; CI runs all.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option with which `.ci/run` leaves out exhaustive variants."""
    parser.addoption("--sample", type=int, metavar="SEED", help="run every eighth exhaustive variant of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and restore the handling of Ctrl-C for programs that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's `&` ignores it, and children inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("asyncio").addFilter(_is_no_stop_of_hypothesis)
    config.addinivalue_line(
        "markers", "real_clock: run on a real clock, because threads, processes or sockets are involved"
    )
    config.addinivalue_line(
        "markers",
        "exhaustive: every variant, real servers, kills, soak; left out unless `-m exhaustive` asks for it, as CI does",
    )
    config.addinivalue_line("markers", "every_variant: leave out no parameter of this test, each is another subject")
    config.addinivalue_line("markers", "hangs_after(seconds): end the test after this time on its clock")
    config.addinivalue_line("markers", "backends(*names): run on these only; 'asyncio' stands for all of its variants")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker more than there are processors, because a third of the suite's time is spent waiting."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return available + 1


def _is_no_stop_of_hypothesis(record: logging.LogRecord) -> bool:
    """Let `StopTest`, by which hypothesis ends an example that draws data, pass without a log record.

    It ends anyio's runner task, and asyncio says so when that is collected. To print the traceback it compiles
    code, and if the collector ran within a compilation, CPython 3.11 raises SystemError ("AST constructor
    recursion depth mismatch", python/cpython#106905).
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], StopTest)


# The duration of an example depends on the machine, and is no property of the project.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("exhaustive", deadline=None)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: Any) -> None:
    """Leave every async test to anyio's plugin, except tests that are marked for pytest-trio."""
    # Not anyio_mode = "auto", which would take the tests of pytest-trio as well.
    if not collector.istestfunction(obj, name):
        return
    inner = obj.hypothesis.inner_test if hasattr(obj, "hypothesis") else obj
    mark_names = {mark.name for mark in getattr(obj, "pytestmark", ())}
    if iscoroutinefunction(inner) and "trio" not in mark_names and not collector.get_closest_marker("trio"):
        pytest.mark.anyio(obj)
        pytest.mark.usefixtures("anyio_backend")(obj)


def _are_named(config: pytest.Config) -> bool:
    """Whether the command line names the tests to run."""
    return any("::" in argument for argument in config.args)


def _chosen(group: Sequence[pytest.Item], backend_name: str, number_of_backends: int) -> Sequence[pytest.Item]:
    """Return the variants of a test that run on one of its backends by default."""
    if len(group) == 2 and (number_of_backends == 1 or BOTH_VARIANTS & set(group[0].path.parts)):
        return group
    return group[-1:] if "trio" in backend_name else group[:1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `anyio_backend` its parameters, unless the test has its own."""
    definition = metafunc.definition
    by_hand = (str(mark.args[0]) for mark in definition.iter_markers("parametrize") if mark.args)
    if "anyio_backend" not in metafunc.fixturenames or any("anyio_backend" in names for names in by_hand):
        return
    real_clock = definition.get_closest_marker("real_clock") is not None
    only = definition.get_closest_marker("backends")
    names = [
        name
        for name in backend_names(real_clock=real_clock)
        if only is None or name in only.args or name.partition("-")[0] in only.args
    ]
    is_default = metafunc.config.option.markexpr == DEFAULT and "asyncio" in names
    if is_default or WITHOUT_LOOP_VARIANTS & set(definition.path.parts):
        names = [name for name in names if name in MAIN_BACKENDS]
    makers = [pytest.param((name, real_clock), id=name, marks=_marks(name, names)) for name in names]
    metafunc.parametrize("anyio_backend", makers, indirect=True)


def _marks(name: str, names: Sequence[str]) -> Sequence[pytest.MarkDecorator]:
    """Leave variants of asyncio, such as uvloop, to the exhaustive run, where asyncio itself runs the test, too."""
    return (pytest.mark.exhaustive,) if name not in MAIN_BACKENDS and "asyncio" in names else ()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give pytest-timeout the time of `hangs_after`, where the clock is real: its own would end the test before."""
    mark = item.get_closest_marker("hangs_after")
    if mark is None or not isinstance(item, pytest.Function):
        return
    test = item.obj.hypothesis.inner_test if hasattr(item.obj, "hypothesis") else item.obj
    if item.get_closest_marker("real_clock") or not iscoroutinefunction(test):
        item.add_marker(pytest.mark.timeout(max(float(mark.args[0]) + 20, float(item.config.getini("timeout")))))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the variants for the exhaustive run, and leave out those that are not in the sample."""
    if _are_named(config):
        return
    _mark_exhaustive(items)
    if config.option.markexpr == DEFAULT:  # before pytest sorts all items, and evaluates the expression for each
        _keep(config, items, [item for item in items if item.get_closest_marker("exhaustive") is None])
    elif (seed := config.getoption("--sample")) is not None:
        _keep(config, items, _draw_sample(items, seed))


def _mark_exhaustive(items: Sequence[pytest.Item]) -> None:
    """Leave all but one or two variants of each test to the exhaustive run."""
    variants: dict[tuple[Path, str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("exhaustive") is None:
            name, backend_name = item.originalname, ""
            if hasattr(item, "callspec"):
                # A sync test that starts a program gives it a backend by a parameter.
                by_hand = item.callspec.params.get("backend", "") if TAKE_TURNS & set(item.path.parts) else ""
                backend_name = str(item.callspec.params.get("anyio_backend", by_hand))
                if item.get_closest_marker("every_variant"):  # a test of its own
                    name += repr({**item.callspec.params, "anyio_backend": None})
            variants[item.path, name, backend_name].append(item)
    numbers: dict[Path, dict[str, int]] = defaultdict(dict)
    backends = Counter((path, name) for path, name, _ in variants)
    for (path, name, backend_name), group in variants.items():
        chosen = _chosen(group, backend_name, backends[path, name])
        number = numbers[path].setdefault(name, len(numbers[path]))
        takes_turns = bool(TAKE_TURNS & set(path.parts)) and backends[path, name] > 1
        is_others_turn = takes_turns and MAIN_BACKENDS[number % 2] not in backend_name
        for item in group:
            is_left_out = is_others_turn and item.get_closest_marker("backends") is None
            if is_left_out or item not in chosen:
                item.add_marker(pytest.mark.exhaustive)


def _draw_sample(items: Sequence[pytest.Item], seed: int) -> Sequence[pytest.Item]:
    """Return the items without the exhaustive variants that are not in the sample of this seed."""
    variants: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("exhaustive"):
            variants[item.path, item.originalname].append(item.nodeid)
    sample = {nodeid for group in variants.values() for nodeid in sample_of(group, seed)}
    left_out = {nodeid for group in variants.values() for nodeid in group} - sample
    return [item for item in items if item.nodeid not in left_out]


def _keep(config: pytest.Config, items: list[pytest.Item], sample: Sequence[pytest.Item]) -> None:
    """Deselect all other items."""
    config.hook.pytest_deselected(items=list(set(items) - set(sample)))
    items[:] = sample


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without searches for garbage, and freeze the result: a search in a test takes milliseconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Refuse async fixtures that outlive a test."""
    # While an async fixture is alive, anyio runs every test on its loop, so real_clock tests would run on a virtual
    # clock.
    is_async = iscoroutinefunction(fixturedef.func) or isasyncgenfunction(fixturedef.func)
    if is_async and fixturedef.scope != "function":
        pytest.fail(f"the async fixture {fixturedef.argname} must have the scope of one test", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """End an async test that hangs, by a cancel scope without a deadline, which code under test could read."""
    if (seconds := _time_limit(pyfuncitem)) is None:
        return
    obj = pyfuncitem.obj
    if not hasattr(obj, "hypothesis"):
        pyfuncitem.obj = _end_if_it_hangs(obj, seconds) if iscoroutinefunction(obj) else obj
    elif OWN_BOUNDS & set(pyfuncitem.path.parts):
        return  # these look at the tasks of the event loop, of which one would be the bound's
    elif iscoroutinefunction(inner := obj.hypothesis.inner_test) and not hasattr(inner, "__wrapped__"):
        obj.hypothesis.inner_test = _end_if_it_hangs(inner, seconds)


def _time_limit(item: pytest.Function) -> float | None:
    """Return the seconds after which a test hangs, on its clock; `None` leaves it to pytest-timeout."""
    packages = set(item.path.parts)
    if mark := item.get_closest_marker("hangs_after"):
        return float(mark.args[0])
    if item.get_closest_marker("real_clock") is None:
        return HANGS_AFTER_VIRTUAL if BOUNDED_ON_VIRTUAL_CLOCKS & packages else None
    return getattr(item.module, "WAIT", HANGS_AFTER) if OWN_BOUNDS & packages else HANGS_AFTER


def _end_if_it_hangs(test: Any, seconds: float) -> Any:
    @wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        with anyio.CancelScope() as scope:
            if sniffio.current_async_library() == "trio":
                trio.lowlevel.spawn_system_task(_cancel_later, scope, seconds)
            else:
                timer = asyncio.get_running_loop().call_later(seconds, scope.cancel)
            await test(*args, **kwargs)
            if sniffio.current_async_library() == "asyncio":
                timer.cancel()
        if scope.cancelled_caught:
            pytest.fail(f"the test hung for {seconds} s")

    return run


async def _cancel_later(scope: anyio.CancelScope, seconds: float) -> None:
    await trio.sleep(seconds)
    scope.cancel()


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """The backend of the test. It has module scope, because hypothesis refuses fixtures with function scope."""
    name, real_clock = request.param
    return backend(name, real_clock=real_clock)


@pytest.fixture(autouse=True)
def _fresh_clock(request: pytest.FixtureRequest) -> None:
    """Start each test on trio with a new virtual clock at its beginning."""
    if "anyio_backend" not in request.fixturenames:
        return
    chosen = request.getfixturevalue("anyio_backend")
    if isinstance(chosen, tuple) and "clock" in chosen[1]:
        chosen[1].update(backend("trio")[1])


@pytest.fixture
def no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Disable the garbage collector and the watchdog, which refers to frames, so that a test can see the garbage."""
    monkeypatch.setattr(_watchdog.LoopMonitor, "enter_batch", lambda monitor: None)
    monkeypatch.setattr(_watchdog.LoopMonitor, "leave_batch", lambda monitor: None)
    gc.collect()
    gc.freeze()  # exclude older objects from all further collections
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
