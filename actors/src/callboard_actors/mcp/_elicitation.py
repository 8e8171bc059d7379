"""Question of a server to a person (elicitation), as plain data that a checkpoint can store."""

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
    """Value of the interrupt with which a person is asked. The answer is an `McpAnswer`."""

    type: Literal["mcp_elicitation"]
    server: str
    """Name of the server, which the person should know before answering."""
    tool: str
    """Name of the tool that was called."""
    request: dict[str, Any]
    """Request in the protocol's terms: `mode`, `message`, and `requestedSchema` of a form or `url`."""
    continuation: dict[str, Any]
    """Opaque data with which the call continues; not meant for people."""


class McpAnswer(TypedDict):
    """Answer of the person."""

    action: Literal["accept", "decline", "cancel"]
    content: NotRequired[dict[str, Any] | None]
    """Values of the form, if a form was accepted."""


AnswerShape: TypeAlias = Any
"""Type for `interrupt(response_schema=...)`, which describes valid answers."""


def question_of(params: ElicitRequestParams, server: str, tool: str, continuation: dict[str, Any]) -> McpQuestion:
    """Return a server's request as a question; raise `McpToolError` for an invalid form or a URL of no web page."""
    if isinstance(params, ElicitRequestFormParams):
        # The form was written by the server, so it is checked before a client shows it.
        check_form(params.requested_schema, server)
    elif urlsplit(params.url).scheme not in ("http", "https"):
        raise McpToolError(f"The MCP server {server!r} sends a person to {params.url!r:.200}, which is no web page.")
    request = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
    return McpQuestion(type=ASKED_BY_SERVER, server=server, tool=tool, request=request, continuation=continuation)


def name_of_call(server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest that distinguishes the calls that one tool body makes."""
    return hashlib.sha256(json.dumps([server, tool, arguments], sort_keys=True, default=repr).encode()).hexdigest()


def is_question_of(call: str, value: object) -> bool:
    """Return whether a value is the server's question for this call."""
    if not isinstance(value, dict):
        return False
    question = cast("dict[str, Any]", value)
    return question.get("type") == ASKED_BY_SERVER and question["continuation"].get("call") == call


def request_in(value: object) -> ElicitRequest | None:
    """Return the server's request in a question, or `None` for a question of another kind."""
    if not isinstance(value, dict) or value.get("type") != ASKED_BY_SERVER:
        return None
    return ElicitRequest(params=_PARAMS.validate_python(cast("McpQuestion", value)["request"]))


def answer_shape(question: McpQuestion) -> AnswerShape:
    """Return the type of valid answers; the content of an accepted form must satisfy the server's schema."""
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
    """Return the answer for the server. Values are sent only if the person accepted."""
    accepted = answer["action"] == "accept"
    return ElicitResult(action=answer["action"], content=answer.get("content") if accepted else None)


def _fits(schema: dict[str, Any], answer: McpAnswer) -> McpAnswer:
    if answer["action"] == "accept" and (wrong := misfit(schema, answer.get("content") or {})):
        raise ValueError(f"content: {wrong}")
    return answer
