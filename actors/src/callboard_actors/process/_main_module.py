"""The main module of a program, which workers load by themselves: there it is `__mp_main__`, as in `multiprocessing`.

So what is below `if __name__ == "__main__":` is not run again. Classes that come back from there are those of
`__main__` here.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = "__main__"
_THERE = "__mp_main__"
NAMES = frozenset({HERE, _THERE})
"""What it is called where the program began, and in workers."""
_GUARD = 'put what it does, and does not only define, below `if __name__ == "__main__":`'


@dataclass(frozen=True, slots=True)
class MainModule:
    """Where a main module is loaded from."""

    path: str
    name: str | None = None
    """By which it is found, if it was started by `python -m`."""


def main_module() -> MainModule | None:
    """The main module of this program; `None` where no other process could load it, as in a REPL."""
    if _copy is not None:
        return _copy.source
    module = sys.modules[HERE]
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not Path(path).is_file():
        return None
    name = getattr(module.__spec__, "name", None)
    if name is not None and name.rpartition(".")[2] == HERE:
        return None  # that of a package, a folder or an archive; those do without a guard
    return MainModule(str(Path(path).absolute()), name)


class _Copy:
    """The main module of the program in one of its other processes, as soon as it is needed."""

    def __init__(self, source: MainModule) -> None:
        self.source = source
        self.is_loading = False
        self.is_unguarded = False
        self._module: ModuleType | None = None
        self._failure: str | None = None

    def module(self) -> ModuleType:
        """Load it, once; so what failed is not done again.

        Raises:
            RuntimeError: it cannot be loaded.
        """
        if self.is_loading:
            return sys.modules[_THERE]
        if self._module is None and self._failure is None:
            self._load()
        if self._module is None:
            raise RuntimeError(self._failure)
        return self._module

    def _load(self) -> None:
        self.is_loading = True
        try:
            module = _run(self.source)
        except (Exception, SystemExit) as error:
            said = f"{self.source.path} cannot be loaded as the main module of a worker process: {_told(error)}"
            self._failure = f"{said}; {_remedy(error, self.source.path)}"
        else:
            self._module = module
        finally:
            self.is_loading = False
        if self.is_unguarded:  # whatever it has made of the error
            self._module, self._failure = None, self.unguarded()
        if self._module is not None:
            # Its code may still be running, and needs what is in it.
            _former.append(sys.modules[HERE])
            sys.modules[HERE] = sys.modules[_THERE] = self._module

    def unguarded(self) -> str:
        """Say what it should not have done."""
        return f"{self.source.path} opens a pool while a worker process loads it as its main module; {_GUARD}"


def _told(error: BaseException) -> str:
    return f"{type(error).__qualname__}({error})"


def _remedy(error: BaseException, path: str) -> str:
    if isinstance(error, PermissionError) and error.filename == path:
        return "where it has to be read in confinement, name it in Confine(read=[...])"
    return f"if it runs what only the program should, {_GUARD}"


_copy: _Copy | None = None
_former: list[ModuleType] = []


def _run(source: MainModule) -> ModuleType:
    # As late as that, because few need them. To load `multiprocessing` is to set `__mp_main__`, so that is done before.
    import multiprocessing as multiprocessing
    import runpy

    if source.name is None:
        content = runpy.run_path(source.path, run_name=_THERE)
    else:
        content = runpy.run_module(source.name, run_name=_THERE, alter_sys=True)
    module = ModuleType(_THERE)
    vars(module).update(content)
    return module


def expect(source: MainModule | None) -> None:
    """Have it loaded in this process when it is needed; zygotes do so, and their workers."""
    global _copy
    _copy = None if source is None else _Copy(source)


def why_no_pool() -> str | None:
    """Say why no pool may be opened now, if that is so: it would load the main module, which would open one."""
    if _copy is None or not _copy.is_loading:
        return None
    _copy.is_unguarded = True
    return _copy.unguarded()


def is_unguarded() -> bool:
    """Whether the main module tried to open a pool when it was loaded here."""
    return _copy is not None and _copy.is_unguarded


def module_named(name: str) -> ModuleType:
    """Find a module, or load it; the main module is the program's, by either name.

    Raises:
        RuntimeError: the main module cannot be loaded here.
    """
    if name in NAMES:
        return sys.modules[HERE] if _copy is None else _copy.module()
    return sys.modules.get(name) or importlib.import_module(name)


def missing(qualname: str) -> str:
    """Say that something is not in the main module."""
    if _copy is None:
        return f"{qualname} is defined in __main__, where nothing has that name; move it into a module"
    return (
        f"{qualname} is not in {_copy.source.path} as worker processes load it; "
        f'define it above `if __name__ == "__main__":`, or move it into a module'
    )
