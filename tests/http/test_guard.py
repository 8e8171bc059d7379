"""No request is sent to an address that is not public, by whatever name or redirect."""

import logging
import ssl
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from types import ModuleType
from typing import Any

import anyio
import httpcore2
import httpx
import httpx2
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from callboard_actors.http import UrlRefusedError
from callboard_actors.http._guard import GuardedBackend, _AddressRefusedError, _warn_of_proxy, rules_of

from ._world import BOTH_LIBRARIES, WAIT, Names, Site, Trap, client_of

pytestmark = pytest.mark.real_clock

LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "127.000.000.001",
    "127.0.0.2",
    "0.0.0.0",
    "0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[0:0:0:0:0:0:0:1]",
    "[::1%25lo]",
    "[fe80::1%25lo]",
    "localhost",
    "LOCALHOST.",
    "localhost.localdomain",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "１２７.0.0.1",  # noqa: RUF001 (that is what it is for)
    "127。0。0。1",
    "①②⑦.0.0.1",
    "%31%32%37.0.0.1",
    "user@127.0.0.1",
    "user:password@127.0.0.1",
    "example.org@127.0.0.1",
    "127.0.0.1\\@example.org",
    "127.0.0.1 ",
    "127.0.0.1\t",
    "127.0.0.1%00.example.org",
]
"""Spellings of this machine's address, some of them disguised."""
ELSEWHERE = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/",
    "http://168.63.129.16/",
    "http://100.64.0.1/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://[ff02::1]/",
    "http://metadata.google.internal/",
    "http://kubernetes.default.svc/",
    "file:///etc/passwd",
    "gopher://example.org/",
    "//example.org/",
    "example.org",
    "http:///",
    "http://example.org:99999/",
    "http://exa mple.org/",
    "http://example.org\r\nHost: localhost/",
]


@pytest.fixture
def traps() -> Iterator[list[Trap]]:
    """Listen on one port of IPv4 and IPv6 loopback."""
    with Trap() as first, Trap("127.0.0.2", first.port) as second, Trap("::1", first.port) as third:
        yield [first, second, third]


INVALID = (httpx.InvalidURL, httpx2.InvalidURL, httpx.LocalProtocolError, httpx2.LocalProtocolError)
"""Errors of the libraries for what is no URL, before the transport sees it."""


async def refusal_of(client: Any, url: str) -> UrlRefusedError:
    with pytest.raises(UrlRefusedError) as caught:
        await client.get(url)
    return caught.value


@BOTH_LIBRARIES
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.every_variant
async def test_no_way_to_write_this_machine_leads_to_it(traps: list[Trap], library: ModuleType) -> None:
    """Guards are bypassed when the code that checks a URL parses it differently from the code that connects."""
    async with client_of(library) as client:
        for host in LOOPBACK:
            with pytest.raises((UrlRefusedError, *INVALID)):
                await client.get(f"http://{host}:{traps[0].port}/")

    assert [trap.accepted for trap in traps] == [0, 0, 0]


@BOTH_LIBRARIES
async def test_a_name_whose_address_is_not_public_is_not_connected_to(traps: list[Trap], library: ModuleType) -> None:
    """The name itself proves nothing. All addresses of a name have to be public, because any of them may be used."""
    answers = [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["127.0.0.2", "93.184.216.34"],
        ["fe80::1%lo"],
        ["no address"],
    ]
    for answer in answers:
        async with client_of(library, resolver=Names(tea_example_org=[answer])) as client:
            error = await refusal_of(client, f"http://tea.example.org:{traps[0].port}/")
            assert not any(address in str(error) for address in answer)  # a model does not see internal addresses
            assert "the option hosts=[..., " in error.__notes__[0]  # the user does

    assert [trap.accepted for trap in traps] == [0, 0, 0]


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_what_is_no_public_web_page_is_refused(url: str) -> None:
    """Metadata services, internal machines and other schemes are refused before any lookup."""
    resolver = Names()
    async with client_of(httpx2, resolver=resolver) as client:
        with pytest.raises((UrlRefusedError, *INVALID, httpx2.UnsupportedProtocol)):
            await client.get(url)

    assert resolver.lookups == []


