"""Functions and classes of a script's `__main__` in workers: most first programs define their tools there."""

import subprocess
import sys
from pathlib import Path

import pytest

from ._processes import WAIT

pytestmark = pytest.mark.real_clock

_HEAD = """
import os, sys
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

import anyio

from callboard import Actor, ActorStartError, child, handler, running
from callboard_actors.process import Confine, Processes, WorkerCallError

with suppress(PermissionError), open({log!r}, "a") as log:
    log.write("loaded by " + __name__ + "\\n")


class Color(Enum):
    RED = 1


@dataclass
class Point:
    x: int
    color: Color

    def moved(self, by: int) -> "Point":
        return Point(self.x + by, self.color)


class Oops(Exception):
    pass


class Desk(Actor):
    def __init__(self, first: Point) -> None:
        self.points = [first]

    @handler
    async def put(self, point: Point) -> list[Point]:
        '''Put a point there.'''
        if point.x < 0:
            raise Oops("negative")
        self.points.append(point)
        return self.points


def point(x: int) -> Point:
    return Point(x, Color.RED)


def fail(x: int) -> None:
    raise Oops(x)


def pid() -> int:
    return os.getpid()


async def nested(backend: str) -> Point:
    async with Processes(workers=1) as pool:
        found = await pool.run(point, 5)
        assert type(found) is Point
        assert await pool.run(pid) != os.getpid()
        return found


{more}
"""

_TOOLS = f"""
from langchain_core.tools import tool

from callboard import CallPolicy, ToolNode
from callboard.testing import calls


@tool
def double(x: int) -> str:
    "Double it."
    return f"{{2 * x}} {{'here' if __name__ == '__main__' else 'there'}}"


@tool
async def halve(x: int) -> str:
    "Halve it."
    await anyio.sleep(0)
    return f"{{x // 2}} {{'here' if __name__ == '__main__' else 'there'}}"


def in_pool(*given, confine=None):
    pool = Processes(workers=1, confine=confine)
    return ToolNode(list(given), policies={{one.name: CallPolicy(runs_in=pool, timeout={WAIT}) for one in given}})
"""
"""Only for programs with tools, because LangChain takes longest to import in every process."""

_GUARDED = """
async def main() -> None:
{body}


if __name__ == "__main__":
    def late() -> int:
        return 1

    anyio.run(main, backend={backend!r})
"""


def _script(folder: Path, body: str, *, backend: str = "asyncio", extra: str = "", tail: str = _GUARDED) -> Path:
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    text = _HEAD.format(log=str(folder / "log"), more=extra) + tail.format(body=indented, backend=backend)
    path = folder / "program.py"
    path.write_text(text)
    return path


def _run(*arguments: object, cwd: Path, stdin_text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(str(argument) for argument in arguments)]
    return subprocess.run(
        command, cwd=cwd, input=stdin_text, capture_output=True, text=True, timeout=WAIT * 2, check=False
    )


def _passes(*arguments: object, cwd: Path) -> None:
    result = _run(*arguments, cwd=cwd)
    assert (result.returncode, result.stdout.strip()) == (0, "passed"), result.stdout + result.stderr


