"""Rule `Url`: check of scheme, host and address of URLs that a model writes, against server-side request forgery.

URLs are read strictly, and the tool gets a newly written URL. So no HTTP library can read it differently from this
check.
"""

import ipaddress
import re
import string
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from callboard._records._policies import check_count
from callboard._util._callers import is_async
from callboard._util._extras import require
from callboard._web._addresses import Resolver, is_public, is_public_address, literal, system_resolver
from callboard.guards._sanitize._text import RefusedError

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
# No empty port and none with a leading zero: clients read these differently.
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Characters that `quote()` leaves alone. The percent sign is among them, so that existing escapes stay as they are.
_UNQUOTED_CHARS = string.punctuation.translate(str.maketrans("", "", '"<>\\^`{|}'))


_MAX_URL_CHARS = 2048
"""Maximum characters of a URL."""


class Target(NamedTuple):
    """Checked URL, with its host and its port."""

    url: str
    """URL, newly written in ASCII, with scheme and host in lower case, and no dot at the end of the host."""
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """Rule for a URL argument. The tool gets the checked URL, rebuilt from its parsed parts.

    Addresses that are not public are refused (loopback, private, link-local, multicast, reserved; also embedded in
    IPv6), and so are names that only a local network knows. `hosts` can allow them explicitly. A tool that follows
    redirects must call `check` for each of them.

    Args:
        hosts: allowed names and addresses. "example.com" is that host, "*.example.com" any below it, "*" any public
            one; `None` is "*". Unicode names are compared in their ASCII form (IDNA 2008 with UTS 46).
        schemes: allowed schemes, in lower case.
        ports: allowed ports; `None` for any.
        resolve: look the name up, and refuse it if any of its addresses is not public: `True` for the system's
            resolver, or an async function `(host, port)` that returns addresses. The tool will look it up again.
        private: also allow hosts that are not public.

    Raises:
        ValueError: if a host, a scheme or a port is not valid.
        ImportError: if idna is not installed in a version that the extra `middleware` allows.
    """

    hosts: Collection[str] | None = None
    schemes: Collection[str] = ("http", "https")
    ports: Collection[int] | None = None
    resolve: bool | Resolver = False
    private: bool = False

    def __post_init__(self) -> None:
        require("Url(...)", "idna", extra="middleware")
        for name in ("hosts", "schemes"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"Url({name}=...) takes several: {name}={{{getattr(self, name)!r}}}")
        if invalid_schemes := [scheme for scheme in self.schemes if not _SCHEME.fullmatch(scheme)]:
            raise ValueError(f"Url(schemes=...) takes names in lower case, such as 'https'; got {invalid_schemes[0]!r}")
        if self.ports is not None:
            ports: Any = self.ports
            if not isinstance(ports, Collection) or isinstance(ports, str):
                raise TypeError(f"Url(ports=...) takes several: ports={{443}}; got {ports!r}")
            for port in ports:
                check_count("Url(ports=...)", port, least=0)
        if not isinstance(self.resolve, bool) and not is_async(self.resolve):
            raise TypeError(f"Url(resolve=...) takes True or an async function (host, port), got {self.resolve!r}")
        if self.hosts is not None:
            object.__setattr__(self, "hosts", frozenset(_normalize_host_pattern(host) for host in self.hosts))

    def check(self, value: object) -> str | None:
        """Check a URL and return it, rebuilt from its parsed parts; return `None` for `None`.

        Raises:
            RefusedError: a `ValueError` with the reason, if the URL is not allowed.
        """
        target = self._parse_allowed_target(value)
        return None if target is None else target.url

    async def acheck(self, value: object) -> str | None:
        """Check a URL as `check()` does; with the option `resolve`, also check the addresses of its host."""
        target = self._parse_allowed_target(value)
        if target is None:
            return None
        if self.resolve is not False and not self.private and literal(target.host) is None:
            resolver = system_resolver if self.resolve is True else self.resolve
            try:
                addresses = await resolver(target.host, target.port)
            except (OSError, UnicodeError):
                addresses = ()
            if not addresses:
                raise RefusedError("resolve", "its host has no address")
            # All addresses must be public, because the tool may connect to any of them.
            # Without the zone of IPv6, such as in `fe80::1%eth0`.
            ip_addresses = (ipaddress.ip_address(address.partition("%")[0]) for address in addresses)
            if not all(map(is_public_address, ip_addresses)):
                raise RefusedError("address", "its host has an address that is not public")
        return target.url

    def _parse_allowed_target(self, value: object) -> Target | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise RefusedError("type", "it has to be a text with one URL")
        if len(value) > _MAX_URL_CHARS:
            raise RefusedError("size", f"it has {len(value):,} characters, and {_MAX_URL_CHARS:,} are the most")
        target = parse_url(value, self.schemes)
        if self.hosts is None or not is_listed_host(target.host, self.hosts):
            if self.hosts is not None and "*" not in self.hosts:
                raise RefusedError("host", "its host is not among those that are allowed")
            if not self.private and not is_public(target.host):
                raise RefusedError("address", "its host is not a public one")
        if self.ports is not None and target.port not in self.ports:
            raise RefusedError("port", f"its port is not allowed, only {sorted(self.ports)}")
        return target


