"""Lazy loading of a package's public names at first access."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, Iterable[str]], siblings: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose public names are loaded at first access.

    `homes` has the public names of each module, as for `lazy`; so `__all__` cannot differ from it. A public name of a
    package in `siblings` is an ImportError that names this package.
    """
    names = sorted(name for home in homes.values() for name in home)
    return lazy(package, homes, siblings), lambda: sorted({*vars(sys.modules[package]), *names}), names


def lazy(package: str, homes: Mapping[str, Iterable[str]], siblings: Iterable[str] = ()) -> Callable[[str], Any]:
    """Return a `__getattr__` function for a package, which imports a public name at its first access.

    `homes` has the public names of each module, by the module's full name.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            for sibling in siblings if name[:1].isalpha() else ():
                if name in import_module(sibling).__all__:
                    # `from package import name` shows its own text in place of that of an AttributeError. `hasattr` and
                    # `getattr` with a default need the AttributeError.
                    is_import = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
                    error_class = ImportError if is_import else AttributeError
                    raise error_class(f"{name} is in {sibling}: from {sibling} import {name}", name=package)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)  # later accesses find it and do not call `load`
        return value

    return load
