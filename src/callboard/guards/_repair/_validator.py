"""Places where a value breaks a JSON schema, by the library jsonschema.

A schema may come from an untrusted server. Nothing that it refers to is fetched, and its regular expressions are never
run: some take exponential time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

MAX_CHOICES = 2000
"""Maximum number of `anyOf` and `oneOf` lists that one validation visits; nesting doubles them at each level."""
_IGNORED = ("pattern", "patternProperties", "unevaluatedProperties")
_OF_KIND = frozenset(("type", "enum", "const"))


class TooManyChoicesError(Exception):
    """Raised if a schema has too many alternatives to locate an error in reasonable time."""


_choices: ContextVar["Iterator[int]"] = ContextVar("callboard_schema_choices")


class Validator:
    """Validator for the draft that a schema names, or for 2020-12."""

    def __init__(self, schema: Schema) -> None:
        # From an extra; `contract_of()` has checked that it is installed.
        from jsonschema import Draft202012Validator, validators
        from referencing import Registry

        draft = validators.validator_for(schema, default=Draft202012Validator)
        keywords = {
            **dict.fromkeys(_IGNORED, _anything),
            "additionalProperties": _unless_patterns(draft.VALIDATORS["additionalProperties"]),
            "items": _or_tuple(draft.VALIDATORS["items"]),
            "anyOf": _among_fitting(draft.VALIDATORS["anyOf"], schema),
            "oneOf": _among_fitting(draft.VALIDATORS["oneOf"], schema),
        }
        extend: Any = validators.extend
        kind = extend(draft, keywords)
        # An empty registry: references to other documents fail instead of being fetched.
        self._validator = kind(_of_one_draft(schema), registry=Registry())

    def faults(self, value: object) -> list[Path]:
        """Return the places where a value is wrong; raise `TooManyChoicesError` if that takes too long."""
        token = _choices.set(iter(range(MAX_CHOICES)))
        try:
            return [place for error in self._validator.iter_errors(value) for place in _places(error)]
        finally:
            _choices.reset(token)


def _places(error: Any) -> Iterator[Path]:
    if not error.context:
        # A `False` schema has no keyword. The value must not exist, so the fault is in the object around it.
        path = tuple(error.absolute_path)
        yield path if error.validator else path[:-1]
        return
    alternatives = defaultdict[object, list[Any]](list)
    for one in error.context:
        alternatives[one.schema_path[0]].append(one)
    # Ignore alternatives of another type: a broken object is not a failed attempt to write `null`.
    suited = [errors for errors in alternatives.values() if not any(map(_is_of_another_kind, errors))]
    for errors in suited or alternatives.values():
        for one in errors:
            yield from _places(one)


def _is_of_another_kind(error: Any) -> bool:
    return error.validator in _OF_KIND and not error.path


def _anything(*_: object) -> None:
    """Keyword that is ignored and so reports no error."""


def _unless_patterns(keyword: Any) -> Any:
    """Return `additionalProperties`, ignored beside `patternProperties`, whose expressions are not run."""

    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from keyword(validator, value, instance, schema) or ()

    return judge


def _or_tuple(keyword: Any) -> Any:
    """Return `items` that also accepts a list, as drafts before 2020-12 do: few schemas name their draft."""

    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(value, list):
            yield from keyword(validator, value, instance, schema) or ()
        elif isinstance(instance, list):
            for index, (item, one) in enumerate(zip(instance, value, strict=False)):
                yield from validator.descend(item, one, path=index, schema_path=index)

    return judge


def _among_fitting(keyword: Any, root: Schema) -> Any:
    """Return `anyOf` or `oneOf` without alternatives whose constants contradict the value.

    Following two alternatives at every level of a value would take exponential time.
    """

    def judge(validator: Any, alternatives: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if next(_choices.get(), None) is None:
            raise TooManyChoicesError
        fitting = [one for one in alternatives if _may_fit(_target(one, root), instance)]
        yield from keyword(validator, fitting or alternatives, instance, schema) or ()

    return judge


def _may_fit(schema: Any, instance: Any) -> bool:
    """Return whether the value agrees with all constants of a schema's properties."""
    if not isinstance(instance, Mapping) or not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return True
    constants = (
        (instance[name], one["const"]) for name, one in properties.items() if name in instance and "const" in one
    )
    return all(given == meant for given, meant in constants)


def _target(schema: Any, root: Schema) -> Any:
    """Return the schema to which a local reference points; a chain of references is not followed."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    here: Any = root
    for key in reference.split("/")[1:]:
        here = here.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(here, Mapping) else None
    return here


def _of_one_draft(schema: Any) -> Any:
    """Return a schema without nested `$schema`: jsonschema would switch to its own keywords for those parts."""
    if isinstance(schema, Mapping):
        return {
            key: _of_one_draft(value)
            for key, value in schema.items()
            if not (key == "$schema" and isinstance(value, str))
        }
    return [_of_one_draft(value) for value in schema] if isinstance(schema, list) else schema
