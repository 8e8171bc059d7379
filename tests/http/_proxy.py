"""HTTP proxy of the tests: it connects to one fixed server whatever the request asks for, and counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream

from ._world import Site


class Proxy:
    def __init__(self, url: str) -> None:
        self.url = url
        self.heads: list[str] = []


@asynccontextmanager
async def proxy(site: Site) -> AsyncIterator[Proxy]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    running = Proxy(f"http://user:password@127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}")

    async def serve(client: SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", site.port) as server:
            head = await client.receive()
            running.heads.append(head.decode())
            method, url, rest = head.split(b" ", 2)
            await server.send(b"%s /%s %s" % (method, url.split(b"/", 3)[3], rest))
            async for part in server:
                await client.send(part)

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield running
        group.cancel_scope.cancel()
