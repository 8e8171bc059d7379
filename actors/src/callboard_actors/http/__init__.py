"""Web pages for models, and a guard for HTTP clients: `fetch_tool` and `GuardedTransport`.

    node = ToolNode([fetch_tool()])

    async with httpx2.AsyncClient(transport=GuardedTransport()) as client:
        response = await client.get("https://example.org/")

Every connection goes to an address that was checked. Neither a redirect nor a name server can lead it to an address
that is not public.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

_NEEDED = ("httpx2", "justhtml")
if missing := [package for package in _NEEDED if find_spec(package) is None]:
    from callboard.extend import install_command

    command = install_command("callboard-actors", "http")
    raise ImportError(f"callboard_actors.http needs {' and '.join(missing)}: {command}")

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
