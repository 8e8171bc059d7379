"""Injection of arguments that the model must not write: state, store, runtime.

The annotations of a tool are read once. Injected values replace anything that the model wrote under their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool
from langchain_core.tools.base import _is_injected_arg_type, get_all_basemodel_annotations

from callboard.tools._vocabulary import InjectedState, InjectedStore, ToolRuntime


@dataclass(frozen=True, slots=True)
class InjectedArgs:
    """Injected parameters of one tool, by parameter name."""

    state: Mapping[str, str | None]
    """State field of each parameter; `None` for the whole state."""
    optional: frozenset[str]
    """Parameters with a default, which are omitted if the state lacks their field."""
    store: str | None
    runtime: str | None
    forbidden: frozenset[str]
    """All arguments that the model must not write: the ones above, and any other injected argument."""

    @property
    def names(self) -> frozenset[str]:
        """Parameters that are filled in by `inject`."""
        return frozenset({*self.state, *(name for name in (self.store, self.runtime) if name)})

    @property
    def none(self) -> bool:
        return not (self.state or self.store or self.runtime or self.forbidden)


def injected_args(tool: BaseTool) -> InjectedArgs:
    """Return the injected parameters of a tool; ValueError if a parameter carries the same marker twice."""
    schema = tool.get_input_schema()
    fields = getattr(schema, "model_fields", {})
    state: dict[str, str | None] = {}
    optional: set[str] = set()
    store = runtime = None
    forbidden: set[str] = set()
    for name, hint in _annotations(tool, schema).items():
        if _is_injected_arg_type(hint):
            forbidden.add(name)
        if name == "runtime" or _marker(hint, ToolRuntime) is not None:
            runtime = name
        if _marker(hint, InjectedStore) is not None:
            store = name
        marker = _marker(hint, InjectedState)
        if marker is not None:
            field = marker.field if isinstance(marker, InjectedState) else None
            state[name] = field or None
            if field and name in fields and not fields[name].is_required():
                optional.add(name)
    forbidden.update(state, (name for name in (store, runtime) if name))
    return InjectedArgs(state, frozenset(optional), store, runtime, frozenset(forbidden))


def _annotations(tool: BaseTool, schema: type) -> dict[str, Any]:
    fn = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    return {**_hints(fn), **get_all_basemodel_annotations(schema)}


def _hints(fn: Any) -> dict[str, Any]:
    while isinstance(fn, partial):
        fn = fn.func
    try:
        return get_type_hints(fn, include_extras=True) if fn else {}
    except TypeError:
        return {}  # no function, but a mock in place of one


def _marker(hint: Any, kind: type) -> Any:
    """Return the marker of a kind in an annotation: an instance, its class, or `None`."""
    if type(hint) is type:
        return kind if issubclass(hint, kind) else None  # a plain class, as in nearly all annotations
    found = [arg for arg in get_args(hint) if _is_marker(arg, kind)]
    if len(found) > 1:
        raise ValueError(f"A tool argument should not be annotated with {kind.__name__} more than once. Found: {found}")
    if found:
        return found[0]
    return kind if _is_marker(hint, kind) else None


def _is_marker(hint: Any, kind: type) -> bool:
    if isinstance(hint, kind) or (isinstance(hint, type) and issubclass(hint, kind)):
        return True
    origin = get_origin(hint)
    if origin is Union or origin is Annotated:
        return any(_is_marker(arg, kind) for arg in get_args(hint))
    return isinstance(origin, type) and issubclass(origin, kind)


def inject(call: ToolCall, injected: InjectedArgs, runtime: ToolRuntime[Any, Any], messages_key: str) -> ToolCall:
    """Return the call with its injected arguments, and without values that the model wrote under their names.

    Raises, as LangGraph does, ValueError for a missing store, KeyError or AttributeError for a missing field of the
    state.
    """
    if injected.none:
        return call
    values = _state_values(call["name"], injected, runtime.state, messages_key) if injected.state else {}
    if injected.store:
        if runtime.store is None:
            raise ValueError(
                "Cannot inject store into tools with InjectedStore annotations - "
                "please compile your graph with a store."
            )
        values[injected.store] = runtime.store
    if injected.runtime:
        values[injected.runtime] = runtime
    # The model is not trusted: forbidden names are always removed, because an optional one may get no value.
    return {**call, "args": {**written_args(call, injected), **values}}


def written_args(call: ToolCall, injected: InjectedArgs) -> dict[str, Any]:
    """Return the arguments of a call that the model may write."""
    return {name: value for name, value in call["args"].items() if name not in injected.forbidden}


def _state_values(tool: str, injected: InjectedArgs, state: Any, messages_key: str) -> dict[str, Any]:
    if isinstance(state, list):
        state = _state_from_messages(tool, injected, state, messages_key)
    values: dict[str, Any] = {}
    for name, field in injected.state.items():
        if not field:
            values[name] = state
        elif isinstance(state, dict):
            if field in state:
                values[name] = state[field]
            elif name not in injected.optional:
                raise KeyError(field)
        elif hasattr(state, field):
            values[name] = getattr(state, field)
        elif name not in injected.optional:
            raise AttributeError(field)
    return values


def _state_from_messages(tool: str, injected: InjectedArgs, messages: list[Any], messages_key: str) -> dict[str, Any]:
    fields = list(injected.state.values())
    if fields[0] is None or fields == [messages_key]:
        return {messages_key: messages}
    sentence = f"Invalid input to ToolNode. Tool {tool} requires graph state dict as input."
    if any(fields):
        sentence += f" State should contain fields {', '.join(field for field in fields if field)}."
    raise ValueError(sentence)
