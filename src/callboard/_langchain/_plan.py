"""Plan of a tool, read once from its class and signatures: how to run the tool, and which arguments to inject.

Injected arguments, such as the state, are those that the model must not write. They replace anything that it wrote
under their names.

langchain-core inspects signatures and type hints at every call; that takes more than half of the time of
`BaseTool.arun`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from operator import is_
from types import FunctionType, NoneType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin
from weakref import WeakKeyDictionary, ref

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import (
    InjectedToolCallId,
    _get_runnable_config_param,
    _is_injected_arg_type,
    get_all_basemodel_annotations,
)
from langchain_core.utils._signature import _signature_parameters
from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.fields import FieldInfo
from pydantic.v1 import BaseModel as BaseModelV1

from callboard._langgraph._outer_task import hints_of, langgraph_injected_args
from callboard._langgraph._vocabulary import ToolRuntime
from callboard._loops._entry_mode import EntryMode, is_missing

# Injected arguments


@dataclass(frozen=True, slots=True)
class InjectedArgs:
    """Parameters of one tool that get injected values, by parameter name."""

    state: Mapping[str, str | None]
    """Name of the state field that each parameter gets; `None` if the parameter gets the whole state."""
    optional: frozenset[str]
    """Parameters with a default, which get no argument if the state lacks their field."""
    nullable: frozenset[str]
    """Parameters whose type allows `None`, which they get if they have no default and the state lacks their field."""
    store: str | None
    runtime: str | None
    call_ids: frozenset[str]
    """Parameters that get the id of the call, and that langchain-core would not fill."""
    forbidden: frozenset[str]
    """All parameters that the model must not write: those that callboard injects, and all that LangChain marks as
    injected."""
    paths: Mapping[str, Sequence[str | int]]
    """Keys at which the schema reads injected values, by parameter, if it does not read them by name."""
    unwritable: frozenset[str]
    """The names in `forbidden`, and all aliases of these parameters in the schema."""
    none: bool = dataclasses.field(init=False)
    """`True` if nothing is injected."""

    def __post_init__(self) -> None:
        # Read for each call, so it is no property.
        object.__setattr__(self, "none", not (self.state or self.store or self.runtime or self.forbidden))

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters whose values `inject` sets, and their aliases."""
        names = {*self.state, *self.call_ids, *(name for name in (self.store, self.runtime) if name)}
        return frozenset({*names, *(self.unwritable - self.forbidden)})


def injected_args(tool: BaseTool) -> InjectedArgs:
    """Return the injected parameters of a tool.

    Args:
        tool: a LangChain tool.

    Raises:
        ValueError: if an annotation contains the same marker twice.
    """
    schema, fn = tool.get_input_schema(), getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    # Other callables may be equal and behave differently, and an incomplete schema may be completed later.
    if fn.__class__ is not FunctionType or not getattr(schema, "__pydantic_complete__", False):
        return _read_injected_args(schema, fn)
    by_function = _injected.get(schema)
    if by_function is None:
        by_function = _injected.setdefault(schema, WeakKeyDictionary())
    injected = by_function.get(fn)
    if injected is None:
        injected = by_function[fn] = _read_injected_args(schema, fn)
    return injected


# By schema and function, and not by tool: a change of a tool's fields is noticed, and nothing is kept alive.
_injected: WeakKeyDictionary[Any, WeakKeyDictionary[Any, InjectedArgs]] = WeakKeyDictionary()


def _read_injected_args(schema: Any, fn: Any) -> InjectedArgs:
    fields: Mapping[str, FieldInfo] = getattr(schema, "model_fields", {})
    # langchain-core does not see the annotations of fields with some aliases.
    aliased = {name: field.rebuild_annotation() for name, field in fields.items() if field.validation_alias}
    hints = {**hints_of(fn), **aliased}
    langgraph_args = langgraph_injected_args(schema, hints)
    # langchain-core fills the fields of its schemas, by their own names, and a parameter `tool_call_id`.
    names_filled_by_langchain = (fields.keys() - aliased.keys()) | {"tool_call_id"}
    call_ids = {
        name
        for name in hints.keys() - names_filled_by_langchain
        if _is_injected_arg_type(hints[name], injected_type=InjectedToolCallId)
    }
    forbidden = {
        *langgraph_args.all_injected_keys,
        *langgraph_args.state,
        *(name for name in (langgraph_args.store, langgraph_args.runtime) if name),
    }
    if langgraph_args.state:
        hints |= {**get_all_basemodel_annotations(schema), **aliased}
    aliases = {name: alias_paths for name in forbidden & fields.keys() if (alias_paths := _aliases_of(fields[name]))}
    if isinstance(schema, type) and issubclass(schema, BaseModelV1):
        aliases = {name: [[schema.__fields__[name].alias]] for name in forbidden & schema.__fields__.keys()}
    config = getattr(schema, "model_config", {})
    reads_names = config.get("populate_by_name") or config.get("validate_by_name")
    optional = frozenset(langgraph_args._optional_state_args)
    return InjectedArgs(
        langgraph_args.state,
        optional,
        frozenset(name for name in langgraph_args.state.keys() - optional if _allows_none(hints[name])),
        langgraph_args.store,
        langgraph_args.runtime,
        frozenset(call_ids),
        frozenset(forbidden),
        paths={} if reads_names else {name: alias_paths[0] for name, alias_paths in aliases.items()},
        # The model could write the value within the argument in which a path begins.
        unwritable=frozenset({*forbidden, *(str(path[0]) for alias_paths in aliases.values() for path in alias_paths)}),
    )


