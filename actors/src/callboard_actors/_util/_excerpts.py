"""Shortening of program output for a model: head and tail, as text without escape sequences."""

import re
from codecs import getincrementaldecoder
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
_DECODER = getincrementaldecoder("utf-8")
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes that continue a UTF-8 character, and never begin one."""
_LOOKED_AT = 8192
"""Number of bytes of head and tail that are checked to decide whether output is text or binary."""
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Output of a program; of a long output, only the head and the tail."""

    head: bytes
    left_out: int
    """Bytes between head and tail that were not kept."""
    tail: bytes

    @property
    def size(self) -> int:
        """Number of bytes of the whole output, including the bytes that were left out."""
        return len(self.head) + self.left_out + len(self.tail)

    def text(self) -> str:
        """Return the output as text for a model; empty if there was no output."""
        if _is_binary(self.head[:_LOOKED_AT]) or _is_binary(self.tail[:_LOOKED_AT]):
            begin = (self.head or self.tail)[:_SHOWN].hex(" ")
            return f"[binary output, {self.size:,} bytes, is not shown; it begins with {begin}]"
        if not self.left_out:
            return clean(_decode(self.head + self.tail))
        head = clean(_decode(self.head, is_cut=True))
        tail = clean(_decode(_without_cut_begin(self.tail)))
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
    """Apply the backspaces in a text: each removes the character before it in its line."""
    characters: list[str] = []
    for run in _RUNS.findall(text):
        if run[0] != "\x08":
            characters += run
            continue
        for _ in run:
            if not characters or characters[-1] == "\n":
                break
            characters.pop()
    return "".join(characters)


def _decode(data: bytes, *, is_cut: bool = False) -> str:
    """Decode UTF-8 data; if the data was cut, leave out an incomplete character at its end."""
    return _DECODER("replace").decode(data, final=not is_cut)


def _without_cut_begin(data: bytes) -> bytes:
    """Return data without the bytes at the beginning that belong to an incomplete UTF-8 character."""
    return data[:4].lstrip(_CONTINUATION) + data[4:]


def _is_binary(data: bytes) -> bool:
    if b"\0" in data:
        return True
    broken = _decode(_without_cut_begin(data), is_cut=True).count("\ufffd")
    return broken > 8 and broken * 10 > len(data)
