"""JSON form of a result, or of its leader, in a shared store. Other clients may write, so reading validates."""

from typing import Annotated, Literal

from langchain_core.messages import ToolMessage
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from callboard._records._documents import Found

_Marks = list[int]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Finding(BaseModel):
    """A call of some process is finding out a result, and other calls wait for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["finding"] = "finding"
    marks: _Marks
    """Invalidation marks when the leader began. If they differ now, nobody may use the result."""
    leader: str
    """Id of the only call that may store the result."""
    waiting: dict[str, str]
    """Id of each waiting call, and the process to notify for it."""


class Result(BaseModel):
    """A found result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["result"] = "result"
    marks: _Marks
    at: _Seconds
    """Time at which it was stored, by the store's clock."""
    message: str | None
    """JSON of the message; `None` if it cannot be shared, so that waiting calls must run."""
    only_for: list[str] | None
    """Ids of the calls that waited for it; `None` if every call may use it."""


_DOCUMENT: TypeAdapter[Finding | Result] = TypeAdapter(Annotated[Finding | Result, Field(discriminator="kind")])


def document_of(found: Found) -> Finding | Result | None:
    """Return the validated document; `None` if it is absent, invalid, or made obsolete by a mark."""
    if found.text is None:
        return None
    try:
        document = _DOCUMENT.validate_json(found.text)
    except ValidationError:
        return None
    return document if tuple(document.marks) == found.marks else None


def message_of(text: str) -> ToolMessage | None:
    """Return the message of a JSON text, or `None` if the text is not valid."""
    try:
        return ToolMessage.model_validate_json(text)
    except Exception:  # LangChain's validators may raise any error for unexpected input
        return None


def json_of(message: ToolMessage) -> str | None:
    """Return the JSON of a message without its call's ids; `None` if reading it back gives a different message."""
    bare = message.model_copy(update={"tool_call_id": "", "id": None})
    try:
        text = bare.model_dump_json(warnings="error")
    except (ValueError, RecursionError):  # pydantic's errors for values without a JSON form
        return None
    same = message_of(text)
    parts = [bare.content, bare.artifact, bare.additional_kwargs, bare.response_metadata]
    return text if type(message) is ToolMessage and same == bare and _is_plain(parts) else None


def _is_plain(value: object) -> bool:
    """Return whether JSON keeps all types: exact built-in types only, and only text keys.

    Comparing values is not enough: an instance of a subclass may equal the plain value that comes back.
    """
    # An explicit stack needs no recursion for deep data. The bound limits the time; larger results are not shared.
    values, left = [value], 1_000_000
    while values and left:
        one, left = values.pop(), left - 1
        if isinstance(one, dict):
            values += [*one, *one.values()]
            if type(one) is not dict or not all(type(key) is str for key in one):
                return False
        elif type(one) is list:
            values += one
        elif one is not None and type(one) not in (str, int, float, bool):
            return False
    return not values
