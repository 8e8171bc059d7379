"""The demo's HTTP client: httpx2 with a bounded pool, on asyncio and trio alike."""

import ssl
from types import TracebackType
from typing import Self

import anyio
import httpx2

_CLOSE_GRACE = 2.0


class HttpClient:
    """A keep-alive client with at most `connections` requests under way; the others wait in turn.

    It has no timeout of its own: a request lives exactly as long as the cancel scope around it. A cancelled
    request closes its connection, so that no half-read answer is ever met by the next one.
    """

    def __init__(self, *, connections: int = 64) -> None:
        # The pool walks over the requests that wait in it whenever one ends: let them wait in front of it.
        self._limiter = anyio.CapacityLimiter(connections)
        self._client = httpx2.AsyncClient(
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            timeout=None,
            # Only plain HTTP on loopback is asked for: no proxy from the environment may come between, and a
            # context without certificates trusts no HTTPS server and saves loading the trust store (0.2 s).
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    async def get(self, url: str) -> tuple[int, bytes]:
        """Fetch `url` and return the status and the whole body, whatever the status is."""
        async with self._limiter:
            response = await self._client.get(url)
        return response.status_code, response.content

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.move_on_after(_CLOSE_GRACE, shield=True):
            await self._client.aclose()
