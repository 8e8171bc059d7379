"""Functions and actors that `callboard worker module:tools` serves, by name."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from callboard import Actor
from callboard.commands import load_named
from callboard_actors.remote._there import name_of

_OF_A_TOOL = ("func", "coroutine")
"""Attributes in which LangChain's tools keep the functions that they were made of."""
_OWN_OF_A_TOOL = ("_run", "_arun")
"""Methods of a tool class that was not made of a function."""


def served(name: str, app_dir: Path) -> dict[str, Callable[..., Any]]:
    """Return the functions and actor classes to serve, by the names that agents ask for.

    Raise `ValueError` if the name cannot be found, or contains nothing that can be served.

    Args:
        name: `module`, for its public functions, tools and actors, or `module:attribute`: a function, a tool, an actor,
            a node, or a list of them.
        app_dir: folder in which modules are looked for first.
    """
    _, found = load_named(name, app_dir, example="tools")
    things = {name_of(one): one for one in _things(found, name)}
    if not things:
        raise ValueError(f"{name} has nothing to serve: no function, no tool, no actor that is defined there")
    return things


def _things(found: Any, name: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions and actor classes in a module, an object or a list."""
    if isinstance(found, ModuleType):
        for public, one in vars(found).items():
            # Everything served can be run by every agent, so imported and private names of a module are left out.
            if not public.startswith("_") and _is_of(one, found):
                yield from _things(one, f"{name}:{public}")
    elif isinstance(found, type) and issubclass(found, Actor):
        yield found
    elif isinstance(found, Actor):
        yield type(found)
    elif isinstance(actor := getattr(found, "actor", None), Actor):  # a child spec, made by `child()`
        yield type(actor)
    elif isinstance(tools := getattr(found, "tools_by_name", None), Mapping):
        yield from _things(list(tools.values()), name)
    elif _is_tool(found):
        yield from _of_tool(found, name)
    elif callable(found) and not isinstance(found, type):
        yield found
    elif isinstance(found, Iterable) and not isinstance(found, (str, bytes, Mapping)):
        for place, one in enumerate(found):
            yield from _things(one, f"{name}[{place}]")
    else:
        raise ValueError(f"{name} is no function, no tool and no actor, but {found!r:.200}")


def _is_tool(found: Any) -> bool:
    return not isinstance(found, type) and isinstance(getattr(found, "name", None), str) and hasattr(found, "ainvoke")


def _of_tool(tool: Any, name: str) -> Iterator[Callable[..., Any]]:
    functions = [one for attribute in _OF_A_TOOL if (one := getattr(tool, attribute, None)) is not None]
    for one in functions or [getattr(tool, attribute) for attribute in _OWN_OF_A_TOOL]:
        if (actor := getattr(one, "__callboard_actor__", None)) is not None:
            raise ValueError(f"{name} has a handler of the actor {actor}; name its class instead, in a list")
        yield one


def _is_of(one: Any, module: ModuleType) -> bool:
    """Return whether an object was defined in the module, not imported."""
    if isinstance(one, type):
        return issubclass(one, Actor) and one.__module__ == module.__name__
    if inspect.isfunction(one):
        return one.__module__ == module.__name__
    if _is_tool(one):
        inner = getattr(one, "func", None) or getattr(one, "coroutine", None) or type(one)
        return getattr(inner, "__module__", None) == module.__name__
    return False
