"""Rule `Text`, and removal of hidden parts of texts: escape sequences, controls, invisible characters.

The text may be hostile, so every function takes linear time.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from callboard._records._policies import check_count

Form = Literal["NFC", "NFKC"]
Treatment = Literal["remove", "refuse", "keep"]

# A string sequence ends at its terminator. If another control cuts it off, it is no sequence, and its text is shown.
# No class contains a character with which the next one begins; so there is no backtracking, and searches are linear.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\x0e-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[ -/]*[0-~]"  # the others of ECMA-48 and ECMA-35
)
_INTRODUCER = re.compile(r"[\x1b\x90\x98\x9b\x9d-\x9f]")
"""Pattern of the first character of every escape sequence."""
_CONTROL_CHAR = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_LINE_BREAK = re.compile(r"[\x0b\x0c\x85\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Default_Ignorable_Code_Point of Unicode, with bidirectional controls and interlinear annotations. Joiners and
# presentation selectors are missing here, because some scripts and emoji need them.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_ZERO_WIDTH_JOINER = "\u200d"
_JOINERS = f"\u200c{_ZERO_WIDTH_JOINER}"
_PRESENTATION_SELECTORS = "\ufe0e\ufe0f"
_JOINER_OR_SELECTOR = re.compile(f"[{_JOINERS}{_PRESENTATION_SELECTORS}]")
_MAX_QUOTE_CHARS = 40
_PIECE_CHARS = 20_000
"""Maximum characters per search. A search holds the GIL, so a long one would stall the event loop from a thread."""
_VIRAMA = 9
"""Unicode's canonical combining class of a virama, a sign after which joiners are needed."""
_MAX_MARKS_IN_A_ROW = 30
"""Maximum combining marks in a row: the Stream-Safe Text Format (UAX 15, section 13). Sorting more of them takes
quadratic time."""


class RefusedError(ValueError):
    """Raised for an argument that is not allowed."""

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        # Half a sentence for the model. It must not repeat the argument.
        self.reason = reason
        super().__init__(reason)


def strip_invisible(text: str) -> str:
    """Return a text without the characters and sequences that its reader would not see."""
    # Removed are escape sequences with their content (ECMA-48: colours, titles, links, cursor movements), control
    # characters except tab, line feed and carriage return, and characters that Unicode ignores by default. Joiners stay
    # where a script or an emoji needs them (RFC 5892, appendix A), and so does a presentation selector behind a symbol.
    # The function is idempotent, and takes linear time.
    # Sequences first: without their control characters they would look like ordinary text.
    text = _replace_in_pieces(_LINE_BREAK, "\n", _strip_escape_sequences(text))
    text = _replace_in_pieces(_CONTROL_CHAR, "", text)
    if text.isascii():
        return text
    text = _replace_in_pieces(_SURROGATE, "\ufffd", text)
    text = _replace_in_pieces(_INVISIBLE, "", text)
    return _JOINER_OR_SELECTOR.sub(_keep_needed_joiner, text)


def _strip_escape_sequences(text: str) -> str:
    if len(text) <= _PIECE_CHARS:
        return _ESCAPE_SEQUENCE.sub("", text)
    visible_parts: list[str] = []
    # Introducers are searched in pieces, but each sequence is matched in the whole text: it may cross a border.
    end = 0
    for start in range(0, len(text), _PIECE_CHARS):
        for introducer in _INTRODUCER.finditer(text, start, start + _PIECE_CHARS):
            begin = introducer.start()
            if begin >= end and (sequence := _ESCAPE_SEQUENCE.match(text, begin)) is not None:
                visible_parts.append(text[end:begin])
                end = sequence.end()
    return "".join([*visible_parts, text[end:]])


