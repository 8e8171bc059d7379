"""Intended types and names of values, as far as a JSON schema tells them.

Used are types, choices, properties, items, references and combinations. Ranges and lengths do not help to guess the
intention; whether a value is valid is decided by jsonschema.
"""

from collections.abc import Mapping
from functools import cached_property, reduce
from typing import Any, cast

from callboard.guards._repair._validator import Path, Schema, Validator

_MAX_REFS = 8
"""Maximum depth of nested references and combinations; a schema of a server may refer to itself."""


class Shape:
    """Structure of the values that a JSON schema describes.

    Args:
        document: schema of an object.
        hidden: properties that do not exist for the model.
    """

    def __init__(self, document: Schema, hidden: frozenset[str] = frozenset()) -> None:
        self._document = document
        # Keyed by `id()`. The schema itself is kept as well, because the id of a freed object may be reused.
        self._seen: dict[int, tuple[object, list[Schema]]] = {}
        found = self.alternatives(document)
        self.root: Schema = _without(found[0], hidden) if len(found) == 1 else document

    def alternatives(self, schema: object) -> list[Schema]:
        """Return the schemas of which a value must satisfy one, with references and combinations resolved."""
        known = self._seen.get(id(schema))
        if known is None:
            known = self._seen[id(schema)] = (schema, self._resolved(schema, 0))
        return known[1]

    def _resolved(self, schema: object, depth: int) -> list[Schema]:
        if not isinstance(schema, Mapping) or depth > _MAX_REFS:
            return [{}] if schema is True else []
        for word in ("$ref", "allOf", "anyOf", "oneOf"):
            if word in schema:
                rest = {key: value for key, value in schema.items() if key != word}
                return [
                    one for part in self._parts(word, schema[word], rest) for one in self._resolved(part, depth + 1)
                ]
        return [schema]

    def _parts(self, word: str, value: Any, rest: Schema) -> list[Schema]:
        if word == "$ref":
            return [_merged(self._target(value), rest)]
        if word == "allOf":
            return [reduce(_merged, (self._target(part.get("$ref", part)) for part in value), rest)]
        return [_merged(rest, part) for part in value if isinstance(part, Mapping)]

    def _target(self, reference: Any) -> Schema:
        if not isinstance(reference, str):
            return cast("Schema", reference)
        here: Any = self._document if reference.startswith("#") else {}
        for key in reference.split("/")[1:]:
            here = here.get(key.replace("~1", "/").replace("~0", "~"), {}) if isinstance(here, Mapping) else {}
        return cast("Schema", here)

    def along(self, path: Path) -> list[list[Schema]]:
        """Return the alternatives at every step of a path, beginning with the root."""
        steps = [self.alternatives(self.root)]
        for key in path:
            around = [schema for schema in steps[-1] if has_type({} if isinstance(key, str) else [], schema)]
            found = [one for schema in around for one in self.alternatives(_inner(schema, key))]
            steps.append(list({id(one): one for one in found}.values()))
        return steps

    def faults(self, value: object) -> list[Path]:
        """Return the places where a value breaks the schema."""
        return self._validator.faults(value)

    @cached_property
    def _validator(self) -> Validator:
        return Validator(self.root)


def _without(schema: Schema, names: frozenset[str]) -> Schema:
    properties = {name: one for name, one in schema.get("properties", {}).items() if name not in names}
    required = [name for name in schema.get("required", ()) if name not in names]
    return {**schema, "properties": properties, "required": required}


def _merged(one: Schema, other: Schema) -> Schema:
    both = {**one, **other}
    if "properties" in one and "properties" in other:
        both["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        both["required"] = [*one["required"], *other["required"]]
    return both


def _inner(schema: Schema, key: str | int) -> object:
    """Return the schema of a property or an item; `True` if any value is allowed, `False` if none is."""
    if isinstance(key, str):
        open_ended = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return schema.get("properties", {}).get(key, open_ended)
    items = schema.get("items", True)
    first = items if isinstance(items, list) else schema.get("prefixItems", ())
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    return first[key] if key < len(first) else rest


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def types_of(schema: Schema) -> set[str]:
    """Return the JSON types that a schema allows; empty if it allows any."""
    given = schema.get("type")
    if given is not None:
        return set(given) if isinstance(given, list) else {given}
    return {name for value in choices_of(schema) or () for name in _TYPES if is_type(value, name)}


def choices_of(schema: Schema) -> list[Any] | None:
    """Return the allowed values of an enum or constant; `None` if the schema is neither."""
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else None


def has_type(value: object, schema: Schema) -> bool:
    types = types_of(schema)
    return not types or any(is_type(value, name) for name in types)


def is_type(value: object, name: str) -> bool:
    """Return whether a value has a JSON type; an unknown type matches any value."""
    # In Python a bool is an int, in JSON it is not.
    if isinstance(value, bool) and name in ("number", "integer"):
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, (object,)))
