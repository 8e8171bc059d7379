"""`callboard threads` and `callboard show`: the content of a database, whichever library wrote it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from callboard import Actor, AgentState, ToolNode, child, create_react_agent, handler, tool_call
from callboard.testing import ScriptedModel, calls

from ._commands import Project

prebuilt: Any = pytest.importorskip("langgraph.prebuilt")
pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

Saver = BaseCheckpointSaver[Any]


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def ask(question: str) -> str:
    """Ask the user."""
    return f"they said {interrupt(question)!r}"


def broken() -> str:
    """Fail."""
    raise ValueError("the tool is broken")


TOOLS = [weather, ask, broken]
ASKING = calls(("weather", {"city": "Oslo"}), ("ask", {"question": "How?"}), content="Let me see.")


def thread(name: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


def say(agent: Any, text: str, name: str) -> Any:
    return agent.invoke({"messages": [("user", text)]}, thread(name))


@pytest.fixture
def saver(project: Project) -> Iterator[Any]:
    with SqliteSaver.from_conn_string(project.db) as opened:
        yield opened


def show(project: Project, *arguments: str) -> str:
    result = project.call("show", *arguments, "--db", project.db)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    output: str = result.stdout
    return output


def rows(project: Project) -> list[list[str]]:
    """Return the rows of `callboard threads`, split in columns."""
    result = project.call("threads", "--db", project.db)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.stdout.splitlines()]


def ours(saver: Saver, *script: Any, **options: Any) -> Any:
    return create_react_agent(ScriptedModel(script, loop=True), TOOLS, checkpointer=saver, **options)


def react(version: str) -> Any:
    return lambda saver: prebuilt.create_react_agent(
        ScriptedModel([ASKING]), TOOLS, checkpointer=saver, version=version
    )


def langchain(saver: Saver) -> Any:
    return create_agent(ScriptedModel([ASKING]), TOOLS, checkpointer=saver)


AGENTS = {
    "ours": lambda saver: ours(saver, ASKING),
    "react v1": react("v1"),
    "react v2": react("v2"),
    "create_agent": langchain,
}


def test_threads_are_listed_the_latest_first(project: Project, saver: Saver) -> None:
    chatty = ours(saver, "Hello.", "Hello\nagain.")
    say(chatty, "hi", "first")
    say(ours(saver, ASKING), "hi", "second")
    say(chatty, "hi", "first")

    heading, first, second = rows(project)
    assert heading == ["thread", "turns", "when", "open", "last message"]
    assert (first[0], first[1], first[-1]) == ("first", "2", "Hello again.")
    assert (second[0], second[1], second[3], second[-1]) == ("second", "1", "1 question", "sun in Oslo")
    assert first[2].startswith("20")


class Notebook(Actor):
    """Lines of text."""

    def start(self) -> None:
        self.lines: list[str] = []

    def snapshot(self) -> list[str]:
        return self.lines

    def restore(self, snapshot: list[str]) -> None:
        self.lines = snapshot

    @handler
    def write(self, line: str) -> str:
        """Write a line."""
        self.lines.append(line)
        return " ".join(self.lines)


def test_the_states_of_actors_in_a_thread_are_passed_over(project: Project, saver: Saver) -> None:
    script = [calls(("write", {"line": "well"})), "Written."]
    notebook = child(Notebook, snapshots="journal")
    agent: Any = create_react_agent(ScriptedModel(script, loop=True), [notebook], checkpointer=saver)
    say(agent, "hi", "first")
    say(agent, "hi", "first")

    assert rows(project)[1][-1] == "Written."
    assert "well well" in show(project, "first")
    assert "Notebook" not in show(project, "first")
    assert "Written." in show(project, "first", "--history")


def test_a_database_without_threads_says_so(project: Project, saver: Saver) -> None:
    """An empty table would look like a failure."""
    list(saver.list(None))

    assert rows(project) == [["no threads"]]


@pytest.mark.parametrize("command", [["threads"], ["show", "1"], ["show", "1", "--history"]])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no database"),
        ("something else, and long enough to be looked at by SQLite" * 20, "the file holds something else"),
    ],
)
def test_what_is_no_database_is_told_and_left_alone(
    project: Project, command: list[str], content: str | None, message: str
) -> None:
    """A typo in the file name must not create an empty database."""
    path = Path(project.db)
    if content is not None:
        path.write_text(content)
    result = project.call(*command, "--db", project.db)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert (path.read_text() if path.exists() else None) == content


def test_the_database_may_be_named_by_its_url_or_by_the_environment(project: Project, saver: Saver) -> None:
    say(ours(saver, "Hello."), "hi", "1")

    assert "Hello." in project.call("threads", "--db", f"sqlite:///{project.db}").stdout
    assert "Hello." in project.call("threads", CALLBOARD_DB=project.db).stdout
    assert project.call("threads").exit_code == 2


@pytest.mark.parametrize("writer", AGENTS)
def test_a_conversation_is_printed_with_the_state_of_each_call(project: Project, saver: Saver, writer: str) -> None:
    """The thread may be written by an agent or a graph, and stopped in the middle of a batch."""
    say(AGENTS[writer](saver), "What is it like?", "1")

    lines = show(project, "1").splitlines()

    assert lines[0].startswith("thread 1  1 turn  ")
    assert lines[1:6] == ["", "you", "What is it like?", "", "agent"]
    assert lines[6] == "Let me see."
    if writer == "react v1":  # it stores nothing of a batch until the batch is complete, not even which call asked
        assert [line.split()[0] for line in lines[7:9]] == ["open", "open"]
    else:
        assert lines[7:9] == ["  done    weather(city='Oslo')  sun in Oslo", "  waits   ask(question='How?')"]
    assert lines[9:] == ["", "waits for a person: 1 question", "  How?"]
    assert rows(project)[1][3] == "1 question"


def test_an_approval_in_langchains_form_is_told_in_short(project: Project, saver: Saver) -> None:
    middleware = [HumanInTheLoopMiddleware({"weather": True})]
    agent = create_agent(
        ScriptedModel([calls(("weather", {"city": "Oslo"}))]), TOOLS, checkpointer=saver, middleware=middleware
    )
    say(agent, "hi", "1")

    assert show(project, "1").endswith("waits for a person: 1 question\n  approve weather(city='Oslo')\n")


def test_failed_and_open_calls_are_told_apart(project: Project, saver: Saver) -> None:
    handled = create_react_agent(
        ScriptedModel([calls("broken"), "Well."]), ToolNode(TOOLS, handle_tool_errors=True), checkpointer=saver
    )
    say(handled, "hi", "handled")
    with pytest.raises(ValueError, match="broken"):
        say(ours(saver, calls("broken")), "hi", "raised")
    say(ours(saver, calls("broken"), interrupt_before=["tools"]), "hi", "stopped")

    assert "  failed  broken()  Error: ValueError('the tool is broken')" in show(project, "handled")
    assert "  failed  broken()  ValueError('the tool is broken')" in show(project, "raised")
    stopped = show(project, "stopped")
    assert "  open    broken()\n" in stopped
    assert stopped.endswith("\nstopped before tools\n")
    assert {row[0]: row[3] for row in rows(project)[1:]}["stopped"] == "before tools"


def test_a_model_that_failed_is_told(project: Project, saver: Saver) -> None:
    with pytest.raises(ConnectionError):
        say(ours(saver, ConnectionError("nobody answers")), "hi", "1")

    assert show(project, "1").endswith("agent failed: ConnectionError('nobody answers')\nstopped before agent\n")


class Unplugged(SqliteSaver):
    """Checkpointer that fails when the end of a run is written."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if len(checkpoint["channel_values"].get("messages", ())) > 1:
            raise OSError("the machine is gone")
        return super().put(config, checkpoint, metadata, new_versions)


