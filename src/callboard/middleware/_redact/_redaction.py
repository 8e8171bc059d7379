"""One redaction: tokens for the secrets in values and errors, and what each token stands for."""

import hmac
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from callboard._calls._call import note
from callboard._extras import is_installed, require
from callboard._suggestions import did_you_mean
from callboard.middleware._redact._credentials import CREDENTIALS, CREDENTIALS_ON_DEMAND
from callboard.middleware._redact._detectors import KIND, Detector, Finding, findings, literals
from callboard.middleware._redact._exceptions import Clearing, RedactedError
from callboard.middleware._redact._personal import LIBRARIES, PERSONAL, PERSONAL_ON_DEMAND
from callboard.middleware._redact._values import Walk
from callboard.middleware._sanitize._text import strip_invisible
from callboard.tools._errors import is_control_flow

DEFAULT_DETECTORS = tuple(detector.name for detector in (*CREDENTIALS, *PERSONAL))
"""The names of the detectors that are used where no others are named."""

TOKEN = re.compile(rf"<({KIND}):[0-9a-f]{{12}}>")

_BUILT_IN = {one.name: one for one in (*CREDENTIALS, *PERSONAL, *CREDENTIALS_ON_DEMAND, *PERSONAL_ON_DEMAND)}
_LITERAL = "secret"
_SHORTEST = 4
"""Characters; a shorter literal would turn up everywhere."""
_PASSES = 8
"""A token may set free what stood too close to a secret to be one; hostile text can go on like that for long."""


class Redaction:
    """Puts tokens in the place of secrets, and notes the values.

    Args:
        detectors: in order of precedence.
        key: of the tokens.
        thread_id: whose tokens they are.
        known: values by their tokens that are secret wherever they turn up.
    """

    def __init__(
        self, detectors: Sequence[Detector], key: bytes, thread_id: str, known: Mapping[str, str] | None = None
    ) -> None:
        self.values: dict[str, str] = {}
        self._kinds = Counter[str]()
        self._detectors = (*detectors, *_known(known or {}))
        self._names = {detector.name for detector in self._detectors}
        self._keyed = [detector for detector in detectors if detector.keys is not None]
        self._key = sha256(key).digest()  # first, or HMAC would take a key and the same one with a NUL behind for one
        self._thread_id = thread_id

    def of(self, value: Any) -> Any:
        """Returns a value without its secrets; the same object if it has none."""
        return Walk(self.text, self._named, Clearing(self.text, self._named).copy)(value)

    def cleared(self, error: Exception) -> Exception:
        """An error without secrets; control flow is cleared in place, and stays what it is."""
        clearing = Clearing(self.text, self._named)
        if is_control_flow(error):
            clearing.control_flow(error)
            return error
        cleared = clearing.of(error)
        assert isinstance(cleared, Exception)
        return cleared

    def text(self, text: str) -> str:
        """A text without secrets; it loses what is invisible in it where that hides one, or a part of one."""
        for _ in range(_PASSES):
            replaced = self._replaced(text)
            if replaced == text:
                break
            text = replaced
        return text

    def tell(self) -> None:
        """Note for observers what kinds of secrets were found, and how many."""
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
        found, visible = self._findings(text, self._detectors), strip_invisible(text)
        if visible == text:
            return self._with_tokens(text, found)
        written, seen = _secrets(text, found), _secrets(visible, self._findings(visible, self._detectors))
        if written == seen:
            return self._with_tokens(text, found)
        # What is a secret only because something invisible sets it apart, is one without that too.
        apart = [Detector(kind, literals([secret])) for kind, secret in sorted(written - seen)]
        return self._with_tokens(visible, self._findings(visible, (*self._detectors, *apart)))

    def _findings(self, text: str, detectors: Sequence[Detector]) -> list[Finding]:
        tokens = (match.span() for match in TOKEN.finditer(text) if match[1] in self._names)
        try:
            return findings(text, detectors, tokens)
        except Exception as error:
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
    """Detectors by their names, or as they are, and one for literal secrets.

    Raises:
        ValueError: for an unknown name, two detectors with one name, or a secret that is too short.
        TypeError: for anything else.
        ImportError: if the library of a detector is not installed. None is left out in silence: what is asked for by
            default, too, has to be found or be left out by name.
    """
    if isinstance(chosen, str):
        raise TypeError(f"Redact(detectors=...) takes a list of names or Detectors, got the string {chosen!r}")
    found = [*map(_detector, chosen), *_literal_detector(secrets)]
    for name, count in Counter(detector.name for detector in found).items():
        if count > 1:
            raise ValueError(f"Redact(detectors=...) has {count} detectors named {name!r}; rename or join them")
    _check_libraries(found)
    return tuple(found)


def _check_libraries(detectors: Sequence[Detector]) -> None:
    """Raise ImportError, with the remedies, if a library that one of these asks is not installed."""
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
        # Without the value: what this says may be logged.
        if not isinstance(secret, str):
            raise TypeError(f"Redact(secrets=...)[{position}] is not a string but a {type(secret).__name__}")
        if len(secret) < _SHORTEST:
            raise ValueError(
                f"Redact(secrets=...)[{position}] has {len(secret)} characters; leave out what is shorter than "
                f"{_SHORTEST}, because it would be found everywhere"
            )
    return [Detector(_LITERAL, literals(secrets))] if secrets else []
