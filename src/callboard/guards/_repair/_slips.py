"""Frequent mistakes of models in a single value or name, and their possible corrections."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NoReturn

from callboard.guards._repair._schema import Schema, choices_of, is_small, is_type, types_of

Kind = Literal["json", "text", "list", "item", "choice", "name", "wrapper"]

MAX_TEXT = 65_536
"""Maximum characters of a text that is parsed as JSON."""

_MAX_WORD = 100
# Short words differ by one letter without being misspellings, such as "get" and "set".
_LEAST_WORD = 5

_WRAPPERS = frozenset(
    {"args", "arguments", "data", "input", "inputs", "kwargs", "parameters", "params", "payload", "toolinput"}
)


def corrections(value: Any, alternatives: Iterable[Schema]) -> list[tuple[Kind, Any]]:
    """Return the possible corrections of a value that satisfies no alternative of its schema.

    Ambiguous forms are not corrected: numbers with separators or leading zeros, words for booleans, fractions for
    text, texts with separators for lists. Neither is text that looks like JSON but is invalid. The alternatives have
    their references resolved.
    """
    due = set[str]().union(*map(types_of, alternatives))
    if isinstance(value, str):
        return [*_of_text(value, due, [c for one in alternatives for c in choices_of(one) or () if isinstance(c, str)])]
    if isinstance(value, list):
        return [("item", value[0])] if len(value) == 1 and due and "array" not in due else []
    found: list[tuple[Kind, Any]] = []
    if "array" in due and value is not None and not (isinstance(value, dict) and "object" in due):
        found.append(("list", [value]))
    if "string" in due and isinstance(value, int) and not isinstance(value, bool):
        found.append(("text", str(value)))
    return found


def _of_text(text: str, due: set[str], choices: list[str]) -> Iterator[tuple[Kind, Any]]:
    value = read(text)
    if unfenced(text)[:1] in ("[", "{"):
        if isinstance(value, (list, dict)):
            yield "json", value
        return
    if (choice := the_one(text, choices)) is not None:
        yield "choice", choice
    is_json_of_json = isinstance(value, str) and text.strip()[:1] == '"'
    if is_json_of_json or any(is_type(value, name) for name in due & {"null", "boolean", "number", "integer"}):
        yield "json", value
    # Text with separators may be one item or several, also if only one of both is valid.
    if "array" in due and text.strip() and not re.search("[,;\n]", text):
        yield "list", [text]


def renamed(value: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Return the correct names of misspelt arguments, by the misspelt name.

    It is empty if two arguments would get the same name.

    Only invalid objects are corrected: required names that are absent or, if the schema forbids others, any name.
    """
    properties = schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    targets = [name for name in (properties if is_closed else schema.get("required", ())) if name not in value]
    unknown = [name for name in value if name not in properties]
    found = {name: target for name in unknown if (target := the_one(name, targets)) is not None}
    return found if len(set(found.values())) == len(found) else {}


def is_wrapper(name: str, tool: str) -> bool:
    """Return whether a name is one under which models wrap all arguments: "input", or the tool's name."""
    return len(name) <= _MAX_WORD and fold(name) in {*_WRAPPERS, fold(tool)}


def the_one(word: str, choices: Iterable[str]) -> str | None:
    """Return the only choice that a misspelt word can stand for, or `None` if there is none, or several.

    A choice that differs only in case and separators wins. Otherwise words of at least five letters may have one
    letter wrong, missing, added or swapped with its neighbour. The first letter must be right, because "unlock" is not
    a misspelt "lock". Words with digits must match: a wrong digit is another name.
    """
    if len(word) > _MAX_WORD:
        return None
    folded = {choice: fold(choice) for choice in choices if len(choice) <= _MAX_WORD}
    key = fold(word)
    near = [choice for choice, other in folded.items() if other == key]
    near = near or [choice for choice, other in folded.items() if _one_slip(key, other)]
    return near[0] if len(near) == 1 and near[0] != word else None


def fold(word: str) -> str:
    """Return a word in lower case, without the separators next to a letter, for comparison."""
    return re.sub(r"(?<=[^\W\d_])[\s_-]+(?=\w)|(?<=\w)[\s_-]+(?=[^\W\d_])", "", word.strip()).casefold()


def _one_slip(one: str, other: str) -> bool:
    if min(len(one), len(other)) < _LEAST_WORD or not (one.isalpha() and other.isalpha()):
        return False
    start = _common(one, other)
    one, other = one[start:], other[start:]
    end = min(_common(one[::-1], other[::-1]), len(one), len(other))
    one, other = one[: len(one) - end], other[: len(other) - end]
    swapped = len(one) == 2 and one == other[::-1]
    return start > 0 and (max(len(one), len(other)) <= 1 or swapped)


def _common(one: str, other: str) -> int:
    """Return the number of letters at the beginning that two words have in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class _Unreadable:
    """Type of the value that stands for unreadable text; `None` would be a valid JSON value."""


UNREADABLE = _Unreadable()


def read(text: str) -> Any:
    """Return the JSON value in a text, or `UNREADABLE`.

    Also accepted are a Markdown fence, trailing commas, and Python's quotes and constants. Ambiguous JSON (duplicate
    keys, Infinity) is not accepted, nor is long or deeply nested JSON.
    """
    if len(text) > MAX_TEXT:
        return UNREADABLE
    text = unfenced(text)
    for form in (str, _as_json):
        try:
            value = _loads(form(text))
        except (ValueError, RecursionError):
            continue
        return value if is_small(value) else UNREADABLE
    return UNREADABLE


def unfenced(text: str) -> str:
    """Return the content of a Markdown code fence; a text without a fence only loses surrounding white space."""
    text = text.strip()
    if not (text.startswith("```") and text.endswith("```")):
        return text
    language, _, body = text[3:-3].partition("\n")
    return body.strip() if language.strip().lower() in ("", "json", "python") else text


def _loads(text: str) -> Any:
    return json.loads(
        text, strict=False, object_pairs_hook=_object, parse_float=_finite, parse_constant=_refuse_constant
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(made := dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return made


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(text)


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<plain> "[^"\\]*(?:\\.[^"\\]*)*" | [\[\]{}:] | ,(?!\s*[\]}]) | -?\d[\d.eE+-]* | (?:true|false|null)\b )
      | '(?P<quoted> [^'\\]*(?:\\.[^'\\]*)* )'
      | (?P<word> (?:True|False|None)\b )
      | (?P<last> ,)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def _as_json(text: str) -> str:
    """Return a text of Python literals, or of JSON with trailing commas, as JSON. Nothing is evaluated.

    Raise `ValueError` for any other text.
    """
    pieces: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or (match["last"] and (not pieces or pieces[-1] in ("[", "{", ":", ","))):
            raise ValueError("neither JSON nor Python")
        pieces.append(_piece(match))
        at = match.end()
    return " ".join(pieces)


def _piece(match: re.Match[str]) -> str:
    if match["quoted"] is not None:
        return '"' + re.sub(r'\\(.)|"', _requoted, match["quoted"], flags=re.DOTALL) + '"'
    return match["plain"] or _CONSTANTS.get(match["word"] or "", "")


def _requoted(match: re.Match[str]) -> str:
    if match[1] is None:
        return '\\"'
    return "'" if match[1] == "'" else match[0]
