"""Where a value breaks a JSON schema, by the library jsonschema.

A schema comes from a server. Nothing is fetched that it refers to, and none of its regular expressions is run, for
there are some that take for ever.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

_IGNORED = ("pattern", "patternProperties", "unevaluatedProperties")
_OF_KIND = frozenset(("type", "enum", "const"))


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
        }
        extend: Any = validators.extend
        kind = extend(draft, keywords)
        self._validator = kind(_of_one_draft(schema), registry=Registry())

    def faults(self, value: object) -> Iterator[Path]:
        """The places where a value is wrong."""
        for error in self._validator.iter_errors(value):
            yield from _places(error)


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
    """Find no fault."""


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


def _of_one_draft(schema: Any) -> Any:
    """A schema without the drafts that parts of it name: jsonschema would take its own keywords for these."""
    if isinstance(schema, Mapping):
        return {
            key: _of_one_draft(value)
            for key, value in schema.items()
            if not (key == "$schema" and isinstance(value, str))
        }
    return [_of_one_draft(value) for value in schema] if isinstance(schema, list) else schema
