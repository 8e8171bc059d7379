"""Numbers of bank accounts, by the registry of IBANs (ISO 13616) that the library schwifty keeps."""

import re
from collections.abc import Iterator
from functools import cache

from callboard.middleware._redact._detectors import Detector, Span

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
    """What follows the country and the check digits; `None` if nothing does."""
    # An extra; whoever asks for this detector has seen that it is there.
    from schwifty import IBAN
    from schwifty.exceptions import SchwiftyException

    try:
        length = IBAN(country, allow_invalid=True).spec.iban_length
    except SchwiftyException:
        return None
    return re.compile(rf"(?:[ -]?[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9])")


def _is_valid(written: str) -> bool:
    """Whether structure and check digits are right."""
    from schwifty import IBAN

    return IBAN(_SEPARATOR.sub("", written), allow_invalid=True).is_valid


IBANS = Detector("iban", _ibans)
