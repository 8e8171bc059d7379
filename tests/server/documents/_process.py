"""Process that makes calls with a shared cache or circuit breaker; tests start several and kill some.

The tool writes a line at its start and at its end, with the time of a clock that all processes of a machine share.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

_clock = time.monotonic
_SKEW = float(json.loads(sys.argv[1]).get("skew", 0.0)) if __name__ == "__main__" else 0.0
if _SKEW:
    # Set before other modules import these functions: a process whose clocks are all wrong.
    _of_day = time.time
    time.time = lambda: _of_day() + _SKEW
    time.monotonic = lambda: _clock() + abs(_SKEW)

import anyio  # noqa: E402

from callboard import ToolNode  # noqa: E402
from callboard.middleware import Cache, CircuitBreaker  # noqa: E402
from callboard.testing import tool_call  # noqa: E402
from callboard_actors.postgres import PostgresDocuments  # noqa: E402
from callboard_actors.redis import RedisDocuments  # noqa: E402

ROOT = Path(__file__).parents[3]


class Line(NamedTuple):
    """Line that a call has written."""

    time: float
    what: str
    pid: int
    n: int


def start(resource: Path, **plan: Any) -> "subprocess.Popen[bytes]":
    """Start a process that makes calls; it prints a line before the first call, and then waits for a line."""
    plan = {"resource": str(resource), **plan}
    command = [sys.executable, "-m", "tests.server.documents._process", json.dumps(plan)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def read(resource: Path) -> list[Line]:
    """Return the lines of all calls in order of time."""
    lines = resource.read_text().splitlines() if resource.exists() else []
    found = [line.split() for line in lines]
    return sorted(Line(float(when), what, int(pid), int(n)) for when, what, pid, n in found)


def begins(resource: Path) -> list[Line]:
    return [line for line in read(resource) if line.what == "begin"]


def run(plan: dict[str, Any]) -> None:
    """Make the calls of a plan; print how many ended in which way."""
    resource = os.open(plan["resource"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, n: int) -> None:
        os.write(resource, f"{_clock():.6f} {what} {os.getpid()} {n}\n".encode())

    async def work(n: int) -> str:
        """Use the guarded resource."""
        note("begin", n)
        try:
            await anyio.sleep(plan.get("seconds", 0.0))
            if plan.get("fails"):
                raise OSError("it is down")
        finally:
            note("end", n)
        return f"{n} by {os.getpid()}"

    kind = RedisDocuments if plan["url"].startswith("unix:") else PostgresDocuments
    store = kind(plan["url"], prefix=plan["prefix"], lease=plan.get("lease", 1.0))
    if plan["what"] == "cache":
        middleware: Any = Cache({"work"}, shared=store, key=lambda request: request.tool_call["args"]["n"])
    else:
        middleware = CircuitBreaker(shared=store, on=OSError, **plan["rules"])
    node = ToolNode([work], middleware=[middleware], handle_tool_errors=True)
    said: dict[str, int] = {}

    async def call(number: int) -> None:
        result = await node.ainvoke([tool_call("work", f"c{number}", n=number % plan.get("keys", 1))])
        content = str(result["messages"][0].content)
        said[content] = said.get(content, 0) + 1

    async def main() -> None:
        for number in range(plan["calls"]):
            await call(number)
            await anyio.sleep(plan.get("pause", 0.0))

    print("ready", flush=True)
    sys.stdin.readline()
    anyio.run(main, backend=plan.get("backend", "asyncio"))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
