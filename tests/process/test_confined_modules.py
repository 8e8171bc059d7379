"""Confined workers cannot read files beside a program's own modules unless their folder is named."""

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard_actors.process import Confine, Processes
from callboard_actors.process._confinement import _readable

from ._processes import WAIT, open_pool

pytestmark = pytest.mark.real_clock

SECRET = "a-key-of-this-program"

_OWN = """
def double(x: int) -> int:
    return 2 * x

def late(x: int) -> int:
    import own_neighbour
    return own_neighbour.double(x)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create the folder of a script, which is the first entry of `sys.path` and the working directory."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "public").write_text("public")
    (folder / ".env").write_text(f"KEY={SECRET}\n")
    (folder / "own_secrets.py").write_text(f"KEY = {SECRET!r}\n")
    (folder / "own_module.py").write_text(_OWN)
    (folder / "own_neighbour.py").write_text(_OWN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    invalidate_caches()
    yield folder
    for name in ("own_module", "own_neighbour", "own_secrets"):
        sys.modules.pop(name, None)


def secrets_of(project: Path) -> list[str]:
    return [str(project / name) for name in (".env", "own_secrets.py")]


async def test_a_pool_with_a_folder_to_read_cannot_read_what_lies_beside_the_script(project: Path) -> None:
    """`Confine(read=["data"])` opens that folder, not every entry of `sys.path`."""
    async with open_pool(confine=Confine(read=["data"])) as pool:
        assert await pool.run(Path.read_text, project / "data" / "public") == "public"
        for path in secrets_of(project):
            with pytest.raises(OSError, match=r"Permission denied|No such file"):
                await pool.run(Path.read_text, Path(path))


async def test_a_module_that_is_preloaded_needs_no_folder(project: Path) -> None:
    """A preloaded module is imported before the confinement, so its folder can stay closed."""
    own_module: Any = import_module("own_module")
    async with open_pool(preload=["own_module"], confine=Confine()) as pool:
        assert await pool.run(own_module.double, 21) == 42
        with pytest.raises(PermissionError):
            await pool.run(Path.read_text, project / ".env")


async def test_a_folder_of_modules_that_is_named_can_be_loaded_from(project: Path) -> None:
    """Every file in a named folder becomes readable, which the program has to accept explicitly."""
    own_module: Any = import_module("own_module")
    async with open_pool(confine=Confine(modules=["."])) as pool:
        assert await pool.run(own_module.late, 21) == 42


async def test_a_module_that_is_not_named_is_an_error_with_the_remedy(project: Path) -> None:
    """The error covers the module of the function itself and modules that the function imports later."""
    own_module: Any = import_module("own_module")
    with anyio.fail_after(WAIT):
        async with Processes(workers=1, confine=Confine()) as pool:
            with pytest.raises((ImportError, PermissionError), match=r"preload=.* Confine\(modules=\[\.\.\.\]\)"):
                await pool.run(own_module.double, 21)
        async with Processes(workers=1, preload=["own_module"], confine=Confine()) as pool:
            with pytest.raises((ImportError, PermissionError), match=r"preload=.* Confine\(modules=\[\.\.\.\]\)"):
                await pool.run(own_module.late, 21)


def test_a_shared_library_of_the_program_opens_no_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file of a C module beside the script becomes readable; its folder may contain a `.env`."""
    library = project / "own.cpython-311-x86_64-linux-gnu.so"
    library.write_bytes(b"")
    monkeypatch.setattr(_readable, "_library_files", lambda: {str(library)})
    paths = _readable.always_readable((), network=False)
    assert str(library) in paths
    assert str(project) not in paths
