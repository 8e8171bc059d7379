"""`callboard threads --check`: open calls that the agent of the next version would refuse."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import interrupt

from callboard import ToolNode, create_react_agent
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel, calls

from ._commands import Project

AGENT = """
    from callboard import create_react_agent
    from callboard.testing import ScriptedModel

    def pay(order: str, amount: int) -> str:
        '''Pay an order.'''
        raise AssertionError

    def ask(question: str) -> str:
        '''Ask the user.'''
        raise AssertionError

    agent = create_react_agent(ScriptedModel(["Done."]), [pay, ask])
    odd = 5
"""


def pay(order: str) -> str:
    """Pay an order."""
    return f"paid {order}"


def ask(question: str) -> str:
    """Ask the user."""
    return str(interrupt(question))


def refund(order: str) -> str:
    """Refund an order."""
    return str(interrupt(order))


@pytest.fixture
def saver(project: Project) -> Iterator[Any]:
    with SqliteSaver.from_conn_string(project.db) as opened:
        yield opened


def talk(saver: Any, thread: str, *script: Any) -> None:
    node = ToolNode([pay, ask, refund], middleware=[RequireApproval(["pay"])])
    agent = create_react_agent(ScriptedModel(script), node, checkpointer=saver)
    agent.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": thread}})


def check(project: Project, name: str = "agent") -> Any:
    return project.call("threads", "--db", project.db, "--check", f"{project.module(AGENT)}:{name}")


def test_open_calls_that_would_be_refused_are_listed_with_reason_and_remedy(project: Project, saver: Any) -> None:
    """A new version of a tool must not surprise the conversations that wait for an answer."""
    talk(saver, "tool", calls(("refund", {"order": "A1"})))
    talk(saver, "arguments", calls(("pay", {"order": "A1"})))
    talk(saver, "fits", calls(("ask", {"question": "How?"})))
    talk(saver, "finished", "Hello.")
    before = hashlib.sha256(Path(project.db).read_bytes()).hexdigest()

    result = check(project)
    lines = result.stdout.splitlines()

    assert (result.exit_code, result.stderr) == (1, "")
    assert sorted(line.split("  ")[0] for line in lines[:-1:2]) == ["arguments", "tool"]
    assert "refund  the agent has no tool 'refund', only ['ask', 'pay']" in result.stdout
    assert "pay  argument amount: Field required" in result.stdout
    assert all(line.startswith("  -> ") for line in lines[1:-1:2])
    assert lines[-1] == "3 open calls in 4 threads: 2 would be refused"
    assert hashlib.sha256(Path(project.db).read_bytes()).hexdigest() == before


def test_without_such_calls_the_command_succeeds(project: Project, saver: Any) -> None:
    talk(saver, "fits", calls(("ask", {"question": "How?"})))
    result = check(project)

    assert (result.exit_code, result.stdout) == (0, "1 open call in 1 thread: all fit the tools\n")


def test_the_name_of_a_call_cannot_forge_a_line(project: Project, saver: Any) -> None:
    """Names come from models, and the output goes to a terminal."""
    talk(saver, "a\nb\x1b[1m", calls(("refund", {"order": "A1"})))
    result = check(project)

    assert len(result.stdout.splitlines()) == 3
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(("name", "says"), [("odd", "is no agent, but int"), ("none", "has no 'none'")])
def test_an_agent_that_does_not_exist_is_an_error(project: Project, saver: Any, name: str, says: str) -> None:
    talk(saver, "finished", "Hello.")
    result = check(project, name)

    assert result.exit_code == 2
    assert says in result.stderr


def test_a_graph_of_langgraph_is_an_error(project: Project, saver: Any) -> None:
    talk(saver, "finished", "Hello.")
    name = project.module(AGENT + "    graph = agent.as_graph()\n")
    result = project.call("threads", "--db", project.db, "--check", f"{name}:graph")

    assert result.exit_code == 2
    assert "is a graph of LangGraph's; --check needs an agent of callboard" in result.stderr
