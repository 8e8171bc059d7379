"""Paths in a tool's arguments, such as `files[].path`, in each spelling that the tool accepts.

A model may write a field under another name: an alias, one of several aliases, or a place in another argument. A rule
has to check all of them, and a rule that can reach no argument is an error.
"""

import dataclasses
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from langchain_core.tools import BaseTool
from pydantic import AliasChoices, AliasPath, BaseModel, Field, Json, RootModel
from pydantic.fields import FieldInfo
from pydantic.v1 import BaseModel as BaseModelV1
from typing_extensions import TypeAliasType, is_typeddict

from callboard._util._suggestions import no_such

Path = tuple[str, ...]
"""Path in the arguments: names of keys, `[]` for each item of a list, and `*` for each key."""

_SCALARS = (str, bytes, int, float, type(None))


class NoSuchPathError(ValueError):
    """Raised if the arguments of a tool cannot have a path."""


class JsonTextError(ValueError):
    """Raised if a path leads into a JSON text, which the tool parses after the rules have been checked."""


def spellings_of_path(path: Path, tool: BaseTool) -> frozenset[Path]:
    """Return all spellings of a path in the arguments of a tool.

    Args:
        path: path with the declared names of arguments and fields, or with one of their aliases.
        tool: the tool that has the arguments.

    Raises:
        NoSuchPathError: if the arguments cannot have such a path.
        JsonTextError: if the path leads into a JSON text (`pydantic.Json`).
    """
    schema: Any = tool.args_schema
    if isinstance(schema, dict):
        _check_path_in_json_schema(path, schema)
        return frozenset((path,))
    return frozenset(_find_spellings_in_type(path, schema))


def _find_spellings_in_type(path: Path, annotation: Any) -> Iterator[Path]:
    """Yield the spellings of a path below a value of a type."""
    if not path:
        yield ()
        return
    if isinstance(annotation, TypeVar):
        raise NoSuchPathError(f"its type is the type variable {annotation}, in which no rule can check {path[0]!r}")
    origin = get_origin(annotation)
    if (named_type := _resolve_type_alias(annotation)) is not annotation:
        yield from _find_spellings_in_type(path, named_type)
    elif hasattr(annotation, "__metadata__"):
        _refuse_json_text(path, annotation.__metadata__)
        yield from _find_spellings_in_type(path, annotation.__origin__)
    elif origin in (Union, types.UnionType):
        yield from _find_spellings_in_union(path, get_args(annotation))
    elif annotation is Json or (fields := _fields_of(annotation)) is None:
        yield from _find_spellings_in_container(path, annotation, origin or annotation)
    else:
        yield from _find_spellings_in_fields(path, annotation, fields)


def _resolve_type_alias(annotation: Any) -> Any:
    """Return the type that an alias or a `NewType` stands for; any other type itself."""
    origin = get_origin(annotation)
    if isinstance(annotation, TypeAliasType):
        return annotation.__value__
    if isinstance(origin, TypeAliasType):
        return origin.__value__[get_args(annotation)]
    return annotation.__supertype__ if isinstance(annotation, NewType) else annotation


def _find_spellings_in_union(path: Path, members: Collection[Any]) -> Iterator[Path]:
    spellings: set[Path] = set()
    errors: list[NoSuchPathError] = []
    for member in members:
        try:
            spellings |= set(_find_spellings_in_type(path, member))
        except NoSuchPathError as error:
            errors.append(error)
    if not spellings:
        raise errors[0]
    yield from spellings


def _find_spellings_in_container(path: Path, annotation: Any, kind: Any) -> Iterator[Path]:
    if annotation is Json:
        _refuse_json_text(path, (Json,))
    is_class = isinstance(kind, type)
    if is_class and issubclass(kind, _SCALARS):
        raise NoSuchPathError(f"a value of type {kind.__name__} has no part {path[0]!r}")
    arguments = get_args(annotation)
    if is_class and issubclass(kind, Mapping) and arguments:
        parts, types_of_values = path[:1], arguments[-1:]
    elif is_class and issubclass(kind, Iterable) and arguments:
        if path[0] != "[]":
            raise NoSuchPathError(f"a list has items ('[]'), and no part {path[0]!r}")
        parts, types_of_values = ("[]",), tuple(item for item in arguments if item is not Ellipsis)
    else:
        # A type that declares no parts, such as `Any`: each path may exist.
        yield path
        return
    for ending in _find_spellings_in_union(path[1:], types_of_values):
        yield (*parts, *ending)