def _aliases_of(field: FieldInfo) -> list[Sequence[str | int]]:
    """Return the places, other than its own name, at which a pydantic model reads a field."""
    choices = field.validation_alias
    aliases = choices.choices if isinstance(choices, AliasChoices) else [choices]
    return [alias.path if isinstance(alias, AliasPath) else [alias] for alias in aliases if alias is not None]


def _allows_none(hint: Any) -> bool:
    types = get_args(hint)
    return _allows_none(types[0]) if get_origin(hint) is Annotated else NoneType in (hint, *types)


def inject(call: ToolCall, injected: InjectedArgs, runtime: ToolRuntime[Any, Any], messages_key: str) -> ToolCall:
    """Return a copy of the call with injected arguments; values that the model wrote for them are removed."""
    if injected.none:
        return call
    values: dict[Any, Any] = {}
    if injected.state:
        values |= _state_values(call["name"], injected, runtime.state, messages_key)
    if injected.store:
        if runtime.store is None:
            raise ValueError(
                "Cannot inject store into tools with InjectedStore annotations - "
                "please compile your graph with a store."
            )
        values[injected.store] = runtime.store
    if injected.runtime:
        values[injected.runtime] = runtime
    if injected.call_ids:
        values |= dict.fromkeys(injected.call_ids, call["id"])
    for name, (*outer_keys, key) in injected.paths.items():
        if name in values:
            value, target = values.pop(name), values
            for outer_key in outer_keys:
                target = target.setdefault(outer_key, {})
            target[key] = value
    # The model is not trusted: forbidden names are always removed, because an optional one may get no value.
    return {**call, "args": {**model_args(call, injected), **values}}


def model_args(call: ToolCall, injected: InjectedArgs) -> dict[str, Any]:
    """Return the arguments of a call that the model has written and is allowed to write."""
    return {name: value for name, value in call["args"].items() if name not in injected.unwritable}


def _state_values(tool: str, injected: InjectedArgs, state: Any, messages_key: str) -> dict[str, Any]:
    if isinstance(state, list):
        fields = list(injected.state.values())
        if fields[0] is not None and fields != [messages_key]:
            sentence = f"Invalid input to ToolNode. Tool {tool} requires graph state dict as input."
            if any(fields):
                sentence += f" State should contain fields {', '.join(field for field in fields if field)}."
            raise ValueError(sentence)
        state = {messages_key: state}
    values: dict[str, Any] = {}
    for name, field in injected.state.items():
        if not field:
            values[name] = state
            continue
        has_value = (field in state) if isinstance(state, dict) else hasattr(state, field)
        if has_value:
            values[name] = state[field] if isinstance(state, dict) else getattr(state, field)
        elif name in injected.nullable:
            values[name] = None
        elif name not in injected.optional:
            error = KeyError(field) if isinstance(state, dict) else AttributeError(field)  # as in LangGraph
            error.add_note(
                f"The tool {tool!r} gets {name!r} from the field {field!r} of the state, which has no value. Set the "
                "field, or give the parameter a default or a type that allows None."
            )
            raise error
    return values


# Plans


Kind = Literal["async", "sync", "foreign", "foreign sync"]

_RUNS_FUNCTIONS = (StructuredTool, Tool)
_INVOKES = {BaseTool.ainvoke, *(cls.ainvoke for cls in _RUNS_FUNCTIONS)}
_CALLS_COROUTINE = {cls._arun for cls in _RUNS_FUNCTIONS}
_CALLS_FUNC = {cls._run for cls in _RUNS_FUNCTIONS}
_RUN_METHODS = ("arun", "run", "invoke")


