"""JSON schemas of arguments: the types and names that a schema expects, and the paths of invalid values.

The intention is taken from types, choices, properties, items, references and combinations; ranges and lengths do not
help to guess it. A schema may come from an untrusted server. Nothing that it refers to is fetched, and its regular
expressions are never run: some take exponential time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from copy import deepcopy
from functools import cached_property, reduce
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from callboard._langchain._errors import is_control_flow
from callboard._langchain._plan import injected_args
from callboard._util._extras import require
from callboard.guards._sanitize._argument_paths import find_referenced_part

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

# Intention


_MAX_REFS = 8
"""Maximum depth of nested references and combinations; a schema of a server may refer to itself."""
_MAX_PARTS = 500
"""Maximum number of parts of nested combinations; at a depth of eight, ten parts each would be a hundred million."""


class Shape:
    """Structure of the values that a JSON schema describes."""

    def __init__(self, document: Schema, hidden_names: frozenset[str] = frozenset()) -> None:
        self._document = document
        # Keyed by `id()`. The schema itself is kept as well, because the id of a freed object may be reused.
        self._resolved_by_id: dict[int, tuple[object, list[Schema]]] = {}
        self.root: Schema = document
        alternatives = self.resolve_alternatives(document)
        if len(alternatives) == 1:
            [schema] = alternatives
            properties = {name: part for name, part in schema.get("properties", {}).items() if name not in hidden_names}
            required = [name for name in schema.get("required", ()) if name not in hidden_names]
            self.root = {**schema, "properties": properties, "required": required}

    def resolve_alternatives(self, schema: object) -> list[Schema]:
        """Return the alternative schemas that a schema combines, such as in `anyOf`, with resolved references."""
        entry = self._resolved_by_id.get(id(schema))
        if entry is None:
            resolved: list[Schema]
            try:
                resolved = self._resolve_combinations(schema, depth=0, budget=_StepBudget(_MAX_PARTS))
            except TooManyChoicesError:
                resolved = [{}]  # any value: nothing is known of what the schema wants
            entry = self._resolved_by_id[id(schema)] = (schema, resolved)
        _schema, alternatives = entry
        return alternatives

    def _resolve_combinations(self, schema: object, depth: int, budget: "_StepBudget") -> list[Schema]:
        budget.spend(1)
        if not isinstance(schema, Mapping) or depth > _MAX_REFS:
            return [{}] if schema is True else []  # `True` allows every value
        keyword = next((keyword for keyword in ("$ref", "allOf", "anyOf", "oneOf") if keyword in schema), None)
        if keyword is None:
            return [schema]
        siblings = {key: value for key, value in schema.items() if key != keyword}
        if keyword == "$ref":
            parts = [_merge_schemas(self._resolve_reference(schema["$ref"]), siblings)]
        elif keyword == "allOf":
            parts = [
                reduce(
                    _merge_schemas,
                    (self._resolve_reference(part.get("$ref", part)) for part in schema["allOf"]),
                    siblings,
                )
            ]
        else:
            parts = [_merge_schemas(siblings, part) for part in schema[keyword] if isinstance(part, Mapping)]
        return [resolved for part in parts for resolved in self._resolve_combinations(part, depth + 1, budget)]

    def _resolve_reference(self, reference: Any) -> Schema:
        part = find_referenced_part(reference, self._document) if isinstance(reference, str) else reference
        return {} if part is None else part

    def schemas_along(self, path: Path) -> list[list[Schema]]:
        """Return the alternative schemas for the root value, then for each value on a path of keys and indices."""
        schemas_by_step = [self.resolve_alternatives(self.root)]
        for key in path:
            container_example: object = {} if isinstance(key, str) else []
            containers = [schema for schema in schemas_by_step[-1] if has_allowed_type(container_example, schema)]
            inner_schemas = [
                part for schema in containers for part in self.resolve_alternatives(_schema_under(schema, key))
            ]
            schemas_by_step.append(list({id(schema): schema for schema in inner_schemas}.values()))
        return schemas_by_step

    def find_faults(self, value: object) -> list[Path]:
        """Return the paths of invalid parts of a value; raise `TooManyChoicesError` if the search takes too long."""
        reset_token = _choice_budget.set(_StepBudget(_MAX_CHOICES))
        try:
            return [path for error in self._validator.iter_errors(value) for path in _invalid_paths(error)]
        finally:
            _choice_budget.reset(reset_token)

    @cached_property
    def _validator(self) -> Any:
        """`jsonschema` validator for the draft that the schema names, or for draft 2020-12."""
        # From an extra; `make_contract()` has checked that it is installed.
        from jsonschema import Draft202012Validator, validators
        from referencing import Registry

        draft = validators.validator_for(self.root, default=Draft202012Validator)
        keywords = {
            **dict.fromkeys(_IGNORED_KEYWORDS, lambda *_: None),
            "additionalProperties": _skip_beside_patterns(draft.VALIDATORS["additionalProperties"]),
            **{name: _limit_uses(draft.VALIDATORS[name]) for name in _COSTLY_KEYWORDS if name in draft.VALIDATORS},
        }
        extend: Any = validators.extend
        # An empty registry: references to other documents fail instead of being fetched.
        return extend(draft, keywords)(_without_draft_keywords(self.root), registry=Registry())


def _merge_schemas(first: Schema, second: Schema) -> Schema:
    merged = {**first, **second}
    if "properties" in first and "properties" in second:
        merged["properties"] = {**first["properties"], **second["properties"]}
    if "required" in first and "required" in second:
        merged["required"] = [*first["required"], *second["required"]]
    return merged


def _schema_under(schema: Schema, key: str | int) -> object:
    """Return the schema of the value under a key of an object, or at an index of a list."""
    # It is `True` if the schema allows any value there, `False` if it allows none.
    if isinstance(key, str):
        open_ended = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return schema.get("properties", {}).get(key, open_ended)
    first = schema.get("prefixItems", ())
    return first[key] if key < len(first) else schema.get("items", True)


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def allowed_types(schema: Schema) -> set[str]:
    """Return the JSON types that a schema allows; an empty set if it allows any type."""
    types = schema.get("type")
    if types is not None:
        return set(types) if isinstance(types, list) else {types}
    return {name for value in allowed_values(schema) or () for name in _PYTHON_TYPES if has_json_type(value, name)}


def allowed_values(schema: Schema) -> list[Any] | None:
    """Return the values that a schema with `enum` or `const` allows; `None` for any other schema."""
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else None


def has_allowed_type(value: object, schema: Schema) -> bool:
    types = allowed_types(schema)
    return not types or any(has_json_type(value, name) for name in types)


def has_json_type(value: object, type_name: str) -> bool:
    """Return whether a value has a JSON type; an unknown type matches any value."""
    # In Python a bool is an int, in JSON it is not.
    if isinstance(value, bool) and type_name in ("number", "integer"):
        return False
    if type_name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(type_name, (object,)))


# Validation

_MAX_CHOICES = 5000
"""Maximum number of references and of parts of combinations in one validation: each level of nesting can double it."""
_IGNORED_KEYWORDS = ("pattern", "patternProperties", "unevaluatedProperties")
_COSTLY_KEYWORDS = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if")
"""Keywords by which a short schema can have a part validated very often."""
_TYPE_KEYWORDS = frozenset(("type", "enum", "const"))


class TooManyChoicesError(Exception):
    """Raised if a schema has too many alternatives to locate an error in reasonable time."""


class _StepBudget:
    """Number of steps that a search may still take."""

    def __init__(self, steps: int) -> None:
        self._remaining = steps

    def spend(self, steps: int) -> None:
        """Take steps from the budget; raise `TooManyChoicesError` if they are not left."""
        self._remaining -= steps
        if self._remaining < 0:
            raise TooManyChoicesError


_choice_budget: ContextVar[_StepBudget] = ContextVar("callboard_schema_choices")


def _invalid_paths(error: Any) -> Iterator[Path]:
    if not error.context:
        # A `False` schema has no keyword. The value must not exist, so the fault is in the object around it.
        path = tuple(error.absolute_path)
        yield path if error.validator else path[:-1]
        return
    errors_by_alternative = defaultdict[object, list[Any]](list)
    for inner_error in error.context:
        errors_by_alternative[inner_error.schema_path[0]].append(inner_error)
    # Ignore alternatives of another type: a broken object is not a failed attempt to write `null`.
    fitting_alternatives = [
        errors
        for errors in errors_by_alternative.values()
        if not any(inner_error.validator in _TYPE_KEYWORDS and not inner_error.path for inner_error in errors)
    ]
    for errors in fitting_alternatives or errors_by_alternative.values():
        for inner_error in errors:
            yield from _invalid_paths(inner_error)


def _skip_beside_patterns(check_keyword: Any) -> Any:
    """Return a check of `additionalProperties` that does nothing if the schema also has `patternProperties`."""

    # The expressions of `patternProperties` are not run, so it is unknown which properties are additional.
    def check(validator: Any, keyword_value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from check_keyword(validator, keyword_value, instance, schema) or ()

    return check


def _limit_uses(check_keyword: Any) -> Any:
    """Return a check of a keyword that raises `TooManyChoicesError` after too many uses in one validation."""

    # Two alternatives at every level of a value take exponential time.
    def check(validator: Any, parts: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _choice_budget.get().spend(len(parts) if isinstance(parts, list) else 1)
        yield from check_keyword(validator, parts, instance, schema) or ()

    return check


def _without_draft_keywords(schema: Any) -> Any:
    """Return a copy of a schema without `$schema` keywords, so that one JSON Schema draft applies to all parts."""
    # At a nested `$schema`, jsonschema would switch to its own keywords for that part.
    if isinstance(schema, Mapping):
        return {
            key: _without_draft_keywords(value)
            for key, value in schema.items()
            if not (key == "$schema" and isinstance(value, str))
        }
    return [_without_draft_keywords(value) for value in schema] if isinstance(schema, list) else schema


# Arguments of a tool

Args = dict[str, Any]

MAX_DEPTH = 32
MAX_NODES = 1_000
MAX_CHARS = 200_000
"""Maximum depth, nodes and characters of arguments that are repaired: each pass copies and validates them again."""


class Contract:
    """Schema and validator of the arguments of one tool."""

    def __init__(self, tool: BaseTool, injected: frozenset[str], validate: Callable[[Args], object] | None) -> None:
        self.name = tool.name
        self.injected = injected
        self._schema = tool.args_schema
        self._validate = validate

    @cached_property
    def shape(self) -> Shape:
        """Structure of valid arguments, as the tool's schema describes it."""
        schema: Any = self._schema
        if not isinstance(schema, dict):
            # Not the tool's `tool_call_schema`: it lacks aliases, and does not say that extra arguments are forbidden.
            try:
                schema = schema.model_json_schema(schema_generator=_LenientSchemaGenerator)
            except Exception:  # raised again where the tool is offered to a model
                schema = {}  # an empty schema allows everything, so nothing will be repaired
        return Shape(schema, self.injected)

    def find_faults(self, args: Args) -> tuple[Path, ...]:
        """Return the paths of invalid values in the arguments, without injected arguments; empty if all are valid."""
        try:
            if self._validate is None:
                return tuple(dict.fromkeys(self.shape.find_faults(args)))
            # A copy, because validators of mode "before" may change what they get.
            self._validate(deepcopy(args))
        except Exception as error:
            if is_control_flow(error) or isinstance(error, TooManyChoicesError):
                raise
            return tuple(dict.fromkeys(_existing_path(path, args) for path in self._faulty_paths(error)))
        return ()

    def _faulty_paths(self, error: Exception) -> list[Path]:
        # An error that is no pydantic one gives no place. Building many error objects takes longer than the validation.
        if not isinstance(error, ValidationError) or error.error_count() > MAX_NODES:
            return [()]
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return [detail["loc"] for detail in details if not detail["loc"] or detail["loc"][0] not in self.injected]


