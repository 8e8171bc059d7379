"""Python code of a model is confined unless an option says otherwise."""

from pathlib import Path

import pytest

from callboard import ToolNode
from callboard_actors.process import Confine
from callboard_actors.python import python_tool

from .test_in_a_node import told

pytestmark = pytest.mark.real_clock

_ATTEMPTS = {
    "reads": "open({secret!r}).read()",
    "writes": "open({folder!r} + '/written', 'w').write('x')",
    "connects": "import socket; socket.socket() and 'connected'",
    "starts": "import os; os.fork() and 'started'",
    "environment": "import os; os.environ['SECRET_KEY']",
}


async def test_what_code_may_do_unrestricted_it_may_not_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, the network, processes and the environment are closed; an unrestricted interpreter can use all of them."""
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    monkeypatch.setenv("SECRET_KEY", "a key")
    codes = {name: code.format(secret=str(secret), folder=str(tmp_path)) for name, code in _ATTEMPTS.items()}
    async with ToolNode([python_tool(unrestricted=True)]) as free, ToolNode([python_tool()]) as confined:
        for name, code in codes.items():
            assert "Error" not in await told(free, code), name
            refused = await told(confined, code)
            assert ("KeyError" if name == "environment" else "PermissionError") in refused, name
        assert await told(confined, "import json, sqlite3, decimal; json.dumps([1])") == "Out[6]: '[1]'"


async def test_it_may_do_besides_what_somebody_has_said(tmp_path: Path) -> None:
    """Additional permissions open, for instance, a folder for output files."""
    async with ToolNode([python_tool(confine=Confine(write=[tmp_path]))]) as node:
        await told(node, f"open({str(tmp_path)!r} + '/written', 'w').write('x')")
    assert (tmp_path / "written").read_text() == "x"


_LIES = """
import os
with open({trace!r}, "a") as file:
    file.write("run\\n")
for name in os.listdir("/proc/self/fd"):
    try:
        if "callboard-begun" in os.readlink("/proc/self/fd/" + name):
            os.pwrite(int(name), bytes(8), 0)
    except OSError:
        pass
os._exit(0)
"""


async def test_a_cell_that_denies_to_have_begun_runs_once_and_then_counts_as_poison(tmp_path: Path) -> None:
    """A cell once cleared the begun counter of its worker and was run again for ever."""
    trace = tmp_path / "trace"
    code = _LIES.format(trace=str(trace))
    async with ToolNode([python_tool(confine=Confine(read=["/proc"], write=[tmp_path]))]) as node:
        assert "Whether it had its effect is unknown." in await told(node, code)
        assert len(trace.read_text().splitlines()) == 1
        await told(node, code)
        assert len(trace.read_text().splitlines()) == 1
