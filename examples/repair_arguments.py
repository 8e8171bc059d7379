"""A model that writes careless arguments: unambiguous ones are repaired, ambiguous ones are refused with an error."""

from typing import Literal

import anyio
from langchain_core.tools import tool
from pydantic import BaseModel, ConfigDict

from callboard import ToolNode, tool_call
from callboard.guards import RepairArguments


class Room(BaseModel):
    """Room to book."""

    model_config = ConfigDict(extra="forbid")

    beds: int
    view: Literal["garden", "street"] = "garden"


@tool
async def book(hotel: str, rooms: list[Room], guests: list[str]) -> str:
    """Book rooms for guests."""
    beds = sum(room.beds for room in rooms)
    return f"{hotel}: {beds} beds for {', '.join(guests)}"


CARELESS = [
    # One room for a list of them, in Python's notation; one guest for a list; a choice in capitals.
    tool_call("book", "1", hotel="Ritz", rooms="{'beds': 2, 'view': 'GARDEN'}", guests="Ann"),
    # All arguments inside of another, and a name in camel case.
    tool_call("book", "2", input={"Hotel": "Ritz", "rooms": [{"beds": 1}], "guests": ["Ann"]}),
    # One guest, or two? Only the model knows.
    tool_call("book", "3", hotel="Ritz", rooms=[{"beds": 2}], guests="Ann, Bob"),
]


async def main() -> None:
    node = ToolNode([book], middleware=[RepairArguments()])

    first, second, third = (await node.ainvoke(CARELESS))["messages"]

    for message in (first, second, third):
        print(f"{message.status}: {message.content}\n")
    assert first.content.startswith("Ritz: 2 beds for Ann")
    assert first.additional_kwargs["callboard"]["repaired"]["kinds"] == ["json", "list", "list", "choice"]
    assert second.content.startswith("Ritz: 1 beds for Ann")
    assert "guests was called" not in second.content
    assert third.status == "error"
    assert "guests" in third.content
    assert "repaired" not in third.content


if __name__ == "__main__":
    anyio.run(main)