def _find_spellings_in_fields(path: Path, annotation: Any, fields: Mapping[str, FieldInfo]) -> Iterator[Path]:
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _find_spellings_in_type(path, fields["root"].annotation)
        return
    name, inner_path = path[0], path[1:]
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if not is_model and (getattr(annotation, "__pydantic_config__", None) or {}).get("alias_generator") is not None:
        raise NoSuchPathError("its `alias_generator` makes names that no rule can know; take a pydantic model instead")
    config = getattr(annotation, "model_config", {})
    if isinstance(annotation, type) and issubclass(annotation, BaseModelV1):
        model_config = annotation.__config__
        config = {"extra": model_config.extra, "populate_by_name": model_config.allow_population_by_field_name}
    allows_extra_keys = config.get("extra") == "allow"
    accepts_field_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    spellings = {
        field_name: _spellings_of(field_name, field, accepts_field_name=accepts_field_name)
        for field_name, field in fields.items()
    }
    matching_names = [name]
    if name not in fields:
        matching_names = [field_name for field_name in fields if name == "*" or (name,) in spellings[field_name]]
    if not matching_names and not allows_extra_keys:
        raise NoSuchPathError(no_such("argument", name, fields))
    for field_name in matching_names:
        field = fields[field_name]
        if inner_path:
            _refuse_json_text(inner_path, field.metadata)
        for ending in _find_spellings_in_type(inner_path, field.annotation):
            for spelling in spellings[field_name]:
                yield (*spelling, *ending)
    if name == "*" or allows_extra_keys:
        yield path  # further keys, which no field describes


def _fields_of(annotation: Any) -> Mapping[str, FieldInfo] | None:
    """Return the fields of a model, dataclass or typed dictionary, by name; `None` for any other type."""
    if not isinstance(annotation, type):
        annotation = get_origin(annotation)  # a generic model with its parameters, for instance
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, BaseModel):
        return annotation.model_fields
    if issubclass(annotation, BaseModelV1):
        v1_fields = annotation.__fields__.items()
        return {
            name: FieldInfo.from_annotated_attribute(field.outer_type_, Field(alias=field.alias))
            for name, field in v1_fields
        }
    if hasattr(annotation, "__pydantic_fields__"):
        fields: Mapping[str, FieldInfo] = annotation.__pydantic_fields__
        return fields
    if dataclasses.is_dataclass(annotation) or is_typeddict(annotation):
        hints = get_type_hints(annotation, include_extras=True)
        # A dataclass may have a `Field(alias=...)` as the default of a field.
        defaults = {name: getattr(annotation, name, None) for name in hints}
        return {
            name: FieldInfo.from_annotated_attribute(hint, default)
            if isinstance(default := defaults[name], FieldInfo)
            else FieldInfo.from_annotation(hint)
            for name, hint in hints.items()
        }
    return None


def _spellings_of(name: str, field: FieldInfo, *, accepts_field_name: bool) -> list[Path]:
    """Return the paths under which a field may be written: its aliases, and its name if that is accepted, too."""
    choices = field.validation_alias
    aliases = [*(choices.choices if isinstance(choices, AliasChoices) else [choices]), field.alias]
    # A name that is not accepted may be the alias of another field, which has a rule of its own.
    paths: list[Path] = [(name,)] if accepts_field_name or not any(aliases) else []
    for alias in aliases:
        if isinstance(alias, str):
            paths.append((alias,))
        elif isinstance(alias, AliasPath):
            # A rule has no numbers of items: it checks each item of the list, and so more than the field's own.
            paths.append(tuple("[]" if isinstance(part, int) else part for part in alias.path))
    return list(dict.fromkeys(paths))


def _refuse_json_text(path: Path, metadata: Collection[Any]) -> None:
    # `Json` is generic for type checkers only; `Json[X]` leaves an instance of it in the metadata.
    json_marker: Any = Json
    if any(item is json_marker or isinstance(item, json_marker) for item in metadata):
        raise JsonTextError(
            f"the model writes the value as a JSON text (`Json`), in which no rule can check {path[0]!r}; "
            "check the whole text with a function, or let the tool take the value itself instead of its text"
        )


def _check_path_in_json_schema(path: Path, document: Mapping[str, Any]) -> None:
    """Raise `NoSuchPathError` if a JSON schema excludes a path. Only local references (`#/...`) are followed."""
    schema: Any = document
    for part in path:
        references: set[str] = set()
        while isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            if reference in references or not reference.startswith("#/"):
                return  # another document: the path may exist
            references.add(reference)
            schema = find_referenced_part(reference, document)
        if not isinstance(schema, dict) or any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf", "not")):
            return  # alternatives: the path may exist
        properties = schema.get("properties")
        if part == "[]":
            schema = schema.get("items", {})
        elif part != "*" and isinstance(properties, dict) and part not in properties:
            if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
                return  # other names are allowed
            raise NoSuchPathError(no_such("argument", part, properties))
        else:
            schema = properties.get(part) if isinstance(properties, dict) else schema.get("additionalProperties")


def find_referenced_part(reference: str, document: Mapping[str, Any]) -> Any:
    """Return the part of a JSON document that a reference such as `#/$defs/item` names; `None` for any other."""
    # A JSON pointer (RFC 6901) within the document; other documents are not fetched.
    part: Any = document if reference.startswith("#") else None
    for key in reference.split("/")[1:]:
        part = part.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    return part
