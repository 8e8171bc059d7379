"""Secrets that HMAC alone would treat as equal are different."""

import pytest

from callboard.guards import Redact
from callboard_actors._server.fleet._messages import ForgedError, Signer, fingerprint
from callboard_actors._util._secret import is_proved, proof

SECRET = b"a secret of some thirty-two bytes"
OTHERS = [SECRET + b"\0", SECRET + b"\0\0", SECRET[:-1]]


@pytest.mark.parametrize("other", OTHERS)
def test_a_worker_does_not_believe_a_secret_with_zeros_behind(other: bytes) -> None:
    """HMAC pads short keys with zeros, so a padded secret would otherwise be accepted."""
    assert is_proved(proof(SECRET, "nonce"), SECRET, "nonce")
    assert not is_proved(proof(other, "nonce"), SECRET, "nonce")


@pytest.mark.parametrize("other", OTHERS)
def test_a_fleet_does_not_believe_a_secret_with_zeros_behind(other: bytes) -> None:
    """Both the first check and each later message refuse the padded secret."""
    letter = Signer(other, "fleet").sealed("place", "value")

    assert fingerprint(other) != fingerprint(SECRET)
    with pytest.raises(ForgedError):
        Signer(SECRET, "fleet").opened("place", letter)


@pytest.mark.parametrize("other", OTHERS)
def test_tokens_of_redacted_secrets_are_made_by_the_whole_key(other: bytes) -> None:
    """The holder of one key must not recognise tokens that were made with another key."""
    text = {"mail": "somebody@example.com", "api_key": "sk-ant-api03-abcdefghijklmnopqrstuvwx"}

    assert Redact(key=SECRET).redact_value(text) == Redact(key=SECRET).redact_value(text)
    assert Redact(key=SECRET).redact_value(text) != Redact(key=other).redact_value(text)
