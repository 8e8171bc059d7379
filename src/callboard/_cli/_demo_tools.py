"""Tools of the demo, and the policies of their calls."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from httpx2 import AsyncClient, Limits, TransportError

from callboard import CallPolicy, Limit, ToolNode
from callboard._cli._demo_database import query as query_database

TOOLS = ("fetch", "query", "archive")
"""Names of the tools, in the order of display."""

_POLICIES = {
    "fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=32)),
    "query": CallPolicy(timeout=5.0, limit=Limit(concurrency=8)),
    "archive": CallPolicy(timeout=1.0, limit=Limit(concurrency=2, queue=6)),
}
_ARCHIVE = 1_000_000
"""First item of the archive, far from the fetched items."""


class FetchError(Exception):
    """Raised if the service does not answer, or answers with an error status."""


def http_client(*, connections: int = 64) -> AsyncClient:
    """Return an HTTP client for the service."""
    # No timeout in the client: the timeout of the call cancels the request. No proxies: the service is on loopback.
    # httpx2, because httpx takes ten times as long per request.
    limits = Limits(max_connections=connections, max_keepalive_connections=connections)
    return AsyncClient(limits=limits, timeout=None, trust_env=False)


def make_node(base_url: str, client: AsyncClient, database: Path) -> ToolNode:
    """Return a node with the tools, each with a timeout and a queue."""
    get = _getter(base_url, client)

    async def fetch(url: str) -> str:
        """Fetch a page of the service, by its full URL."""
        return await get(url)

    async def archive(page: int) -> str:
        """Look up a page of the archive, by its number. Only two may read at a time, and six may wait."""
        return await get(f"{base_url}/item/{_ARCHIVE + page}")

    def query(city: str) -> dict[str, int]:
        """Count the orders of a city in the database, and add up their amounts, in cents."""
        return query_database(database, city)

    return ToolNode([fetch, query, archive], policies=_POLICIES, handle_tool_errors=_text_for_model)


def _getter(base_url: str, client: AsyncClient) -> Callable[[str], Awaitable[str]]:
    async def get(url: str) -> str:
        if not url.startswith(f"{base_url}/"):  # a real model may invent URLs
            raise FetchError(f"only pages of {base_url} can be fetched, not {url!r}")
        try:
            response = await client.get(url)
        except TransportError as error:
            raise FetchError(f"{url} did not answer: {type(error).__name__}: {error}") from error
        if response.status_code != HTTPStatus.OK:
            raise FetchError(f"{url} answered {response.status_code} {response.reason_phrase}")
        return response.text

    return get


def _text_for_model(error: Exception) -> str:
    return f"Error: {error}"
