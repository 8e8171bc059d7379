"""Shared secret of agents and workers, and HMACs by which one side proves that it has the secret."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

VARIABLE = "CALLBOARD_WORKER_SECRET"
_SHORTEST = 16
"""Shortest allowed secret, in bytes: anyone who records a handshake can test guesses of the secret offline."""
_REMEDY = "`python -c 'import secrets; print(secrets.token_hex())'` makes one"


def secret_from(file: str | os.PathLike[str] | None, *, forget: bool = False) -> bytes:
    """Return the shared secret from a file or, without a file, from an environment variable; strip white space."""
    # Removed even if a file is given: a variable that is set by mistake would be inherited, too.
    found = (os.environ.pop(VARIABLE, "") if forget else os.environ.get(VARIABLE, "")).strip()
    if file is not None:
        return checked(Path(file).read_bytes().strip(), f"the secret in {os.fspath(file)}")
    if not found:
        raise ValueError(
            f"there is no secret: set {VARIABLE}, or name a file that has it, to the same on both sides; {_REMEDY}"
        )
    return checked(found.encode(), VARIABLE)


def checked(secret: bytes, name: str) -> bytes:
    """Return the secret; raise `ValueError` if it is too short. The error has the `name`, but not the secret itself."""
    if len(secret) < _SHORTEST:
        raise ValueError(f"{name} has {len(secret)} bytes, and {_SHORTEST} are the least; {_REMEDY}")
    return secret


def nonce() -> str:
    """Return a random hexadecimal text that was never used before."""
    return secrets.token_hex(32)


def proof(secret: bytes, *parts: str) -> str:
    """Return a hexadecimal HMAC of the texts `parts`, which proves that its sender has the secret."""
    # Each part with its length: otherwise different parts with the same concatenation would share a proof.
    said = b"".join(len(part).to_bytes(4, "big") + part.encode() for part in parts)
    return mac(secret, b"callboard worker" + said).hex()  # the prefix keeps other uses of the same secret apart


def mac(secret: bytes, said: bytes) -> bytes:
    """Return the HMAC-SHA256 of the bytes `said`, with the secret as its key."""
    # The secret is hashed first. HMAC pads short keys with zeros, so a secret and the same secret with NUL bytes at its
    # end would be the same key.
    return hmac.digest(hashlib.sha256(secret).digest(), said, "sha256")


def is_proved(claim: object, secret: bytes, *parts: str) -> bool:
    """Return whether `claim` equals `proof(secret, *parts)`; the comparison takes the same time for any claim."""
    if not isinstance(claim, str) or not claim.isascii():
        return False
    return hmac.compare_digest(claim.encode(), proof(secret, *parts).encode())
