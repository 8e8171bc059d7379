"""The agents in `examples` behave as in their recordings, and a replay finds realistic bugs in them.

`python -m tests.applications.record_agents` makes the recordings again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard import Agent, ToolCallRequest
from callboard.testing import Replay, ReplayDifferenceError, ScriptedModel
from tests.applications.record_agents import RECORDINGS, RUNS, example

Replays = Callable[..., Replay]


def with_recording(name: str) -> pytest.MarkDecorator:
    return pytest.mark.callboard(f"tests/recordings/{name}.jsonl")


def research_agent() -> Agent:
    """Return the agent with its notes as functions, because the process of an MCP server has no virtual clock."""
    app = example("research_agent")
    agent: Agent = app.research(ScriptedModel([]), app.NOTES)
    return agent


def data_agent(folder: Path) -> Agent:
    app = example("data_agent")
    app.make_orders(folder)
    agent: Agent = app.agent(ScriptedModel([]), folder)
    return agent


def coding_agent(folder: Path) -> Agent:
    app = example("coding_agent")
    app.make_project(folder)
    agent: Agent = app.agent(ScriptedModel([]), folder)
    return agent


# The applications run with all their parts.


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_research_on_two_sites_with_notes_runs(tmp_path: Path, backend: str) -> None:
    """Two sites on loopback, and an MCP server in its own process."""
    example("research_agent").story(tmp_path, backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_questions_to_a_database_are_answered(tmp_path: Path, backend: str) -> None:
    """SQLite, and Python in a confined process."""
    example("data_agent").story(tmp_path, backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_a_project_is_repaired(tmp_path: Path, backend: str) -> None:
    """Commands in confined processes, and approvals."""
    example("coding_agent").story(tmp_path, backend)


# The agents of today behave as recorded.


@with_recording("research_agent")
def test_research_with_limits_and_notes_is_replayed(replay: Replays) -> None:
    """Two questions of one conversation."""
    assert replay(research_agent()).state["messages"][-1].content == "It costs 9."


@with_recording("data_agent")
def test_sql_python_and_a_chart_are_replayed(replay: Replays, tmp_path: Path) -> None:
    assert "sales grow by" in replay(data_agent(tmp_path)).state["messages"][-1].content


@with_recording("data_agent_without_groups")
@pytest.mark.exhaustive
def test_the_database_and_the_chart_return_what_was_recorded(replay: Replays, tmp_path: Path) -> None:
    """Their results depend on nothing but the file, so that they are compared, too."""
    replay(data_agent(tmp_path), real=["read_sqlite", "bar_chart"], results=True)

    assert (tmp_path / "sales.svg").exists()


@with_recording("data_agent_without_groups")
def test_a_refused_chart_is_replayed(replay: Replays, tmp_path: Path) -> None:
    replay(data_agent(tmp_path))


@with_recording("coding_agent")
def test_a_repair_with_approvals_is_replayed(replay: Replays, tmp_path: Path) -> None:
    """One call is declined, and one is approved."""
    assert "The tests pass now." in replay(coding_agent(tmp_path)).state["messages"][-1].content


@with_recording("coding_agent_with_a_correction")
def test_a_correction_by_a_person_is_replayed(replay: Replays, tmp_path: Path) -> None:
    replay(coding_agent(tmp_path))


# Bugs: the recording was made before, and the replay of the agent with the bug tells where it differs.


def differences(replay: Replays, agent: Agent, **options: Any) -> str:
    with pytest.raises(ReplayDifferenceError) as caught:
        replay(agent, **options)
    return str(caught.value)


@with_recording("research_agent")
def test_a_lost_limit_per_host_is_found(replay: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is the whole URL, so that each page has a limit of its own."""
    monkeypatch.setattr(example("research_agent"), "host_of", lambda call: call["args"]["url"])

    report = differences(replay, research_agent())

    assert "differs in 1 place:\nrun 1 of 'research', after model request 2:" in report
    assert "  expected  a call waits for the end of another\n  got       no call waits for the end of another" in report


@with_recording("coding_agent")
def test_a_skipped_approval_is_found(replay: Replays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new rule allows every command that begins with a known program, and the model removes a test unasked."""

    def may_harm(request: ToolCallRequest) -> bool:
        return request.tool_call["args"]["program"] not in ("ls", "grep", "python", "rm")

    monkeypatch.setattr(example("coding_agent"), "may_harm", may_harm)

    report = differences(replay, coding_agent(tmp_path))

    assert "run 1 of 'coder', after model request 3:\n" in report
    assert 'expected  call_5 run_command(program="rm", arguments=["test_price.py"]): interrupted' in report
    assert 'got       call_5 run_command(program="rm", arguments=["test_price.py"]): ok' in report


def test_each_recording_is_small_and_names_no_machine() -> None:
    for name in RUNS:
        text = (RECORDINGS / f"{name}.jsonl").read_text()
        assert len(text) < 40_000
        assert "/tmp" not in text
        assert str(Path.home()) not in text
