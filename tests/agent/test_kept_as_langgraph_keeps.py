"""Checkpoint metadata and untracked values: callboard stores exactly the kinds of data that LangGraph stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Send

from callboard import AgentState, create_react_agent
from callboard.agent._flow import ReactFlow, drawing
from callboard.conversations._channels import Schema
from callboard.conversations._storage import Amended, Finished
from callboard.conversations._stored_types import drop_untracked
from callboard.testing import ScriptedModel, calls

from ._savers import QUESTION, SAVERS, saver_of

prebuilt: Any = pytest.importorskip("langgraph.prebuilt")
pytestmark = [pytest.mark.real_clock, pytest.mark.filterwarnings("ignore:create_react_agent has been moved")]

THREAD: Any = {"configurable": {"thread_id": "1", "user": "ada"}, "metadata": {"team": "blue"}}


def work() -> str:
    """Work."""
    return "done"


def model() -> ScriptedModel:
    return ScriptedModel([calls("work"), "done"], loop=True)


@pytest.mark.parametrize("kind", SAVERS)
async def test_metadata_of_checkpoints_have_the_keys_that_langgraph_writes(kind: str, tmp_path: Path) -> None:
    """Programs that filter or export metadata by LangGraph's schema find no further keys."""
    langgraph_saver = InMemorySaver()
    prebuilt.create_react_agent(model(), [work], checkpointer=langgraph_saver).invoke(QUESTION, THREAD)
    known_keys = {frozenset(stored.metadata) for stored in langgraph_saver.list(THREAD)}
    async with saver_of(kind, tmp_path / "db") as saver:
        agent = create_react_agent(model(), [work], checkpointer=saver)
        for _ in range(3):
            await agent.ainvoke(QUESTION, THREAD)
        stored = await agent_list(saver)
    assert stored
    assert {frozenset(checkpoint.metadata) for checkpoint in stored} == known_keys


async def agent_list(saver: Any) -> list[Any]:
    from callboard.conversations._saver import Saver

    return await Saver(saver, "1", "").before(None, None)


@dataclass
class Connection:
    """A value that cannot be stored."""

    secret: str
    socket: Any = object  # no serializer accepts it


class Connected(AgentState):
    connection: Annotated[Any, UntrackedValue]


@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_untracked_values_are_given_and_never_stored(tmp_path: Path, durability: Any) -> None:
    """Tools and hooks can use a connection in the state, but no byte of it is written to the file."""
    connections: list[Any] = []

    def look(state: dict[str, Any]) -> dict[str, Any]:
        connections.append(state.get("connection"))
        return {"connection": Connection("canary from a hook")}

    file = tmp_path / "agent.db"
    agent_input = {**QUESTION, "connection": Connection("canary from input")}
    agent = create_react_agent(
        model(), [work], state_schema=Connected, post_model_hook=look, checkpointer=f"sqlite:///{file}"
    )
    await agent.ainvoke(agent_input, THREAD, durability=durability)
    snapshot = await agent.aget_state(THREAD)
    await agent.aclose()
    assert connections[0] == Connection("canary from input")
    assert "connection" not in snapshot.values
    assert b"canary" not in file.read_bytes()


def test_commands_and_sends_carry_no_untracked_value_into_the_journal() -> None:
    """This holds for each form in which a node can write the value."""
    flow = ReactFlow(tools=True, before=False, after=False, response=False, direct=frozenset())
    schema = Schema(drawing(flow, Connected, None), flow.entry)
    secret = {"connection": "canary", "messages": []}
    outputs = [
        secret,
        [Command(update=secret)],
        Command(update=list(secret.items())),
        Command(goto=[Send("a", secret)]),
    ]

    for output in outputs:
        assert "canary" not in repr(drop_untracked(Finished("a", output), schema))
    amended = Amended(writes=list(secret.items()), source="update", next=[], sends=[Send("a", secret)], id="1", ts="")
    tracked: Any = drop_untracked(amended, schema)
    assert tracked.writes == [("messages", [])]
    assert "canary" not in repr(tracked)
