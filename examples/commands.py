"""A tool that runs one command: a program from a list, without a shell, in a confined worker process.

`python commands.py` runs some. The page docs/how-to/run-commands.md tells what a command can do, and what bounds it.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from callboard import CallPolicy, ToolNode, tool_call
from callboard_actors.process import Confine, Processes

MAX_OUTPUT = 20_000
"""Bytes of output that are kept: half of them from its beginning, half from its end."""


def run_command(program: str, arguments: list[str]) -> str:
    """Run an allowed program with its arguments in the project. No shell: pipes, variables and wildcards do nothing."""
    allowed = os.environ["PROGRAMS"].split()
    if program not in allowed:
        raise ValueError(f"{program[:80]!r} is not allowed; allowed are {', '.join(allowed)}")
    os.chdir(os.environ["PROJECT"])  # this worker serves one call
    kept_bytes, size = bytearray(), 0
    nothing, same_pipe = subprocess.DEVNULL, subprocess.STDOUT
    try:
        with subprocess.Popen(
            [program, *arguments], stdin=nothing, stdout=subprocess.PIPE, stderr=same_pipe
        ) as process:
            assert process.stdout is not None
            while chunk := os.read(process.stdout.fileno(), 65536):
                kept_bytes, size = kept_bytes + chunk, size + len(chunk)
                del kept_bytes[MAX_OUTPUT // 2 : -MAX_OUTPUT // 2]
    except Exception as error:  # such as an argument with a null byte, or a program that writes to its parent's pipes
        raise ValueError(f"{program} was not started: {error}") from None
    left_out = size - len(kept_bytes)
    parts = [kept_bytes[: MAX_OUTPUT // 2], f"\n[{left_out} bytes left out]\n".encode(), kept_bytes[MAX_OUTPUT // 2 :]]
    output = b"".join(parts if left_out else [kept_bytes]).decode(errors="replace")
    return f"Exit code {process.returncode}.\n{output}"


def policy_of(
    folder: Path, programs: Sequence[str], *, read: Sequence[str] = (), path: str = os.defpath, timeout: float = 60.0
) -> CallPolicy:
    """Return the policy of the tool: what commands read and write, and the time after which their worker is killed."""
    environment = {"PROJECT": str(folder), "PROGRAMS": " ".join(programs), "PATH": path, "TERM": "dumb"}
    environment["GIT_CONFIG_NOSYSTEM"] = "1"  # git ends if it may not read its file in /etc
    confine = Confine(read=["/usr", "/bin", *read], write=[folder], processes=True, environment=environment)
    return CallPolicy(runs_in=Processes(confine=confine, memory=4 * 1024**3), timeout=timeout)


async def main(folder: Path) -> None:
    (folder / "notes.txt").write_text("tea\nham\n")
    policies = {"run_command": policy_of(folder, ["ls", "grep"])}
    async with ToolNode([run_command], policies=policies, handle_tool_errors=True) as node:
        for program, *arguments in (["grep", "-n", "ham", "notes.txt"], ["ls", "/home"], ["rm", "notes.txt"]):
            call = tool_call("run_command", "1", program=program, arguments=arguments)
            print((await node.ainvoke([call]))["messages"][0].content)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        anyio.run(main, Path(name))