@dataclass(frozen=True, slots=True)
class ArgsModel:
    """Pydantic model of a tool's arguments whose validated values can be read without `model_dump`."""

    validate: Callable[[dict[str, Any]], BaseModel]
    fields: tuple[str, ...]
    """Fields that the tool gets as arguments even if the model did not write them."""
    written_fields: tuple[str, ...]
    """Fields that the tool gets only if the model, or a validator, has set them."""
    call_id: tuple[str, ...]
    """Fields that get the id of the tool call as their value."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Data for running one tool, the same for all calls of the tool: its function, injected parameters, and schema."""

    tool: BaseTool
    kind: Kind
    """Way to run the tool. `async` and `sync`: callboard runs the tool's function itself, on both event loops.
    `foreign`: the tool's own `ainvoke` is called. `foreign sync`: the tool's own `invoke` is called in a worker
    thread."""
    fn: Callable[..., Any]
    injected: InjectedArgs
    model: ArgsModel | None
    """Pydantic model of the arguments; `None` if the tool must parse its arguments itself."""
    direct: frozenset[str]
    """Parameters with values that bypass the pydantic model: they are taken from the call unchanged."""
    unvalidated: frozenset[str]
    """Parameters that the model must not write and that its schema lacks: they are left out of validation."""
    positional: tuple[str, ...]
    """Positional-only parameters of the function, in their order."""
    config_param: str | None
    run_manager: bool
    callbacks: bool
    sync_variant: "Plan | None" = None
    """Plan for runs that sync code started; `None` if such runs use this plan, too."""

    is_foreign: bool = dataclasses.field(init=False)
    takes_thread: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Read for each batch, so they are no properties.
        object.__setattr__(self, "is_foreign", self.kind in ("foreign", "foreign sync"))
        object.__setattr__(self, "takes_thread", self.kind in ("sync", "foreign sync"))


def plan_for(tool: BaseTool) -> Plan:
    """Return the plan of a tool (data for running the tool), read from the tool's class and signatures."""
    plan = _plan(tool, injected_args(tool), "async")
    if plan.kind == "sync" or not _has_sync_variant(tool):
        return plan
    return replace(plan, sync_variant=_plan(tool, plan.injected, "sync"))


def _plan(tool: BaseTool, injected: InjectedArgs, entry_mode: EntryMode) -> Plan:
    cls = type(tool)
    ainvoke = getattr(cls, "ainvoke", None)  # mocks in place of tools usually override these methods
    if ainvoke not in _INVOKES or any(getattr(cls, name) is not getattr(BaseTool, name) for name in _RUN_METHODS):
        kind_and_fn: tuple[Kind, Callable[..., Any]] = (
            ("foreign sync", tool.invoke) if entry_mode == "sync" else ("foreign", tool.ainvoke)
        )
        return Plan(tool, *kind_and_fn, injected, None, frozenset(), frozenset(), (), None, False, False)
    kind, fn = _sync_body(tool) if entry_mode == "sync" else _body(tool)
    is_wrapped_function = fn in (getattr(tool, "coroutine", None), getattr(tool, "func", None))
    parameters = _signature_parameters(fn)
    return Plan(
        tool=tool,
        kind=kind,
        fn=fn,
        injected=injected,
        model=_args_model(tool),
        direct=tool._injected_args_keys,
        unvalidated=_outside_of_schema(tool, injected),
        positional=tuple(name for name, parameter in parameters.items() if parameter.kind is Parameter.POSITIONAL_ONLY),
        config_param=_get_runnable_config_param(fn),
        run_manager=not is_wrapped_function and "run_manager" in parameters,
        callbacks=is_wrapped_function and "callbacks" in parameters,
    )


def _body(tool: BaseTool) -> tuple[Kind, Callable[..., Any]]:
    arun = type(tool)._arun
    if arun in _CALLS_COROUTINE:
        coroutine = getattr(tool, "coroutine", None)
        return _sync_body(tool) if coroutine is None else ("async", coroutine)
    return _sync_body(tool) if arun is BaseTool._arun else ("async", tool._arun)


def _sync_body(tool: BaseTool) -> tuple[Kind, Callable[..., Any]]:
    func = getattr(tool, "func", None)
    return "sync", func if type(tool)._run in _CALLS_FUNC and func is not None else tool._run


def _has_sync_variant(tool: BaseTool) -> bool:
    """Return whether a tool can run synchronously, and not only as a coroutine."""
    cls = type(tool)
    if any(getattr(cls, name, None) is not getattr(BaseTool, name) for name in ("run", "invoke")):
        return True
    return not is_missing(cls._run) if cls._run not in _CALLS_FUNC else getattr(tool, "func", None) is not None


