"""What `module:tools` on a command line names."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def named(name: str, app_dir: Path) -> Any:
    """What is called so: a module, or something in it.

    Args:
        name: `module` or `module:attribute`; the attribute may have dots.
        app_dir: where modules are looked for first.

    Raises:
        ValueError: there is no such thing.
        Exception: what the module raises.
    """
    module_name, _, attribute = name.partition(":")
    found: Any = _module(module_name, app_dir)
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _module(name: str, app_dir: Path) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} names no module; write module:tools, such as trip:tools for `tools` in trip.py")
    directory = str(app_dir.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module is there, and imports something that is not
        raise ValueError(f"there is no module {missing!r}; looked in {directory} first") from None
