"""A result as a shared document, or who is finding it out: JSON, which anybody may have written."""

from typing import Annotated, Literal

from langchain_core.messages import ToolMessage
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from callboard._documents import Found

_Marks = list[int]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Finding(BaseModel):
    """A process is finding out a result, and others wait for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["finding"] = "finding"
    marks: _Marks
    """The marks of the shelf when the leader began: if they are others by now, nobody is to have the result."""
    leader: str
    """Which call, and no other, may say what it has found."""
    waiting: dict[str, str]
    """Calls that wait for it, and the processes that they are of."""


class Result(BaseModel):
    """A result has been found out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["result"] = "result"
    marks: _Marks
    at: _Seconds
    """When, by the clock of the store."""
    message: str | None
    """JSON of a message; `None` if others have to find out for themselves."""
    only_for: list[str] | None
    """The calls that waited for it; `None` if it is for everybody."""


_DOCUMENT: TypeAdapter[Finding | Result] = TypeAdapter(Annotated[Finding | Result, Field(discriminator="kind")])


def document_of(found: Found) -> Finding | Result | None:
    """What a document says; `None` for nothing, nothing that is still good, and what none of us has written."""
    if found.text is None:
        return None
    try:
        document = _DOCUMENT.validate_json(found.text)
    except ValidationError:
        return None
    return document if tuple(document.marks) == found.marks else None


def message_of(text: str) -> ToolMessage | None:
    """A message, from JSON; `None` for what is none."""
    try:
        return ToolMessage.model_validate_json(text)
    except Exception:  # LangChain's validators raise what they run into
        return None


def json_of(message: ToolMessage) -> str | None:
    """JSON of a message without what is of its call alone; `None` if something else would come back."""
    bare = message.model_copy(update={"tool_call_id": "", "id": None})
    try:
        text = bare.model_dump_json(warnings="error")
    except (ValueError, RecursionError):  # of pydantic: what is no JSON
        return None
    same = message_of(text)
    parts = [bare.content, bare.artifact, bare.additional_kwargs, bare.response_metadata]
    return text if type(message) is ToolMessage and same == bare and _is_plain(parts) else None


def _is_plain(value: object) -> bool:
    """Whether JSON keeps what a value is: no subclass that is equal to what would come back, no key but texts."""
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