def _outside_of_schema(tool: BaseTool, injected: InjectedArgs) -> frozenset[str]:
    """Return the injected parameters that the schema of a tool would forbid, or drop."""
    schema: Any = tool.args_schema
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return frozenset()
    outside = injected.forbidden - schema.model_fields.keys()
    # langchain-core passes those that it knows past a schema that ignores them.
    return outside if schema.model_config.get("extra") == "forbid" else outside - tool._injected_args_keys


def _args_model(tool: BaseTool) -> ArgsModel | None:
    schema = tool.args_schema
    cls = type(tool)
    if cls._to_args_and_kwargs is not BaseTool._to_args_and_kwargs or cls._parse_input is not BaseTool._parse_input:
        return None
    if not (isinstance(schema, type) and issubclass(schema, BaseModel) and _is_plain(schema)):
        return None
    annotations = get_all_basemodel_annotations(schema)
    fields = schema.model_fields
    variadic = tuple(name for name in ("args", "kwargs") if name in fields and not fields[name].is_required())
    return ArgsModel(
        validate=schema.model_validate,
        fields=tuple(name for name in fields if name not in variadic),
        written_fields=variadic,
        call_id=tuple(
            name for name, hint in annotations.items() if _is_injected_arg_type(hint, injected_type=InjectedToolCallId)
        ),
    )


def _is_plain(schema: type[BaseModel]) -> bool:
    """Return whether `model_dump` of a pydantic model would return exactly its fields, by their own names."""
    decorators = schema.__pydantic_decorators__
    return (
        bool(schema.model_fields)
        and not issubclass(schema, RootModel)
        and schema.model_config.get("extra") != "allow"
        and not schema.model_config.get("alias_generator")
        and not schema.model_computed_fields
        and not decorators.model_serializers
        and not decorators.field_serializers
        and not any(
            field.alias or field.validation_alias or field.serialization_alias or field.exclude
            for field in schema.model_fields.values()
        )
    )


# Cache of facts


T = TypeVar("T")

_MAX_NAMES = 4096
"""Maximum number of cached tool names; the oldest name is removed when a new one is added."""
_MAX_PER_NAME = 4
"""Maximum number of cached tools with the same name. Several nodes may share a middleware, and a node may be made per
request."""


class _CachedFacts(NamedTuple, Generic[T]):
    """Cached data about a tool, and the functions and the schema of the tool from which this data was computed."""

    tool: ref[BaseTool]
    sources: tuple[object, ...]
    facts: T


def _sources_of(tool: BaseTool) -> tuple[object, ...]:
    """Return the functions and the schema of a tool, which a user's test may replace by mocks."""
    cls: Any = tool.__class__
    fields = (getattr(tool, "coroutine", None), getattr(tool, "func", None), getattr(tool, "args_schema", None))
    return (*fields, cls._run, cls._arun, cls.invoke, cls.ainvoke)


class ToolFacts(Generic[T]):
    """Thread-safe cache of facts that a function computes once for each tool, such as the tool's plan.

    Facts are computed again if the tool's functions or schema have been replaced.

    Args:
        find_out: function of a tool that returns its facts.
    """

    __slots__ = ("_cache", "_find_out")

    def __init__(self, find_out: Callable[[BaseTool], T]) -> None:
        self._find_out = find_out
        self._cache: dict[str, tuple[_CachedFacts[T], ...]] = {}

    def __len__(self) -> int:
        return sum(cached.tool() is not None for cached_facts in list(self._cache.values()) for cached in cached_facts)

    def of(self, tool: BaseTool) -> T:
        """Return the facts about a tool from the cache; compute them first if they are missing or the tool has changed.

        Errors are not cached.
        """
        # No lock: each update stores a new tuple. Two threads may read the same tool at once, which only costs time.
        # Read before the facts: if another thread replaces a function meanwhile, the facts are read again.
        cached_facts, sources = self._cache.get(tool.name, ()), _sources_of(tool)
        for cached in cached_facts:
            # By identity: callable objects may be equal and behave differently.
            if cached.tool() is tool and all(map(is_, cached.sources, sources)):
                return cached.facts
        new_facts = _CachedFacts(ref(tool), sources, self._find_out(tool))
        if not cached_facts and len(self._cache) >= _MAX_NAMES:
            self._cache.pop(next(iter(list(self._cache))), None)
        other_facts = tuple(
            cached for cached in cached_facts if (cached_tool := cached.tool()) is not None and cached_tool is not tool
        )
        self._cache[tool.name] = (new_facts, *other_facts[: _MAX_PER_NAME - 1])
        return new_facts.facts
