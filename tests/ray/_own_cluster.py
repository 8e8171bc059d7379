"""Cluster with a token at an address that is not loopback, and engines with and without the token.

`within_tokens.py` runs this module in namespaces of its own, and the processes of Ray end with them.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import anyio

import tests.ray._tools as tools
from callboard import ActorStartError
from callboard.extend import Body
from callboard_actors.ray import RayEngine

from .__main__ import loopback_up

_HOST, _PORT = "10.9.9.1", 6399
_SIOCSIFADDR = 0x8916


def _add_address() -> None:
    """Give the loopback interface an address that is not in 127.0.0.0/8."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        address = struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton(_HOST))
        fcntl.ioctl(sock, _SIOCSIFADDR, address)


async def _run_body() -> None:
    async with RayEngine(f"{_HOST}:{_PORT}", workers=1, start_timeout=60.0) as engine:
        print("outcome:", await engine.run_body(Body(fn=tools.crunch, args=(3,), title="crunch")))


def main() -> None:
    """Start the cluster, or run one body on it if there is an argument."""
    if len(sys.argv) > 1:
        try:
            anyio.run(_run_body, backend=sys.argv[1])
        except ActorStartError as error:
            print("outcome:", error)
        return
    loopback_up()
    _add_address()
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "a" * 40,
        "PYTHONPATH": str(Path.cwd()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    start = ["--head", f"--node-ip-address={_HOST}", f"--port={_PORT}", "--num-cpus=2", "--include-dashboard=false"]
    subprocess.run([str(Path(sys.executable).parent / "ray"), "start", *start], check=True, stdout=sys.stderr)
    for environment in ({}, {"RAY_AUTH_TOKEN": "b" * 40}, {"RAY_AUTH_MODE": "disabled"}):
        command = [sys.executable, "-m", "tests.ray._own_cluster", "trio" if environment else "asyncio"]
        subprocess.run(command, env={**os.environ, **environment}, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
