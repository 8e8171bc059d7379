"""Return values of a tool, and the ToolMessages that are made of them."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from pydantic import BaseModel

from ._harness import Case, MessageList, alike, asks, call, wants
from .conftest import Same


class Point(BaseModel):
    x: int = 1


@dataclass
class Pair:
    a: int = 1


class Shows:
    def __str__(self) -> str:
        return "shown"

    __repr__ = __str__


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


OUTPUTS: dict[str, Any] = {
    "text": "text",
    "empty text": "",
    "an int": 7,
    "a float": 0.5,
    "a bool": True,
    "nothing": None,
    "a dict": {"a": [1, 2], "ü": "ß"},
    "a list of ints": [1, 2],
    "an empty list": [],
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


@pytest.mark.parametrize("label", OUTPUTS)
def test_the_content_is_the_same_for(label: str, same: Same) -> None:
    same(lambda ns: returning(ns, OUTPUTS[label]))


def returning(ns: Any, output: Any, **options: Any) -> Case:
    def give() -> Any:
        """Give it."""
        return output

    return Case(ns.ToolNode([give], **options), wants("give"))


def with_artifact(output: Any) -> StructuredTool:
    return StructuredTool.from_function(
        func=lambda: output, name="give", description="Give.", response_format="content_and_artifact"
    )


ARTIFACTS: dict[str, Any] = {
    "text and an artifact": ("text", {"raw": [1]}),
    "a dict and an artifact": ({"a": 1}, b"raw"),
    "blocks and an artifact": ([{"type": "text", "text": "hi"}], 7),
    "text and no artifact": ("text", None),
    "a message and an artifact": (ToolMessage("m", tool_call_id="call-1", id="x"), 7),
}


@pytest.mark.parametrize("label", ARTIFACTS)
def test_an_artifact_travels_beside_the_content(label: str, same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([with_artifact(ARTIFACTS[label])]), wants("give")))


@pytest.mark.parametrize("output", ["text", (1, 2, 3), None], ids=repr)
def test_an_artifact_tool_that_returns_no_pair_is_an_error(output: Any, same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([with_artifact(output)]), wants("give")), raises="ValueError")


def test_an_artifact_tool_that_returns_no_pair_can_be_handled(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([with_artifact("text")], handle_tool_errors=True), wants("give")))


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"content": "done"},
    "with blocks": {"content": [{"type": "text", "text": "done"}]},
    "with a list of texts": {"content": ["a", "b"]},
    "with a name": {"content": "done", "name": "someone"},
    "with an artifact and an error": {"content": "done", "artifact": {"a": 1}, "status": "error"},
    "with extras": {"content": "done", "additional_kwargs": {"k": 1}, "response_metadata": {"m": 2}},
}


@pytest.mark.parametrize("label", MESSAGES)
@alike
def test_a_tool_message_of_the_tool_is_passed_on(ns: Any, label: str) -> Case:
    @tool
    def give(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Give it."""
        return ToolMessage(tool_call_id=tool_call_id, id="m", **MESSAGES[label])

    return Case(ns.ToolNode([give]), wants("give"))


def answer(content: str = "a", call_id: str = "call-1") -> ToolMessage:
    return ToolMessage(content, tool_call_id=call_id, id=f"{content} {call_id}")


LISTS: dict[str, tuple[Any, str | None]] = {
    "a single message": ([answer()], None),
    "a message beside one for another call": ([answer(), answer("b", "other")], None),
    "two messages for one call": ([answer(), answer("b")], "ValueError"),
    "no message for the call": ([answer("a", "other")], "ValueError"),
    "a text": ([answer(), "text"], None),
    "a message of a human": ([answer(), HumanMessage("h")], None),
    "nothing": ([answer(), None], None),
    "an int": ([answer(), 7], None),
    "an object without text": (Unprintable(), "RuntimeError"),
}


@pytest.mark.parametrize("label", LISTS)
def test_a_list_is_taken_alike_with(label: str, same: Same) -> None:
    output, raised = LISTS[label]
    same(lambda ns: returning(ns, output), raises=raised)


@alike
def test_a_list_answer_contains_the_messages_of_list_tools_flat(ns: Any) -> Case:
    def pair(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Two messages."""
        extra = ToolMessage("extra", tool_call_id="other", id=f"x-{tool_call_id}")
        return [ToolMessage("main", tool_call_id=tool_call_id, id=f"m-{tool_call_id}"), extra]

    calls = asks(call("pair", id="1"), call("pair", id="2"))
    return Case(ns.ToolNode([pair]), [calls], state=MessageList)


def raw(ns: Any, output: Any, **options: Any) -> Case:
    class Raw(StructuredTool):
        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            return output

        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
            return output

    return Case(
        ns.ToolNode([Raw.from_function(func=lambda: "x", name="give", description="d")], **options), wants("give")
    )


def test_an_overridden_invoke_that_returns_a_raw_value_is_a_type_error(same: Same) -> None:
    same(lambda ns: raw(ns, "raw"), raises="TypeError")


@pytest.mark.parametrize("output", [["raw"], {"a": 1}, None], ids=repr)
def test_an_overridden_invoke_that_returns_a_raw_value_can_be_handled(output: Any, same: Same) -> None:
    same(lambda ns: raw(ns, output, handle_tool_errors=True))
