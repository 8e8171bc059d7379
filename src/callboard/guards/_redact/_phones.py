"""Detector of telephone numbers in international form, by the numbering plans in the library phonenumbers.

A number counts if its country exists and has numbers of that length ("possible" in the library's terms). Checking for
assigned numbers ("valid") would miss made-up examples, and the assigned ranges change every month.
"""

import re
from collections.abc import Iterator

from callboard.guards._redact._detectors import Detector, Span

_FORM = re.compile(r"\+(?<![\w+]\+)\d(?:[ \u00a0.()/\u2010-\u2015-]{0,3}\d){7,15}(?!\w)")
_GROUP = re.compile(r"\d+")
_NORTH_AMERICA = "1"
_WITHIN = ("044", "045", "0", "1")
"""Prefixes after the country code that are valid only for domestic calls, but that gateways still write."""
_LONGEST_CODE = 12
"""Maximum characters of a country code: three digits and the separators between them."""


def _phones(text: str) -> Iterator[Span]:
    for found in _FORM.finditer(text):
        if _has_country(found[0]) and (end := _end(found[0])):
            yield found.start(), found.start() + end


def _has_country(found: str) -> bool:
    """Return whether a number begins with a country code; no code is a prefix of another."""
    # From an extra; `detectors_of()` has checked that it is installed.
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    digits = "".join(_GROUP.findall(found[:_LONGEST_CODE]))
    return any(int(digits[:length]) in COUNTRY_CODE_TO_REGION_CODE for length in (1, 2, 3))


def _end(found: str) -> int:
    """Return the end of the longest number at the beginning; other digits may follow it. 0 if there is none."""
    ends = [group.end() for group in _GROUP.finditer(found)]
    return next((end for end in reversed(ends) if _FORM.fullmatch(found, 0, end) and _is_number(found[:end])), 0)


def _is_number(written: str) -> bool:
    """Return whether a text is a number, as written or without a prefix for domestic calls."""
    return _is_possible(written) or any(map(_is_possible, _without_prefix("".join(_GROUP.findall(written)))))


def _without_prefix(digits: str) -> Iterator[str]:
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    length = next(length for length in (1, 2, 3) if int(digits[:length]) in COUNTRY_CODE_TO_REGION_CODE)
    code, rest = digits[:length], digits[length:]
    if code != _NORTH_AMERICA:
        yield from (f"+{code}{rest[len(one) :]}" for one in _WITHIN if rest.startswith(one))


def _is_possible(written: str) -> bool:
    from phonenumbers import NumberParseException, is_possible_number, national_significant_number, parse

    try:
        number = parse(written)
    except NumberParseException:
        return False
    # In North America no number begins with 0 or 1; the library checks that only for "valid" numbers.
    return is_possible_number(number) and not (
        number.country_code == 1 and national_significant_number(number).startswith(("0", "1"))
    )


PHONES = Detector("phone", _phones)
