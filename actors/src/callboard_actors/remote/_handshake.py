"""Handshake of a connection: both sides prove that they have the secret, and exchange the terms of the connection.

    agent                                worker
    GREET protocol, nonce     ──>
                              <──        GREET protocol, nonce
    GREET terms, proof        ──>        checks proof, then versions and terms
                              <──        GREET terms, proof

Each proof is an HMAC over the prover's role, the TLS binding, both nonces and the prover's terms. So a recorded proof
is useless in another connection, and terms cannot be changed on the way.

Before the handshake stand the addresses of workers as `host:port`, and TLS.
"""

import hashlib
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from anyio.abc import ByteStream, SocketStream
from anyio.streams.stapled import StapledByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from callboard.extend import literal
from callboard_actors._engine._frames import (
    PROTOCOL,
    FrameReader,
    GarbageError,
    Kind,
    as_json,
    frame,
    from_json,
    versions,
)
from callboard_actors._util._secret import is_proved, nonce, proof

# Addresses.


class Address(NamedTuple):
    """Host and port of a worker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """`True` if connections to this address stay on this machine."""
        # Of names only this one: any other could resolve to another machine when the connection is made.
        found = literal(self.host)
        return self.host == "localhost" if found is None else found.is_loopback


def address(text: str) -> Address:
    """Parse `host:port`, or `[host]:port` for IPv6; raise `ValueError` or `TypeError` for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no address of a worker; write 'host:port'")
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"{text!r} is no address of a worker; write 'host:port', such as '10.0.0.7:7000'")
    return Address(bare, int(port))


# TLS.

ClientTLS = ssl.SSLContext | str | os.PathLike[str] | bool | None
"""TLS of an agent: context, file of an authority, `True` (the system's authorities), `None` or `False` (no TLS)."""


def client_context(tls: ClientTLS) -> ssl.SSLContext | None:
    """Return the TLS context with which an agent checks workers' certificates; `None` for no TLS."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is True:
        return ssl.create_default_context()
    if not isinstance(tls, (str, os.PathLike)):
        raise TypeError(f"tls={tls!r} is no file of certificates, no ssl.SSLContext and not True")
    file = os.fspath(tls)
    if not file:  # ssl would use the system's authorities for an empty name
        raise ValueError("tls='' names no file of certificates; True stands for the system's authorities")
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise ValueError(f"tls={file!r} is no file of an authority's certificate, as PEM: {error}") from error


def server_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return a TLS context with a worker's certificate; raise `ValueError` for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        keys = "it" if key is None else f"--tls-key {key}"
        raise ValueError(
            f"--tls-cert {certificate} has to be a certificate, and {keys} to have its key, both as PEM: {error}"
        ) from error
    return context


def binding_of(certificate: bytes | None) -> str:
    """Return the hash of the worker's certificate, which both sides include in their proofs; "" without TLS."""
    # A go-between has to show another certificate, even one that the agent accepts, so the two sides see different
    # hashes.
    return "" if certificate is None else hashlib.sha256(certificate).hexdigest()


def own_certificate(path: Path) -> bytes:
    """Return the first certificate of a PEM file in DER form, as the other side receives it."""
    text = path.read_text()
    end = "-----END CERTIFICATE-----"
    begin = text.index("-----BEGIN CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)])


async def as_client(stream: SocketStream, context: ssl.SSLContext, host: str) -> tuple[ByteStream, str]:
    """Start TLS with a worker; return the encrypted stream, and the hash of the worker's certificate for the proofs."""
    # `standard_compatible=False`: no closing handshake. A truncated stream is noticed, because frames carry their
    # length.
    found = await TLSStream.wrap(
        _InTurn(stream), server_side=False, hostname=host, ssl_context=context, standard_compatible=False
    )
    return found, binding_of(found.extra(TLSAttribute.peer_certificate_binary))  # noqa: S610 - no Django


async def as_server(stream: SocketStream, context: ssl.SSLContext) -> ByteStream:
    """Start TLS as the worker, which is the server; return the encrypted stream."""
    return await TLSStream.wrap(_InTurn(stream), server_side=True, ssl_context=context, standard_compatible=False)


class _InTurn(StapledByteStream):
    """Stream that makes one write at a time: TLS may also write during a read, while another task sends."""

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream, stream)
        self._lock = anyio.Lock()

    async def send(self, item: bytes) -> None:
        async with self._lock:
            await super().send(item)


# Handshake.

LONGEST_GREETING: Final = 4 * 1024
"""Maximum bytes of a frame from a side that has not yet proved that it has the secret."""
LONGEST_WELCOME: Final = 1024 * 1024
"""Maximum bytes of the worker's terms, which list the names of all functions and actors that the worker serves."""
T = TypeVar("T", "Wishes", "Offer")
# The role is part of a proof. Otherwise a go-between could return the agent's own proof as the worker's.
_AGENT, _WORKER = "agent", "worker"


