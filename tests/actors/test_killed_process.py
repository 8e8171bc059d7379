"""A process is killed in the middle of a conversation with an actor."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from callboard.testing import Backend
from tests.helpers import UNKNOWN

from ._killed_notebook import CONFIG, Store, agent

ROOT = Path(__file__).parents[2]


@pytest.mark.real_clock
@pytest.mark.exhaustive
@pytest.mark.parametrize("store", ["files", "journal"])
@pytest.mark.parametrize(("policy", "paid"), [("fail", UNKNOWN), ("rerun", "a,b,c")])
async def test_what_was_saved_is_restored_and_the_unknown_call_is_its_policys(
    tmp_path: Path, anyio_backend: Backend, policy: str, paid: str, store: Store
) -> None:
    backend = anyio_backend[0] if isinstance(anyio_backend, tuple) else anyio_backend
    command = [sys.executable, "-m", "tests.actors._killed_notebook", str(tmp_path), backend, store]
    killed = await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, cwd=ROOT, env={**os.environ, "DOOMED": "1"}, check=False, timeout=60)
    )
    assert killed.returncode == -signal.SIGKILL

    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        result = await agent(tmp_path, saver, policy, store).ainvoke(None, CONFIG)

    contents = [message.content for message in result["messages"] if isinstance(message, ToolMessage)]
    appended = ["a", "a,b", "a,b,c", "a,b,d", "a,b,c,d", "a,b,d,e", "a,b,c,d,e", "a,b,d,c", "a,b,d,c,e"]
    assert contents[:2] == ["a", "a,b"]
    assert contents[2] in (paid, "a,b,d,c")  # trio begins the calls of a batch in any order
    assert len(contents) == 5
    assert all(text in (*appended, UNKNOWN) for text in contents)
    assert "d" in contents[3]
    assert contents[4].endswith(",e")
    assert ("c" in contents[4]) == (policy == "rerun")
