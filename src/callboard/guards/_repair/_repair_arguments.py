"""`RepairArguments`: correction of invalid arguments, if each invalid value has exactly one possible correction."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import is_control_flow
from callboard._langchain._large_values import run_if_long
from callboard._langchain._outputs import CallNext, Output, with_facts
from callboard._langchain._plan import ToolFacts
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._policies import CallPolicy
from callboard._util._suggestions import suggests_options
from callboard.guards._repair._schema import (
    Args,
    Contract,
    Path,
    Schema,
    Shape,
    allowed_types,
    allowed_values,
    has_json_type,
    is_small_json,
    make_contract,
)
from callboard.middleware._messages import append_line, replace_call_message
from callboard.tools._middleware import Middleware, Order

# Frequent mistakes of models in a single value or name, and their possible corrections


Kind = Literal["json", "text", "list", "item", "choice", "name", "wrapper"]

MAX_JSON_CHARS = 65_536
"""Maximum characters of a text that is parsed as JSON."""

_MAX_WORD_CHARS = 100
# Short words differ by one letter without being misspellings, such as "get" and "set".
_MIN_WORD_CHARS = 5

_WRAPPER_NAMES = frozenset(
    {"args", "arguments", "data", "input", "inputs", "kwargs", "parameters", "params", "payload", "toolinput"}
)


def propose_corrections(value: Any, schemas: Iterable[Schema]) -> Iterator[tuple[Kind, Any]]:
    """Yield the possible corrections of a value that matches none of the given alternative schemas."""
    # Ambiguous forms are not corrected: numbers with separators or leading zeros, words for booleans, fractions for
    # text, texts with separators for lists. Neither is text that looks like JSON but is invalid.
    type_names = set[str]().union(*map(allowed_types, schemas))
    if isinstance(value, str):
        parsed_value = read_json(value)
        if strip_code_fence(value)[:1] in ("[", "{"):
            if isinstance(parsed_value, (list, dict)):
                yield "json", parsed_value
            return
        choices = [choice for schema in schemas for choice in allowed_values(schema) or () if isinstance(choice, str)]
        if (choice := find_only_match(value, choices)) is not None:
            yield "choice", choice
        is_json_of_json = isinstance(parsed_value, str) and value.strip()[:1] == '"'
        scalar_type_names = type_names & {"null", "boolean", "number", "integer"}
        if is_json_of_json or any(has_json_type(parsed_value, name) for name in scalar_type_names):
            yield "json", parsed_value
        # Text with separators may be one item or several, also if only one of both is valid.
        if "array" in type_names and value.strip() and not re.search("[,;\n]", value):
            yield "list", [value]
    elif isinstance(value, list):
        if len(value) == 1 and type_names and "array" not in type_names:
            yield "item", value[0]
    else:
        if "array" in type_names and value is not None and not (isinstance(value, dict) and "object" in type_names):
            yield "list", [value]
        if "string" in type_names and isinstance(value, int) and not isinstance(value, bool):
            yield "text", str(value)


def find_correct_names(value: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Return a dict from misspelt argument names to the correct names; empty if two of them mean the same name."""
    properties = schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    # Required names that are absent or, if the schema forbids others, any absent name.
    absent_names = [name for name in (properties if is_closed else schema.get("required", ())) if name not in value]
    unknown_names = [name for name in value if name not in properties]
    correct_names = {
        name: correct_name
        for name in unknown_names
        if (correct_name := find_only_match(name, absent_names)) is not None
    }
    return correct_names if len(set(correct_names.values())) == len(correct_names) else {}


def find_only_match(word: str, choices: Iterable[str]) -> str | None:
    """Return the only choice that a misspelt word can mean; `None` if it can mean no choice, or several choices."""
    # A choice that differs only in case and separators wins. Otherwise words of at least five letters may have one
    # letter wrong, missing, added or swapped with its neighbour. The first letter must be right, because "unlock" is
    # not a misspelt "lock". Words with digits must match: a wrong digit is another name.
    if len(word) > _MAX_WORD_CHARS:
        return None
    folded_choices = {choice: fold_word(choice) for choice in choices if len(choice) <= _MAX_WORD_CHARS}
    folded_word = fold_word(word)
    matches = [choice for choice, folded_choice in folded_choices.items() if folded_choice == folded_word]
    matches = matches or [
        choice for choice, folded_choice in folded_choices.items() if _differ_by_one_typo(folded_word, folded_choice)
    ]
    return matches[0] if len(matches) == 1 and matches[0] != word else None


