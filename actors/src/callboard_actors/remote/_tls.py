"""Addresses of workers as `host:port`, TLS of a connection, and the binding of the handshake's proofs to it."""

import hashlib
import ipaddress
import os
import ssl
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.abc import ByteStream, SocketStream
from anyio.streams.tls import TLSAttribute, TLSStream

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
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


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
"""Context; file of a certificate authority; `True` for the system's authorities; `None` or `False` for no TLS."""


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
    """Return the hash of the worker's certificate, which both sides include in their proofs; "" without TLS.

    A go-between has to show another certificate, even one that the agent accepts, so the two sides see different
    hashes.
    """
    return "" if certificate is None else hashlib.sha256(certificate).hexdigest()


def own_certificate(path: Path) -> bytes:
    """Return the first certificate of a PEM file in DER form, as the other side receives it."""
    text = path.read_text()
    end = "-----END CERTIFICATE-----"
    begin = text.index("-----BEGIN CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)])


async def as_client(stream: SocketStream, context: ssl.SSLContext, host: str) -> tuple[ByteStream, str]:
    """Start TLS with a worker; return the encrypted stream, and the hash that binds the proofs to it."""
    # `standard_compatible=False`: no closing handshake. A truncated stream is noticed, because frames carry their
    # length.
    found = await TLSStream.wrap(
        _InTurn(stream), server_side=False, hostname=host, ssl_context=context, standard_compatible=False
    )
    return found, binding_of(_certificate_of(found))


async def as_server(stream: SocketStream, context: ssl.SSLContext) -> ByteStream:
    """Start TLS with an agent; return the encrypted stream."""
    return await TLSStream.wrap(_InTurn(stream), server_side=True, ssl_context=context, standard_compatible=False)


def _certificate_of(stream: TLSStream) -> bytes | None:
    return stream.extra(TLSAttribute.peer_certificate_binary)  # noqa: S610 - no Django


class _InTurn(ByteStream):
    """Stream whose writes are serialized: TLS may have to write while it reads, at the same time as the sender."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._lock = anyio.Lock()

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        async with self._lock:
            await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
