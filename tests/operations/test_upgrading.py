"""The upgrading page tells the bounds of the project, and what becomes of stored data of another version.

Other tests show that tables of a newer version (`tests/agent/test_postgres.py`), entries of an unknown kind
(`tests/agent/test_journal.py`), and a Ray cluster of another version (`tests/ray/within_faults.py`) are refused.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from callboard import CallsInterrupted, ToolNode, tool_call
from callboard.middleware import RequireApproval
from callboard.telemetry import RecordingWriter, read_recording
from callboard.testing import Recorder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "upgrading.md").read_text()


def requirements(folder: Path = ROOT) -> dict[str, str]:
    """Return the bounds of all requirements, extras included, by package."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    every = [*project["dependencies"], *(item for extra in project["optional-dependencies"].values() for item in extra)]
    matches = [re.match(r"([\w.-]+)(?:\[[\w,]+\])?([^;]*)", item) for item in every]
    return {item[1]: item[2].strip() for item in matches if item is not None}


def test_the_bounds_on_the_page_are_those_of_the_project() -> None:
    listed = dict(re.findall(r"^\| `([\w-]+)`[^|]*\| `([<>=\d.,]+)` \|", PAGE, re.MULTILINE))

    assert len(listed) == 6
    assert {name: requirements()[name] for name in listed} == listed


def test_the_formats_on_the_page_are_those_of_the_code(tmp_path: Path) -> None:
    sql = (ROOT / "actors" / "src" / "callboard_actors" / "postgres" / "_step.sql").read_text()

    with RecordingWriter(tmp_path / "calls.jsonl"), pytest.raises(CallsInterrupted) as waiting:
        ToolNode([Recorder().tool("work")], middleware=[RequireApproval()]).invoke([tool_call("work", "1")])
    header = json.loads((tmp_path / "calls.jsonl").read_text().partition("\n")[0])

    assert f"`{waiting.value.ledger['format']}`" in PAGE
    assert f"`{header['format']}`" in PAGE
    assert "callboard_limits_step_1" in PAGE
    assert "FUNCTION callboard_limits_step_1(" in sql


def test_both_distributions_have_one_version() -> None:
    actors = tomllib.loads((ROOT / "actors" / "pyproject.toml").read_text())["project"]
    [version] = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert actors["version"] == version
    assert requirements(ROOT / "actors")["callboard"] == f"=={version}"


async def test_a_ledger_of_another_format_is_refused() -> None:
    node = ToolNode([Recorder().tool("work")])
    ledger = {"format": "callboard/2", "keys": [], "calls": {}}

    with pytest.raises(ValueError, match="ledger"):
        await node.ainvoke([tool_call("work", "1")], ledger=ledger)


def test_a_recording_of_another_format_names_both(tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    file.write_text(json.dumps({"event": "header", "format": "callboard/recording/2"}) + "\n")

    with pytest.raises(ValueError, match=r"callboard/recording/2.*callboard/recording/1"):
        read_recording(file)
