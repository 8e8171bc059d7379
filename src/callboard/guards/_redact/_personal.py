"""Detectors of personal data: e-mail and IP addresses, numbers of phones, cards and accounts.

The text may be hostile, so every search takes linear time: repetitions are bounded, or can begin only where no other
repetition of the same kind can. Expressions begin with a character of the match where possible, and check the
preceding text with a lookbehind; so the regex engine skips most of a text quickly.
"""

import ipaddress
import re
from collections.abc import Iterator
from functools import cache

from callboard.guards._redact._detectors import Detector, Span, find_matches, make_finder

# Bank accounts: IBANs (ISO 13616), by the registry in the library schwifty


_IBAN_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?=[ -]?[A-Za-z0-9])")
_IBAN_SEPARATOR = re.compile("[ -]")


def _find_ibans(text: str) -> Iterator[Span]:
    # From an extra; `resolve_detectors()` has checked that it is installed.
    from schwifty import IBAN

    for head in find_matches(_IBAN_HEAD, text, lookahead_chars=6):
        pattern = _make_iban_rest_pattern(head[0][:2].upper())
        account = pattern.match(text, head.end()) if pattern else None
        # A valid IBAN has the structure of its country, and the right check digits.
        if account is not None and IBAN(_IBAN_SEPARATOR.sub("", head[0] + account[0]), allow_invalid=True).is_valid:
            yield head.start(), account.end()


@cache
def _make_iban_rest_pattern(country_code: str) -> re.Pattern[str] | None:
    """Return a pattern for a country's IBANs without their first four characters; `None` if the country has none."""
    from schwifty import IBAN
    from schwifty.exceptions import SchwiftyException

    try:
        length = IBAN(country_code, allow_invalid=True).spec.iban_length
    except SchwiftyException:
        return None
    # Without the country code and the two check digits, which the caller has matched.
    return re.compile(rf"(?:[ -]?[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9])")


IBANS = Detector("iban", _find_ibans)


# Telephone numbers in international form, by the numbering plans in the library phonenumbers
#
# A number counts if its country exists and has numbers of that length ("possible" in the library's terms). Checking for
# assigned numbers ("valid") would miss made-up examples, and the assigned ranges change every month.


_PHONE_FORM = re.compile(r"\+(?<![\w+]\+)\d(?:[ \u00a0.()/\u2010-\u2015-]{0,3}\d){7,15}(?!\w)")
_DIGITS = re.compile(r"\d+")
_NORTH_AMERICA = "1"
_DOMESTIC_PREFIXES = ("044", "045", "0", "1")
"""Prefixes that are valid only for domestic calls, but that phone gateways still write after the country code."""


def _find_phone_numbers(text: str) -> Iterator[Span]:
    # From an extra; `resolve_detectors()` has checked that it is installed.
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    for match in find_matches(_PHONE_FORM, text, lookahead_chars=70):
        # No country code is a prefix of another.
        prefixes = [_extract_digits(match[0])[:length] for length in (1, 2, 3)]
        country_code = next((prefix for prefix in prefixes if int(prefix) in COUNTRY_CODE_TO_REGION_CODE), None)
        if country_code is None:
            continue
        # Other digits may follow the number, so the longest beginning that is a number counts.
        ends = [group.end() for group in _DIGITS.finditer(match[0])]
        for end in reversed(ends):
            if _PHONE_FORM.fullmatch(match[0], 0, end) and _is_phone_number(match[0][:end], country_code):
                yield match.start(), match.start() + end
                break


def _extract_digits(text: str) -> str:
    return "".join(_DIGITS.findall(text))


def _is_phone_number(text: str, country_code: str) -> bool:
    """Return whether a text is a phone number. It may contain the prefix for domestic calls, as in `+44 (0) 20 ...`."""
    if _is_possible_phone_number(text):
        return True
    if country_code == _NORTH_AMERICA:
        return False
    local_digits = _extract_digits(text)[len(country_code) :]
    prefixes = [prefix for prefix in _DOMESTIC_PREFIXES if local_digits.startswith(prefix)]
    return any(_is_possible_phone_number(f"+{country_code}{local_digits[len(prefix) :]}") for prefix in prefixes)


