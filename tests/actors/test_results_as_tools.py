"""What handlers return and raise, where they are tools: the model reads a text, and the program has the rest."""

from dataclasses import dataclass

import anyio
import pytest
from langchain_core.tools import ToolException

from callboard import Actor, ToolNode, handler, running
from callboard.testing import tool_call


@dataclass
class Measured:
    """What scales have measured."""

    values: list[int]

    @property
    def artifact(self) -> list[int]:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        return f"{len(self.values)} values"


class Scales(Actor):
    """Measure."""

    @handler
    async def measure(self, times: int) -> Measured:
        """Measure so many times."""
        if times > 3:
            raise ToolException("No more than 3 times.")
        return Measured([1] * times)


async def test_a_result_with_an_artifact_is_a_text_for_the_model_and_data_for_the_program() -> None:
    """Also where it is empty, and so not true."""
    node = ToolNode([Scales()])

    with anyio.fail_after(5):
        found = await node.ainvoke([tool_call("measure", "1", times=2), tool_call("measure", "2", times=0)])
        async with running(Scales()) as scales:
            measured = await scales.measure(2)

    assert [(one.content, one.artifact) for one in found["messages"]] == [("2 values", [1, 1]), ("0 values", [])]
    assert measured == Measured([1, 1])


async def test_a_tool_exception_of_a_handler_is_for_the_model() -> None:
    """As LangChain has it, and whatever `handle_tool_errors` says; whoever calls a reference catches it."""
    with anyio.fail_after(5):
        found = await ToolNode([Scales()]).ainvoke([tool_call("measure", "1", times=4)])
        async with running(Scales()) as scales:
            with pytest.raises(ToolException, match="No more than 3"):
                await scales.measure(4)

    [message] = found["messages"]
    assert (message.content, message.status) == ("No more than 3 times.", "error")
