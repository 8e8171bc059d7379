"""Shared secret of the members of a fleet, and the HMAC that proves that its sender has the secret."""

import hashlib
import hmac

_SHORTEST = 16
"""Shortest allowed secret, in bytes: anyone who records a message can test guesses of the secret offline."""


def checked(secret: bytes, name: str) -> bytes:
    """Return the secret; raise `ValueError` if it is too short. The error has the `name`, but not the secret itself."""
    if len(secret) < _SHORTEST:
        raise ValueError(
            f"{name} has {len(secret)} bytes, and {_SHORTEST} are the least; "
            "`python -c 'import secrets; print(secrets.token_hex())'` makes one"
        )
    return secret


def mac(secret: bytes, said: bytes) -> bytes:
    """Return the HMAC-SHA256 of the bytes `said`, with the secret as its key."""
    # The secret is hashed first. HMAC pads short keys with zeros, so a secret and the same secret with NUL bytes at its
    # end would be the same key.
    return hmac.digest(hashlib.sha256(secret).digest(), said, "sha256")
