"""Task: test an agent without a model: with scripted replies, and against a recording of an earlier run."""

import tempfile
from pathlib import Path

import anyio
import anyio.to_thread

from callboard import create_react_agent
from callboard.telemetry import RecordingWriter
from callboard.testing import ReplayDifferenceError, ScriptedModel, calls, fake_tools, replay


async def search(query: str) -> str:
    """Search the web."""
    raise ConnectionError("tests have no network")


async def crawl(site: str) -> str:
    """Read a site."""
    raise ConnectionError("tests have no network")


def assistant(model, tools=(search, crawl)):
    return create_react_agent(model, list(tools), name="assistant")


async def main():
    script = [calls(("search", {"query": "tea"})), "Tea is a drink."]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tea.jsonl"
        with fake_tools({"search": "3 results"}) as faked, RecordingWriter(file, capture=True):
            state = await assistant(ScriptedModel(script)).ainvoke({"messages": [("user", "What is tea?")]})
        assert [call.tool for call in faked.calls] == ["search"]
        assert state["messages"][-1].content == "Tea is a drink."

        await anyio.to_thread.run_sync(replay, file, assistant(ScriptedModel([])))
        try:
            await anyio.to_thread.run_sync(replay, file, assistant(ScriptedModel([]), [crawl]))
        except ReplayDifferenceError as error:
            differences = str(error)
    assert "search is not a valid tool" in differences, differences


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
