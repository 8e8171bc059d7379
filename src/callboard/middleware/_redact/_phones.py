"""Telephone numbers in international form, by the numbering plans that the library phonenumbers keeps.

A number counts if there is such a country and its numbers can be that long ("possible", as the library says). Which
numbers are given out ("valid") changes every month, and those that people make up in examples never are.
"""

import re
from collections.abc import Iterator

from callboard.middleware._redact._detectors import Detector, Span

_FORM = re.compile(r"\+(?<![\w+]\+)\d(?:[ \u00a0.()/\u2010-\u2015-]{0,3}\d){7,15}(?!\w)")
_GROUP = re.compile(r"\d+")
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
    return next((end for end in reversed(ends) if _FORM.fullmatch(found, 0, end) and _is_possible(found[:end])), 0)


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
