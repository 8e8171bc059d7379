"""Web pages for models, and a guard for HTTP clients: `fetch_tool` and `GuardedTransport`.

    node = ToolNode([fetch_tool()])

    async with httpx2.AsyncClient(transport=GuardedTransport()) as client:
        response = await client.get("https://example.org/")

Every connection goes to an address that was checked. Neither a redirect nor a name server can lead it to an address
that is not public.
"""

from typing import TYPE_CHECKING

from callboard_actors._util._extras import check_installed
from callboard_actors._util._on_demand import on_demand

check_installed("callboard_actors.http", "httpx2", "justhtml", extra="http")

if TYPE_CHECKING:
    from callboard_actors.http._fetch import fetch_tool as fetch_tool
    from callboard_actors.http._guard import GuardedTransport as GuardedTransport
    from callboard_actors.http._guard import UrlRefusedError as UrlRefusedError

__all__ = ["GuardedTransport", "UrlRefusedError", "fetch_tool"]

__getattr__ = on_demand(
    __name__,
    {
        "GuardedTransport": "callboard_actors.http._guard",
        "UrlRefusedError": "callboard_actors.http._guard",
        "fetch_tool": "callboard_actors.http._fetch",
    },
)
