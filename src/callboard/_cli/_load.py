"""Loading of the agent that `MODULE:AGENT` names."""

import inspect
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from callboard import Agent, IdleMiddlewareWarning, commands
from callboard._cli._shown_text import CommandError, error_text
from callboard.commands import NotThereError, load_named

AnyAgent = Agent | Pregel[Any, Any, Any, Any]
"""Agent of callboard, or a compiled graph of LangGraph: both have the same streaming and resuming interface."""

Await = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Function that runs an async function in the event loop, called from another thread."""
Enter = Callable[[AbstractAsyncContextManager[Any]], Any]
"""Function that enters an async context manager in the event loop until the command ends, and returns its value."""


def load_agent(name: str, app_dir: Path, wait: Await, enter: Enter) -> AnyAgent:
    """Return the named agent, or the agent that the named function returns or opens.

    Args:
        name: `module:attribute`; the attribute may have dots.
        app_dir: directory to search first for modules.
        wait: used for an async function.
        enter: used for a function that returns an async context manager.

    Raises:
        CommandError: if the name does not exist, or is no agent, or its code fails; the traceback is then printed.
    """
    try:
        with warnings.catch_warnings():
            # Irrelevant: `callboard run` sets a checkpointer itself, for questions to be stored or asked.
            warnings.filterwarnings(
                "ignore", ".* asks a person, and this agent has no checkpointer", IdleMiddlewareWarning
            )
            return _load(name, app_dir, wait, enter)
    except CommandError:
        raise
    except Exception as error:
        print_traceback(error)  # an error in the user's code: they need its traceback
        raise CommandError(f"{name} could not be made: {error_text(error)}") from error


def print_traceback(error: BaseException) -> None:
    """Print a traceback to stderr, without the leading frames of this command and of importlib."""
    told = traceback.TracebackException.from_exception(error)
    own = (str(Path(__file__).parent), str(commands.__file__))
    while told.stack and (told.stack[0].filename.startswith(own) or "importlib" in told.stack[0].filename):
        told.stack.pop(0)
    print("".join(told.format()), file=sys.stderr, end="")


def _load(name: str, app_dir: Path, wait: Await, enter: Enter) -> AnyAgent:
    try:
        module, found = load_named(name, app_dir, example="agent")
    except NotThereError as error:
        raise CommandError(f"{error}; {_offers(error.module)}" if error.module else f"{error}") from None
    if found is module:
        raise CommandError(f"which agent of {module.__name__}? Write {module.__name__}:NAME; {_offers(module)}")
    made = _made(found, name, wait)
    if isinstance(made, AbstractAsyncContextManager) and not isinstance(made, Agent) and made is not found:
        made = enter(made)
    return _agent(made, name, module)


def _offers(module: ModuleType) -> str:
    """Return a text that lists a module's agents; else its functions without parameters; else all public names."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    agents = [name for name, value in public.items() if isinstance(value, Agent | Pregel)]
    makers = [
        name
        for name, value in public.items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not _parameters(value)
    ]
    if not (agents or makers):
        return f"it has {', '.join(sorted(public)) or 'nothing'}"
    named = [("agents", agents), ("functions without parameters", makers)]
    return "it has " + ", and ".join(f"the {kind} {', '.join(names)}" for kind, names in named if names)


def _made(found: Any, name: str, wait: Await) -> Any:
    if isinstance(found, Agent | Pregel | StateGraph) or not callable(found) or inspect.isclass(found):
        return found
    if needed := _parameters(found):
        raise CommandError(f"{name} is a function that needs {', '.join(needed)}; callboard calls it without arguments")

    made: Any = found()

    async def awaited() -> Any:
        return await made

    return wait(awaited) if inspect.isawaitable(made) else made


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the required parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in optional]


def _agent(found: Any, name: str, module: ModuleType) -> AnyAgent:
    if isinstance(found, Agent | Pregel):
        return found
    if isinstance(found, StateGraph):
        raise CommandError(f"{name} is a graph that is not compiled: call its compile()")
    kind = found.__name__ if inspect.isclass(found) else type(found).__name__
    raise CommandError(f"{name} is no agent, but {kind}; {_offers(module)}")
