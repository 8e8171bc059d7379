"""What members of a fleet write to each other, sealed: a server may be written to by others, who are not believed."""

import hmac
from collections.abc import Hashable
from typing import Any, Literal, NamedTuple

from callboard.fleets import FleetAsk, digest
from callboard_actors.process._pickles import dumps, loads
from callboard_actors.remote._secret import mac

_SEAL = 32
"""Bytes of HMAC-SHA256."""

What = Literal["ask", "begun", "told", "cancel", "value", "raised", "lost", "moved", "cancelled", "unknown"]


class Letter(NamedTuple):
    """One message: of whom, about which ask, and what."""

    what: What
    sender: str
    ask: str
    said: Any = None


class Asked(NamedTuple):
    """What an ask says: to whom it goes, and how it is to be done."""

    gate: str
    token: int
    number: int
    key: bytes
    handler: str
    title: str
    grace: float
    carried: dict[str, Any]
    arguments: bytes


class ForgedError(Exception):
    """Bytes that were not written by a member of the fleet, or not for this place."""


class Seal:
    """Proves that bytes were written by somebody who has the secret, for one place and no other.

    Args:
        secret: of the fleet.
        fleet: its name.
    """

    def __init__(self, secret: bytes, fleet: str) -> None:
        self._key = mac(secret, f"callboard fleet {fleet}".encode())

    def sealed(self, place: str, value: object) -> bytes:
        """Pickle and sign a letter, which can be read in one place only.

        Raises:
            Exception: if it cannot be pickled.
        """
        body = dumps(value)
        return self._mac(place, body) + body

    def opened(self, place: str, frame: bytes) -> Any:
        """Read what was written for a place.

        Raises:
            ForgedError: if it was not; nothing of it has been read.
        """
        seal, body = frame[:_SEAL], frame[_SEAL:]
        if not hmac.compare_digest(seal, self._mac(place, body)):
            raise ForgedError(f"{len(frame)} bytes for {place!r} were written by nobody who has the secret")
        return loads(body)

    def _mac(self, place: str, body: bytes) -> bytes:
        return hmac.digest(self._key, len(place).to_bytes(4, "big") + place.encode() + body, "sha256")


def fingerprint(secret: bytes) -> str:
    """What members compare to see whether they have one secret; it says nothing of it."""
    return mac(secret, b"callboard fleet: whose secret is it?").hex()[:16]


def gate_of(actor: str, key: Hashable) -> str:
    """What a server calls a key: it need not know what it is made of.

    Raises:
        ValueError: for a key that no other process could write again.
    """
    return f"{actor}/{digest(key)[:32]}"


def key_of(ask: FleetAsk) -> bytes:
    """The key of an ask, to be sent.

    Raises:
        TypeError: if it cannot be.
    """
    try:
        return dumps(ask.key)
    except Exception as error:
        raise TypeError(_unsendable(ask, "the key", ask.key, error)) from error


def arguments_of(ask: FleetAsk) -> bytes:
    """The arguments of an ask, to be sent.

    Raises:
        TypeError: if one cannot be; says which.
    """
    try:
        return dumps((ask.args, dict(ask.kwargs)))
    except Exception as error:
        named = [(f"argument {place}", value) for place, value in enumerate(ask.args, 1)]
        for name, value in [*named, *((f"argument {name}", value) for name, value in ask.kwargs.items())]:
            try:
                dumps(value)
            except Exception as cause:
                raise TypeError(_unsendable(ask, name, value, cause)) from cause
        raise TypeError(f"{ask.title}: its arguments cannot be pickled: {error}") from error


def _unsendable(ask: FleetAsk, name: str, value: object, error: Exception) -> str:
    return (
        f"{ask.title} cannot be sent to the process that owns its key: {name}, of type {type(value).__qualname__}, "
        f"cannot be pickled: {error}"
    )