def parse_url(value: str, schemes: Collection[str]) -> Target:
    """Return the parts of a URL; raise `RefusedError` for a URL that clients may read in different ways."""
    # Checked before parsing: some clients drop tabs and line breaks, which would join parts into another host.
    if _CONTROL.search(value):
        raise RefusedError("whitespace", "it holds a control character, such as a tab or a line break")
    match = _URL.fullmatch(value)
    if match is None:
        raise RefusedError("scheme", f"it has to begin with {' or '.join(f'{name}://' for name in schemes)}")
    scheme, authority, path = match[1].lower(), match[2], match[3]
    if scheme not in schemes:
        raise RefusedError("scheme", f"its scheme has to be {' or '.join(schemes)}")
    # `http://allowed.com@evil.com/`: clients differ in what they take for the host.
    if "@" in authority:
        raise RefusedError("userinfo", "it names a user before its host")
    if "%" in authority or "\\" in authority:
        raise RefusedError("host", "its host holds a percent sign or a backslash")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise RefusedError("host", "its host or its port is not written as usual")
    port = None if match[2] is None else int(match[2])
    if port is not None and port > 65535:
        raise RefusedError("port", "there is no such port")
    host = normalize_host(match[1])
    url_host = f"[{host}]" if ":" in host else host
    if path.startswith(("?", "#")):
        path = f"/{path}"
    url = f"{scheme}://{url_host}{'' if port is None else f':{port}'}{quote(path, safe=_UNQUOTED_CHARS)}"
    return Target(url, host, port or _DEFAULT_PORTS.get(scheme, 0))


def normalize_host(host_text: str) -> str:
    """Return a host in normal form: a name in lower-case ASCII, or an address as `ipaddress` writes it."""
    if host_text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host_text[1:-1]))
        except ValueError:
            raise RefusedError("host", "its host is no address") from None
    name = host_text.lower()
    if not host_text.isascii():
        import idna  # from an extra; `Url` has checked that it is installed

        try:
            # A longer name is invalid anyway, and encoding it would take much time.
            name = idna.encode(host_text[:254], uts46=True).decode().lower()
        except UnicodeError:
            raise RefusedError("host", "its host is no name that a host can have") from None
    host = name.removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise RefusedError("host", "its host is no name that a host can have")
    # Browsers and the C library read a name that ends in a number as an address: 127.1, 0x7f.1, 2130706433.
    if not _NUMERIC_LABEL.fullmatch(labels[-1]):
        return host
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise RefusedError("address", "its host is a number that is no address in the usual form") from None


def is_listed_host(host: str, patterns: Collection[str]) -> bool:
    """Return whether `patterns` contains the host itself, or "*." followed by one of the host's parent domains."""
    # Compared by whole labels: "*.example.com" must not match "evil-example.com".
    labels = host.split(".")
    return host in patterns or any(f"*.{'.'.join(labels[n:])}" in patterns for n in range(1, len(labels)))


def _normalize_host_pattern(pattern: str) -> str:
    if pattern == "*":
        return pattern
    is_wildcard = pattern.startswith("*.")
    host_text = pattern[2:] if is_wildcard else pattern
    try:
        host = normalize_host(f"[{host_text}]" if ":" in host_text and not host_text.startswith("[") else host_text)
    except RefusedError as error:
        raise ValueError(
            f"Url(hosts=...) takes names such as 'example.com' or '*.example.com', got {pattern!r}: {error}"
        ) from None
    if is_wildcard and literal(host) is not None:
        raise ValueError(f"Url(hosts=...): nothing is below an address, got {pattern!r}")
    return f"*.{host}" if is_wildcard else host