def _loads(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


_VALUES = """
async with Processes(workers=1) as pool:
    found = await pool.run(point, 3)
    assert type(found) is Point and found.color is Color.RED, found
    assert await pool.run(found.moved, 2) == Point(5, Color.RED)
    try:
        await pool.run(fail, 4)
    except Oops as error:
        assert type(error) is Oops and error.args == (4,)
    else:
        assert False
print("passed")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_a_script_defines_runs_in_workers_and_comes_back_as_itself(tmp_path: Path, backend: str) -> None:
    """Functions, methods, dataclasses, enums and exceptions work; each worker loads the script on first use."""
    _passes(_script(tmp_path, _VALUES, backend=backend), cwd=tmp_path)
    assert _loads(tmp_path) == ["loaded by __main__", "loaded by __mp_main__"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tools_of_a_script_run_in_workers_which_load_it_once_for_all(tmp_path: Path, backend: str) -> None:
    """The node checks its tools before the pool opens, so that the script can be preloaded once."""
    body = """
async with in_pool(double, halve) as node:
    for _ in range(2):
        found = await node.ainvoke({"messages": [calls(("double", {"x": 21}), ("halve", {"x": 42}))]})
        assert [one.content for one in found["messages"]] == ["42 there", "21 there"], found
print("passed")
"""
    _passes(_script(tmp_path, body, backend=backend, extra=_TOOLS), cwd=tmp_path)
    assert _loads(tmp_path) == ["loaded by __main__", "loaded by __mp_main__"]


_BARE = """
async def main() -> None:
{body}


anyio.run(main, backend={backend!r})
"""


@pytest.mark.parametrize(
    "body",
    [
        "async with Processes() as pool:\n    await pool.run(pid)",
        pytest.param(
            "async with in_pool(double) as node:\n    await node.ainvoke({'messages': [calls(('double', {'x': 1}))]})",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "try:\n"
            "    async with in_pool(double) as node:\n"
            "        await node.ainvoke({'messages': [calls(('double', {'x': 1}))]})\n"
            "except ActorStartError as error:\n"
            "    if __name__ == '__main__':\n"
            "        raise",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["functions", "tools", "refusal handled"],
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_without_a_guard_is_told_to_have_one(tmp_path: Path, body: str, backend: str) -> None:
    """Without the guard each worker would run the script and start more workers, even if the error is ignored."""
    extra = _TOOLS if "in_pool" in body else ""
    result = _run(_script(tmp_path, body, backend=backend, extra=extra, tail=_BARE), cwd=tmp_path)
    assert result.returncode == 1
    assert "program.py opens a pool while a worker process loads it as its main module" in result.stderr
    assert 'below `if __name__ == "__main__":`' in result.stderr, result.stderr
    assert len(_loads(tmp_path)) == 2


_INLINE = """
import anyio
from callboard_actors.process import Processes

def add(x):
    return x

try:
    Processes().check(add, title="add")
except TypeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "source",
    ["-c", pytest.param("stdin", marks=pytest.mark.exhaustive), pytest.param("package", marks=pytest.mark.exhaustive)],
)
def test_what_no_worker_could_load_is_refused_with_a_remedy(tmp_path: Path, source: str) -> None:
    """Code without a file, and the `__main__` of a package, which usually has no guard, are refused."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(_INLINE)
    arguments, stdin_text = {
        "-c": (["-c", _INLINE], None),
        "stdin": (["-"], _INLINE),
        "package": (["-m", "package"], None),
    }[source]
    result = _run(*arguments, cwd=tmp_path, stdin_text=stdin_text)
    assert "'add' cannot run in a worker process" in result.stdout, result.stdout + result.stderr
    assert "add is defined in __main__, which is no script" in result.stdout
    assert "move it into a module" in result.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_module_run_by_its_name_is_loaded_by_its_name(tmp_path: Path, backend: str) -> None:
    """A module run with `-m` keeps its package, so that its relative imports work."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "neighbour.py").write_text("value = 7")
    _script(folder, f"from . import neighbour\n{_VALUES}", backend=backend, extra="from .neighbour import value")
    _passes("-m", "package.program", cwd=tmp_path)
    assert _loads(folder) == ["loaded by __main__", "loaded by __mp_main__"]


