"""Where secrets stand in a text: detectors, and what becomes of findings that overlap.

Plain functions on strings; knows neither tools nor calls.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, quote_plus

Span = tuple[int, int]
Finder = Callable[[str], Iterable[Span]]
"""From a text to the (start, end) of what it finds."""

KIND = r"[a-z][a-z0-9_]{0,31}"


@dataclass(frozen=True, slots=True)
class Detector:
    """Finds one kind of secret.

    Args:
        name: the kind, as it stands in tokens: up to 32 lower-case letters, digits and underscores.
        find: a regular expression, or a function from a text to (start, end) spans. If the expression has a
            group named `secret`, only the group is the secret. Expressions should take linear time.
        check: says of what was found whether it really is one; by default everything is.
        keys: a regular expression; a string under a dict key in which it is found is a secret as a whole.

    Raises:
        ValueError: for a name of another form, or an expression that is none.
        TypeError: for a `find` that is neither an expression nor a function.
    """

    name: str
    find: str | re.Pattern[str] | Finder
    check: Callable[[str], bool] | None = None
    keys: str | re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise ValueError(f"Detector(name=...) is a word such as 'employee_id', got {self.name!r}")
        if not isinstance(self.find, re.Pattern) and not callable(self.find):
            object.__setattr__(self, "find", _compiled("find", self.find))
        if self.keys is not None and not isinstance(self.keys, re.Pattern):
            object.__setattr__(self, "keys", _compiled("keys", self.keys))

    def spans(self, text: str) -> Iterator[Span]:
        """The (start, end) of every secret of this kind in a text."""
        found = spans_of(self.find, text) if isinstance(self.find, re.Pattern) else self._of_function(text)
        return found if self.check is None else (span for span in found if self.check(text[slice(*span)]))

    def is_key(self, name: str) -> bool:
        """Whether a string under this dict key is a secret."""
        return isinstance(self.keys, re.Pattern) and self.keys.search(name) is not None

    def _of_function(self, text: str) -> Iterator[Span]:
        assert callable(self.find)
        for start, end in self.find(text):
            first, last = max(0, start), min(end, len(text))
            if first < last:
                yield first, last


def _is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(KIND, value) is not None


def _compiled(argument: str, expression: object) -> re.Pattern[str]:
    if not isinstance(expression, str):
        raise TypeError(f"Detector({argument}=...) takes a regular expression, got {expression!r}")
    try:
        return re.compile(expression)
    except re.error as error:
        raise ValueError(f"Detector({argument}={expression!r}) is no regular expression: {error}") from None


def spans_of(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    """Where an expression matches; where its group `secret` does, if it has one."""
    group = "secret" if "secret" in pattern.groupindex else 0
    return (match.span(group) for match in pattern.finditer(text) if match[group])


class Finding(NamedTuple):
    """A secret in a text."""

    start: int
    end: int
    kind: str
    weight: int
    """The length of the longest span it was joined from, whose kind it has."""


def findings(text: str, detectors: Sequence[Detector], tokens: Iterable[Span] = ()) -> list[Finding]:
    """What the detectors find in a text, in order and without overlaps.

    Spans that overlap become one, of the kind of the longest; of two as long, the first to begin, and then that
    of the earlier detector. `tokens` stay whole: what is inside one is no secret, what reaches into it takes it in.
    """
    found = [Finding(*span, one.name, span[1] - span[0]) for one in detectors for span in one.spans(text)]
    if not found:
        return found
    whole = set(tokens)
    joined = _joined([*found, *(Finding(*token, "", 0) for token in whole)])
    return [one for one in joined if one.kind and (one.start, one.end) not in whole]


def _joined(found: list[Finding]) -> list[Finding]:
    found.sort(key=lambda one: (one.start, -one.end))  # stable, so the order of detectors decides the rest
    joined = found[:1]
    for one in found[1:]:
        last = joined[-1]
        if one.start >= last.end:
            joined.append(one)
            continue
        longest = one if one.weight > last.weight else last
        joined[-1] = Finding(last.start, max(last.end, one.end), longest.kind, longest.weight)
    return joined


def literals(values: Iterable[str]) -> Finder:
    """Finds these values: as they are, percent-encoded, escaped as in JSON or `repr`, in base64 and in hex."""
    forms = sorted({form for value in values for form in _forms(value)})

    def find(text: str) -> Iterator[Span]:
        for form in forms:
            start = text.find(form)
            while start >= 0:
                yield start, start + len(form)
                start = text.find(form, start + len(form))

    return find


def _forms(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    yield from (quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper())
    if len(raw) < 6:
        return  # so little base64 turns up anywhere
    for offset in range(3):
        # Inside longer base64 a value has one of three forms; what it shares with its neighbours is left out.
        whole = base64.b64encode(b"\0" * offset + raw).rstrip(b"=").decode()
        core = whole[(0, 2, 3)[offset] : len(whole) - (0 if (offset + len(raw)) % 3 == 0 else 1)]
        yield from (core, core.replace("+", "-").replace("/", "_"))
