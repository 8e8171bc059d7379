"""Telephone numbers in international form, by the numbering plans that the library phonenumbers keeps.

A number counts if there is such a country and its numbers can be that long ("possible", as the library says). Which
numbers are given out ("valid") changes every month, and those that people make up in examples never are.
"""

import re
from collections.abc import Iterator

from callboard.middleware._redact._detectors import Detector, Span

_FORM = re.compile(r"\+(?<![\w+]\+)\d(?:[ \u00a0.()/\u2010-\u2015-]{0,3}\d){7,15}(?!\w)")
_GROUP = re.compile(r"\d+")
_NORTH_AMERICA = "1"
_WITHIN = ("044", "045", "0", "1")
"""Of Mexico's mobile telephones, of most other countries, and of Mexico's again, abroad: gateways still write it."""
_LONGEST_CODE = 12
"""Characters, with all that may stand between three digits."""


def _phones(text: str) -> Iterator[Span]:
    for found in _FORM.finditer(text):
        if _has_country(found[0]) and (end := _end(found[0])):
            yield found.start(), found.start() + end


def _has_country(found: str) -> bool:
    """Whether a number begins with the code of a country; none is the beginning of another."""
    # An extra, as below; whoever asks for this detector has seen that it is there.
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    digits = "".join(_GROUP.findall(found[:_LONGEST_CODE]))
    return any(int(digits[:length]) in COUNTRY_CODE_TO_REGION_CODE for length in (1, 2, 3))


def _end(found: str) -> int:
    """Where a number ends, which other digits may follow; 0 if it is none."""
    ends = [group.end() for group in _GROUP.finditer(found)]
    return next((end for end in reversed(ends) if _FORM.fullmatch(found, 0, end) and _is_number(found[:end])), 0)


def _is_number(written: str) -> bool:
    """Whether it is one, also with a prefix behind the country's code that is dialled within the country only."""
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
    # In North America no number begins with 0 or 1; of that, the library speaks of valid numbers only.
    return is_possible_number(number) and not (
        number.country_code == 1 and national_significant_number(number).startswith(("0", "1"))
    )


PHONES = Detector("phone", _phones)
