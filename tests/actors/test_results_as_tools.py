"""Results and errors of handlers that are tools: the model reads text, and the program gets the artifact."""

from dataclasses import dataclass

import anyio
import pytest
from langchain_core.tools import ToolException

from callboard import Actor, ToolNode, handler, running
from callboard.testing import tool_call


@dataclass
class Measured:
    """Result with the values of a measurement."""

    values: list[int]

    @property
    def artifact(self) -> list[int]:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        return f"{len(self.values)} values"


class Scales(Actor):
    """Actor that measures."""

    @handler
    async def measure(self, times: int) -> Measured:
        """Measure so many times."""
        if times > 3:
            raise ToolException("No more than 3 times.")
        return Measured([1] * times)


async def test_a_result_with_an_artifact_is_a_text_for_the_model_and_data_for_the_program() -> None:
    """An artifact reaches the program even if it is empty and therefore false."""
    node = ToolNode([Scales()])

    with anyio.fail_after(5):
        found = await node.ainvoke([tool_call("measure", "1", times=2), tool_call("measure", "2", times=0)])
        async with running(Scales()) as scales:
            measured = await scales.measure(2)

    assert [(one.content, one.artifact) for one in found["messages"]] == [("2 values", [1, 1]), ("0 values", [])]
    assert measured == Measured([1, 1])


async def test_a_tool_exception_of_a_handler_is_for_the_model() -> None:
    """As in LangChain, a `ToolException` becomes a message for any `handle_tool_errors`. A direct caller catches it."""
    with anyio.fail_after(5):
        found = await ToolNode([Scales()]).ainvoke([tool_call("measure", "1", times=4)])
        async with running(Scales()) as scales:
            with pytest.raises(ToolException, match="No more than 3"):
                await scales.measure(4)

    [message] = found["messages"]
    assert (message.content, message.status) == ("No more than 3 times.", "error")
