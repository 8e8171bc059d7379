"""Forms by which servers ask a person; their schemas are untrusted."""

from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, InputRequiredResult
from referencing.exceptions import Unresolvable

from callboard import CallsInterrupted, ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer
from callboard_actors.mcp._schemas import misfit

from ._asked import answers


def form(field: dict[str, Any], **more: Any) -> ElicitRequest:
    schema: Any = {"type": "object", "properties": {"name": field}, **more}
    return ElicitRequest(params=ElicitRequestFormParams(message="Who?", requested_schema=schema))


def page(url: str) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestURLParams(message="Look", url=url, elicitation_id="1"))


def asking(request: ElicitRequest) -> MCPServer[Any]:
    """Return a server whose tool asks in the way of the negotiated version."""
    made: MCPServer[Any] = MCPServer("asking")

    @made.tool()
    async def new(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask in the way of 2026."""
        if not ctx.input_responses:
            return InputRequiredResult(input_requests={"who": request}, request_state="x")
        return "asked"

    @made.tool()
    async def old(ctx: Context[Any, Any]) -> str:
        """Ask in the way of 2025."""
        answer: ElicitResult = await ctx.session.send_request(request, ElicitResult)
        return answer.action

    return made


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (form({"$ref": "http://127.0.0.1:9/secret"}), "a form with '$ref', which no form may have"),
        (form({"$dynamicRef": "http://127.0.0.1:9/secret"}), "a form with '$dynamicRef', which no form may have"),
        (form({"$ref": "#/properties/name"}), "a form with '$ref', which no form may have"),
        (form({"type": "nonsense"}), "a form that is none: 'nonsense' is not valid"),
        (form({"type": "string", "pattern": "("}), "a form that is none: '(' is not a 'regex'"),
        (page("javascript:alert(1)"), "sends a person to 'javascript:alert(1)', which is no web page"),
        (page("file:///etc/passwd"), "sends a person to 'file:///etc/passwd', which is no web page"),
    ],
)
@pytest.mark.parametrize(("mode", "tool"), [("auto", "new"), ("legacy", "old")])
async def test_a_form_by_which_nobody_can_be_asked_is_refused_before_anybody_is(
    mode: str, tool: str, request_: ElicitRequest, why: str
) -> None:
    """A reference in the schema would make this process fetch any URL that the server chooses."""
    async with McpServer(asking(request_), mode=mode, name="bistro") as server:
        [message] = await answers(ToolNode([server]), tool_call(tool, "1"))
    assert message.status == "error"
    assert why in message.text


async def test_a_form_says_by_which_rules_it_was_written() -> None:
    """Libraries add `$schema` to the form; it is not part of the question."""
    request = form({"type": "string"}, **{"$schema": "https://json-schema.org/draft/2020-12/schema"})
    async with McpServer(asking(request)) as server:
        with pytest.raises(CallsInterrupted):
            await ToolNode([server]).ainvoke([tool_call("new", "1")])


def test_a_pattern_takes_no_longer_than_the_text_is_long() -> None:
    """A pattern with catastrophic backtracking would block the event loop for years."""
    schema = {"properties": {"name": {"type": "string", "pattern": "^(a+)+$"}}}
    assert misfit(schema, {"name": "a" * 5000}) is None
    assert misfit(schema, {"name": "a" * 50 + "!"}) == f"'{'a' * 50}!' does not match '^(a+)+$'"
    assert misfit(schema, {"name": 1}) == "1 is not of type 'string'"


def test_a_pattern_that_only_python_knows_is_for_the_server_to_judge() -> None:
    """The server validates the answer anyway, because it may come from any client."""
    assert misfit({"properties": {"name": {"pattern": "(?=x)y"}}}, {"name": "z"}) is None


def test_nothing_is_fetched_that_a_schema_refers_to() -> None:
    """A stored question may contain a reference that nobody has checked."""
    with pytest.raises(Unresolvable):
        misfit({"$ref": "http://127.0.0.1:9/secret"}, {})
