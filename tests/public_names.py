"""Public names of both distributions: the names in `__all__` of modules without a leading underscore."""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache

import callboard
import callboard_actors


@dataclass(frozen=True, slots=True)
class PublicName:
    """Name in `__all__` of a public module, with its object."""

    module: str
    name: str
    value: object


@cache
def public_names() -> list[PublicName]:
    """Return all public names, module by module. A name that two modules export is listed twice."""
    found: list[PublicName] = []
    for package in (callboard, callboard_actors):
        names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        for module in [package.__name__, *(name for name in names if "._" not in name)]:
            home = importlib.import_module(module)
            found += [PublicName(module, name, getattr(home, name)) for name in getattr(home, "__all__", ())]
    return found
