"""Shortening of program output for a model: head and tail, as text without escape sequences."""

import re
from codecs import getincrementaldecoder
from dataclasses import dataclass

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]PX^_].*?(?:\x07|\x1b\\|(?=\n)|$)"  # OSC and other strings: titles, links
    r"|\[[0-?]*[ -/]*$|$"  # one that was cut
    r"|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_BACKSPACE_RUNS = re.compile(r"\x08+|[^\x08]+")
_OVERWRITTEN_TEXT = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DECODER = getincrementaldecoder("utf-8")
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes that continue a UTF-8 character, and never begin one."""
_CHECKED_BYTES = 8192
"""Number of bytes of head and tail that are checked to decide whether output is text or binary."""
_HEX_BYTES = 16


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Output of a program; of a long output, only the head and the tail."""

    head: bytes
    omitted_bytes: int
    """Bytes between head and tail that were not kept."""
    tail: bytes

    @property
    def size(self) -> int:
        """Number of bytes of the whole output, including the bytes that were left out."""
        return len(self.head) + self.omitted_bytes + len(self.tail)

    def text(self) -> str:
        """Return the output as text for a model; empty if there was no output."""
        if _is_binary(self.head[:_CHECKED_BYTES]) or _is_binary(self.tail[:_CHECKED_BYTES]):
            begin = (self.head or self.tail)[:_HEX_BYTES].hex(" ")
            return f"[binary output, {self.size:,} bytes, is not shown; it begins with {begin}]"
        if not self.omitted_bytes:
            return clean_text(_decode(self.head + self.tail))
        head = clean_text(_decode(self.head, is_cut=True))
        tail = clean_text(_decode(_drop_cut_character(self.tail)))
        between = f"[... {self.omitted_bytes:,} bytes left out ...]"
        return f"{head}\n{between}\n{tail}" if head else f"{between}\n{tail}"


def clean_text(text: str) -> str:
    """Return a text as a terminal would finally show it, without escape sequences and control characters."""
    text = _ESCAPE_SEQUENCES.sub("", text).replace("\r\n", "\n")
    text = _OVERWRITTEN_TEXT.sub("", text)
    if "\x08" in text:
        text = _apply_backspaces(text)
    return _CONTROL_CHARACTERS.sub("", text)


def _apply_backspaces(text: str) -> str:
    """Apply the backspaces in a text: each removes the character before it in its line."""
    characters: list[str] = []
    for run in _BACKSPACE_RUNS.findall(text):
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


def _drop_cut_character(data: bytes) -> bytes:
    """Return data without the bytes at the beginning that belong to an incomplete UTF-8 character."""
    # A character has at most four bytes, and later ones are not cut.
    return data[:4].lstrip(_CONTINUATION) + data[4:]


def _is_binary(data: bytes) -> bool:
    if b"\0" in data:
        return True
    # A text in another encoding, or with a few broken characters, is still worth showing.
    broken_characters = _decode(_drop_cut_character(data), is_cut=True).count("\ufffd")
    return broken_characters > 8 and broken_characters * 10 > len(data)
