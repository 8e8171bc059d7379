"""Process that makes calls under a shared limit; tests start several and kill some.

The guarded resource is a file: each call appends a line at its start and at its end, with the time of a clock that all
processes of a machine share.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from callboard import CallPolicy, Limit, Rate, ToolNode, fencing_token
from callboard.testing import tool_call
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits

ROOT = Path(__file__).parents[3]


class Line(NamedTuple):
    """Line that a call has written."""

    time: float
    what: str
    pid: int
    tenant: str
    index: int
    token: int


def start(resource: Path, **plan: Any) -> "subprocess.Popen[bytes]":
    """Start a process that makes calls; it prints a line before the first call, and then waits for a line."""
    plan = {"resource": str(resource), **plan}
    command = [sys.executable, "-m", "tests.server.limits._process", json.dumps(plan)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def read(resource: Path) -> list[Line]:
    """Return the lines of all calls in order of time."""
    lines = resource.read_text().splitlines() if resource.exists() else []
    found = [line.split() for line in lines]
    return sorted(
        Line(float(t), what, int(pid), tenant, int(n), int(token)) for t, what, pid, tenant, n, token in found
    )


def peak(lines: Sequence[Line]) -> int:
    """Return the maximum number of concurrent calls."""
    running = most = 0
    for line in lines:
        running += 1 if line.what == "begin" else -1
        most = max(most, running)
    return most


def most_in_a_window(lines: Sequence[Line], per: float) -> int:
    """Return the maximum number of calls that started within `per` seconds."""
    begins = [line.time for line in lines if line.what == "begin"]
    return max(sum(first <= one < first + per for one in begins[at:]) for at, first in enumerate(begins))


def run(plan: dict[str, Any]) -> None:
    """Make the calls of a plan."""
    resource = os.open(plan["resource"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, index: int) -> None:
        line = f"{time.monotonic():.6f} {what} {os.getpid()} {plan.get('tenant', '-')} {index} {fencing_token() or 0}\n"
        os.write(resource, line.encode())

    async def work(index: int) -> str:
        """Use the guarded resource."""
        note("begin", index)
        await anyio.sleep(plan.get("seconds", 0.0))
        note("end", index)
        return "done"

    store = (RedisLimits if plan["url"].startswith("unix:") else PostgresLimits)(plan["url"], **plan["options"])
    tenant = (lambda call: plan["tenant"]) if "tenant" in plan else None
    rate = None if plan.get("rate") is None else Rate(*plan["rate"])
    limit = Limit(concurrency=plan.get("concurrency"), rate=rate, shared=store, tenant=tenant)
    node = ToolNode([work], policies={"work": CallPolicy(limit=limit)})

    async def main() -> None:
        batch = [tool_call("work", f"c{n}", index=n) for n in range(plan["calls"])]
        found = await node.ainvoke(batch)
        assert {message.content for message in found["messages"]} == {"done"}

    print("ready", flush=True)
    sys.stdin.readline()
    anyio.run(main, backend=plan.get("backend", "asyncio"))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