def _replace_in_pieces(char_pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Replace the matches of a one-character pattern in a text."""
    # Long texts are replaced in pieces, because other threads cannot run during a search.
    if len(text) <= _PIECE_CHARS:
        return char_pattern.sub(replacement, text)
    pieces = (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
    return "".join(char_pattern.sub(replacement, piece) for piece in pieces)


def _keep_needed_joiner(match: re.Match[str]) -> str:
    char, text, index = match[0], match.string, match.start()
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    is_keycap = before in tuple("#*0123456789") and after == "\u20e3"
    # A presentation selector stays behind a symbol, and in a keycap such as a digit in a box.
    if char in _PRESENTATION_SELECTORS and (is_keycap or _is_symbol(before)):
        return char
    # The next character must stay, or removing it later would leave this joiner without a partner.
    can_stay = before and after and after not in _JOINERS + _PRESENTATION_SELECTORS
    if char not in _JOINERS or not can_stay:
        return ""
    if unicodedata.combining(before) == _VIRAMA or (_is_arabic_letter(before) and _is_arabic_letter(after)):
        return char
    # An emoji may have a presentation selector between it and the joiner.
    base = text[max(0, index - 2)] if before in _PRESENTATION_SELECTORS else before
    return char if char == _ZERO_WIDTH_JOINER and _is_symbol(base) and _is_symbol(after) else ""


def _is_symbol(char: str) -> bool:
    """Return whether a character may be an emoji: all symbols outside ASCII count, because Python lists no emoji."""
    return char > "\x7f" and (unicodedata.category(char)[0] == "S" or char in "\u203c\u2049\u3030")


def _is_arabic_letter(char: str) -> bool:
    return unicodedata.bidirectional(char) == "AL"


def shorten(text: str, max_chars: int, omitted_chars: int = 0) -> str:
    """Cut a text to `max_chars`, and note how many characters were left out; `omitted_chars` of them were before."""
    if len(text) <= max_chars and not omitted_chars:
        return text
    total_chars = len(text) + omitted_chars
    # Computed with the largest number: a smaller number never makes the note longer.
    kept_chars = max(0, min(len(text), max_chars - len(_omission_note(total_chars))))
    return (text[:kept_chars] + _omission_note(total_chars - kept_chars))[:max_chars]


def _omission_note(count: int) -> str:
    return f"\n[... {count:,} more characters left out]"


def quote_untrusted(text: str) -> str:
    """Return an untrusted text in a form that is safe to print: quoted, escaped to ASCII, and cut."""
    quoted = ascii(text[:_MAX_QUOTE_CHARS])
    return quoted if len(text) <= _MAX_QUOTE_CHARS else f"{quoted}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Rule for a text argument: its maximum length, its Unicode form, and the treatment of invisible characters.

    Args:
        max_chars: maximum length in characters; `None` for any length.
        form: Unicode normalisation form. NFC changes how characters are stored, never their meaning; NFKC
            also replaces lookalikes (`ﬁ`, `①`, `²`, full width), for names and numbers. `None` for no change.
        invisible: treatment of escape sequences, controls and invisible characters (see `strip_invisible`):
            "remove" them, "refuse" the call, or "keep" them.

    Raises:
        ValueError: if an option is out of range.
    """

    max_chars: int | None = 100_000
    form: Form | None = "NFC"
    invisible: Treatment = "remove"

    def __post_init__(self) -> None:
        if self.max_chars is not None:
            check_count("Text(max_chars=...)", self.max_chars, least=1)
        if self.form not in ("NFC", "NFKC", None):
            raise ValueError(f"Text(form=...) is 'NFC', 'NFKC' or None, got {self.form!r}")
        if self.invisible not in ("remove", "refuse", "keep"):
            raise ValueError(f"Text(invisible=...) is 'remove', 'refuse' or 'keep', got {self.invisible!r}")

    def check(self, value: object) -> object:
        """Return the checked and cleaned text for the tool; return `None` for `None`.

        Raises:
            RefusedError: if the value is no text, is too long, or contains refused characters.
        """
        if value is None:
            return None
        if not isinstance(value, str):
            raise RefusedError("type", "it has to be a text")
        # Before the cleaning, which would take time for a huge text; and again below, as NFKC may make it longer.
        self._check_length(value)
        clean = value if self.invisible == "keep" else strip_invisible(value)
        if self.invisible == "refuse" and clean != value:
            raise RefusedError("invisible", "it holds control or invisible characters")
        if self.form is None or clean.isascii():
            return clean
        normal = normalize(self.form, clean)
        # Normalisation may move a mark away from a joiner, and stripping may join characters that then combine. So
        # repeat both until nothing changes: otherwise a second check of the same text would give another result.
        while self.invisible != "keep" and (clean := strip_invisible(normal)) != normal:
            normal = normalize(self.form, clean)
        self._check_length(normal)
        return normal

    def _check_length(self, text: str) -> None:
        if self.max_chars is not None and len(text) > self.max_chars:
            raise RefusedError("size", f"it has {len(text):,} characters, and {self.max_chars:,} are the most")


def normalize(form: Form, text: str) -> str:
    """Return a text in a Unicode normalisation form; raise `RefusedError` for too many combining marks in a row."""
    marks_in_a_row = 0
    for combining in map(unicodedata.combining, text):
        marks_in_a_row = marks_in_a_row + 1 if combining else 0
        if marks_in_a_row > _MAX_MARKS_IN_A_ROW:
            raise RefusedError("marks", f"it has more than {_MAX_MARKS_IN_A_ROW} combining marks in a row")
    return unicodedata.normalize(form, text)
