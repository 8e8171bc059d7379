"""Fakes for tools, chosen by name pattern: values, functions or errors that replace the tools' functions."""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from langchain_core.tools import BaseTool

from callboard._calls._blocks import has_to_be_entered
from callboard._calls._call import current_call
from callboard._langchain._plan import Plan, plan_for
from callboard._loops._bridge import run_from_sync
from callboard.tools._setup import Setup


class UnfakedToolError(AssertionError):
    """Raised for a call of a tool without a fake, and at the end of `fake_tools` if such a call was made."""

    def __init__(self, tool: str, fakes: Iterable[str]) -> None:
        super().__init__(
            f"the tool {tool!r} has no fake ({', '.join(map(repr, fakes)) or 'there are none'}): add "
            f"fake_tools({{{tool!r}: ...}}), or let it run with fake_tools(..., real=[{tool!r}])"
        )
        self.tool = tool


@dataclass(frozen=True, slots=True, kw_only=True)
class FakedCall:
    """Record of one tool call that was answered by a fake."""

    tool: str
    args: Mapping[str, Any]
    """Arguments after their validation by the tool's schema, without injected ones."""
    id: str | None


@dataclass(slots=True, kw_only=True)
class FakedTools:
    """Fakes that are in use, with the calls that they have answered."""

    fakes: Mapping[str, object]
    real: Sequence[str]
    calls: list[FakedCall] = field(default_factory=list[FakedCall])
    """Calls in the order in which their fakes began; each attempt of a call is an entry."""
    unfaked: list[UnfakedToolError] = field(default_factory=list[UnfakedToolError])
    """Errors of calls without a fake."""

    def pattern(self, tool: str) -> str | None:
        """Return the key in `fakes` for a tool: the exact name, or else the first pattern that matches, or `None`."""
        return tool if tool in self.fakes else next((name for name in self.fakes if fnmatchcase(tool, name)), None)

    def is_real(self, tool: str) -> bool:
        return any(fnmatchcase(tool, name) for name in self.real)


_in_use: list[FakedTools] = []
"""Open `fake_tools` blocks; the innermost is the last."""
_replaced = ExitStack()
"""Undoes the replacement of methods, after the last open block."""
_plan = Setup.plan


@has_to_be_entered("with callboard.testing.fake_tools(...):")
@contextmanager
def fake_tools(fakes: Mapping[str, object], *, real: Sequence[str] = ()) -> Generator[FakedTools]:
    """Replace the functions of tools inside the `with` block, for all nodes and agents of callboard in the process.

    Names, schemas, policies, limits and middleware stay those of the tools. Yields the `FakedTools`, with the answered
    calls. Inner blocks come first. LangChain's own agent uses the fakes if it has the middleware `Supervise`. Actors of
    a node start as usual.

    Args:
        fakes: by tool name, or pattern of `fnmatch` such as `"http_*"`: a result; an exception to raise; or a
            function, sync or async, of the tool's arguments. A function gets injected arguments if it names them.
            Sync functions run in the event loop's thread.
        real: names or patterns of tools that run as they are.

    Raises:
        UnfakedToolError: in a call of any other tool, and at the end of the block if the call's error was handled.
        TypeError: if `fakes` is no mapping, or `real` no list of names.
    """
    if not isinstance(fakes, Mapping):
        raise TypeError(f"fake_tools(...) takes a dict from names of tools to fakes, got {fakes!r}")
    if isinstance(real, str):
        raise TypeError(f"fake_tools(real=...) takes a list of names, got {real!r}; write [{real!r}]")
    used = FakedTools(fakes=dict(fakes), real=real)
    _in_use.append(used)
    if len(_in_use) == 1:
        _use_fakes()
    try:
        yield used
    finally:
        _in_use.remove(used)
        if not _in_use:
            _replaced.close()
    if used.unfaked:  # a node may have made a message of the error
        raise used.unfaked[0]