class Noting(AgentState):
    notes: list[str]


def run_unplugged(project: Project, run_input: Any, reply: Any) -> None:
    """Run an agent that is stopped before its end is written."""
    with closing(sqlite3.connect(project.db, check_same_thread=False)) as connection:
        agent = ours(Unplugged(connection), reply, state_schema=Noting)
        with pytest.raises(OSError, match="gone"):
            agent.invoke(run_input, thread("1"), durability="sync")


def test_the_middle_of_a_turn_is_read_from_the_journal(project: Project) -> None:
    """Another process may be running the turn, or may have been killed: the journal has all finished calls."""
    run_unplugged(project, {"messages": [("user", "hi")], "notes": ["a"]}, ASKING)

    assert "  done    weather(city='Oslo')  sun in Oslo" in show(project, "1")


def test_a_question_that_was_answered_is_not_shown_again(project: Project, saver: Saver) -> None:
    """The question stays beside the last checkpoint until the next one is written."""
    say(ours(saver, ASKING), "hi", "1")
    run_unplugged(project, Command(resume="by foot"), "Well.")

    output = show(project, "1")
    assert "  done    ask(question='How?')  they said 'by foot'" in output
    assert "waits" not in output


def test_a_graph_without_messages_says_what_it_has(project: Project, saver: Saver) -> None:
    """A graph without messages is listed, and its state keys are shown."""

    class State(TypedDict):
        count: int

    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"count": state["count"] + 1})
    builder.add_edge(START, "add")
    builder.compile(checkpointer=saver).invoke({"count": 1}, thread("1"))

    assert "no messages; the state has 1 other key: count" in show(project, "1")
    assert rows(project)[1][:2] == ["1", "0"]