@BOTH_LIBRARIES
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.every_variant
async def test_each_connection_goes_to_an_address_that_was_checked_for_it(site: Site, library: ModuleType) -> None:
    """Against DNS rebinding, the checked address is the one that is used, and each connection is checked."""
    case = site.case()
    names = Names(tea_example_org=[["127.0.0.1"], ["127.0.0.2"]])
    with Trap("127.0.0.2", site.port) as trap, anyio.fail_after(WAIT):
        async with client_of(library, hosts=["tea.example.org", "127.0.0.1"], resolver=names) as client:
            url = f"http://tea.example.org:{site.port}/page?case={case}&close=1"
            assert (await client.get(url)).is_success
            assert names.lookups == ["tea.example.org"]  # one lookup only: connecting does not resolve the name again
            await refusal_of(client, url)
        assert trap.accepted == 0

    [request] = site.requests(case)
    assert request["headers"]["host"] == f"tea.example.org:{site.port}"


@BOTH_LIBRARIES
async def test_a_connection_that_is_kept_stays_at_its_address(site: Site, library: ModuleType) -> None:
    """A name that moves to a private address leads no request there: the open connection is pinned."""
    case = site.case()
    names = Names(tea_example_org=[["127.0.0.1"], ["127.0.0.2"]])
    with Trap("127.0.0.2", site.port) as trap, anyio.fail_after(WAIT):
        async with client_of(library, hosts=["tea.example.org", "127.0.0.1"], resolver=names) as client:
            for _ in range(3):
                assert (await client.get(f"http://tea.example.org:{site.port}/page?case={case}")).is_success
        assert trap.accepted == 0

    assert len({request["client"] for request in site.requests(case)}) == 1
    assert names.lookups == ["tea.example.org"]


@BOTH_LIBRARIES
@pytest.mark.parametrize("host", ["127.0.0.2", "2130706434", "[::1]", "0x7f.2", "rebound.example.org", "localhost"])
async def test_a_redirect_leads_to_no_private_address(site: Site, host: str, library: ModuleType) -> None:
    """An allowed page chooses the target of its redirect, so the target is checked as well."""
    names = Names(rebound_example_org=[["127.0.0.2"]])
    with Trap("127.0.0.2") as trap, anyio.fail_after(WAIT):
        async with client_of(library, hosts=["*", "127.0.0.1"], resolver=names) as client:
            await refusal_of(client, site.url("/redirect", to=f"http://{host}:{trap.port}/"))
        assert trap.accepted == 0


@BOTH_LIBRARIES
async def test_tls_is_spoken_by_the_name_and_not_by_the_address(
    secure_site: Site, authority: trustme.CA, library: ModuleType
) -> None:
    """The certificate has to be valid for the name, and a server with another name is refused."""
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    names = Names(tea_example_org=[["127.0.0.1"]], ham_example_org=[["127.0.0.1"]])
    async with client_of(library, hosts=["*", "127.0.0.1"], resolver=names, tls=tls) as client:
        page = await client.get(secure_site.url())
        # The address has an open connection that was verified for another name, which must not be used.
        with pytest.raises(library.ConnectError, match="certificate verify failed"):
            await client.get(f"https://ham.example.org:{secure_site.port}/page")

    assert page.is_success


async def test_what_is_allowed_is_no_more_than_what_is_written(site: Site) -> None:
    """An allowed host may still not resolve to this machine, and an allowed network allows no names that lead there."""
    names = Names(tea_example_org=[["127.0.0.1"]])
    async with client_of(httpx2, hosts=["tea.example.org"], resolver=names) as client:
        await refusal_of(client, f"http://tea.example.org:{site.port}/page")
    async with client_of(httpx2, hosts=["127.0.0.1"], resolver=names) as client:
        error = await refusal_of(client, f"http://tea.example.org:{site.port}/page")
        assert str(error).endswith("its host is not among those that are allowed. Allowed: 127.0.0.1.")
    async with client_of(httpx2, hosts=["127.0.0.1"], ports=[80]) as client:
        await refusal_of(client, site.url())
    async with client_of(httpx2, allow_private=True, resolver=names) as client:
        assert (await client.get(f"http://tea.example.org:{site.port}/page")).is_success
        assert (await client.get(site.url())).is_success


async def test_a_long_path_and_unusual_characters_are_no_reason_to_refuse(site: Site) -> None:
    """Signed URLs have thousands of characters; only host and port decide where a request goes."""
    case = site.case()
    async with client_of(httpx2, hosts=["127.0.0.1"]) as client:
        assert (await client.get(site.url("/page", case=case, tea="t" * 5000, tag="<ü%>"))).is_success

    assert len(site.requests(case)) == 1