def _use_fakes() -> None:
    """Patch callboard's nodes and the middleware `Supervise`: they then run fakes instead of the tools' functions."""
    # The classes have no hook for tests, so that a call in production pays nothing.

    def plan_with_fake(setup: Setup, tool: BaseTool) -> Plan:
        return _find_fake_plan(tool) or _plan(setup, tool)

    _replaced.enter_context(patch.object(Setup, "plan", plan_with_fake))
    if find_spec("langchain") is None:
        return
    from callboard.middleware._supervise import Supervise

    supervise = Supervise._supervise

    async def with_fakes(middleware: Supervise, request: Any, handler: Callable[[Any], Any], *, is_sync: bool) -> Any:
        def run_fake(request: Any) -> Any:
            return handler(request.override(tool=request.tool and _copy_with_fake(request.tool)))

        return await supervise(middleware, request, run_fake, is_sync=is_sync)

    _replaced.enter_context(patch.object(Supervise, "_supervise", with_fakes))


def _find_fake_plan(tool: BaseTool) -> Plan | None:
    """Return a tool's `Plan` (how to call the tool) with its fake; `None` if the tool must run its own function."""
    for used in reversed(_in_use):
        if used.is_real(tool.name):
            return None
        if (pattern := used.pattern(tool.name)) is not None:
            return _plan_with_fake(tool, used, used.fakes[pattern])
    used = _in_use[-1]
    error = UnfakedToolError(tool.name, [name for block in _in_use for name in block.fakes])

    def refuse() -> None:
        used.unfaked.append(error)
        raise error

    return _plan_with_fake(tool, used, refuse)


def _copy_with_fake(tool: BaseTool) -> BaseTool:
    """Return a copy of a tool that runs the tool's fake; return the tool itself if it must run its own function."""
    plan = _find_fake_plan(tool)
    if plan is None:
        return tool

    def run(*args: Any, **kwargs: Any) -> Any:
        return run_from_sync(partial(plan.fn, *args, **kwargs))

    async def arun(*args: Any, **kwargs: Any) -> Any:
        return await plan.fn(*args, **kwargs)

    copy = tool.model_copy()
    # Validation and output stay LangChain's; a class may have replaced the methods that call them.
    bodies = {"_run": run, "_arun": arun, "invoke": partial(BaseTool.invoke, copy)}
    for name, body in (bodies | {"ainvoke": partial(BaseTool.ainvoke, copy)}).items():
        object.__setattr__(copy, name, body)  # Pydantic models refuse a plain assignment
    return copy


def _plan_with_fake(tool: BaseTool, used: FakedTools, fake: object) -> Plan:
    plan = plan_for(tool)
    is_pair = getattr(tool, "response_format", "content") == "content_and_artifact"

    async def body(*args: Any, **kwargs: Any) -> Any:
        call = current_call()
        arguments = {name: value for name, value in kwargs.items() if name not in plan.injected.names}
        arguments |= dict(zip(tool.args, args, strict=False))
        used.calls.append(FakedCall(tool=tool.name, args=arguments, id=None if call is None else call.call.get("id")))
        output = await _run_fake(fake, args, kwargs, plan.injected.names)
        return (output, None) if is_pair and not (isinstance(output, tuple) and len(output) == 2) else output

    # The fake gets neither config nor callbacks, and always runs in the event loop.
    fake_plan = replace(
        plan, kind="async", fn=body, config_param=None, run_manager=False, callbacks=False, sync_variant=None
    )
    # A sync tool waits as before if all threads are busy.
    object.__setattr__(fake_plan, "takes_thread", plan.takes_thread)
    return fake_plan


async def _run_fake(fake: Any, args: Sequence[Any], kwargs: Mapping[str, Any], injected: Iterable[str]) -> Any:
    if isinstance(fake, BaseException) or (isinstance(fake, type) and issubclass(fake, BaseException)):
        raise fake
    if not callable(fake):
        return fake
    parameters = _parameters(fake)
    hidden_names = {*kwargs} if parameters == () else set(injected) - set(parameters or kwargs)
    visible = {key: value for key, value in kwargs.items() if key not in hidden_names}
    output = fake(*(args if parameters != () else ()), **visible)
    return await output if inspect.isawaitable(output) else output


def _parameters(fn: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's parameters; `None` if it takes `**kwargs` or has no readable signature."""
    try:
        parameters = inspect.signature(fn).parameters
    except ValueError:  # a builtin
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return tuple(parameters)
