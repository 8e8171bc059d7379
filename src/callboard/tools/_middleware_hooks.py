"""Checks of the names of tools and arguments in middleware options, and adapters for LangChain's middleware.

LangChain's AgentMiddleware is recognised without importing LangChain. A node runs only its hooks around tool calls;
hooks around the model need an agent.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, get_args

from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages
from langchain_core.tools import BaseTool
from pydantic import AliasChoices, BaseModel

from callboard._calls._sync_middleware import AsyncioMiddleware, SyncMiddleware, TwoHalves
from callboard._langchain._outputs import with_entries
from callboard._langchain._plan import injected_args
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._util._callers import warn_user
from callboard._util._suggestions import misspelt_in, no_such
from callboard.exceptions import IgnoredHooksWarning

# Names in options


Missing = Literal["error", "ignore"]
"""Value of the option `missing`: a name that no tool of the node has is an error, or is ignored as the name of another
node's tool."""


def check_missing(owner: str, missing: object) -> None:
    """Raise ValueError unless a middleware's option `missing` has a valid value."""
    if missing not in get_args(Missing):
        raise ValueError(f"{owner}(missing=...) is 'error' or 'ignore', got {missing!r}")


def tool_names(option: str, value: object) -> frozenset[str]:
    """Return the tool names that a middleware's option contains; raise TypeError for any other value."""
    if not isinstance(value, str) and isinstance(value, Collection):
        names = [name for name in value if isinstance(name, str)]
        if len(names) == len(value):
            return frozenset(names)
    raise TypeError(f"{option} takes names of tools, such as ['search']; got {value!r}")


def check_tool_names(option: str, names: Iterable[str], tools: Collection[str], remedy: str = "") -> None:
    """Raise ValueError, whose text ends with `remedy`, if a name in an option is not the name of a tool."""
    if (unknown := next((name for name in names if name not in tools), None)) is not None:
        raise ValueError(f"{option}: {no_such('tool', unknown, tools)}{remedy}")


def check_argument_names(option: str, names: Iterable[str], tool: BaseTool) -> None:
    """Raise ValueError if a name in an option is not the name of an argument which the model may write."""
    allowed_names = argument_names(tool)
    if (
        allowed_names is not None
        and (unknown := next((name for name in names if name not in allowed_names), None)) is not None
    ):
        raise ValueError(f"{option}: {no_such('argument', unknown, allowed_names)}")


def argument_names(tool: BaseTool) -> frozenset[str] | None:
    """Return the names of the arguments that the model may write; `None` if any name is allowed."""
    schema: object = tool.args_schema
    if isinstance(schema, dict):
        properties = schema.get("properties")
        return frozenset(properties) if properties and not schema.get("additionalProperties") else None
    model = _model(tool)
    if model is None or model.model_config.get("extra") == "allow":
        return None
    injected = injected_args(tool)
    return frozenset(spellings(tool)) - injected.names - injected.unwritable


def spellings(tool: BaseTool) -> Mapping[str, str]:
    """Return a dict from each accepted name of a tool's arguments, such as an alias, to the argument's own name."""
    model = _model(tool)
    names: dict[str, str] = {}
    for name, field in model.model_fields.items() if model else ():
        choices = field.validation_alias
        aliases = choices.choices if isinstance(choices, AliasChoices) else [choices]
        names |= {alias: name for alias in (name, *aliases, field.alias) if isinstance(alias, str)}
    return names


