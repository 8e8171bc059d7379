"""Return values of a tool, and the ToolMessages that are made of them."""

from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from pydantic import BaseModel

from ._harness import Case, MessageList, alike, asks, call, table_test, wants


class Point(BaseModel):
    x: int = 1


@dataclass
class Pair:
    a: int = 1


class Shows:
    def __str__(self) -> str:
        return "shown"

    __repr__ = __str__


OUTPUTS: dict[str, Any] = {
    "text": "text",
    "empty text": "",
    "an int": 7,
    "a float": 0.5,
    "a bool": True,
    "nothing": None,
    "a dict": {"a": [1, 2], "ü": "ß"},
    "a list of ints": [1, 2],
    "a list of texts": ["a", "b"],
    "text blocks": [{"type": "text", "text": "hi"}, {"type": "text", "text": "ho"}],
    "an image block": [{"type": "image_url", "image_url": {"url": "data:,"}}],
    "a json block": [{"type": "json", "json": {"a": 1}}],
    "an unknown block": [{"type": "mystery", "text": "hi"}],
    "a list of dicts": [{"a": 1}],
    "a tuple": (1, 2),
    "a set": {1},
    "a pydantic model": Point(),
    "a dataclass": Pair(),
    "an object": Shows(),
    "a list of objects": [Shows(), Shows()],
    "bytes": b"raw",
    "an exception": ValueError("not raised"),
    "an AI message": AIMessage("hello", id="x"),
}


def returning(output: Any, **options: Any) -> Any:
    """Return a scenario of a tool that returns a value."""

    def give() -> Any:
        """Give it."""
        return output

    return lambda ns: Case(ns.ToolNode([give], **options), wants("give"))


def with_artifact(output: Any, **options: Any) -> Any:
    artifact_tool = StructuredTool.from_function(
        func=lambda: output, name="give", description="Give.", response_format="content_and_artifact"
    )
    return lambda ns: Case(ns.ToolNode([artifact_tool], **options), wants("give"))


def raw(output: Any, **options: Any) -> Any:
    """Return a scenario of a tool with its own `invoke`, which returns a value that is no message."""

    class Raw(StructuredTool):
        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            return output

        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
            return output

    raw_tool = Raw.from_function(func=lambda: "x", name="give", description="d")
    return lambda ns: Case(ns.ToolNode([raw_tool], **options), wants("give"))


def message_with(**fields: Any) -> Any:
    def give(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Give it."""
        return ToolMessage(tool_call_id=tool_call_id, id="m", **fields)

    return lambda ns: Case(ns.ToolNode([give]), wants("give"))


def answer(content: str = "a", call_id: str = "call-1") -> ToolMessage:
    return ToolMessage(content, tool_call_id=call_id, id=f"{content} {call_id}")


HANDLED = {"handle_tool_errors": True}
RESULTS: dict[str, Any] = {
    **{label: returning(output) for label, output in OUTPUTS.items()},
    # pairs of a content and an artifact
    "text and an artifact": with_artifact(("text", {"raw": [1]})),
    "a dict and an artifact": with_artifact(({"a": 1}, b"raw")),
    "blocks and an artifact": with_artifact(([{"type": "text", "text": "hi"}], 7)),
    "text and no artifact": with_artifact(("text", None)),
    "a message and an artifact": with_artifact((ToolMessage("m", tool_call_id="call-1", id="x"), 7)),
    "a text for a pair": (with_artifact("text"), "ValueError"),
    "a triple for a pair": (with_artifact((1, 2, 3)), "ValueError"),
    "nothing for a pair": (with_artifact(None), "ValueError"),
    "a text for a pair, handled": with_artifact("text", **HANDLED),
    # messages
    "a message": message_with(content="done"),
    "a message with blocks": message_with(content=[{"type": "text", "text": "done"}]),
    "a message with a list of texts": message_with(content=["a", "b"]),
    "a message with a name": message_with(content="done", name="someone"),
    "a message with an artifact and an error": message_with(content="done", artifact={"a": 1}, status="error"),
    "a message with extras": message_with(content="done", additional_kwargs={"k": 1}, response_metadata={"m": 2}),
    # lists
    "a single message": returning([answer()]),
    "a message beside one for another call": returning([answer(), answer("b", "other")]),
    "two messages for one call": (returning([answer(), answer("b")]), "ValueError"),
    "no message for the call": (returning([answer("a", "other")]), "ValueError"),
    "a message and a text": returning([answer(), "text"]),
    "a message and one of a human": returning([answer(), HumanMessage("h")]),
    "a message and nothing": returning([answer(), None]),
    "a message and an int": returning([answer(), 7]),
    # values of a tool's own `invoke`
    "a raw text": (raw("raw"), "TypeError"),
    "a raw list, handled": raw(["raw"], **HANDLED),
    "a raw dict, handled": raw({"a": 1}, **HANDLED),
    "a raw nothing, handled": raw(None, **HANDLED),
}
test_a_result_is_taken_alike = table_test(RESULTS)


@alike
def test_a_list_answer_contains_the_messages_of_list_tools_flat(ns: Any) -> Case:
    def pair(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Two messages."""
        extra = ToolMessage("extra", tool_call_id="other", id=f"x-{tool_call_id}")
        return [ToolMessage("main", tool_call_id=tool_call_id, id=f"m-{tool_call_id}"), extra]

    calls = asks(call("pair", id="1"), call("pair", id="2"))
    return Case(ns.ToolNode([pair]), [calls], state=MessageList)
