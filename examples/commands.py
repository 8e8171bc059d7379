"""An agent that repairs a program: it runs the tests, reads the failure, fixes the program, and runs the tests again.

Meanwhile a server runs as a background job. One command never ends, and is killed with all processes that it started;
the other commands are not affected. When the agent has ended, no process is left.
"""

import os
import sys
import tempfile
from pathlib import Path

import anyio

from callboard import child, create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.shell import Shell

PROGRAM = "def double(n):\n    return n + n + 1\n\n\nassert double(2) == 4, double(2)\nprint('all is well')\n"
SERVER = f"{sys.executable} -u -m http.server --bind 127.0.0.1 0"


def script() -> ScriptedModel:
    return ScriptedModel(
        [
            calls(("start_job", {"command": SERVER})),
            calls(
                ("run", {"command": f"{sys.executable} program.py"}),
                ("run", {"command": "echo $$ > pid; (sleep 600 &) ; sleep 600", "timeout": 0.5}),
            ),
            calls(("run", {"command": "sed -i 's/ + 1$//' program.py"})),
            calls(("run", {"command": f"{sys.executable} program.py"})),
            calls(("jobs", {})),
            "Done.",
        ]
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        shell = Shell(folder, unrestricted=True, grace=0.5)  # all commands are from this program, none from a model
        async with create_react_agent(script(), [child(shell)]) as agent:
            run = await agent.ainvoke({"messages": [("user", "Please mend program.py.")]})
        told = [message.text for message in run["messages"] if message.type == "tool"]
        print(*told, sep="\n\n")

        started, wrong, late, mended, well, jobs = told
        assert started.startswith("Job 1 is started.")
        assert wrong.startswith("Exit code 1 after ")
        assert "AssertionError: 5" in wrong
        assert late.startswith("Ended by its timeout of 0.5 s.")
        assert mended.startswith("Exit code 0 after ")
        assert well.endswith("\nall is well\n")
        assert ": running for " in jobs
        assert not is_there(int((folder / "pid").read_text()))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
