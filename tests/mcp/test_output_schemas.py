"""Validation of results by a tool's output schema, which is untrusted."""

import threading
from collections import Counter
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent

from callboard_actors.mcp import McpServer, McpToolError, _schemas
from callboard_actors.mcp._schemas import MOST_SECONDS, Judge, OverBudgetError

from ._asked import WAIT

EVIL = "^(a+)+$"
LONG = "a" * 60 + "!"


def complaint_about(schema: dict[str, Any], value: object) -> str | None:
    return Judge(schema).misfit(value)


def promising(schema: dict[str, Any], content: Any, *, times: int = 1) -> MCPServer[Any]:
    """Return a server whose tool declares one schema and returns something else; the tool is listed so many times."""
    mcp_server: MCPServer[Any] = MCPServer("promising")

    @mcp_server.tool()
    async def look() -> dict[str, Any]:
        """Look."""
        return {}

    async def call(*_: Any, **__: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="seen")], structured_content=content)

    listed = mcp_server.list_tools

    async def list_tools() -> Any:
        return [listed_tool.model_copy(update={"output_schema": schema}) for listed_tool in await listed()] * times

    mcp_server.call_tool = call  # type: ignore[method-assign]
    mcp_server.list_tools = list_tools  # type: ignore[method-assign]
    return mcp_server


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_pattern_of_a_server_does_not_hold_the_loop(mode: str) -> None:
    """With the backtracking engine of `re`, sixty letters would take hundreds of thousands of years."""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": EVIL}}}
    async with McpServer(promising(schema, {"x": LONG}), mode=mode) as server:
        with pytest.raises(McpToolError, match="does not match"):
            await server.call("look")


async def test_a_result_that_is_what_was_said_arrives() -> None:
    """Parts of the schema that are not validated do not make a result invalid."""
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "pattern": "^a+$"}},
        "patternProperties": {EVIL: {"type": "string"}},
        "additionalProperties": False,
    }
    async with McpServer(promising(schema, {"x": "aaa", LONG: "y"})) as server:
        assert (await server.call("look")).structured_content == {"x": "aaa", LONG: "y"}


async def test_two_tools_of_one_name_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Only one of the two tools can be called, so a warning is logged."""
    async with McpServer(promising({"type": "object"}, {}, times=2), name="twice") as server:
        assert [tool.name for tool in server.tools] == ["look"]
    assert "the MCP server 'twice' has several tools of one name: the last of ['look']" in caplog.text


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ({"type": "object", "required": ["x"]}, {}, "'x' is a required property"),
        ({"type": "nonsense"}, {}, "its schema is none: 'nonsense' is not valid"),
        ({"$ref": "http://127.0.0.1:9/secret"}, {}, "its schema leads nowhere: "),
        ({"$ref": "#"}, {}, "its schema leads nowhere: "),
        ({"properties": {"x": {"pattern": "^a$"}}}, {"x": "b"}, "'b' does not match '^a$'"),
        ({"properties": {"x": {"pattern": EVIL}}}, {"x": LONG}, f"'{LONG}' does not match '{EVIL}'"),
        ({"additionalProperties": False}, {"x": 1}, "Additional properties are not allowed ('x' was unexpected)"),
        ({"properties": {"pattern": {"type": "string"}}}, {"pattern": 1}, "1 is not of type 'string'"),
    ],
)
def test_what_is_wrong_is_said(schema: dict[str, Any], value: object, why: str) -> None:
    """The error message lets the model try another way."""
    assert (complaint_about(schema, value) or "").startswith(why)


def test_what_is_wrong_is_said_in_a_few_words() -> None:
    """A model reads the message, and the messages of `jsonschema` contain the whole value."""
    assert len(complaint_about({"type": "string"}, ["x" * 100_000]) or "") == 2000


def test_many_equal_items_are_not_compared_with_each_other() -> None:
    """Comparing all pairs would take quadratic time."""
    assert complaint_about({"items": {"uniqueItems": True}, "uniqueItems": True}, [{}] * 30_000) is None


_SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "string", "integer", "array"]),
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "minLength": st.integers(0, 3),
            "enum": st.lists(st.integers(0, 3), min_size=1, unique=True),
            "additionalProperties": st.booleans(),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b", "pattern"]), inner),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=5,
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 4), st.text("ab", max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "pattern"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(_SCHEMAS, _VALUES)
def test_it_is_judged_as_jsonschema_judges(schema: dict[str, Any], value: object) -> None:
    """Apart from omitted keywords, the verdict equals that of `jsonschema`."""
    assert (complaint_about(schema, value) is None) == Draft202012Validator(schema).is_valid(value)


def doubling(levels: int) -> tuple[dict[str, Any], Any]:
    """Return a schema and a value. The schema validates each level of the value twice as often as the level above."""
    twice = [{"properties": {"a": {"$ref": "#"}}}] * 2
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return {"allOf": twice}, value


def wide(choices: int, items: int) -> tuple[dict[str, Any], Any]:
    """Return a schema with many ways to be wrong for each of many items, and such a value."""
    return {"properties": {"x": {"items": {"anyOf": [{"const": n} for n in range(choices)]}}}}, {"x": ["no"] * items}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        doubling(60),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **doubling(60)[0]}, doubling(60)[1]),
        ({"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", **doubling(1)[0]}]}, doubling(60)[1]),
    ],
    ids=["allOf", "of another draft", "of another draft inside"],
)
def test_a_schema_that_doubles_its_work_is_given_up(schema: dict[str, Any], value: Any) -> None:
    """At sixty levels the validation would take longer than the age of the earth."""
    with pytest.raises(OverBudgetError):
        Judge(schema).misfit(value)


def test_a_large_result_of_a_plain_schema_is_judged_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step budget grows with the value, so a long result is not refused."""
    monkeypatch.setattr(_schemas, "MOST_STEPS", 1_000)
    rows = {"items": {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}}
    assert complaint_about(rows, [{"id": 1, "name": "x"}] * 2_000) is None
    assert "not of type" in (complaint_about(rows, [{"id": 1, "name": "x"}] * 2_000 + [{"id": "1"}]) or "")


@pytest.mark.real_clock
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("schema", "value"), [doubling(60), wide(2_000, 100)], ids=["allOf", "anyOf"])
async def test_a_result_is_judged_off_the_event_loop(
    mode: str, schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread validates it until its budget is spent; the call fails, and the server stays usable."""
    schema = {"type": "object", **schema}
    steps: Counter[int] = Counter()
    step = _schemas._Budget.step

    def count_step(budget: _schemas._Budget) -> None:
        steps[threading.get_ident()] += 1
        step(budget)

    monkeypatch.setattr(_schemas._Budget, "step", count_step)
    with anyio.fail_after(WAIT + 4 * MOST_SECONDS):
        async with McpServer(promising(schema, value), mode=mode) as server:
            with pytest.raises(McpToolError, match=r"asks for more work|is not valid under any"):
                await server.call("look")
            on_the_loop = steps.pop(threading.get_ident(), 0)
            assert on_the_loop <= 1_000
            assert sum(steps.values()) > 10_000
            assert [tool.name for tool in await server.list_tools()] == ["look"]


def test_a_pattern_that_only_python_knows_is_for_the_server_to_judge() -> None:
    """The server validates the answer anyway, because it may come from any client."""
    assert Judge({"properties": {"name": {"pattern": "(?=x)y"}}}).misfit({"name": "z"}) is None
