"""The demo's tools and how their calls are supervised."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from callboard import CallPolicy, Limit, ToolNode
from callboard._cli._demo_database import query as query_database
from callboard._cli._http import HttpClient

TOOLS = ("fetch", "query", "archive")
"""In the order in which they are shown."""

_POLICIES = {
    "fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=32)),
    "query": CallPolicy(timeout=5.0, limit=Limit(concurrency=8)),
    "archive": CallPolicy(timeout=1.0, limit=Limit(concurrency=2, queue=6)),
}
_ARCHIVE = 1_000_000
"""The first item of the archive, far from those that are fetched."""


class FetchError(Exception):
    """The service answered, but not with what was asked for."""


def make_node(base_url: str, client: HttpClient, database: Path) -> ToolNode:
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


def _getter(base_url: str, client: HttpClient) -> Callable[[str], Awaitable[str]]:
    async def get(url: str) -> str:
        if not url.startswith(f"{base_url}/"):  # a real model might ask for anything
            raise FetchError(f"only pages of {base_url} can be fetched, not {url!r}")
        status, body = await client.get(url)
        if status != HTTPStatus.OK:
            raise FetchError(f"{url} answered {status} {HTTPStatus(status).phrase}")
        return body.decode()

    return get


def _text_for_model(error: Exception) -> str:
    return f"Error: {error}"