def fold_word(word: str) -> str:
    """Return a word in a normal form for comparisons: in lower case, with separators only between two digits."""
    return re.sub(r"(?<=[^\W\d_])[\s_-]+(?=\w)|(?<=\w)[\s_-]+(?=[^\W\d_])", "", word.strip()).casefold()


def _differ_by_one_typo(a: str, b: str) -> bool:
    if min(len(a), len(b)) < _MIN_WORD_CHARS or not (a.isalpha() and b.isalpha()):
        return False
    start = _common_prefix_length(a, b)
    a, b = a[start:], b[start:]
    end = _common_prefix_length(a[::-1], b[::-1])
    a, b = a[: len(a) - end], b[: len(b) - end]
    is_swapped = len(a) == 2 and a == b[::-1]
    return start > 0 and (max(len(a), len(b)) <= 1 or is_swapped)


def _common_prefix_length(a: str, b: str) -> int:
    """Return the length of the longest common beginning of two words."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((length for length, (char_a, char_b) in pairs if char_a != char_b), min(len(a), len(b)))


NOT_JSON = object()
"""Result for a text that is not JSON. `None` is the result for JSON's `null`."""


def read_json(text: str) -> Any:
    """Return the JSON value in a text, or `UNREADABLE` if the text is not accepted as JSON."""
    # Also accepted are a Markdown fence, trailing commas, and Python's quotes and constants. Ambiguous JSON (duplicate
    # keys, Infinity) is not accepted, nor is long or deeply nested JSON.
    if len(text) > MAX_JSON_CHARS:
        return NOT_JSON
    text = strip_code_fence(text)
    for convert in (str, _convert_to_json):  # as it is written first
        try:
            value = json.loads(
                convert(text),
                strict=False,
                object_pairs_hook=_make_object,
                parse_float=_parse_finite,
                parse_constant=_parse_finite,  # NaN and the infinities, which it refuses
            )
        except (ValueError, RecursionError):
            continue
        return value if is_small_json(value) else NOT_JSON
    return NOT_JSON


