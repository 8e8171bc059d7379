"""Signed messages between fleet members; the signature is necessary because other programs can write to the server."""

import hashlib
import hmac
from collections.abc import Hashable
from typing import Any, Literal, NamedTuple

from callboard.extend import FleetAsk, digest
from callboard_actors._engine._pickles import dumps, loads

_MIN_SECRET_BYTES = 16
"""Shortest allowed secret, in bytes: anyone who records a message can test guesses of the secret offline."""
_SIGNATURE_BYTES = 32
"""Bytes of an HMAC-SHA256 signature."""

MessageKind = Literal["ask", "begun", "told", "cancel", "value", "raised", "lost", "moved", "cancelled", "unknown"]


class Message(NamedTuple):
    """Message from one fleet member to another about one ask, which is a call of a keyed actor."""

    kind: MessageKind
    sender_id: str
    ask_id: str
    payload: Any = None


class AskContents(NamedTuple):
    """Content of an ask message: the key, the fencing token of the key's owner, and the handler with its arguments."""

    # Server key and token tie the ask to one ownership of the key; the number guards against replays.
    server_key: str
    token: int
    ask_number: int
    pickled_key: bytes
    handler: str
    title: str
    grace: float
    context: dict[str, Any]
    pickled_arguments: bytes


class ForgedError(Exception):
    """Raised for bytes that no member of the fleet has signed, or that were signed for another receiver or state."""


class Signer:
    """Signer of messages and states: a signature is valid for one fleet, and for one receiver or one state only."""

    def __init__(self, secret: bytes, fleet: str) -> None:
        self._key = _hash_with_secret(secret, f"callboard fleet {fleet}".encode())

    def sign_value(self, address: str, value: object) -> bytes:
        """Pickle and sign a value; `address` is the id of the receiving member, or the key's name for a saved state."""
        payload = dumps(value)
        return self._sign(address, payload) + payload

    def load_signed(self, address: str, signed_bytes: bytes) -> Any:
        """Unpickle a value that `sign_value()` signed for `address`; raise ForgedError if the signature is invalid."""
        # Verified before `loads`: unpickling bytes of an attacker would run their code.
        sign_value, payload = signed_bytes[:_SIGNATURE_BYTES], signed_bytes[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(sign_value, self._sign(address, payload)):  # in constant time
            raise ForgedError(f"{len(signed_bytes)} bytes for {address!r} were written by nobody who has the secret")
        return loads(payload)

    def _sign(self, address: str, payload: bytes) -> bytes:
        # The length keeps an address and a body from being read with another border between them.
        return hmac.digest(self._key, len(address).to_bytes(4, "big") + address.encode() + payload, "sha256")


def fingerprint(secret: bytes) -> str:
    """Return a hash of the secret, which members compare to check that all of them have the same secret."""
    return _hash_with_secret(secret, b"callboard fleet: whose secret is it?").hex()[:16]


def _hash_with_secret(secret: bytes, message: bytes) -> bytes:
    # The secret is hashed first. HMAC pads short keys with zeros, so a secret and the same secret with NUL bytes at its
    # end would be the same key.
    return hmac.digest(hashlib.sha256(secret).digest(), message, "sha256")


def check_secret(secret: bytes, name: str) -> None:
    """Raise `ValueError` if the secret is too short. The error has the `name`, but not the secret itself."""
    if len(secret) < _MIN_SECRET_BYTES:
        raise ValueError(
            f"{name} has {len(secret)} bytes, and {_MIN_SECRET_BYTES} are the least; "
            "`python -c 'import secrets; print(secrets.token_hex())'` makes one"
        )


def server_key_of(actor: str, key: Hashable) -> str:
    """Return the name of a key at the server: a digest that hides the key; raise ValueError if it has no JSON form."""
    return f"{actor}/{digest(key)[:32]}"


def pickle_ask(ask: FleetAsk) -> tuple[bytes, bytes]:
    """Pickle the key and the arguments of an ask; raise TypeError with the name of a part that cannot be pickled."""
    try:
        return dumps(ask.key), dumps((ask.args, dict(ask.kwargs)))
    except Exception as error:
        # The pickler does not say which part failed, so each is tried alone.
        parts: list[tuple[str, object]] = [("the key", ask.key)]
        parts += [(f"argument {position}", value) for position, value in enumerate(ask.args, 1)]
        parts += [(f"argument {name}", value) for name, value in ask.kwargs.items()]
        for name, value in parts:
            try:
                dumps(value)
            except Exception as cause:
                raise TypeError(
                    f"{ask.title} cannot be sent to the process that owns its key: {name}, of type "
                    f"{type(value).__qualname__}, cannot be pickled: {cause}"
                ) from cause
        raise TypeError(f"{ask.title}: its arguments cannot be pickled: {error}") from error
