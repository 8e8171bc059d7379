"""Promise 12: LangGraph's released server runs callboard's agents as it runs LangGraph's."""

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk import get_sync_client

from ._langgraph_server import LangGraphServer, program

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

OURS = ("ours", "built")
NAMES = (*OURS, "theirs")
MODES: Any = ["updates", "values", "messages-tuple", "tasks"]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a server for all tests; each test uses its own threads."""
    if (server_program := program()) is None:
        pytest.skip("LangGraph's server is not installed: see .ci/run, or set CALLBOARD_LANGGRAPH")
    server = LangGraphServer(server_program)
    try:
        server.start(*NAMES)
        found_client = get_sync_client(url=server.url, api_key=None)
        try:
            yield found_client
        finally:
            found_client.http.client.close()
    finally:
        server.remove()


def says(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def new_thread(client: Any) -> str:
    return str(client.threads.create()["thread_id"])


def types_and_texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["type"], message["content"]) for message in messages]


def without_ids(value: Any) -> Any:
    """Return data without the ids and times that differ between runs."""
    if isinstance(value, dict):
        unlike = ("id", "metadata", "checkpoint", "run_id", "created_at", "triggers", "__interrupt__", "interrupts")
        return {key: without_ids(item) for key, item in value.items() if key not in unlike}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def stream(client: Any, name: str, thread: str, **options: Any) -> list[Any]:
    parts = client.runs.stream(thread, name, stream_mode=MODES, **options)
    # The server adds the ids of run, thread and graph to a message.
    return [
        (part.event, without_ids(part.data[0] if part.event == "messages" else part.data))
        for part in parts
        if part.event != "metadata"
    ]


@pytest.mark.parametrize("name", OURS)
def test_a_run_streams_what_langgraphs_agent_streams(client: Any, name: str) -> None:
    expected, actual = (
        stream(client, graph_name, new_thread(client), input=says("look"), context={"user": "ann"})
        for graph_name in ("theirs", name)
    )
    assert {event for event, _ in expected} == {"updates", "values", "messages", "tasks"}
    assert actual == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_question_shows_in_the_state_and_its_answer_goes_on(client: Any, name: str) -> None:
    thread = new_thread(client)
    client.runs.wait(thread, name, input=says("look ask"))
    state = client.threads.get_state(thread, subgraphs=True)
    [question] = state["interrupts"]
    assert client.threads.get(thread)["status"] == "interrupted"
    assert state["next"] == ["tools"]
    assert types_and_texts(state["values"]["messages"]) == [("human", "look ask"), ("ai", ""), ("tool", "found look?")]
    assert [[open_question["value"] for open_question in task["interrupts"]] for task in state["tasks"]] == [
        [],
        ["ask?"],
    ]

    result = client.runs.wait(thread, name, command={"resume": {question["id"]: "yes"}})
    assert types_and_texts(result["messages"])[2:] == [
        ("tool", "found look?"),
        ("tool", "ask?: yes"),
        ("ai", "Tea is ready."),
    ]
    assert client.threads.get(thread)["status"] == "idle"
    assert client.threads.get_state(thread)["next"] == []


@pytest.mark.parametrize("name", OURS)
def test_two_questions_are_answered_one_at_a_time(client: Any, name: str) -> None:
    thread = new_thread(client)
    client.runs.wait(thread, name, input=says("ask ask"))
    first, second = client.threads.get_state(thread)["interrupts"]
    client.runs.wait(thread, name, command={"resume": {second["id"]: "two"}})
    assert [question["id"] for question in client.threads.get_state(thread)["interrupts"]] == [first["id"]]

    result = client.runs.wait(thread, name, command={"resume": {first["id"]: "one"}})
    assert types_and_texts(result["messages"])[2:4] == [("tool", "ask?: one"), ("tool", "ask?: two")]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_stops_before_a_node_and_goes_on(client: Any, name: str) -> None:
    thread = new_thread(client)
    client.runs.wait(thread, name, input=says("look"), interrupt_before=["tools"])
    assert client.threads.get_state(thread)["next"] == ["tools"]

    result = client.runs.wait(thread, name, input=None)
    assert types_and_texts(result["messages"])[-1] == ("ai", "Tea is ready.")


@pytest.mark.parametrize("name", NAMES)
def test_a_thread_has_a_history_to_go_back_to_and_can_be_changed(client: Any, name: str) -> None:
    """The journal is in the server's own checkpointer, so the server's requests read and change it."""
    thread = new_thread(client)
    client.runs.wait(thread, name, input=says("look"))
    history = client.threads.get_history(thread)
    before_tools = next(snapshot for snapshot in history if snapshot["next"] == ["tools"])
    assert types_and_texts(before_tools["values"]["messages"]) == [("human", "look"), ("ai", "")]
    assert client.threads.get_state(thread, checkpoint=before_tools["checkpoint"])["next"] == ["tools"]
    result = client.runs.wait(thread, name, input=None, checkpoint=before_tools["checkpoint"])
    assert types_and_texts(result["messages"])[-1] == ("ai", "Tea is ready.")

    client.threads.update_state(thread, {"messages": [{"role": "ai", "content": "No tea."}]}, as_node="agent")
    assert types_and_texts(client.threads.get_state(thread)["values"]["messages"])[-1] == ("ai", "No tea.")


@pytest.mark.parametrize("name", OURS)
def test_the_server_shows_the_same_schemas_and_drawing(client: Any, name: str) -> None:
    """Studio draws the graph, and forms are generated from the schemas."""

    def about(graph: str) -> Any:
        [assistant] = client.assistants.search(graph_id=graph)
        schemas = client.assistants.get_schemas(assistant["assistant_id"])
        differing_keys = ("graph_id", "config_schema")
        return (
            client.assistants.get_graph(assistant["assistant_id"])["edges"],
            {key: _without_titles(value) for key, value in schemas.items() if key not in differing_keys},
        )

    assert about(name) == about("theirs")


def _without_titles(schema: Any) -> Any:
    """Return a schema without titles and descriptions of the state, because LangGraph's class is deprecated."""
    text_keys = ("title", "description", "deprecated")
    if isinstance(schema, dict):
        return {key: _without_titles(value) for key, value in schema.items() if key not in text_keys}
    return schema


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_a_thread_streams_its_events(client: Any, name: str) -> None:
    parts = client.runs.stream(None, name, input=says("look"), stream_mode="events")
    events = {(part.data["event"], part.data["name"]) for part in parts if part.event == "events"}
    assert {("on_tool_end", "look"), ("on_chain_end", "agent"), ("on_chain_end", "tools")} <= events
