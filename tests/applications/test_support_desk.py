"""The support desk: one actor for each customer, on two processes that share a fleet."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callboard import Agent
from tests.agent._postgres import running_postgres
from tests.server.fleet._memory import MemoryFleet, MemoryServer

from .record_services import ROOT, example


async def say(agent: Agent, thread: str, text: str) -> str:
    user_input = {"messages": [("user", text)]}
    state = await agent.ainvoke(user_input, {"configurable": {"thread_id": thread}})
    return str(state["messages"][-1].content)


async def test_conversations_of_a_customer_share_notes_and_those_of_others_do_not() -> None:
    async with example("support_desk").agent_for() as agent:
        await say(agent, "ann/1", "My kettle leaks.")
        await say(agent, "bob/1", "My cup is broken.")

        assert await say(agent, "ann/2", "What is open?") == "ann: ticket 1: My kettle leaks."
        assert await say(agent, "bob/2", "Close: 1.") == "closed: My cup is broken."
        assert await say(agent, "bob/2", "What is open?") == "bob: nothing."
        assert await say(agent, "ann/2", "Close: 7.") == "there is no ticket 7."


@pytest.mark.real_clock
async def test_each_process_reaches_all_customers_and_takes_over_those_of_the_other() -> None:
    """Here both processes are agents of one, and the first one ends in order; the example kills it."""
    server, module = MemoryServer(), example("support_desk")
    async with module.agent_for(MemoryFleet(server)) as second:
        async with module.agent_for(MemoryFleet(server)) as first:
            assert await say(first, "ann/1", "My kettle leaks.") == "ticket 1: My kettle leaks."
            assert await say(second, "ann/2", "Note: call after five.") == "noted: call after five."
        assert await say(second, "ann/3", "What is open?") == "ann: ticket 1: My kettle leaks; call after five."


def run(*options: Any) -> str:
    command = [sys.executable, "-W", "error", ROOT / "examples" / "support_desk.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
@pytest.mark.hangs_after(240)
def test_customers_of_a_killed_process_move_on_postgres() -> None:
    with running_postgres() as server:
        output = run("--url", server.new_database())

    assert "A is killed" in output
    assert "B has owned bob, ann; exit code 0" in output


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
def test_without_a_server_there_is_one_process() -> None:
    """The example runs anywhere."""
    assert "there is one process" in run()


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
def test_a_process_makes_a_recording(tmp_path: Path) -> None:
    recording = tmp_path / "runs.jsonl"
    command = [sys.executable, ROOT / "examples" / "support_desk.py", "work", "--record", recording, "--db", "memory"]
    stdin = '{"thread": "ann/1", "text": "My kettle leaks."}\n'
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=True)

    assert '"said": "ticket 1: My kettle leaks."' in done.stdout
    assert '"captures":true' in recording.read_text()


@pytest.mark.exhaustive
@pytest.mark.hangs_after(120)
def test_a_message_that_fails_ends_no_other(tmp_path: Path) -> None:
    """Two messages of one conversation at the same time, and lines that are no message."""
    cup = {"thread": "bob/1", "text": "My cup is broken."}
    lines = [*[json.dumps({"thread": "ann/1", "text": "What is open?"})] * 3, "no JSON", "[]", json.dumps(cup)]
    command = [sys.executable, ROOT / "examples" / "support_desk.py", "work", "--db", f"sqlite:///{tmp_path / 'a.db'}"]
    stdin = "\n".join(lines)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=True)
    replies = [json.loads(line) for line in done.stdout.splitlines()]

    assert {"thread": "bob/1", "said": "ticket 1: My cup is broken."} in replies
    assert sum("error" in reply for reply in replies) >= 2
