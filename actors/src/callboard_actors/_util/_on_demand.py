"""Import of package attributes at first use, so that worker processes import only the modules that they use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, modules_by_attribute: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` function for `package`, which imports each attribute of the package at its first use."""

    def import_attribute(name: str) -> Any:
        if name not in modules_by_attribute:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules_by_attribute[name]), name)

    return import_attribute
