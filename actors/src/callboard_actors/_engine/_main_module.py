"""Main module of the program, which workers load under the name `__mp_main__`, as in `multiprocessing`.

So code below `if __name__ == "__main__":` does not run again. When classes of it come back in replies, they are found
in `__main__` of this program.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

MAIN_NAME = "__main__"
_WORKER_MAIN_NAME = "__mp_main__"
MAIN_NAMES = frozenset({MAIN_NAME, _WORKER_MAIN_NAME})
"""Names of the main module: in the program, and in its workers."""
_GUARD_REMEDY = 'put what it does, and does not only define, below `if __name__ == "__main__":`'


@dataclass(frozen=True, slots=True)
class MainModule:
    """Origin of a main module: the path of its file, and its module name if it was started by `python -m`."""

    path: str
    name: str | None = None
    """Module name, if the program was started by `python -m`."""


def main_module() -> MainModule | None:
    """Return the path and name of this program's main module; `None` if workers cannot load it, as in a REPL."""
    # A worker that opens a pool itself: its workers load the same file.
    if _main_copy is not None:
        return _main_copy.source
    module = sys.modules[MAIN_NAME]
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not Path(path).is_file():
        return None
    name = getattr(module.__spec__, "name", None)
    if name is not None and name.rpartition(".")[2] == MAIN_NAME:
        return None  # `__main__.py` of a package, folder or archive usually has no guard
    return MainModule(str(Path(path).absolute()), name)


class _MainCopy:
    """Copy of the program's main module in a zygote or worker, loaded on demand."""

    def __init__(self, source: MainModule) -> None:
        self.source = source
        self.is_loading = False
        self.is_unguarded = False
        self._module: ModuleType | None = None
        # Kept, so that a script with side effects is not run again at each call.
        self._failure: str | None = None

    def load(self) -> ModuleType:
        """Load the main module once and return it; raise `RuntimeError` if that fails, or has failed before."""
        # A circular reference: the script unpickles something of itself while it runs.
        if self.is_loading:
            return sys.modules[_WORKER_MAIN_NAME]
        if self._module is None and self._failure is None:
            self.is_loading = True
            try:
                # Imported late, because few programs need it. `prepare` runs the module as `__mp_main__`, puts it in
                # the place of `__main__`, and keeps the former one, whose code may still be running.
                from multiprocessing import spawn

                by_path, by_name = {"init_main_from_path": self.source.path}, {"init_main_from_name": self.source.name}
                spawn.prepare(by_path if self.source.name is None else by_name)
            except (Exception, SystemExit) as error:
                path, reason = self.source.path, f"{type(error).__qualname__}({error})"
                remedy = f"if it runs what only the program should, {_GUARD_REMEDY}"
                if isinstance(error, PermissionError) and error.filename == path:
                    remedy = "where it has to be read in confinement, name it in Confine(read=[...])"
                self._failure = f"{path} cannot be loaded as the main module of a worker process: {reason}; {remedy}"
            else:
                self._module = sys.modules[MAIN_NAME]
            finally:
                self.is_loading = False
            if self.is_unguarded:  # even if the script has caught the error of the pool that it tried to open
                self._module, self._failure = None, self.missing_guard_text()
        if self._module is None:
            raise RuntimeError(self._failure)
        return self._module

    def missing_guard_text(self) -> str:
        """Return the error text for a script that opens a pool while it is loaded."""
        return f"{self.source.path} opens a pool while a worker process loads it as its main module; {_GUARD_REMEDY}"


_main_copy: _MainCopy | None = None
"""Copy of the program's main module in this zygote or worker; `None` in the program itself."""


def register_main_module(source: MainModule | None) -> None:
    """Register the program's main module, to be loaded on demand; `source` is `None` if the module cannot be loaded."""
    global _main_copy
    _main_copy = None if source is None else _MainCopy(source)


def reason_against_pool() -> str | None:
    """Return an error text if the main module is being loaded now: it must not open a pool. Otherwise return `None`."""
    # A pool that the main module opens at that time would load it again, without end. The attempt is recorded.
    if _main_copy is None or not _main_copy.is_loading:
        return None
    _main_copy.is_unguarded = True
    return _main_copy.missing_guard_text()


def is_main_unguarded() -> bool:
    """Return whether the main module tried to open a pool while this process loaded it."""
    return _main_copy is not None and _main_copy.is_unguarded


def load_module(name: str) -> ModuleType:
    """Return the module with this name, loaded if necessary; `__main__` means the main module of the program."""
    if name in MAIN_NAMES:
        return sys.modules[MAIN_NAME] if _main_copy is None else _main_copy.load()
    return sys.modules.get(name) or importlib.import_module(name)


def missing_name_text(qualname: str) -> str:
    """Return the error text for a name that the main module lacks."""
    if _main_copy is None:
        return f"{qualname} is defined in __main__, where nothing has that name; move it into a module"
    return (
        f"{qualname} is not in {_main_copy.source.path} as worker processes load it; "
        f'define it above `if __name__ == "__main__":`, or move it into a module'
    )
