"""How a tool is to be run, read from its class and signatures once.

langchain-core inspects signatures and type hints again at every call; that is more than half of the time
that `BaseTool.arun` takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import (
    InjectedToolCallId,
    _get_runnable_config_param,
    _is_injected_arg_type,
    get_all_basemodel_annotations,
)
from langchain_core.utils._signature import _signature_parameters
from pydantic import BaseModel, RootModel

from callboard.tools._inject import InjectedArgs, injected_args

Kind = Literal["async", "sync", "foreign"]

_RUNS_FUNCTIONS = (StructuredTool, Tool)
_INVOKES = {BaseTool.ainvoke, *(cls.ainvoke for cls in _RUNS_FUNCTIONS)}
_CALLS_COROUTINE = {cls._arun for cls in _RUNS_FUNCTIONS}
_CALLS_FUNC = {cls._run for cls in _RUNS_FUNCTIONS}


@dataclass(frozen=True, slots=True)
class ArgsModel:
    """A pydantic model whose arguments can be read without a detour over `model_dump`."""

    validate: Callable[[dict[str, Any]], BaseModel]
    optional: tuple[str, ...]
    """Fields that reach the tool although the model left them out."""
    names: frozenset[str]
    call_id: tuple[str, ...]
    """Fields that get the tool call's id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one tool that does not change from call to call."""

    tool: BaseTool
    kind: Kind
    """`async` and `sync` run here, natively on both loops; `foreign` keeps its own `ainvoke`."""
    fn: Callable[..., Any]
    injected: InjectedArgs
    model: ArgsModel | None
    """`None`: let the tool parse its own arguments."""
    direct: frozenset[str]
    """Parameters that are filled without going through the args model."""
    config_param: str | None
    run_manager: bool
    callbacks: bool
    made_of: tuple[object, ...]

    def holds(self) -> bool:
        """Whether the tool still is what it was; its fields may be assigned."""
        now, then = _parts(self.tool), self.made_of
        return now[0] is then[0] and now[1] is then[1] and now[2] is then[2]


def _parts(tool: BaseTool) -> tuple[object, ...]:
    return getattr(tool, "coroutine", None), getattr(tool, "func", None), tool.args_schema


def plan_for(tool: BaseTool) -> Plan:
    """Inspect a tool.

    Raises:
        ValueError: if an argument carries the same injection marker twice.
    """
    cls = type(tool)
    injected = injected_args(tool)
    if cls.ainvoke not in _INVOKES or any(
        getattr(cls, name) is not getattr(BaseTool, name) for name in ("arun", "run", "invoke")
    ):
        return Plan(tool, "foreign", tool.ainvoke, injected, None, frozenset(), None, False, False, _parts(tool))
    kind, fn = _body(tool)
    behind = fn in (getattr(tool, "coroutine", None), getattr(tool, "func", None))
    parameters = _signature_parameters(fn)
    return Plan(
        tool=tool,
        kind=kind,
        fn=fn,
        injected=injected,
        model=_args_model(tool),
        direct=tool._injected_args_keys,
        config_param=_get_runnable_config_param(fn),
        run_manager=not behind and "run_manager" in parameters,
        callbacks=behind and "callbacks" in parameters,
        made_of=_parts(tool),
    )


def _body(tool: BaseTool) -> tuple[Kind, Callable[..., Any]]:
    cls = type(tool)
    coroutine, func = getattr(tool, "coroutine", None), getattr(tool, "func", None)
    if cls._arun in _CALLS_COROUTINE:
        if coroutine is not None:
            return "async", coroutine
        return ("sync", func) if cls._run in _CALLS_FUNC and func is not None else ("sync", tool._run)
    return ("sync", tool._run) if cls._arun is BaseTool._arun else ("async", tool._arun)


def _args_model(tool: BaseTool) -> ArgsModel | None:
    schema = tool.args_schema
    cls = type(tool)
    if cls._to_args_and_kwargs is not BaseTool._to_args_and_kwargs or cls._parse_input is not BaseTool._parse_input:
        return None
    if not (isinstance(schema, type) and issubclass(schema, BaseModel) and _is_plain(schema)):
        return None
    annotations = get_all_basemodel_annotations(schema)
    fields = schema.model_fields
    return ArgsModel(
        validate=schema.model_validate,
        optional=tuple(name for name, f in fields.items() if not f.is_required() and name not in ("args", "kwargs")),
        names=frozenset(fields),
        call_id=tuple(
            name for name, hint in annotations.items() if _is_injected_arg_type(hint, injected_type=InjectedToolCallId)
        ),
    )


def _is_plain(schema: type[BaseModel]) -> bool:
    """Whether what `model_dump` would list is exactly the fields by their names."""
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