@BOTH_LIBRARIES
async def test_half_a_character_is_sent_nowhere(library: ModuleType, trap: Trap) -> None:
    """A lone surrogate has no bytes. It is an error before a connection, whatever part of the request has it."""
    async with client_of(library, allow_private=True) as client:
        with pytest.raises((UnicodeError, *INVALID)):
            await client.get(f"http://127.0.0.1:{trap.port}/\ud800")
        with pytest.raises((UnicodeError, *INVALID)):
            await client.get(f"http://127.0.0.1:{trap.port}/", headers={"tea": "\ud800"})
        with pytest.raises((UrlRefusedError, UnicodeError, *INVALID)):
            await client.get(f"http://te\ud800a:{trap.port}/")

    assert trap.accepted == 0


@BOTH_LIBRARIES
async def test_a_proxy_of_the_environment_does_not_bypass_the_guard_and_is_named_in_a_log(
    site: Site, library: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy would connect without the check of addresses; a warning explains why servers cannot be reached."""
    _warn_of_proxy.cache_clear()
    with Trap("127.0.0.2") as proxy, caplog.at_level(logging.WARNING, "callboard"):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://user:secret@127.0.0.2:{proxy.port}/")
        for _ in range(2):
            async with client_of(library, hosts=["127.0.0.1"]) as client:
                assert (await client.get(site.url())).is_success
                await refusal_of(client, f"http://127.0.0.2:{proxy.port}/")
        assert proxy.accepted == 0

    assert caplog.text.count("not through the proxy in HTTP_PROXY") == 1
    assert "secret" not in caplog.text


PUBLIC = [ip_address(text) for text in ("93.184.216.34", "1.1.1.1", "2606:4700:4700::1111")]
NOT_PUBLIC = [
    ip_network(text)
    for text in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.168.0.0/16 "
        "198.18.0.0/15 224.0.0.0/4 240.0.0.0/4 ::/128 ::1/128 fc00::/7 fe80::/10 ff00::/8 2001:db8::/32 64:ff9b:1::/48"
    ).split()
]


def embed(v4: IPv4Address) -> st.SearchStrategy[IPv6Address]:
    """Return an IPv4 address in all forms in which IPv6 can embed it."""
    number = int(v4)
    forms = [
        number,  # compatible
        0xFFFF << 32 | number,  # mapped
        0xFFFF << 48 | number,  # translated
        0x64FF9B << 96 | number,  # NAT64
        0x2002 << 112 | number << 80,  # 6to4
        0x20010000 << 96 | 0xFFFFFFFF ^ number,  # Teredo
    ]
    return st.sampled_from(forms).map(IPv6Address)


private = st.sampled_from(NOT_PUBLIC).flatmap(lambda network: st.ip_addresses(network=network))
hidden = private.filter(lambda address: address.version == 4).flatmap(embed)


class Nowhere(httpcore2.AsyncNetworkBackend):
    """Fake connector that records the addresses."""

    def __init__(self) -> None:
        self.connected: list[str] = []

    async def connect_tcp(self, host: str, *_: object) -> httpcore2.AsyncNetworkStream:
        self.connected.append(host)
        return httpcore2.AsyncMockStream([])


@given(st.lists(st.one_of(st.sampled_from(PUBLIC), private, hidden, st.ip_addresses()), min_size=1, max_size=4))
async def test_whatever_a_name_leads_to_only_public_addresses_are_connected_to(
    addresses: list[IPv4Address | IPv6Address],
) -> None:
    """One address that is not public makes the name refused, in every IPv6 form that embeds IPv4."""
    names = Names(tea_example_org=[[str(address) for address in addresses]])
    backend = GuardedBackend(rules_of("GuardedTransport", None, private=False, ports=None), names)
    plain = backend._network = Nowhere()
    try:
        await backend.connect_tcp("tea.example.org", 80, timeout=WAIT)
    except _AddressRefusedError:
        assert plain.connected == []
    else:
        assert set(plain.connected) <= {str(address) for address in addresses}
        assert all(address.is_global and not address.is_multicast for address in addresses if address.version == 4)
        assert not any(
            address in network for address in addresses for network in NOT_PUBLIC if network.version == address.version
        )