def with_defaults(tool: BaseTool | None, args: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments that the model may write, by their own names; the model's `args` precede the defaults."""
    if tool is None:
        return dict(args)
    schema: object = tool.args_schema
    model, names, allowed_names = _model(tool), spellings(tool), argument_names(tool)
    values: dict[str, object] = {}
    if isinstance(schema, dict):
        values = {name: field.get("default") for name, field in schema.get("properties", {}).items()}
    elif model is not None:
        defaults = {name: field.get_default() for name, field in model.model_fields.items() if not field.is_required()}
        # The model writes an enumeration as its value.
        values = {name: default.value if isinstance(default, Enum) else default for name, default in defaults.items()}
    values |= {
        names.get(name, name): value for name, value in args.items() if allowed_names is None or name in allowed_names
    }
    injected = injected_args(tool)
    return {name: value for name, value in values.items() if name not in injected.names | injected.unwritable}


def _model(tool: BaseTool) -> type[BaseModel] | None:
    schema: object = tool.args_schema
    return schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None


# LangChain's hooks


_HOOKS = ("before_agent", "before_model", "wrap_model_call", "after_model", "after_agent")
_ALL_HOOKS = [f"{kind}{hook}" for kind in ("", "a") for hook in ("wrap_tool_call", *_HOOKS)]


def langchain_base(cls: type) -> type | None:
    """Return the class AgentMiddleware of LangChain if it is a base of the given class, else `None`."""
    for base in cls.__mro__:
        if base.__name__ == "AgentMiddleware" and base.__module__.startswith("langchain."):
            return base
    return None


def langchain_middleware(middleware: Any) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:
    """Return a middleware of LangChain as an async function; raise an error if it would have no effect in a node."""
    if _is_human_in_the_loop(middleware) and not _asks_per_call(middleware):
        raise ValueError(
            f"{type(middleware).__name__} asks for a whole turn at once, after the model and before any tool; a node's "
            'middleware has no part in it: every call would run unasked. Give it interrupt_mode="per_call"'
        )
    wrap, awrap = _overridden_method(middleware, "wrap_tool_call"), _overridden_method(middleware, "awrap_tool_call")
    if awrap is not None:
        on_asyncio: AsyncioMiddleware[Any, Any] = AsyncioMiddleware(awrap)  # its code is written for asyncio
        return on_asyncio if wrap is None else TwoHalves(SyncMiddleware(wrap), on_asyncio)
    if wrap is not None:
        return SyncMiddleware(wrap)
    if _redacts_results(middleware):
        return _Redacting(middleware.before_model)
    if getattr(middleware, "tools", None):
        return _pass_through
    without = " without apply_to_tool_results=True" if hasattr(middleware, "apply_to_tool_results") else ""
    raise TypeError(
        f"{type(middleware).__name__} does nothing to tool calls{without}. Hooks around the model belong in "
        "callboard.create_agent(middleware=[...])"
        f"{misspelt_in(type(middleware), _ALL_HOOKS)}"
    )


def tools_to_approve(middleware: Any) -> Collection[str]:
    """Return the names of the tools for which a HumanInTheLoopMiddleware asks a person; empty for any other object."""
    return getattr(middleware, "interrupt_on", ()) if _is_human_in_the_loop(middleware) else ()


def warn_of_ignored_hooks(middleware: Sequence[object]) -> None:
    """Warn of hooks in LangChain's middleware that a node never calls, because only an agent does."""
    for item in middleware:
        if langchain_base(type(item)) is None:
            continue
        idle_hooks: set[str] = set()
        if _is_human_in_the_loop(item):
            idle_hooks = {"after_model"}  # it asks for all calls of a reply at once, which only an agent does
        elif _redacts_results(item):
            idle_hooks = {"before_model"}
            if not getattr(item, "apply_to_output", False):
                idle_hooks.add("after_model")
        hooks = [
            name
            for name in _HOOKS
            if name not in idle_hooks and (_overridden_method(item, name) or _overridden_method(item, f"a{name}"))
        ]
        if hooks:
            warn_user(
                f"{type(item).__name__} has hooks that will not run: {', '.join(hooks)}. In a node it is around tool "
                "calls; the other hooks are run by callboard.create_agent",
                IgnoredHooksWarning,
            )
        if hint := misspelt_in(type(item), _ALL_HOOKS):
            warn_user(f"{type(item).__name__} may have a hook that will not run{hint}", IgnoredHooksWarning)


def _overridden_method(middleware: Any, name: str) -> Callable[..., Any] | None:
    """Return a method that a LangChain middleware's class overrides; `None` for a method of the base class."""
    method: Callable[..., Any] | None = getattr(type(middleware), name, None)
    if method is None or method is getattr(langchain_base(type(middleware)), name, None):
        return None
    bound: Callable[..., Any] = getattr(middleware, name)
    return bound


def batch_approval_rules(middleware: object) -> Mapping[str, Any]:
    """Return the rules by tool name of a LangChain middleware that asks a person about all calls at once."""
    # Such middleware asks in its hook `after_model`.
    return (
        getattr(middleware, "interrupt_on", {})
        if _is_human_in_the_loop(middleware) and not _asks_per_call(middleware)
        else {}
    )


def _asks_per_call(middleware: object) -> bool:
    return getattr(middleware, "interrupt_mode", "batched") == "per_call"


def _is_human_in_the_loop(middleware: object) -> bool:
    return any(cls.__name__ == "HumanInTheLoopMiddleware" for cls in type(middleware).__mro__)


def _redacts_results(middleware: Any) -> bool:
    """Return whether a middleware is a PIIMiddleware whose `before_model` hook redacts tool results."""
    return (
        bool(getattr(middleware, "apply_to_tool_results", False))
        and _overridden_method(middleware, "before_model") is not None
    )


async def _pass_through(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    return await call_next(request)


class _Redacting:
    """Middleware that applies LangChain's `before_model` hook, which redacts tool results, to the results of a call."""

    def __init__(self, hook: Callable[[Any, Any], Any]) -> None:
        # It reads the tool messages after the last AIMessage, and returns `None` or changed messages.
        self._hook = hook
        # In a worker thread: the hook is sync code of another project and may take long.
        self._in_thread: SyncMiddleware[tuple[ToolCallRequest, Any], Any] = SyncMiddleware(self._redact)

    async def __call__(self, request: ToolCallRequest, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        return await self._in_thread((request, await call_next(request)), call_next)

    def _redact(self, result: tuple[ToolCallRequest, Any], _: object) -> Any:
        """Return an output with its tool messages as redacted by the `before_model` hook."""
        request, output = result

        def redacted_entry(item: Any) -> Any:
            message = convert_to_messages([item])[0] if isinstance(item, dict) and "tool_call_id" in item else item
            if not isinstance(message, ToolMessage):
                return item
            update = self._hook({"messages": [AIMessage("", tool_calls=[request.tool_call]), message]}, request.runtime)
            return update["messages"][-1] if update else item

        return with_entries(output, redacted_entry)
