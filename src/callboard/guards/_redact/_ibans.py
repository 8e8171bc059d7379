"""Detector of bank account numbers: IBANs (ISO 13616), by the registry in the library schwifty."""

import re
from collections.abc import Iterator
from functools import cache

from callboard.guards._redact._detectors import Detector, Span

_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?=[ -]?[A-Za-z0-9])")
_SEPARATOR = re.compile("[ -]")


def _ibans(text: str) -> Iterator[Span]:
    for head in _HEAD.finditer(text):
        rest = _rest(head[0][:2].upper())
        found = rest.match(text, head.end()) if rest else None
        if found is not None and _is_valid(head[0] + found[0]):
            yield head.start(), found.end()


@cache
def _rest(country: str) -> re.Pattern[str] | None:
    """Return the pattern that follows the country and check digits; `None` if the country has no IBANs."""
    # From an extra; `detectors_of()` has checked that it is installed.
    from schwifty import IBAN
    from schwifty.exceptions import SchwiftyException

    try:
        length = IBAN(country, allow_invalid=True).spec.iban_length
    except SchwiftyException:
        return None
    return re.compile(rf"(?:[ -]?[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9])")


def _is_valid(written: str) -> bool:
    """Return whether structure and check digits are valid."""
    from schwifty import IBAN

    return IBAN(_SEPARATOR.sub("", written), allow_invalid=True).is_valid


IBANS = Detector("iban", _ibans)
