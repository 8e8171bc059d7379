"""Check of robots.txt (RFC 9309); each site's file is fetched at most once an hour, through the same address checks."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from protego import Protego

from callboard_actors.http._errors import HttpError
from callboard_actors.http._page import Page
from callboard_actors.http._request import origin_of

_AGE = 3600.0
"""Seconds for which a robots.txt is valid."""
_AGE_OF_NONE = 60.0
"""Seconds until a robots.txt that could not be fetched is fetched again."""
_KEPT = 256
MOST = 512 * 1024
"""Bytes of a robots.txt that are read; RFC 9309 asks for at least 500 KiB."""


@dataclass(slots=True)
class _Site:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    rules: Protego | None = None
    """`None` if the file could not be fetched: no page of the site may be requested then."""
    until: float = float("-inf")


class Robots:
    """Rules of the robots.txt files of all requested sites."""

    def __init__(self, agent: str, fetch: Callable[[str], Awaitable[Page]]) -> None:
        self._agent = agent
        self._fetch = fetch
        self._sites: OrderedDict[tuple[str, str, int], _Site] = OrderedDict()

    async def refusal(self, url: str) -> str | None:
        """Return the reason why a URL may not be requested, or `None` if it may."""
        origin = origin_of(url)
        site = self._sites.setdefault(origin, _Site())
        self._sites.move_to_end(origin)
        while len(self._sites) > _KEPT:
            self._sites.popitem(last=False)
        # One fetch for all requests that wait for the same file.
        async with site.lock:
            if site.until <= anyio.current_time():
                site.rules = await self._rules(origin)
                site.until = anyio.current_time() + (_AGE if site.rules is not None else _AGE_OF_NONE)
        if site.rules is None:
            return "the robots.txt of its site cannot be had, and might forbid it"
        return None if site.rules.can_fetch(url, self._agent) else "the robots.txt of its site forbids it"

    async def _rules(self, origin: tuple[str, str, int]) -> Protego | None:
        scheme, host, port = origin
        written = f"[{host}]" if ":" in host else host
        try:
            page = await self._fetch(f"{scheme}://{written}:{port}/robots.txt")
        except HttpError:
            return None  # unreachable: RFC 9309, section 2.3.1.4
        if page.status >= 500:
            return None
        return Protego.parse(page.text if page.ok else "")
