"""A pytest plugin that replaces `create_agent` of `langchain.agents` by callboard's.

Loaded with `-p create_agent_in_place` before a suite imports anything, so that `from langchain.agents import
create_agent`, in the suite and in the library that it tests, gives callboard's.
"""

from typing import Any

import langchain.agents
import langchain.agents.factory
import pytest

import callboard
from callboard.agent._create_agent import _langchains_factory

LANGCHAINS = (langchain.agents, langchain.agents.factory)

_langchains_factory()  # callboard keeps LangChain's own, which builds the graph
for module in LANGCHAINS:
    module.create_agent = callboard.create_agent


@pytest.fixture(autouse=True)
def sync_runs_may_block(request: pytest.FixtureRequest) -> None:
    """Let a sync run block the event loop of its caller, as LangGraph's sync runs do.

    LangGraph runs the graph in the blocked thread itself, which `blockbuster` does not notice. callboard's sync run
    waits for a lock until the run on the background loop has ended, which it does notice.
    """
    if "blockbuster" in request.fixturenames:
        locks = request.getfixturevalue("blockbuster").functions["threading.Lock.acquire"]
        locks.can_block_in("callboard/_loops/_bridge.py", "run_from_sync")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the replaced names, so that a run without replacements is noticed."""
    names = ", ".join(f"{module.__name__}.create_agent" for module in LANGCHAINS)
    terminalreporter.write_line(f"callboard in place of {len(LANGCHAINS)} names: {names}")
