"""Output for a model: the head and the tail of it, as text without escape sequences."""

import re
from dataclasses import dataclass

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]PX^_].*?(?:\x07|\x1b\\|(?=\n)|$)"  # OSC and other strings: titles, links
    r"|\[[0-?]*[ -/]*$|$"  # one that was cut
    r"|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_RUNS = re.compile(r"\x08+|[^\x08]+")
_OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LOOKED_AT = 8192
"""Bytes that decide whether output is text."""
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Output, or its head and tail."""

    head: bytes
    left_out: int
    """Bytes between head and tail that were not kept."""
    tail: bytes

    @property
    def size(self) -> int:
        """Number of bytes of the whole output, with those that were left out."""
        return len(self.head) + self.left_out + len(self.tail)

    def text(self) -> str:
        """Return the text for a model; empty if there was no output."""
        if _is_binary(self.head[:_LOOKED_AT]) or _is_binary(self.tail[:_LOOKED_AT]):
            begin = (self.head or self.tail)[:_SHOWN].hex(" ")
            return f"[binary output, {self.size:,} bytes, is not shown; it begins with {begin}]"
        if not self.left_out:
            return clean(_decoded(self.head + self.tail))
        head = clean(_decoded(_without_cut_end(self.head)))
        tail = clean(_decoded(_without_cut_begin(self.tail)))
        between = f"[... {self.left_out:,} bytes left out ...]"
        return f"{head}\n{between}\n{tail}" if head else f"{between}\n{tail}"


def clean(text: str) -> str:
    """Return a text as a terminal would finally show it, without escape sequences and control characters."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    text = _OVERWRITTEN.sub("", text)
    if "\x08" in text:
        text = _without_struck(text)
    return _CONTROL.sub("", text)


def _without_struck(text: str) -> str:
    """Apply backspaces: each removes the character before it in its line."""
    left: list[str] = []
    for run in _RUNS.findall(text):
        if run[0] != "\x08":
            left += run
            continue
        for _ in run:
            if not left or left[-1] == "\n":
                break
            left.pop()
    return "".join(left)


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _without_cut_end(data: bytes) -> bytes:
    """Return the data without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data[:-back] if length > back else data
    return data if len(data) >= 4 else b""


def _without_cut_begin(data: bytes) -> bytes:
    """Return the data without an incomplete UTF-8 character at its beginning."""
    for at in range(min(4, len(data))):
        if data[at] & 0xC0 != 0x80:
            return data[at:]
    return data if len(data) >= 4 else b""


def _is_binary(data: bytes) -> bool:
    if b"\0" in data:
        return True
    whole = _without_cut_end(_without_cut_begin(data))
    broken = whole.decode(errors="replace").count("\ufffd")
    return broken > 8 and broken * 10 > len(whole)
