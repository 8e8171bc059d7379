"""Return values of a tool, and the ToolMessages that are made of them."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from pydantic import BaseModel

from ._harness import Case, MessageList, asks, call, wants
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


def test_an_output_without_text_fails_alike(same: Same) -> None:
    same(lambda ns: returning(ns, Unprintable()), raises="RuntimeError")


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
def test_a_tool_message_of_the_tool_is_passed_on(label: str, same: Same) -> None:
    def scenario(ns: Any) -> Case:
        @tool
        def give(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
            """Give it."""
            return ToolMessage(tool_call_id=tool_call_id, id="m", **MESSAGES[label])

        return Case(ns.ToolNode([give]), wants("give"))

    same(scenario)


def test_a_single_message_in_a_list_is_passed_on(same: Same) -> None:
    same(lambda ns: returning(ns, [ToolMessage("done", tool_call_id="call-1", id="m")]))


def test_a_list_of_two_messages_for_one_call_is_an_error(same: Same) -> None:
    twice = [ToolMessage("a", tool_call_id="call-1"), ToolMessage("b", tool_call_id="call-1")]
    same(lambda ns: returning(ns, twice), raises="ValueError")


def test_a_list_without_a_message_for_the_call_is_an_error(same: Same) -> None:
    same(lambda ns: returning(ns, [ToolMessage("a", tool_call_id="other")]), raises="ValueError")


def test_a_message_beside_one_for_another_call_is_passed_on(same: Same) -> None:
    both = [ToolMessage("a", tool_call_id="call-1", id="a"), ToolMessage("b", tool_call_id="other", id="b")]
    same(lambda ns: returning(ns, both))


@pytest.mark.parametrize("wrong", ["text", HumanMessage("h"), None, 7], ids=["text", "human", "none", "int"])
def test_a_list_with_a_wrong_element_is_treated_alike(wrong: Any, same: Same) -> None:
    same(lambda ns: returning(ns, [ToolMessage("a", tool_call_id="call-1", id="a"), wrong]))


def test_a_list_answer_contains_the_messages_of_list_tools_flat(same: Same) -> None:
    def scenario(ns: Any) -> Case:
        def pair(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
            """Two messages."""
            extra = ToolMessage("extra", tool_call_id="other", id=f"x-{tool_call_id}")
            return [ToolMessage("main", tool_call_id=tool_call_id, id=f"m-{tool_call_id}"), extra]

        calls = asks(call("pair", id="1"), call("pair", id="2"))
        return Case(ns.ToolNode([pair]), [calls], state=MessageList)

    same(scenario)


def test_an_overridden_invoke_that_returns_a_raw_value_is_a_type_error(same: Same) -> None:
    def scenario(ns: Any) -> Case:
        class Raw(StructuredTool):
            def invoke(self, *args: Any, **kwargs: Any) -> Any:
                return "raw"

            async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
                return "raw"

        return Case(ns.ToolNode([Raw.from_function(func=lambda: "x", name="give", description="d")]), wants("give"))

    same(scenario, raises="TypeError")


@pytest.mark.parametrize("output", [["raw"], {"a": 1}, None], ids=repr)
def test_an_overridden_invoke_that_returns_a_raw_value_can_be_handled(output: Any, same: Same) -> None:
    def scenario(ns: Any) -> Case:
        class Raw(StructuredTool):
            def invoke(self, *args: Any, **kwargs: Any) -> Any:
                return output

            async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
                return output

        node = ns.ToolNode([Raw.from_function(func=lambda: "x", name="give", description="d")], handle_tool_errors=True)
        return Case(node, wants("give"))

    same(scenario)
