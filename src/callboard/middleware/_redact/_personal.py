"""Personal data: addresses, numbers of phones, cards and accounts.

Every search takes time in proportion to its text: repetitions are bounded, or begin only where no other of
their kind can have begun. Where an expression can begin with a letter or a sign it does, and looks behind
afterwards: then most of a text is skipped.
"""

import ipaddress
import re
from collections.abc import Iterator

from callboard.middleware._redact._detectors import Detector, Span

_EMAIL = r"(?<!\w)\w[\w.+%-]{0,63}+@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?!\w)"
_FILES = frozenset(("png", "jpg", "jpeg", "gif", "svg", "webp"))


def _is_address(found: str) -> bool:
    local, _, domain = found.rpartition("@")
    # `git@github.com:` is a remote, `icon@2x.png` a file.
    return local != "git" and domain.rpartition(".")[2].lower() not in _FILES


# Calling codes of ITU-T E.164, annex of 2016; then the rest of 15 digits at most.
_CODE = (
    r"(?:1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    r"|(?:2[1-689]|3[578]|42|5[09]|6[789]|8[0578]|9[67])\d|99[2-8])"
)
_PHONE = rf"\+(?<![\w+]\+)(?={_CODE})(?:[ \u00a0.()/\u2010-\u2015-]{{0,3}}\d){{8,16}}(?!\w)"


def _is_phone(found: str) -> bool:
    digits = _digits(found)
    # The North American plan has ten digits, none of them at will.
    return not digits.startswith("1") or (len(digits) == 11 and digits[1] in "23456789")


# All but the first digit is looked ahead for, so that a number which is none does not hide one inside it.
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
    """The check digit of ISO/IEC 7812-1, annex B."""
    numbers = [int(digit) for digit in digits]
    return (sum(numbers[::-2]) + sum(_DOUBLED[number] for number in numbers[-2::-2])) % 10 == 0


def _digits(text: str) -> str:
    digits = _NO_DIGIT.sub("", text)
    return digits if digits.isascii() else "".join(str(int(digit)) for digit in digits)


# Of the IBAN registry (ISO 13616).
_IBAN_LENGTHS = {
    country: int(length)
    for country, length in re.findall(
        r"([A-Z]{2})(\d\d)",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 "
        "EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 "
        "KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 "
        "PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 "
        "UA29 VA22 VG24 XK20 YE30",
    )
}
_IBAN_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?=[ -]?[A-Za-z0-9])")
_IBAN_REST = {
    length: re.compile(rf"(?:[ -]?[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9])") for length in _IBAN_LENGTHS.values()
}


def _ibans(text: str) -> Iterator[Span]:
    for head in _IBAN_HEAD.finditer(text):
        length = _IBAN_LENGTHS.get(head[0][:2].upper())
        rest = _IBAN_REST[length].match(text, head.end()) if length else None
        if rest is not None and _mod_97(rest[0] + head[0]) == 1:
            yield head.start(), rest.end()


def _mod_97(text: str) -> int:
    """ISO/IEC 7064, MOD 97-10."""
    return int("".join(str(int(char, 36)) for char in text if char.isalnum())) % 97


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
    Detector("phone", _PHONE, check=_is_phone),
    Detector("card", _cards, check=_is_card),
    Detector("iban", _ibans),
)

PERSONAL_ON_DEMAND = (
    Detector("ip", _IP, check=_is_ip),
    Detector("us_ssn", _SSN),
)
"""Forms that too many harmless numbers have as well."""
