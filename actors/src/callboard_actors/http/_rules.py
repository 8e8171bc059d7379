"""Rules for allowed URLs, and for the addresses of their hosts. Decides, and never waits."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from callboard.extend import Address, is_public_address, literal
from callboard.guards import Url

_MOST_NAMED = 20
"""Allowed hosts that an error for a model names."""
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for URLs that may be requested, and addresses that may be connected to."""

    form: Url
    """Rules for the form of every URL."""
    hosts: Url
    """Rules for hosts outside of `networks`."""
    networks: tuple[Network, ...]
    """Networks that are allowed although they may not be public."""
    private: bool
    """True if every address is allowed."""
    allowed: str
    """Sentence for a model about the allowed hosts."""

    def check(self, url: str) -> str:
        """Return the URL in its normal form; raise ValueError if it is not allowed, without quoting any part of it."""
        written = self.form.check(url)
        assert written is not None
        address = literal(urlsplit(written).hostname or "")
        if address is None or not self._is_in_networks(address):
            self.hosts.check(written)
        return written

    def permits(self, address: Address) -> bool:
        """Return whether a connection to this address is allowed."""
        return self.private or is_public_address(address) or self._is_in_networks(address)

    def _is_in_networks(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def rules_of(allow: Sequence[str] | None, *, private: bool, ports: Collection[int] | None) -> Rules:
    """Return the rules for a user's options; raise for entries that are neither hosts nor networks."""
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
    """Return the network of an entry of `allow`, or `None` for a host."""
    try:
        return ip_network(written.removeprefix("[").removesuffix("]"))
    except ValueError:
        if "/" in written:
            raise ValueError(
                f"HttpClient(allow=[{written!r}, ...]) takes hosts such as 'example.org' or '*.example.org', and "
                "networks such as '10.0.0.0/8'; a URL and a network with bits behind its mask are neither"
            ) from None
        return None