class RefusedError(Exception):
    """Raised if one side refuses the connection during the handshake."""

    def __init__(self, reason: str, *, for_good: bool = True) -> None:
        self.reason = reason
        self.for_good = for_good
        """`True` if every further attempt to connect fails until the configuration is changed."""
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Terms that an agent sends in the handshake: timing of pings, and maximum size of a reply."""

    heartbeat: float
    """Seconds between two pings, in both directions."""
    silence: float
    """Seconds without received data after which a side considers the other one lost."""
    max_result: int
    """Maximum bytes of a reply that the agent accepts."""

    def __post_init__(self) -> None:
        # Checked on the worker, too: an agent must not make it ping without pause, or keep dead connections for ever.
        if not 0.01 <= self.heartbeat <= self.silence <= 86_400 or self.max_result < 1:
            raise ValueError(f"{self!r}: 0.01 <= heartbeat <= silence, and max_result of 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Terms that a worker sends in the handshake: its capacity, its limits, and the names of served functions.

    Sent only after the worker has checked the agent's proof.
    """

    capacity: int
    """Number of calls that the worker runs at the same time."""
    seats: int
    """Number of dedicated worker processes that all agents together may reserve."""
    is_plain: bool
    """`True` if replies are JSON, because the worker's code is not trusted; otherwise pickles."""
    max_call: int
    """Maximum bytes of a call that the worker accepts."""
    serves: tuple[str, ...]
    """Names of the functions and actors that the worker serves, as `module:qualname`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "serves", tuple(self.serves))
        if self.capacity < 1 or self.max_call < 1:
            raise ValueError(f"{self!r}: capacity and max_call of 1 or more")


async def greet(stream: ByteStream, reader: FrameReader, secret: bytes, binding: str, wishes: Wishes) -> Offer:
    """Perform the agent's side of the handshake; return the worker's terms."""
    # A fresh nonce of each side: neither a recorded agent nor a recorded worker can be replayed.
    ours = nonce()
    await _say(stream, {"protocol": PROTOCOL, "nonce": ours})
    said = await _hear(reader)
    _check_protocol(said, "the worker")
    # The binding is the hash of the certificate that this side sees. A go-between shows another certificate, so its
    # forwarded proofs are invalid.
    shared = (binding, ours, _text(said, "nonce"))
    # Sent and proved as one string: both sides compute the HMAC over the very same bytes.
    terms = json.dumps({**versions(), **asdict(wishes)})
    await _say(stream, {"terms": terms, "proof": proof(secret, _AGENT, *shared, terms)})
    # The worker's proof arrives in one frame with its terms, which list the names of everything it serves. So the limit
    # is raised before the proof is checked, but only to this.
    reader.longest = LONGEST_WELCOME
    said = await _hear(reader)
    terms = _text(said, "terms")
    if not is_proved(said.get("proof"), secret, _WORKER, *shared, terms):
        raise RefusedError("it does not have the secret that this side has, or somebody is in between")
    # Only after the proof: nothing of an unproved side is interpreted, beyond its protocol version and nonce.
    found = from_json(terms.encode())
    _check_versions(found, "the worker")
    return _made(Offer, found)


async def admit(stream: ByteStream, reader: FrameReader, secret: bytes, binding: str, offer: Offer) -> Wishes:
    """Perform the worker's side of the handshake; return the agent's terms. A refused agent receives the reason."""
    try:
        # The agent proves first: without the secret, nobody obtains a proof of this worker, its versions or its list of
        # functions.
        said = await _hear(reader)
        _check_protocol(said, "the agent")
        ours = nonce()
        shared = (binding, _text(said, "nonce"), ours)
        await _say(stream, {"protocol": PROTOCOL, "nonce": ours})
        said = await _hear(reader)
        terms = _text(said, "terms")
        if not is_proved(said.get("proof"), secret, _AGENT, *shared, terms):
            raise RefusedError("it has not the secret that the worker has, or somebody is in between")
        found = from_json(terms.encode())
        _check_versions(found, "the agent")
        wishes = _made(Wishes, found)
    # Texts of these errors name the mismatch, never the secret or a proof.
    except (RefusedError, GarbageError) as error:
        await stream.send(frame(Kind.REFUSE, 0, str(error).encode()[:1000]))
        raise
    terms = json.dumps({**versions(), **asdict(offer)})
    await _say(stream, {"terms": terms, "proof": proof(secret, _WORKER, *shared, terms)})
    return wishes


async def _say(stream: ByteStream, said: Mapping[str, Any]) -> None:
    await stream.send(frame(Kind.GREET, 0, as_json(said)))


async def _hear(reader: FrameReader) -> dict[str, Any]:
    header, body = await reader.next()
    if header.kind is Kind.REFUSE:
        raise RefusedError(f"the worker has refused: {body.decode(errors='replace')}")
    if header.kind is not Kind.GREET:
        raise GarbageError(f"a {header.kind.name}, where a handshake should be")
    return from_json(body)


def _text(said: Mapping[str, Any], name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str) or not found.isascii():  # both sides send nothing else, and `encode` cannot fail
        raise GarbageError(f"a handshake without {name!r}")
    return found


def _check_protocol(said: Mapping[str, Any], who: str) -> None:
    if (theirs := said.get("protocol")) != PROTOCOL:
        raise RefusedError(f"{who} speaks version {theirs!r:.20} of the protocol, and this side version {PROTOCOL}")


def _check_versions(found: Mapping[str, Any], who: str) -> None:
    for name, ours in versions().items():
        if (theirs := found.get(name)) != ours:
            raise RefusedError(f"{who} has {name} {theirs!s:.40}, and this side {ours}; install the same on both")


def _made(kind: type[T], found: Mapping[str, Any]) -> T:
    try:
        return kind(**{one.name: found[one.name] for one in fields(kind)})
    except (KeyError, TypeError, ValueError) as error:
        raise GarbageError(f"terms that cannot be understood: {error}") from None
