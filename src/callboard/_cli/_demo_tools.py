"""The demo's tools and how their calls are supervised."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from httpx2 import AsyncClient, Limits, TransportError

from callboard import CallPolicy, Limit, ToolNode
from callboard._cli._demo_database import query as query_database

TOOLS = ("fetch", "query", "archive")
"""The tools of the demo and what each call is held to, in the order in which they are shown."""

_POLICIES = {
    "fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=32)),
    "query": CallPolicy(timeout=5.0, limit=Limit(concurrency=8)),
    "archive": CallPolicy(timeout=1.0, limit=Limit(concurrency=2, queue=6)),
}
_ARCHIVE = 1_000_000
"""The first item of the archive, far from those that are fetched."""


class FetchError(Exception):
    """The service did not answer, or not with what was asked for."""


def http_client(*, connections: int = 64) -> AsyncClient:
    """A client for the service, and for nobody else; httpx, which it comes from, takes ten times as long.

    It has no timeout of its own: a request lives exactly as long as the cancel scope around it.
    """
    limits = Limits(max_connections=connections, max_keepalive_connections=connections)
    return AsyncClient(limits=limits, timeout=None, trust_env=False)


def make_node(base_url: str, client: AsyncClient, database: Path) -> ToolNode:
    """The tools, with a timeout for each call, and a queue in front of each tool."""
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
        if not url.startswith(f"{base_url}/"):  # a real model might ask for anything
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
