"""Detectors of secrets in a text, and the merging of overlapping findings."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast
from urllib.parse import quote, quote_plus

from callboard._util._callers import check_plain_function, is_async

Span = tuple[int, int]
Finder = Callable[[str], Iterable[Span]]
"""Function from a text to the (start, end) of each secret that it finds."""

KIND_PATTERN = r"[a-z][a-z0-9_]{0,31}"
"""Pattern of a detector's name. The name is a part of each token that replaces a secret."""


@dataclass(frozen=True, slots=True)
class Detector:
    """Detector of one kind of secret: in texts, by a pattern or a function, and in dicts, by the names of keys.

    Args:
        name: kind of the secret, used in tokens: up to 32 lower-case letters, digits and underscores, a letter first.
        find: a regular expression, or a function from a text to (start, end) spans. If the expression has a
            group named `secret`, only the group is the secret. Expressions should take linear time.
        check: predicate of a found text; a match counts only if it is true.
        keys: a regular expression for dict keys. A string under a matching key is a secret as a whole.

    Raises:
        ValueError: if the name has another form, or an expression is not valid.
        TypeError: if `find` is neither an expression nor a plain function, or `check` is no plain function.
    """

    name: str
    find: str | re.Pattern[str] | Finder
    check: Callable[[str], bool] | None = None
    keys: str | re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.name), str) or re.fullmatch(KIND_PATTERN, self.name) is None:
            raise ValueError(f"Detector(name=...) is a word such as 'employee_id', got {self.name!r}")
        if is_async(self.find):
            raise TypeError(f"Detector(find=...) takes a regular expression or a plain function, got {self.find!r}")
        if not isinstance(self.find, re.Pattern) and not callable(self.find):
            object.__setattr__(self, "find", _compile_expression("find", self.find))
        if self.check is not None:
            check_plain_function("Detector(check=...)", self.check, "a text")
        if self.keys is not None and not isinstance(self.keys, re.Pattern):
            object.__setattr__(self, "keys", _compile_expression("keys", self.keys))

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the (start, end) of each secret that this detector finds in a text."""
        if isinstance(self.find, re.Pattern):
            spans: Iterable[Span] = find_spans(self.find, text)
        else:
            assert callable(self.find)
            # Functions of users may return spans outside of the text; clip them, or slices would be wrong.
            spans = ((max(0, start), min(end, len(text))) for start, end in self.find(text))
        for start, end in spans:
            if start < end and (self.check is None or self.check(text[start:end])):
                yield start, end

    def is_key(self, name: str) -> bool:
        """Return whether a dict key marks its string value as a secret, whatever the string contains."""
        return isinstance(self.keys, re.Pattern) and self.keys.search(name) is not None


def _compile_expression(option_name: str, expression: object) -> re.Pattern[str]:
    if not isinstance(expression, str):
        raise TypeError(f"Detector({option_name}=...) takes a regular expression, got {expression!r}")
    try:
        return re.compile(expression)
    except re.error as error:
        raise ValueError(f"Detector({option_name}={expression!r}) is no regular expression: {error}") from None


def find_spans(pattern: re.Pattern[str], text: str, lookahead_chars: int | None = None) -> Iterator[Span]:
    """Yield the (start, end) of each match of a pattern, or of its group `secret`."""
    group = "secret" if "secret" in pattern.groupindex else 0
    matches = pattern.finditer(text) if lookahead_chars is None else find_matches(pattern, text, lookahead_chars)
    return (match.span(group) for match in matches if match[group])


_MIN_PIECE_CHARS = 4_096
"""Minimum characters of a text that are searched at once."""


def find_matches(pattern: re.Pattern[str], text: str, lookahead_chars: int) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in a text, as `finditer` does; other threads can run after each piece.

    Args:
        pattern: the pattern; no match is empty.
        text: the text.
        lookahead_chars: the number of characters from its start that decide whether there is a match.
    """
    # One search holds the interpreter lock, so that over a megabyte it would stop the event loop from a thread.
    piece_chars = max(_MIN_PIECE_CHARS, 2 * lookahead_chars)
    start = 0
    while start < len(text):
        end = start + piece_chars
        match = pattern.search(text, start, end + lookahead_chars)
        if match is not None and match.end() == end + lookahead_chars:
            match = pattern.match(text, match.start())  # it may go on after this window
        if match is None or match.start() >= end:
            start = end
        else:
            yield match
            start = match.end()


def make_finder(expression: str, lookahead_chars: int) -> Finder:
    """Return a function that finds the matches of an expression; `lookahead_chars` as for `find_matches`."""
    pattern = re.compile(expression)
    return lambda text: find_spans(pattern, text, lookahead_chars)


class Finding(NamedTuple):
    """Position and kind of a secret that was found in a text."""

    start: int
    end: int
    kind: str
    longest_span_chars: int
    """Length of the longest span that was merged into this finding. The finding has the kind of this span."""


def find_secrets(text: str, detectors: Sequence[Detector], token_spans: Iterable[Span] = ()) -> list[Finding]:
    """Return the positions and kinds of the secrets in a text, in order and without overlaps."""
    # A finding inside a token is dropped, and a finding that overlaps a token includes the whole token.
    findings = [
        Finding(*span, detector.name, span[1] - span[0]) for detector in detectors for span in detector.spans(text)
    ]
    if not findings:
        return findings
    distinct_token_spans = set(token_spans)
    # A token is a finding without a kind, and is left out again at the end.
    findings += [Finding(*span, kind="", longest_span_chars=0) for span in distinct_token_spans]
    # Stable: for equal spans the order of detectors decides.
    findings.sort(key=lambda finding: (finding.start, -finding.end))
    merged = findings[:1]
    for finding in findings[1:]:
        last = merged[-1]
        if finding.start >= last.end:
            merged.append(finding)
            continue
        # Among equally long findings, the first to begin wins.
        dominant = finding if finding.longest_span_chars > last.longest_span_chars else last
        merged[-1] = Finding(last.start, max(last.end, finding.end), dominant.kind, dominant.longest_span_chars)
    return [finding for finding in merged if finding.kind and (finding.start, finding.end) not in distinct_token_spans]


def make_literal_finder(values: Iterable[str]) -> Finder:
    """Return a function that finds the strings `values` in a text, also in an encoded form such as base64."""
    forms = sorted({form for value in values for form in _encode_in_each_form(value)})

    def find(text: str) -> Iterator[Span]:
        for form in forms:
            start = text.find(form)
            while start >= 0:
                yield start, start + len(form)
                start = text.find(form, start + len(form))

    return find


def _encode_in_each_form(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    yield from (quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper())
    if len(raw) < 6:
        return  # so few characters of base64 occur by chance
    for offset in range(3):
        # Within longer base64 a value has three possible forms, by its offset modulo 3. The characters at both ends
        # also encode neighbouring bytes, so they are left out.
        encoded = base64.b64encode(b"\0" * offset + raw).rstrip(b"=").decode()
        core = encoded[(0, 2, 3)[offset] : len(encoded) - (0 if (offset + len(raw)) % 3 == 0 else 1)]
        yield from (core, core.replace("+", "-").replace("/", "_"))