def _is_possible_phone_number(text: str) -> bool:
    from phonenumbers import NumberParseException, is_possible_number, national_significant_number, parse

    try:
        number = parse(text)
    except NumberParseException:
        return False
    # In North America no number begins with 0 or 1; the library checks that only for "valid" numbers.
    return is_possible_number(number) and not (
        number.country_code == 1 and national_significant_number(number).startswith(("0", "1"))
    )


PHONES = Detector("phone", _find_phone_numbers)


# Other data

_EMAIL = r"(?<!\w)\w[\w.+%-]{0,63}+@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?!\w)"
_IMAGE_SUFFIXES = frozenset(("png", "jpg", "jpeg", "gif", "svg", "webp"))


def _is_email_address(text: str) -> bool:
    local, _, domain = text.rpartition("@")
    # `git@github.com:` is a remote repository, and `icon@2x.png` a file.
    return local != "git" and domain.rpartition(".")[2].lower() not in _IMAGE_SUFFIXES


# Only the first digit is consumed; the rest is a lookahead. So a long number that is no card cannot hide a card that
# begins inside it.
_CARD_FORM = re.compile(
    r"\d(?<![^\W_]\d)(?<!\d\.\d)(?=(?P<rest>\d{13,18}"
    r"|\d{3}([ \u00a0.\u2010-\u2015-])\d{4}(?:\2\d{4}){2}(?:\2\d{1,3})?"
    r"|\d{3}([ \u00a0.\u2010-\u2015-])\d{6}\3\d{4,5})(?![^\W_]|\.\d))"
)
_CARD_NUMBER = re.compile(
    r"4\d{15}(?:\d{3})?|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-59]|[689]\d)\d{11}|6(?:011|4[4-9]\d|5\d\d)\d{12,15}|35(?:2[89]|[3-8]\d)\d{12,15}|62\d{14,17}"
    r"|(?:50|5[6-9]|6[37])\d{14,17}|220[0-4]\d{12,15}"
)
_NO_DIGIT = re.compile(r"\D")
_DOUBLED_DIGIT_SUMS = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
"""Sum of the digits of twice the digit that is the index, for the check digit of a card."""


def _find_card_numbers(text: str) -> Iterator[Span]:
    for match in find_matches(_CARD_FORM, text, lookahead_chars=30):
        start, end = match.start(), match.end("rest")
        digits = _NO_DIGIT.sub("", text[start:end])
        if not digits.isascii():  # digits of another script, such as full-width ones
            digits = "".join(str(int(digit)) for digit in digits)
        if _CARD_NUMBER.fullmatch(digits) is None:
            continue
        digit_values = [int(digit) for digit in digits]
        # The check digit of ISO/IEC 7812-1, annex B: from the end, each second digit counts twice.
        doubled_sum = sum(_DOUBLED_DIGIT_SUMS[digit_value] for digit_value in digit_values[-2::-2])
        if (sum(digit_values[::-2]) + doubled_sum) % 10 == 0:
            yield start, end


_IP = (
    r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
    r"|(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,38}(?:[0-9A-Fa-f]|::)(?:(?:\.[0-9]{1,3}){3})?)(?!\w|\.\d)"
)


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


PERSONAL = (
    Detector("email", make_finder(_EMAIL, lookahead_chars=700), check=_is_email_address),
    PHONES,
    Detector("card", _find_card_numbers),
    IBANS,
)

PERSONAL_ON_DEMAND = (Detector("ip", make_finder(_IP, lookahead_chars=60), check=_is_ip_address),)
"""Detectors of personal data that `Redact` uses only if they are chosen by name: many harmless numbers match them."""

LIBRARIES = {PHONES.name: "phonenumbers", IBANS.name: "schwifty"}
"""Names of the libraries that some detectors need, by the name of the detector."""
