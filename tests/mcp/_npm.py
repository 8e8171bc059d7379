"""Third-party servers from npm, and how tests run them."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.npm_packages import PACKAGES, find_or_install

from ._asked import WAIT

_LOOPBACK = Path(__file__).with_name("_loopback.cjs")


@cache
def command(server: str) -> list[str]:
    """Return the command of a reference server; skip the test if it is not installed."""
    name = f"@modelcontextprotocol/{server}"
    node = shutil.which("node")
    program = None if node is None else find_or_install(name, PACKAGES[name])
    if node is None or program is None:
        pytest.skip(f"{name} needs Node.js, and npm to install it: python -m tests.npm_packages")
    return [node, str(program)]


@asynccontextmanager
async def everything_over_http() -> AsyncGenerator[str]:
    """Run the reference server "everything" over streamable HTTP on loopback; yield its URL."""
    node, program = command("server-everything")
    argv = [node, "--require", str(_LOOPBACK), program, "streamableHttp"]
    env = {**os.environ, "PORT": "0"}
    async with await anyio.open_process(argv, env=env, stderr=None) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(WAIT):
                output = BufferedByteReceiveStream(process.stdout)
                await output.receive_until(b"listens at ", 1000)
                port = await output.receive_until(b"\n", 10)
            yield f"http://127.0.0.1:{int(port)}/mcp"
        finally:
            process.kill()
