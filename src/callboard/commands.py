"""For those who write commands of `callboard`: what `module:name` on a command line names.

A command is a function of the arguments behind its name, which a distribution has as an entry point in the group
`callboard.commands`.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["NotThereError", "load_named"]


class NotThereError(ValueError):
    """A command line names what is not there; the text says what was looked for, and where.

    Args:
        reason: a clause without a full stop.
        module: the one that was found, if only the name in it was not.
    """

    def __init__(self, reason: str, module: ModuleType | None = None) -> None:
        super().__init__(reason)
        self.module = module


def load_named(name: str, app_dir: Path, *, example: str) -> tuple[ModuleType, Any]:
    """Find the module that is named, and what in it is: the module itself, where nothing in it is named.

    Args:
        name: `module` or `module:attribute`; the attribute may have dots.
        app_dir: where modules are looked for first; stays in `sys.path`.
        example: what such a command is usually given, such as "agent"; for errors.

    Raises:
        NotThereError: there is no such thing.
        Exception: what the module raises while it is imported.
    """
    module_name, _, attribute = name.partition(":")
    _check(module_name, name, example)
    found: Any = (module := _module(module_name, app_dir))
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            raise NotThereError(f"{module_name} has no {attribute!r}", module)
        found = getattr(found, part)
    return module, found


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
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module is there, and imports something that is not
        raise NotThereError(
            f"there is no module {missing!r}; looked in {directory} first ({_files(app_dir)})"
        ) from None


def _files(app_dir: Path) -> str:
    names = sorted(path.stem for path in app_dir.glob("*.py"))
    return f"its modules: {', '.join(names[:20])}" if names else "which has no modules"
