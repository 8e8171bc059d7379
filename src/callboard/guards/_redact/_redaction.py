"""Redaction of one call: tokens for the secrets in values and errors, and the value of each token."""

import hmac
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from callboard._calls._call import note
from callboard._util._extras import is_installed, require
from callboard._util._suggestions import did_you_mean
from callboard.guards._redact._credentials import CREDENTIALS, CREDENTIALS_ON_DEMAND
from callboard.guards._redact._detectors import KIND, Detector, Finding, findings, literals
from callboard.guards._redact._personal import LIBRARIES, PERSONAL, PERSONAL_ON_DEMAND
from callboard.guards._redact._values import Clearing, RedactedError, Walk
from callboard.guards._sanitize._text import strip_invisible
from callboard.tools._errors import is_control_flow

DEFAULT_DETECTORS = tuple(detector.name for detector in (*CREDENTIALS, *PERSONAL))
"""Names of the detectors that `Redact` uses by default."""

TOKEN = re.compile(rf"<({KIND}):[0-9a-f]{{12}}>")
"""A token: its kind, and 48 bits of an HMAC of the value."""

_BUILT_IN = {one.name: one for one in (*CREDENTIALS, *PERSONAL, *CREDENTIALS_ON_DEMAND, *PERSONAL_ON_DEMAND)}
_LITERAL = "secret"
_SHORTEST = 4
"""Minimum characters of a literal secret; a shorter one would be found everywhere."""
_PASSES = 8
"""Maximum passes over a text. A new token may reveal another secret beside it; hostile text could repeat that."""


class Redaction:
    """Replaces secrets by tokens, and records the values."""

    def __init__(
        self, detectors: Sequence[Detector], key: bytes, thread_id: str, known: Mapping[str, str] | None = None
    ) -> None:
        self.values: dict[str, str] = {}
        self._kinds = Counter[str]()
        self._detectors = (*detectors, *_known(known or {}))
        self._names = {detector.name for detector in self._detectors}
        self._keyed = [detector for detector in detectors if detector.keys is not None]
        # Hashed first, because HMAC pads short keys with NUL: `key` and `key + b"\0"` would give the same tokens.
        self._key = sha256(key).digest()
        self._thread_id = thread_id

    def of(self, value: Any) -> Any:
        """Return a value without its secrets; the same object if it has none."""
        return Walk(self.text, self._named, Clearing(self.text, self._named).copy)(value)

    def cleared(self, error: Exception) -> Exception:
        """Return an error without secrets; control flow is cleared in place and keeps its type."""
        clearing = Clearing(self.text, self._named)
        if is_control_flow(error):
            clearing.control_flow(error)
            return error
        cleared = clearing.of(error)
        assert isinstance(cleared, Exception)
        return cleared

    def text(self, text: str) -> str:
        """Return a text without secrets. Invisible characters are removed too, if they hide a part of a secret."""
        for _ in range(_PASSES):
            replaced = self._replaced(text)
            if replaced == text:
                break
            text = replaced
        return text

    def tell(self) -> None:
        """Send observers the kinds and the number of the secrets found."""
        if self._kinds:
            note("redacted", kinds=sorted(self._kinds), count=self._kinds.total())

    def _named(self, name: str, text: str) -> str:
        for detector in self._keyed:
            if detector.is_key(name) and (detector.check is None or detector.check(text)) and not self._is_token(text):
                return self._token(detector.name, text)
        return self.text(text)

    def _is_token(self, text: str) -> bool:
        match = TOKEN.fullmatch(text)
        return match is not None and match[1] in self._names

    def _replaced(self, text: str) -> str:
        # An attacker may split a secret with invisible characters, or glue one to other text. So both readings are
        # searched, with and without those characters.
        found, visible = self._findings(text, self._detectors), strip_invisible(text)
        if visible == text:
            return self._with_tokens(text, found)
        written, seen = _secrets(text, found), _secrets(visible, self._findings(visible, self._detectors))
        if written == seen:
            return self._with_tokens(text, found)
        # Secrets that only the invisible characters separated from other text: search them literally in the visible
        # text.
        apart = [Detector(kind, literals([secret])) for kind, secret in sorted(written - seen)]
        return self._with_tokens(visible, self._findings(visible, (*self._detectors, *apart)))

    def _findings(self, text: str, detectors: Sequence[Detector]) -> list[Finding]:
        tokens = (match.span() for match in TOKEN.finditer(text) if match[1] in self._names)
        try:
            return findings(text, detectors, tokens)
        except Exception as error:
            # Fail closed. The error is raised outside of the handler, because its own text may show the secret.
            kind = type(error).__qualname__
        raise RedactedError(kind, "a detector failed, so nothing of the call is handed on")

    def _with_tokens(self, text: str, found: Iterable[Finding]) -> str:
        parts: list[str] = []
        done = 0
        for one in found:
            parts += [text[done : one.start], self._token(one.kind, text[one.start : one.end])]
            done = one.end
        return "".join([*parts, text[done:]])

    def _token(self, kind: str, value: str) -> str:
        # NUL separates the parts, so that no other thread, kind and value give the same bytes.
        about = f"{self._thread_id}\0{kind}\0{value}".encode("utf-8", "surrogatepass")
        token = f"<{kind}:{hmac.digest(self._key, about, 'sha256').hex()[:12]}>"
        self.values[token] = value
        self._kinds[kind] += 1
        return token


