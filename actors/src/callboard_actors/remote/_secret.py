"""The secret that agents and workers share, and how each proves to have it without saying it."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

VARIABLE = "CALLBOARD_WORKER_SECRET"
_SHORTEST = 16
"""Bytes. Whoever hears a handshake can try secrets at leisure, so it must not be one that can be guessed."""
_REMEDY = "`python -c 'import secrets; print(secrets.token_hex())'` makes one"


def secret_from(file: str | os.PathLike[str] | None, *, forget: bool = False) -> bytes:
    """Read the secret from a file, or else from the environment; white space around it is not part of it.

    Args:
        file: has it in its text.
        forget: take it out of the environment, so that what is started from here does not have it.

    Raises:
        ValueError: there is none, or one that is too short.
    """
    found = (os.environ.pop(VARIABLE, "") if forget else os.environ.get(VARIABLE, "")).strip()
    if file is not None:
        return checked(Path(file).read_bytes().strip(), f"the secret in {os.fspath(file)}")
    if not found:
        raise ValueError(
            f"there is no secret: set {VARIABLE}, or name a file that has it, to the same on both sides; {_REMEDY}"
        )
    return checked(found.encode(), VARIABLE)


def checked(secret: bytes, name: str) -> bytes:
    """Refuse one that is easily guessed; it is not shown.

    Raises:
        ValueError: it is too short.
    """
    if len(secret) < _SHORTEST:
        raise ValueError(f"{name} has {len(secret)} bytes, and {_SHORTEST} are the least; {_REMEDY}")
    return secret


def nonce() -> str:
    """What nobody has seen before, to be proved upon."""
    return secrets.token_hex(32)


def proof(secret: bytes, *parts: str) -> str:
    """Prove to have a secret, for these parts and no others."""
    said = b"".join(len(part).to_bytes(4, "big") + part.encode() for part in parts)
    return mac(secret, b"callboard worker" + said).hex()


def mac(secret: bytes, said: bytes) -> bytes:
    """Return the HMAC of some bytes by a secret.

    The secret is hashed first: HMAC fills a short key up with zeros, so that a secret and the same one with a NUL at
    its end would be one key.
    """
    return hmac.digest(hashlib.sha256(secret).digest(), said, "sha256")


def is_proved(claim: object, secret: bytes, *parts: str) -> bool:
    """Whether somebody has proved that; takes as long for any claim."""
    if not isinstance(claim, str) or not claim.isascii():
        return False
    return hmac.compare_digest(claim.encode(), proof(secret, *parts).encode())
