"""Access to web pages and web services: `HttpTools` for models, and `HttpClient` for code.

    node = ToolNode([HttpTools(allow=["example.org"])])

    async with HttpClient() as http:
        page = await http.get("https://example.org/")

Every connection goes to an address that was checked. Neither a redirect nor a name server can lead it to an address
that is not public.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

_NEEDED = ("httpx2", "lxml", "markdownify")
if missing := [package for package in _NEEDED if find_spec(package) is None]:
    raise ImportError(f"callboard_actors.http needs {' and '.join(missing)}: pip install 'callboard-actors[http]'")

if TYPE_CHECKING:
    from callboard_actors.http._client import HttpBounds as HttpBounds
    from callboard_actors.http._client import HttpClient as HttpClient
    from callboard_actors.http._page import Page as Page
    from callboard_actors.http._request import HttpError as HttpError
    from callboard_actors.http._request import UrlRefusedError as UrlRefusedError
    from callboard_actors.http._tools import HttpAnswer as HttpAnswer
    from callboard_actors.http._tools import HttpTools as HttpTools
    from callboard_actors.http._tools import PageArtifact as PageArtifact

__all__ = [
    "HttpAnswer",
    "HttpBounds",
    "HttpClient",
    "HttpError",
    "HttpTools",
    "Page",
    "PageArtifact",
    "UrlRefusedError",
]

__getattr__ = on_demand(
    __name__,
    {
        "HttpAnswer": "callboard_actors.http._tools",
        "HttpBounds": "callboard_actors.http._client",
        "HttpClient": "callboard_actors.http._client",
        "HttpError": "callboard_actors.http._request",
        "HttpTools": "callboard_actors.http._tools",
        "Page": "callboard_actors.http._page",
        "PageArtifact": "callboard_actors.http._tools",
        "UrlRefusedError": "callboard_actors.http._request",
    },
)
