"""Detectors of personal data: e-mail and IP addresses, numbers of phones, cards and accounts.

The text may be hostile, so every search takes linear time: repetitions are bounded, or can begin only where no other
repetition of the same kind can. Expressions begin with a character of the match where possible, and check the
preceding text with a lookbehind; so the regex engine skips most of a text quickly.
"""

import ipaddress
import re
from collections.abc import Iterator

from callboard.guards._redact._detectors import Detector, Span
from callboard.guards._redact._ibans import IBANS
from callboard.guards._redact._phones import PHONES

_EMAIL = r"(?<!\w)\w[\w.+%-]{0,63}+@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?!\w)"
_FILES = frozenset(("png", "jpg", "jpeg", "gif", "svg", "webp"))


def _is_address(found: str) -> bool:
    local, _, domain = found.rpartition("@")
    # `git@github.com:` is a remote repository, and `icon@2x.png` a file.
    return local != "git" and domain.rpartition(".")[2].lower() not in _FILES


# Only the first digit is consumed; the rest is a lookahead. So a long number that is no card cannot hide a card that
# begins inside it.
_CARD_FORM = re.compile(
    r"\d(?<![^\W_]\d)(?<!\d\.\d)(?=(?P<rest>\d{13,18}"
    r"|\d{3}([ \u00a0.\u2010-\u2015-])\d{4}(?:\2\d{4}){2}(?:\2\d{1,3})?"
    r"|\d{3}([ \u00a0.\u2010-\u2015-])\d{6}\3\d{4,5})(?![^\W_]|\.\d))"
)
_CARD = re.compile(
    r"4\d{15}(?:\d{3})?|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-59]|[689]\d)\d{11}|6(?:011|4[4-9]\d|5\d\d)\d{12,15}|35(?:2[89]|[3-8]\d)\d{12,15}|62\d{14,17}"
    r"|(?:50|5[6-9]|6[37])\d{14,17}|220[0-4]\d{12,15}"
)
_NO_DIGIT = re.compile(r"\D")
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def _cards(text: str) -> Iterator[Span]:
    return ((found.start(), found.end("rest")) for found in _CARD_FORM.finditer(text))


def _is_card(found: str) -> bool:
    digits = _digits(found)
    return _CARD.fullmatch(digits) is not None and _luhn(digits)


def _luhn(digits: str) -> bool:
    """Return whether the check digit is right (ISO/IEC 7812-1, annex B)."""
    numbers = [int(digit) for digit in digits]
    return (sum(numbers[::-2]) + sum(_DOUBLED[number] for number in numbers[-2::-2])) % 10 == 0


def _digits(text: str) -> str:
    digits = _NO_DIGIT.sub("", text)
    return digits if digits.isascii() else "".join(str(int(digit)) for digit in digits)


_SSN = r"(?<![\w-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![\w-])"

_IP = (
    r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
    r"|(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,38}(?:[0-9A-Fa-f]|::)(?:(?:\.[0-9]{1,3}){3})?)(?!\w|\.\d)"
)


def _is_ip(found: str) -> bool:
    try:
        ipaddress.ip_address(found)
    except ValueError:
        return False
    return True


PERSONAL = (
    Detector("email", _EMAIL, check=_is_address),
    PHONES,
    Detector("card", _cards, check=_is_card),
    IBANS,
)

PERSONAL_ON_DEMAND = (
    Detector("ip", _IP, check=_is_ip),
    Detector("us_ssn", _SSN),
)
"""Detectors that must be chosen by name: too many harmless numbers look the same."""

LIBRARIES = {PHONES.name: "phonenumbers", IBANS.name: "schwifty"}
"""Library that each of these detectors needs."""
