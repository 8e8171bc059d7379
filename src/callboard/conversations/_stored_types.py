"""Types that a stored conversation may contain, and state keys that are never stored.

The types are collected from schemas. State keys with LangGraph's `UntrackedValue`, such as a connection, are removed
from writes, outputs and sends.
"""

from collections.abc import Collection, Iterable
from dataclasses import is_dataclass, replace
from enum import Enum
from typing import Annotated, Any, Literal, NewType, TypeVar, get_args, get_origin, get_type_hints

from langgraph.types import Command, Send
from pydantic import BaseModel

from callboard.conversations._channels import Schema, Write
from callboard.conversations._storage import Amended, Entry, Finished, Move


def collect_types(*annotations: Any) -> set[type]:
    """Return the types in annotations, but only types whose values LangGraph's serializer stores with a type name."""
    # By id, because annotations need not be hashable. The dict keeps each object alive: many are temporary, and a new
    # object could otherwise get the id of a freed one.
    annotations_by_id: dict[int, object] = {}
    types: set[type] = set()
    due = list(annotations)
    while due:
        annotation = due.pop()
        if id(annotation) in annotations_by_id:
            continue
        annotations_by_id[id(annotation)] = annotation
        # LangGraph's serializer stores values of these types as their fields and the name of the type.
        if isinstance(annotation, type) and (
            issubclass(annotation, (BaseModel, Enum))
            or is_dataclass(annotation)
            or any(hasattr(annotation, name) for name in ("_asdict", "get_secret_value", "__fields__"))
        ):
            types.add(annotation)
        due.extend(_parts_of(annotation))
    return types


def _parts_of(annotation: Any) -> Iterable[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return get_args(annotation)[:1]
    if origin is Literal:
        return ()
    if origin is not None:
        return (origin, *get_args(annotation))
    if isinstance(annotation, NewType):
        return (annotation.__supertype__,)
    if isinstance(annotation, TypeVar):
        return (annotation.__bound__, *annotation.__constraints__)
    if isinstance(annotation, (list, tuple)):
        # The parameters of a `Callable`, or `response_format` as a pair: a system prompt and a schema.
        return annotation
    if isinstance(annotation, type):
        if annotation.__module__ == "builtins" or not getattr(annotation, "__annotations__", None):
            return ()
        try:
            return get_type_hints(annotation, include_extras=True).values()
        except Exception:  # a name imported for type checkers only; pydantic may know it
            return [field.annotation for field in getattr(annotation, "model_fields", {}).values()]
    # An alias made by `type X = ...`, or LangChain's strategy for a structured response.
    return (getattr(annotation, "__value__", None), getattr(annotation, "schema", None))


def parse_stored_types(types: Iterable[Any], checkpointer: object) -> list[type]:
    """Check the option `stored_types`, and return it as a list."""
    if isinstance(types, type):
        raise TypeError(f"stored_types is a list of classes, such as [{types.__name__}], got {types!r}")
    classes = list(types)
    for item in classes:
        if not isinstance(item, type):
            raise TypeError(f"stored_types has classes, got {item!r}")
    if classes and checkpointer is not None and not isinstance(checkpointer, str):
        raise ValueError(
            f"stored_types={classes!r} is for databases by URL, and checkpointer is {checkpointer!r}. A saver has a "
            "serializer of its own: give it serde=JsonPlusSerializer(allowed_msgpack_modules=[...]), "
            "or leave stored_types out"
        )
    return classes


def drop_untracked_writes(writes: Iterable[Write], untracked: Collection[str]) -> list[Write]:
    return [(name, value) for name, value in writes if name not in untracked]


def drop_untracked(entry: Entry, schema: Schema) -> Entry:
    # The common case: the entry itself, uncopied.
    if not schema.untracked:
        return entry
    if isinstance(entry, Amended):
        entry = replace(entry, writes=drop_untracked_writes(entry.writes, schema.untracked))
    if isinstance(entry, Move):
        return replace(entry, sends=[drop_untracked_of_send(send, schema) for send in entry.sends])
    if isinstance(entry, Finished):
        return replace(entry, output=_without_untracked(entry.output, schema))
    return entry


def _without_untracked(output: Any, schema: Schema) -> Any:
    if isinstance(output, dict):
        return {name: value for name, value in output.items() if name not in schema.untracked}
    if isinstance(output, (list, tuple)):
        return [_without_untracked(item, schema) for item in output]
    if isinstance(output, Command):
        goto: Any = output.goto
        targets = (
            [drop_untracked_of_send(item, schema) for item in goto]
            if isinstance(goto, (list, tuple))
            else drop_untracked_of_send(goto, schema)
        )
        return replace(output, update=_update_without_untracked(output.update, schema), goto=targets)
    return _update_without_untracked(output, schema)


def _update_without_untracked(update: Any, schema: Schema) -> Any:
    if isinstance(update, dict):
        return _without_untracked(update, schema)
    if isinstance(update, (list, tuple)):
        pairs = all(isinstance(item, tuple) and len(item) == 2 for item in update)
        return drop_untracked_writes(update, schema.untracked) if pairs else update
    if any(hasattr(update, name) for name in schema.untracked) and (
        isinstance(update, BaseModel) or is_dataclass(update)
    ):
        return dict(drop_untracked_writes(schema.writes_of(update), schema.untracked))
    return update


def drop_untracked_of_send(target: Any, schema: Schema) -> Any:
    """Return a `Send` without the keys of its input that are never stored; return the name of a node unchanged."""
    return Send(target.node, _without_untracked(target.arg, schema)) if isinstance(target, Send) else target