def strip_code_fence(text: str) -> str:
    """Return the content of a Markdown code fence, or a text without a fence, stripped of surrounding white space."""
    text = text.strip()
    if not (text.startswith("```") and text.endswith("```")):
        return text
    language, _, body = text[3:-3].partition("\n")
    return body.strip() if language.strip().lower() in ("", "json", "python") else text


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(result := dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return result


def _parse_finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


_LITERAL_TOKEN = re.compile(
    r"""\s*(?:
        (?P<plain> "[^"\\]*(?:\\.[^"\\]*)*" | [\[\]{}:] | ,(?!\s*[\]}]) | -?\d[\d.eE+-]* | (?:true|false|null)\b )
      | '(?P<quoted> [^'\\]*(?:\\.[^'\\]*)* )'
      | (?P<word> (?:True|False|None)\b )
      | (?P<trailing_comma> ,)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def _convert_to_json(text: str) -> str:
    """Convert Python literals, or JSON with trailing commas, to valid JSON text. No code is evaluated."""
    # Raise `ValueError` for any other text.
    json_tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _LITERAL_TOKEN.match(text, position)
        if match is None or (match["trailing_comma"] and (not json_tokens or json_tokens[-1] in ("[", "{", ":", ","))):
            raise ValueError("neither JSON nor Python")
        if match["quoted"] is not None:
            json_tokens.append('"' + re.sub(r'\\(.)|"', _requote, match["quoted"], flags=re.DOTALL) + '"')
        else:
            json_tokens.append(match["plain"] or _CONSTANTS.get(match["word"] or "", ""))
        position = match.end()
    return " ".join(json_tokens)


def _requote(match: re.Match[str]) -> str:
    if match[1] is None:  # a double quote, which needs an escape only in JSON
        return '\\"'
    return "'" if match[1] == "'" else match[0]


# Repair

_MAX_ROUNDS = 8
"""Maximum number of validations per call; arguments that need more are not repaired.

A round corrects all faulty places at once, and the next one what is inside them.
"""


@dataclass(frozen=True, slots=True)
class Repair:
    """Record of one change to the arguments: the kind of the change, and the path of the changed value."""

    kind: Kind
    location: str
    """Place of the change, as dotted names of the schema; `*` stands for a list item, or a name not in the schema."""
    written_name: str = ""
    """Name that the model wrote, if the name was wrong."""


@dataclass(frozen=True, slots=True)
class RepairedArguments:
    """Repaired arguments, and the list of the changes that were made."""

    args: Args
    repairs: tuple[Repair, ...]


_Correction = tuple[Path, Any, list[Repair]]
"""Possible correction: the place in the arguments, the new value, and a `Repair` record of each change."""


def repair_arguments(contract: Contract, args: Args) -> RepairedArguments | None:
    """Return a repaired copy of invalid arguments; `None` for valid arguments, or if no unique correction exists."""
    try:
        repairs: list[Repair] = []
        for _ in range(_MAX_ROUNDS):
            if not is_small_json(args):
                return None
            faults = contract.find_faults(args)
            if not faults:
                return RepairedArguments(args, tuple(dict.fromkeys(repairs))) if repairs else None
            groups = _group_faults(contract.shape, faults)
            corrections_by_group = [[*_propose_group_corrections(contract.shape, args, group)] for group in groups]
            if (inner_args := _unwrap_arguments(contract, args)) is not None:
                if args.keys() <= contract.shape.root.get("properties", {}).keys() and all(corrections_by_group):
                    return None  # an argument with the name of a wrapper: either may be meant
                repairs.append(Repair("wrapper", "*", written_name=next(iter(args))))
                args = inner_args
                continue
            args = deepcopy(args)
            for corrections_of_group in corrections_by_group:
                # The value of a fault may have been valid in another alternative: a second correction is another
                # meaning, so nothing is repaired.
                if len(corrections_of_group) != 1:
                    return None
                [(path, value, new_repairs)] = corrections_of_group
                if path:
                    _value_at(args, path[:-1])[path[-1]] = value
                else:
                    args = value
                repairs += new_repairs
    except Exception as error:
        if is_control_flow(error):
            raise
    return None  # an invalid schema, one with too many alternatives, or too many rounds


def _group_faults(shape: Shape, faults: Iterable[Path]) -> list[list[Path]]:
    """Return the paths of invalid values in groups; one correction may repair all values of a group."""
    # Errors inside of another faulty place are left out; the next round finds them.
    groups: dict[Path, list[Path]] = {}
    for fault in faults:
        schemas_on_path = shape.schemas_along(fault)
        # Cut before the first key that the schema does not allow.
        allowed_length = next((i for i, schemas in enumerate(schemas_on_path) if not schemas), len(schemas_on_path)) - 1
        path = fault[:allowed_length]
        # A value that breaks one alternative may be valid in another: all faults within them are one group.
        alternatives = [[schema for schema in schemas if schema.get("type") != "null"] for schemas in schemas_on_path]
        union_depths = (depth for depth, schemas in enumerate(alternatives[: len(path) + 1]) if len(schemas) > 1)
        group = groups.setdefault(path[: next(union_depths, len(path))], [])
        if path not in group:
            group.append(path)
    return [
        group
        for group_path, group in groups.items()
        if not any(group_path[:length] in groups for length in range(len(group_path)))
    ]


def _propose_group_corrections(shape: Shape, args: Args, group: Iterable[Path]) -> Iterator[_Correction]:
    for path in group:
        value = _value_at(args, path)
        schemas = shape.schemas_along(path)[-1]
        for kind, new_value in propose_corrections(value, schemas) if path else ():
            yield path, new_value, [Repair(kind, _format_location(shape, path))]
        for schema in schemas if isinstance(value, dict) else ():
            if names := find_correct_names(value, schema):
                repairs = [
                    Repair("name", _format_location(shape, (*path, correct_name)), name)
                    for name, correct_name in names.items()
                ]
                yield path, {names.get(name, name): item for name, item in value.items()}, repairs


def _unwrap_arguments(contract: Contract, args: Args) -> Args | None:
    """Return the inner arguments of a wrapper such as `{"input": {...}}`; `None` if there is no valid wrapper."""
    if len(args) != 1:
        return None
    ((name, inner),) = args.items()
    # Models often wrap all arguments under a word such as "input", or under the tool's name.
    if len(name) > _MAX_WORD_CHARS or fold_word(name) not in {*_WRAPPER_NAMES, fold_word(contract.name)}:
        return None
    inner = read_json(inner) if isinstance(inner, str) else inner
    # Unwrapping must not let the model set an injected argument.
    if not isinstance(inner, dict) or inner.keys() & contract.injected:
        return None
    properties = contract.shape.root.get("properties", {})
    return inner if name not in properties or inner.keys() & properties.keys() else None


def _value_at(args: Args, path: Path) -> Any:
    value: Any = args
    for key in path:
        value = value[key]
    return value


def _format_location(shape: Shape, path: Path) -> str:
    schemas_on_path = shape.schemas_along(path)
    return ".".join(
        key if isinstance(key, str) and any(key in schema.get("properties", {}) for schema in schemas) else "*"
        for key, schemas in zip(path, schemas_on_path, strict=False)
    )


# Middleware

_MAX_CLAUSES = 8
"""Maximum number of repairs that the message to the model lists."""
_MAX_WRITTEN_CHARS = 60
"""Maximum characters of a name of the model's that the message repeats."""


@suggests_options()
class RepairArguments(Middleware):
    """Middleware that repairs invalid arguments of a call, if each invalid value has exactly one correction.

    Valid arguments are passed on unchanged. So are invalid ones with a place that has several corrections, or none: the
    model then reads the error and tries again. Nothing is invented or left out, and injected arguments are never
    touched.

    The tool and middleware after this one get the repaired arguments; the message history keeps the original ones.
    Observers receive `repaired`, with `arguments` (dotted names of the schema) and `kinds`. The call's message has the
    same in `additional_kwargs["callboard"]["repaired"]`.

    Args:
        tell_model: whether to list the repairs at the end of the call's message, so that the model can notice a wrong
            one. Never done for tools with `return_direct`, whose message goes to the user.
    """

    order = Order(
        "repair",
        not_inside={
            "approval": "a person approves arguments that are changed afterwards",
            "sanitize": "what a repair takes out of a string has not been checked",
        },
    )

    def __init__(self, *, tell_model: bool = True) -> None:
        self._tell_model = tell_model
        self._worker_threads = WorkerThreads("RepairArguments")
        self._contracts = ToolFacts(make_contract)

    def check_tools(self, tools: Mapping[str, BaseTool]) -> None:
        """Raise `ImportError` if a tool has a JSON schema and jsonschema is not installed."""
        for tool in tools.values():
            if isinstance(tool.args_schema, dict):
                self._contracts.of(tool)

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        if self._contracts.of(tool) is None:
            return "nothing, it cannot repair arguments of the tool"
        return "repairs invalid arguments that have one correction"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call, with repaired arguments if necessary."""
        repaired = await run_if_long(
            self._worker_threads, request.tool_call["args"], partial(self._repair_call, request)
        )
        if repaired is None:
            return await call_next(request)
        call: ToolCall = {**request.tool_call, "args": repaired.args}
        note("repaired", **_summarize_repairs(repaired.repairs))
        output = await call_next(request.override(tool_call=call))
        is_reported = self._tell_model and not cast("BaseTool", request.tool).return_direct
        return replace_call_message(
            output, call, partial(_add_repair_report, repairs=repaired.repairs, tells_model=is_reported)
        )

    def _repair_call(self, request: ToolCallRequest) -> RepairedArguments | None:
        args: Any = request.tool_call["args"]
        contract = None if request.tool is None else self._contracts.of(request.tool)
        if contract is None or not isinstance(args, dict):
            return None
        # Values that the model forged for injected arguments do not count here; they are removed before the tool runs.
        injected = {name: value for name, value in args.items() if name in contract.injected}
        model_args = {name: value for name, value in args.items() if name not in injected}
        repaired = repair_arguments(contract, model_args)
        return repaired and RepairedArguments({**injected, **repaired.args}, repaired.repairs)


def _summarize_repairs(repairs: Iterable[Repair]) -> dict[str, list[str]]:
    distinct = dict.fromkeys((repair.location, repair.kind) for repair in repairs)
    return {"arguments": [location for location, _ in distinct], "kinds": [kind for _, kind in distinct]}


def _add_repair_report(message: ToolMessage, repairs: tuple[Repair, ...], *, tells_model: bool) -> ToolMessage:
    """Return a call's message with a record of the repairs, and with a line about them for the model."""
    message_update: dict[str, Any] = {"additional_kwargs": with_facts(message, repaired=_summarize_repairs(repairs))}
    if tells_model:
        # The name that the model wrote is untrusted: cut and escaped, so that it cannot forge a line of the message.
        clause_by_repair = [
            (repair, _CLAUSE_TEMPLATES[repair.kind].format(written=ascii(repair.written_name[:_MAX_WRITTEN_CHARS])))
            for repair in repairs
        ]
        clauses = dict.fromkeys(
            clause if repair.kind == "wrapper" else f"{repair.location} {clause}" for repair, clause in clause_by_repair
        )
        omitted_text = f"; and {len(clauses) - _MAX_CLAUSES} more" if len(clauses) > _MAX_CLAUSES else ""
        clauses_text = "; ".join([*clauses][:_MAX_CLAUSES])
        line = f"[The arguments of this call were repaired: {clauses_text}{omitted_text}.]"
        message_update["content"] = append_line(message.content, line)
    return message.model_copy(update=message_update)


_CLAUSE_TEMPLATES: Mapping[Kind, str] = {
    "json": "was JSON in a string",
    "text": "was a number, not a string",
    "list": "was a single value, not a list",
    "item": "was a list of one",
    "choice": "was misspelt",
    "name": "was called {written}",
    "wrapper": "all were inside of {written}",
}
