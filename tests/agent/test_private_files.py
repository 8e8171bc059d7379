"""Files with conversations: only the user of the process may read a new one, and an existing one keeps its mode."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard import create_react_agent
from callboard.telemetry import RecordingWriter
from callboard.testing import ScriptedModel


def write_conversation(path: Path) -> None:
    agent = create_react_agent(ScriptedModel(["done"]), [], checkpointer=f"sqlite:///{path}")
    agent.invoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "1"}})


def write_recording(path: Path) -> None:
    with RecordingWriter(path, capture=True):
        create_react_agent(ScriptedModel(["done"]), []).invoke({"messages": [("user", "go")]})


def write_page(path: Path) -> None:
    recording = path.with_suffix(".jsonl")
    write_recording(recording)
    command = [sys.executable, "-m", "callboard._cli", "trace", str(recording), "--html", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("write", [write_conversation, write_recording, write_page])
def test_a_new_file_is_for_its_user_alone(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "file")
    assert {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "file", *tmp_path.iterdir()]} == {0o600}


@pytest.mark.parametrize("write", [write_conversation, write_recording])
def test_an_existing_file_keeps_its_mode(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "file").touch(mode=0o640)
    write(tmp_path / "file")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
