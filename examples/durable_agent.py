"""An agent with durable conversations: one process is killed in the middle of a batch, and another one continues.

The first process has booked the flight, and is about to book the hotel when it dies. The second process finds the
flight. The call for the hotel had begun, and runs again because it is declared idempotent. For any other call, the
model would be told that its outcome is unknown. The processes share only the path of a SQLite file.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from langchain_core.messages import ToolMessage

from callboard import CallPolicy, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls

THREAD = {"configurable": {"thread_id": "holiday"}}


def book_for(directory: Path, *, dies: bool) -> list:
    """Return the tools; bookings are lines of a file, and cannot be cancelled."""
    bookings = directory / "bookings"

    async def book_flight(to: str) -> str:
        """Book a flight."""
        with bookings.open("a") as file:
            file.write(f"flight to {to}\n")
        return f"flight to {to} booked"

    async def book_hotel(city: str) -> str:
        """Book a hotel."""
        await asyncio.sleep(0.5)
        if dies:
            os._exit(9)
        booking = f"hotel in {city}"
        if booking not in bookings.read_text().splitlines():  # idempotent, as its policy says
            with bookings.open("a") as file:
                file.write(f"{booking}\n")
        return f"{booking} booked"

    return [book_flight, book_hotel]


def agent_in(directory: Path, *, dies: bool) -> object:
    """Return the agent of one process; the second process continues the script of the first."""
    batch = calls(("book_flight", {"to": "Rome"}), ("book_hotel", {"city": "Rome"}))
    script = [batch] if dies else ["All is booked."]
    url = f"sqlite:///{directory / 'agent.db'}"
    tools = ToolNode(book_for(directory, dies=dies), policies={"book_hotel": CallPolicy(idempotent=True)})
    return create_react_agent(ScriptedModel(script), tools, checkpointer=url)


async def first(directory: Path) -> None:
    agent = agent_in(directory, dies=True)
    await agent.ainvoke({"messages": [("user", "Book a week in Rome")]}, THREAD)


async def second(directory: Path) -> list[str]:
    agent = agent_in(directory, dies=False)
    result = await agent.ainvoke(None, THREAD)
    answers = [message.content for message in result["messages"] if isinstance(message, ToolMessage)]
    return [*answers, result["messages"][-1].content]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        died = subprocess.run([sys.executable, __file__, name], check=False, capture_output=True)
        assert died.returncode == 9, died.stderr
        booked = (directory / "bookings").read_text().splitlines()
        print("killed after:", *booked)
        assert booked == ["flight to Rome"]

        lines = asyncio.run(second(directory))
        print("resumed:", *lines, sep="\n  ")
        assert lines == ["flight to Rome booked", "hotel in Rome booked", "All is booked."]
        assert (directory / "bookings").read_text().splitlines() == ["flight to Rome", "hotel in Rome"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(first(Path(sys.argv[1])))
    main()