def make_contract(tool: BaseTool) -> Contract | None:
    """Return the schema and validator of a tool's arguments, or `None` if the arguments cannot be repaired."""
    schema = tool.args_schema
    if type(tool)._parse_input is not BaseTool._parse_input:
        return None
    validate: Callable[[Args], object] | None = None
    if isinstance(schema, dict):
        subject = f"RepairArguments() for {tool.name!r}, whose schema is JSON,"
        require(subject, "jsonschema", extra="middleware", instead="give the tool a pydantic model")
    elif isinstance(schema, type) and issubclass(schema, BaseModel) and schema.model_fields:
        validate = schema.model_validate
    else:
        return None  # no schema, one of pydantic v1, or a model without fields, which langchain-core does not validate
    injected = injected_args(tool)
    return Contract(tool, injected.unwritable | injected.names, validate)


def _existing_path(location: tuple[Any, ...], args: Args) -> Path:
    """Return the path of the invalid value in the arguments, from the location that a pydantic error reports."""
    # A location may also name members of unions and missing arguments; keys that the arguments lack are skipped.
    path: list[str | int] = []
    container: Any = args
    for key in location:
        if (isinstance(container, dict) and key in container) or (
            isinstance(container, list) and isinstance(key, int) and key < len(container)
        ):
            path.append(key)
            container = container[key]
    return tuple(path)


def is_small_json(value: object) -> bool:
    """Return whether a value has JSON types only, and is small enough to be validated several times."""
    nodes = chars = 0
    # An explicit stack: the model may nest deeper than Python's recursion limit.
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        nodes += 1
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return False
            chars += sum(map(len, item))
            item = [*item.values()]
        if isinstance(item, list):
            if depth == MAX_DEPTH or nodes + len(stack) + len(item) > MAX_NODES:
                return False
            stack.extend((inner, depth + 1) for inner in item)
        elif isinstance(item, str):
            chars += len(item)
        elif item is not None and not isinstance(item, (int, float)):
            return False
    return chars <= MAX_CHARS


class _LenientSchemaGenerator(GenerateJsonSchema):
    """Generator of JSON schemas for any pydantic model. Types without a JSON form silently allow any value."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's declaration)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}
