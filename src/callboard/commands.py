"""Helpers for packages that add commands to `callboard`: import of an object that the command line names.

A command is a function of the arguments behind its name. A distribution registers it as an entry point in the group
`callboard.commands`.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["NotThereError", "load_named"]


class NotThereError(ValueError):
    """Raised if a command line names a module or attribute that does not exist, or if the name has the wrong form.

    Args:
        reason: a clause without a full stop.
        module: the module, if it was found and only the attribute was not.
    """

    def __init__(self, reason: str, module: ModuleType | None = None) -> None:
        super().__init__(reason)
        self.module = module


def load_named(name: str, app_dir: Path, *, example: str) -> tuple[ModuleType, Any]:
    """Import the module that a command line names; return the module and the named attribute.

    Without an attribute in the name, return the module twice.

    Args:
        name: `module` or `module:attribute`; the attribute may contain dots.
        app_dir: folder in which modules are looked up first; it stays in `sys.path`.
        example: usual attribute for this command, such as "agent"; for errors.

    Raises:
        NotThereError: if the module or the attribute does not exist.
        Exception: any error of the module's import.
    """
    module_name, _, attribute = name.partition(":")
    _check(module_name, name, example)
    target: Any = (module := _module(module_name, app_dir))
    for part in attribute.split(".") if attribute else ():
        if not hasattr(target, part):
            raise NotThereError(f"{module_name} has no {attribute!r}", module)
        target = getattr(target, part)
    return module, target


def _check(module_name: str, name: str, example: str) -> None:
    if module_name.endswith(".py") or "/" in module_name:
        such_as = f"{Path(module_name).stem}:{example}"
        raise NotThereError(f"{name!r} is a path; write the module, such as {such_as}, and --app-dir for its folder")
    if not all(part.isidentifier() for part in module_name.split(".")):
        such_as = f"trip:{example} for `{example}` in trip.py"
        raise NotThereError(f"{module_name!r} names no module; write module:{example}, such as {such_as}")


def _module(name: str, app_dir: Path) -> ModuleType:
    directory = str(app_dir.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()  # the program may have written the module a moment ago
    try:
        module = importlib.import_module(name)
    except SystemExit as error:
        # Otherwise the command would end with the code of the module, as if it had succeeded.
        remedy = 'what a script does belongs under `if __name__ == "__main__":`'
        raise ImportError(f"{name} calls sys.exit({error.code!r}) when it is imported; {remedy}") from error
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module exists, and one of its own imports is missing
        modules = sorted(path.stem for path in app_dir.glob("*.py"))
        content = f"its modules: {', '.join(modules[:20])}" if modules else "which has no modules"
        raise NotThereError(f"there is no module {missing!r}; looked in {directory} first ({content})") from None
    _check_place(name, app_dir)
    return module


def _check_place(name: str, app_dir: Path) -> None:
    """Raise `NotThereError` if `app_dir` has a module of this name that another one, which is loaded, hides."""
    top_name = name.partition(".")[0]
    loaded_module: object = sys.modules[top_name]
    if not isinstance(loaded_module, ModuleType):
        return  # a module may put another object in its own place
    loaded_file = loaded_module.__file__
    # A package of the folder hides a module of the folder, and a compiled module its source.
    if loaded_file and Path(loaded_file).resolve().parent in (app_dir.resolve(), (app_dir / top_name).resolve()):
        return
    for file in (app_dir / f"{top_name}.py", app_dir / top_name / "__init__.py"):
        if file.is_file():
            other_module = f"the module {loaded_file}" if loaded_file else "a module of Python"
            raise NotThereError(f"{file} cannot be imported, because {other_module} has its name; rename the file")