def long_thread(saver: Saver, turns: int) -> None:
    messages: list[Any] = []
    for turn in range(turns):
        messages += [
            HumanMessage(f"question {turn}"),
            AIMessage("", tool_calls=[tool_call("weather", f"call {turn}", city=f"city {turn}")]),
            ToolMessage("word " * 300, tool_call_id=f"call {turn}", name="weather"),
            AIMessage(f"answer {turn}"),
        ]
    ours(saver, "x").update_state(thread("long"), {"messages": messages}, as_node="__end__")


def test_500_messages_can_be_read(project: Project, saver: Saver) -> None:
    """A call and its long result take one line. With `--last`, the number of hidden messages is shown."""
    long_thread(saver, 125)
    lines = show(project, "long").splitlines()

    assert lines[0].startswith("thread long  125 turns  500 messages")
    assert max(map(len, lines)) < 200
    assert len(lines) == 1 + 125 * 9

    last = show(project, "long", "--last", "3").splitlines()
    assert last[1] == "(497 messages before)"
    assert "  done    weather(city='city 124')" in last[4]
    assert last[-1] == "answer 124"


def test_a_result_whose_call_is_left_out_is_shown_all_the_same(project: Project, saver: Saver) -> None:
    """`--last` may cut between a call and its result."""
    long_thread(saver, 2)

    assert "result\n  done    weather  word word" in show(project, "long", "--last", "2")


def test_calls_and_results_may_be_had_in_full(project: Project, saver: Saver) -> None:
    long_thread(saver, 1)
    output = show(project, "long", "--full")

    assert output.count("word") == 300
    assert '"city": "city 0"' in output


def test_a_thread_can_be_looked_at_as_it_was(project: Project, saver: Saver) -> None:
    agent = ours(saver, ASKING, "Well.")
    say(agent, "first", "1")
    say(agent, "second", "1")

    snapshots = [line.split() for line in show(project, "1", "--history").splitlines()[1:]]
    assert all(len(snapshot[0]) == 36 for snapshot in snapshots)
    assert [int(snapshot[3]) for snapshot in snapshots] == sorted(
        (int(snapshot[3]) for snapshot in snapshots), reverse=True
    )
    assert len(show(project, "1", "--history", "--last", "2").splitlines()) == 3

    before = next(snapshot for snapshot in snapshots if snapshot[3:6] == ["2", "tools", "Let"])
    output = show(project, "1", "--at", before[0])
    assert "second" not in output
    assert "  open    weather(city='Oslo')\n" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2"], "there is no thread '2'; callboard threads lists those there are"),
        (["2", "--history"], "there is no thread '2'"),
        (["\udcff"], "there is no thread '\\udcff'"),
        (["\udcff", "--history"], "there is no thread '\\udcff'"),
        (["1", "--at", "nonsense"], "has no checkpoint 'nonsense'"),
        (["1", "--last", "0"], "--last"),
    ],
)
def test_what_is_not_there_is_told(project: Project, saver: Saver, arguments: list[str], message: str) -> None:
    say(ours(saver, "Hello."), "hi", "1")
    result = project.call("show", *arguments, "--db", project.db)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_that_is_kept_can_act_on_the_terminal(project: Project, saver: Saver) -> None:
    evil = "\x1b[2K\x07\u202egnp.exe"
    asks = calls(("weather", {"city": evil}), ("ask", {"question": evil}), tool_call(f"no{evil}"), content=evil)
    say(ours(saver, asks, name=f"agent{evil}"), evil, f"thread{evil}")

    for output in (
        show(project, f"thread{evil}"),
        show(project, f"thread{evil}", "--full"),
        project.call("threads", "--db", project.db).stdout,
    ):
        assert not {"\x1b", "\x07", "\u202e"} & set(output)
        assert r"\u001b[2K" in output


def test_looking_changes_nothing(project: Project, saver: Saver) -> None:
    say(ours(saver, ASKING), "hi", "1")
    before = [(snapshot.checkpoint, snapshot.metadata, snapshot.pending_writes) for snapshot in saver.list(None)]

    rows(project)
    show(project, "1")
    show(project, "1", "--history")

    assert [
        (snapshot.checkpoint, snapshot.metadata, snapshot.pending_writes) for snapshot in saver.list(None)
    ] == before


def test_a_line_break_in_the_name_of_a_thread_does_not_forge_a_row(project: Project, saver: Any) -> None:
    """A user who can name a thread could otherwise hide another thread."""
    name = "mine\nyours  1  2026-01-01 00:00    all is well"
    say(create_react_agent(ScriptedModel(["Hello."]), TOOLS, checkpointer=saver), "hi", name)

    for output in (
        project.call("threads", "--db", project.db).stdout,
        project.call("show", name, "--db", project.db).stdout,
    ):
        assert not [line for line in output.splitlines() if line.startswith("yours")]
        assert "mine\\nyours" in output