def _secrets(text: str, found: Iterable[Finding]) -> set[tuple[str, str]]:
    return {(one.kind, text[one.start : one.end]) for one in found}


def _known(values: Mapping[str, str]) -> list[Detector]:
    by_kind: dict[str, list[str]] = {}
    for token, value in values.items():
        match = TOKEN.fullmatch(token)
        if match is not None and len(value) >= _SHORTEST:
            by_kind.setdefault(match[1], []).append(value)
    return [Detector(kind, literals(found)) for kind, found in by_kind.items()]


def detectors_of(chosen: Sequence[str | Detector], secrets: Sequence[str]) -> tuple[Detector, ...]:
    """Return the detectors that are given by name or as objects, and one for literal secrets."""
    if isinstance(chosen, str):
        raise TypeError(f"Redact(detectors=...) takes a list of names or Detectors, got the string {chosen!r}")
    found = [*map(_detector, chosen), *_literal_detector(secrets)]
    for name, count in Counter(detector.name for detector in found).items():
        if count > 1:
            raise ValueError(f"Redact(detectors=...) has {count} detectors named {name!r}; rename or join them")
    _check_libraries(found)
    return tuple(found)


def _check_libraries(detectors: Sequence[Detector]) -> None:
    """Raise `ImportError`, with the remedies, if a library of a built-in detector is not installed."""
    # No detector is left out silently: the user would believe that the data is protected.
    built_in = [one.name for one in detectors if one is _BUILT_IN.get(one.name)]
    missing = {name: library for name, library in LIBRARIES.items() if name in built_in and not is_installed(library)}
    kinds = ", ".join(map(repr, missing))
    without = f"leave out what it finds: Redact([name for name in DEFAULT_DETECTORS if name not in [{kinds}]])"
    require(f"Redact(detectors=...) with {kinds}", *missing.values(), extra="redact", instead=without)


def _detector(one: object) -> Detector:
    if isinstance(one, Detector):
        return one
    if not isinstance(one, str):
        raise TypeError(f"Redact(detectors=...) takes names or Detectors, got {one!r}")
    if one not in _BUILT_IN:
        meant = did_you_mean(one, _BUILT_IN)
        raise ValueError(f"Redact(detectors=...) knows no {one!r}; there are {', '.join(_BUILT_IN)}{meant}")
    return _BUILT_IN[one]


def _literal_detector(secrets: Sequence[str]) -> list[Detector]:
    if isinstance(secrets, str):
        raise TypeError("Redact(secrets=...) takes a list of strings, got one string")
    for position, secret in enumerate(secrets):
        # Errors name the position, not the value: they may be logged.
        if not isinstance(secret, str):
            raise TypeError(f"Redact(secrets=...)[{position}] is not a string but a {type(secret).__name__}")
        if len(secret) < _SHORTEST:
            raise ValueError(
                f"Redact(secrets=...)[{position}] has {len(secret)} characters; leave out what is shorter than "
                f"{_SHORTEST}, because it would be found everywhere"
            )
    return [Detector(_LITERAL, literals(secrets))] if secrets else []