_PROGRAMS = {
    "an actor": """
async with Processes(workers=1) as pool, running(child(Desk, point(1), runs_in=pool)) as desk:
    found = await desk.put(point(2))
    assert found == [point(1), point(2)], found
    try:
        await desk.put(point(-1))
    except Oops as error:
        assert str(error) == "negative"
    else:
        assert False
""",
    "confined tools": """
async with in_pool(double, confine=Confine()) as node:
    found = await node.ainvoke({"messages": [calls(("double", {"x": 21}))]})
    assert found["messages"][0].content == "42 there", found
""",
    "confined functions": """
async with Processes(workers=1, confine=Confine(modules=["."])) as pool:
    assert await pool.run(point, 3) == point(3)
    try:
        await pool.run(fail, 3)
    except WorkerCallError as error:
        assert error.type_name == "Oops"
    else:
        assert False
async with Processes(workers=1, confine=Confine()) as pool:
    try:
        await pool.run(point, 3)
    except RuntimeError as error:
        assert "name it in Confine(read=[...])" in str(error), error
    else:
        assert False
async with Processes(workers=1, confine=Confine(read=[__file__])) as pool:
    assert await pool.run(point, 3) == point(3)
async with Processes(workers=1, preload=["__main__"], confine=Confine()) as pool:
    assert await pool.run(point, 3) == point(3)
""",
    "a pool inside of a worker": """
async with Processes(workers=1) as pool:
    found = await pool.run(nested, "asyncio")
    assert type(found) is Point and found == point(5), found
for _ in range(500):
    if not children():
        break
    await anyio.sleep(0.01)
assert not children(), children()
""",
    "what is below the guard": """
async with Processes(workers=1) as pool:
    try:
        await pool.run(late)
    except AttributeError as error:
        assert "late is not in" in str(error) and "define it above `if __name__" in str(error), error
    else:
        assert False
""",
    "text about main": """
async with Processes(workers=1) as pool:
    assert await pool.run(len, "if __name__ == '__main__': main()") == 33
with open(LOG) as log:
    assert log.read() == "loaded by __main__\\n"
""",
}

_MORE = """
from pathlib import Path

LOG = {log!r}

def children():
    return Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_script_is_a_module_as_good_as_any(tmp_path: Path, program: str, backend: str) -> None:
    """Definitions of a script work in every use of workers; a confined worker needs read access to the script."""
    extra = _MORE.format(log=str(tmp_path / "log")) + (_TOOLS if "in_pool" in _PROGRAMS[program] else "")
    _passes(_script(tmp_path, f"{_PROGRAMS[program]}\nprint('passed')", backend=backend, extra=extra), cwd=tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("effect", "message"),
    [
        ("raise ValueError('no display')", "ValueError(no display)"),
        ("sys.exit(3)", "SystemExit(3)"),
        ("anyio.run(anyio.sleep, 0); input()", "EOFError"),
    ],
)
@pytest.mark.parametrize("checked", [True, False])
def test_a_script_that_cannot_be_loaded_fails_its_calls_once_and_says_why(
    tmp_path: Path, effect: str, message: str, checked: bool
) -> None:
    """Each call would repeat the script's side effects; functions of other modules still run."""
    body = f"""
pool = Processes(workers=1)
if {checked}:
    pool.check(pid, title="pid")
async with pool:
    for _ in range(2):
        try:
            await pool.run(pid)
        except RuntimeError as error:
            assert {message!r} in str(error) and 'below `if __name__' in str(error), error
        else:
            assert False
    assert await pool.run(len, "four") == 4
print("passed")
"""
    _passes(_script(tmp_path, body, extra=f"if __name__ != '__main__':\n    {effect}"), cwd=tmp_path)
    assert _loads(tmp_path) == ["loaded by __main__", "loaded by __mp_main__"]


@pytest.mark.exhaustive
def test_a_script_that_starts_a_thread_is_loaded_by_each_worker(tmp_path: Path) -> None:
    """A fork would lose the thread, so the zygote must not preload the script."""
    extra = f"{_TOOLS}\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    body = """
async with in_pool(double) as node:
    found = await node.ainvoke({"messages": [calls(("double", {"x": 21}))]})
    assert found["messages"][0].content == "42 there", found
print("passed")
"""
    _passes(_script(tmp_path, body, extra=extra), cwd=tmp_path)


@pytest.mark.exhaustive
def test_a_script_that_never_ends_is_told_of_the_guard_in_time(tmp_path: Path) -> None:
    """A script that runs a server without a guard would never finish loading in a worker."""
    body = """
pool = Processes(workers=1, start_timeout=2.0)
pool.check(pid, title="pid")
try:
    async with pool:
        assert False
except ActorStartError as error:
    assert "it was not ready within 2 s; it loads __main__" in str(error), error
print("passed")
"""
    _passes(_script(tmp_path, body, extra="if __name__ != '__main__':\n    anyio.run(anyio.sleep, 60)"), cwd=tmp_path)
