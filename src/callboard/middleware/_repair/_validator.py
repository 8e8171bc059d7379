"""Where a value breaks a JSON schema, by the library jsonschema.

A schema comes from a server. Nothing is fetched that it refers to, and none of its regular expressions is run, for
there are some that take for ever.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

MAX_CHOICES = 2000
"""Lists of alternatives that one validation goes through; nested ones double with each level."""
_IGNORED = ("pattern", "patternProperties", "unevaluatedProperties")
_OF_KIND = frozenset(("type", "enum", "const"))


class TooManyChoicesError(Exception):
    """It would take too long to find out where a value is wrong."""


_choices: ContextVar["Iterator[int]"] = ContextVar("callboard_schema_choices")


class Validator:
    """Judges values by a schema, of the draft that it names, or of 2020-12."""

    def __init__(self, schema: Schema) -> None:
        # An extra; who has made the contract of a tool has seen that it is there.
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
        self._validator = kind(_of_one_draft(schema), registry=Registry())

    def faults(self, value: object) -> list[Path]:
        """The places where a value is wrong.

        Raises:
            TooManyChoicesError: if it takes too long to tell.
        """
        token = _choices.set(iter(range(MAX_CHOICES)))
        try:
            return [place for error in self._validator.iter_errors(value) for place in _places(error)]
        finally:
            _choices.reset(token)


def _places(error: Any) -> Iterator[Path]:
    if not error.context:
        # What may not be there at all is the fault of what is around it.
        path = tuple(error.absolute_path)
        yield path if error.validator else path[:-1]
        return
    alternatives = defaultdict[object, list[Any]](list)
    for one in error.context:
        alternatives[one.schema_path[0]].append(one)
    # Who wrote an object did not mean the null that it might have been.
    suited = [errors for errors in alternatives.values() if not any(map(_is_of_another_kind, errors))]
    for errors in suited or alternatives.values():
        for one in errors:
            yield from _places(one)


def _is_of_another_kind(error: Any) -> bool:
    return error.validator in _OF_KIND and not error.path


def _anything(*_: object) -> None:
    """Stands for a keyword of JSON Schema that is not looked at, and so finds no fault."""


def _unless_patterns(keyword: Any) -> Any:
    """`additionalProperties`, where it can be told without a regular expression which they are."""

    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from keyword(validator, value, instance, schema) or ()

    return judge


def _or_tuple(keyword: Any) -> Any:
    """`items`, also as a list, as drafts before 2020-12 have it; few schemas name their draft."""

    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(value, list):
            yield from keyword(validator, value, instance, schema) or ()
        elif isinstance(instance, list):
            for index, (item, one) in enumerate(zip(instance, value, strict=False)):
                yield from validator.descend(item, one, path=index, schema_path=index)

    return judge


def _among_fitting(keyword: Any, root: Schema) -> Any:
    """`anyOf` and `oneOf`, of which those alternatives are left out whose constants say that something else was meant.

    To go into each of two alternatives at every level of a value takes time that doubles with each level.
    """

    def judge(validator: Any, alternatives: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if next(_choices.get(), None) is None:
            raise TooManyChoicesError
        fitting = [one for one in alternatives if _may_fit(_target(one, root), instance)]
        yield from keyword(validator, fitting or alternatives, instance, schema) or ()

    return judge


def _may_fit(schema: Any, instance: Any) -> bool:
    """Whether nothing that a value has is another than the constant that is meant for it."""
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
    """What a reference within the schema stands for; references to references are not followed."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    here: Any = root
    for key in reference.split("/")[1:]:
        here = here.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(here, Mapping) else None
    return here


def _of_one_draft(schema: Any) -> Any:
    """A schema without the drafts that parts of it name: jsonschema would take its own keywords for these."""
    if isinstance(schema, Mapping):
        return {
            key: _of_one_draft(value)
            for key, value in schema.items()
            if not (key == "$schema" and isinstance(value, str))
        }
    return [_of_one_draft(value) for value in schema] if isinstance(schema, list) else schema
