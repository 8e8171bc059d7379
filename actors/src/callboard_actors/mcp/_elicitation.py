"""What a server asks of a person, as a question of a call; plain data, stored with the conversation."""

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, cast
from urllib.parse import urlsplit

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from pydantic import AfterValidator, TypeAdapter, WithJsonSchema
from typing_extensions import TypedDict

from callboard_actors.mcp._content import McpToolError
from callboard_actors.mcp._forms import check_form, misfit

ASKED_BY_SERVER: Literal["mcp_elicitation"] = "mcp_elicitation"

_PARAMS: TypeAdapter[ElicitRequestParams] = TypeAdapter(ElicitRequestParams)


class McpQuestion(TypedDict):
    """What a person is asked: the value of an interrupt. The answer is an `McpAnswer`."""

    type: Literal["mcp_elicitation"]
    server: str
    """The name of the server that asks, which whoever answers should know."""
    tool: str
    """Which of its tools was called."""
    request: dict[str, Any]
    """By the protocol's names: `mode`, `message`, and `requestedSchema` of a form or `url`."""
    continuation: dict[str, Any]
    """What the call needs to go on; opaque, and nothing for people."""


class McpAnswer(TypedDict):
    """What a person answers."""

    action: Literal["accept", "decline", "cancel"]
    content: NotRequired[dict[str, Any] | None]
    """What was filled in, where a form was accepted."""


AnswerShape: TypeAlias = Any
"""What `interrupt(response_schema=...)` takes: a type that says which answers there are."""


def question_of(params: ElicitRequestParams, server: str, tool: str, continuation: dict[str, Any]) -> McpQuestion:
    """A server's question, as a person is asked it.

    Raises:
        McpToolError: it is by a form by which nobody can be asked, or sends them to what is no page.
    """
    if isinstance(params, ElicitRequestFormParams):
        check_form(params.requested_schema, server)
    elif urlsplit(params.url).scheme not in ("http", "https"):
        raise McpToolError(f"The MCP server {server!r} sends a person to {params.url!r:.200}, which is no web page.")
    request = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
    return McpQuestion(type=ASKED_BY_SERVER, server=server, tool=tool, request=request, continuation=continuation)


def name_of_call(server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """What tells a call apart from others that the body of one tool makes."""
    return hashlib.sha256(json.dumps([server, tool, arguments], sort_keys=True, default=repr).encode()).hexdigest()


def is_question_of(call: str, value: object) -> bool:
    """Whether a value is what the server has asked for this call."""
    if not isinstance(value, dict):
        return False
    question = cast("dict[str, Any]", value)
    return question.get("type") == ASKED_BY_SERVER and question["continuation"].get("call") == call


def request_in(value: object) -> ElicitRequest | None:
    """What a server asks in a question of a call, in its own words; `None` for any other question."""
    if not isinstance(value, dict) or value.get("type") != ASKED_BY_SERVER:
        return None
    return ElicitRequest(params=_PARAMS.validate_python(cast("McpQuestion", value)["request"]))


def answer_shape(question: McpQuestion) -> AnswerShape:
    """Which answers there are: an accepted form has what the server's schema demands."""
    params = _PARAMS.validate_python(question["request"])
    if not isinstance(params, ElicitRequestFormParams):
        return McpAnswer
    schema = params.requested_schema
    shown = {
        "type": "object",
        "properties": {"action": {"enum": ["accept", "decline", "cancel"]}, "content": schema},
        "required": ["action"],
    }
    return Annotated[McpAnswer, AfterValidator(partial(_fits, schema)), WithJsonSchema(shown)]


def result_of(answer: McpAnswer) -> ElicitResult:
    """An answer as the server is told it; what was filled in and not accepted stays here."""
    accepted = answer["action"] == "accept"
    return ElicitResult(action=answer["action"], content=answer.get("content") if accepted else None)


def _fits(schema: dict[str, Any], answer: McpAnswer) -> McpAnswer:
    if answer["action"] == "accept" and (wrong := misfit(schema, answer.get("content") or {})):
        raise ValueError(f"content: {wrong}")
    return answer
