"""Where requests may go: which URLs, and which addresses behind their hosts. Decides, and never waits."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from callboard.middleware import Url
from callboard.web import Address, is_public_address, literal

_MOST_NAMED = 20
"""Hosts of a list that a model is told of."""
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Rules:
    """Which URL may be asked for, and which address may be connected to."""

    form: Url
    """How any URL has to be written."""
    hosts: Url
    """Which hosts may be asked, of those that are not in `networks`."""
    networks: tuple[Network, ...]
    """Addresses that may be connected to, though they are not public."""
    private: bool
    """Whether any address may be."""
    allowed: str
    """What may be asked, in a sentence for a model."""

    def check(self, url: str) -> str:
        """The URL, written anew.

        Raises:
            ValueError: it is not let through; says why, without a word of what was written.
        """
        written = self.form.check(url)
        assert written is not None
        address = literal(urlsplit(written).hostname or "")
        if address is None or not self._is_in_networks(address):
            self.hosts.check(written)
        return written

    def permits(self, address: Address) -> bool:
        """Whether a connection may go to this address."""
        return self.private or is_public_address(address) or self._is_in_networks(address)

    def _is_in_networks(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def rules_of(allow: Sequence[str] | None, *, private: bool, ports: Collection[int] | None) -> Rules:
    """The rules that a user has written.

    Raises:
        TypeError: if `allow` is one text.
        ValueError: for what is neither a host nor a network.
    """
    if isinstance(allow, str):
        raise TypeError(f"HttpClient(allow={allow!r}) is one text; give a list of hosts: allow=[{allow!r}]")
    if allow is not None and not allow:
        raise ValueError("HttpClient(allow=[]) allows no host at all; name some, or leave it out for any public one")
    found = {one: _network(one) for one in allow or ()}
    named = "Any public host may be asked." if allow is None else f"Allowed: {', '.join([*allow][:_MOST_NAMED])}."
    hosts = None if allow is None else [one for one, network in found.items() if network is None]
    networks = tuple(network for network in found.values() if network is not None)
    try:
        return Rules(Url(private=True, ports=ports), Url(hosts=hosts, private=private), networks, private, named)
    except ValueError as error:
        raise ValueError(f"HttpClient(allow={allow!r}): {error}") from None


def _network(written: str) -> Network | None:
    """The network that an entry of `allow` is, or `None` for a host."""
    try:
        return ip_network(written.removeprefix("[").removesuffix("]"))
    except ValueError:
        if "/" in written:
            raise ValueError(
                f"HttpClient(allow=[{written!r}, ...]) takes hosts such as 'example.org' or '*.example.org', and "
                "networks such as '10.0.0.0/8'; a URL and a network with bits behind its mask are neither"
            ) from None
        return None
