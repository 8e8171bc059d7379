"""Cleaning of output for models."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard_actors._util._excerpts import Excerpt, clean


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07plain", "red plain"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        ("b\x08bo\x08ol\x08ld", "bold"),
        ("a\x00b\x07c\x9b1md\x7f\te", "abcd\te"),
        ("cut \x1b[3", "cut "),
        ("cut \x1b", "cut "),
        ("an \x1b(Bascii", "an ascii"),
    ],
)
def test_escapes_and_control_characters_are_gone(written: str, read: str) -> None:
    """The model reads the text that a terminal would finally show."""
    assert clean(written) == read


@given(st.text(alphabet="ab\n\x08"))
def test_a_backspace_takes_away_the_character_before_it(written: str) -> None:
    """The result equals that of applying backspaces one by one, in linear time; a backspace never leaves its line."""
    expected = written
    while (shorter := re.sub("[^\n\x08]\x08", "", expected)) != expected:
        expected = shorter

    assert clean(written) == expected.replace("\x08", "")


def test_backspaces_take_no_time_that_grows_with_their_square() -> None:
    """The text is cleaned on the event loop, so quadratic time would block it."""
    begun = time.process_time()
    assert clean("tea" + "x" * 300_000 + "\x08" * 300_000) == "tea"

    assert time.process_time() - begun < 5


@given(st.text())
def test_nothing_but_text_is_left(text: str) -> None:
    """No control characters are left, whatever the input is."""
    assert all(sign in "\n\t" or not (ord(sign) < 32 or 127 <= ord(sign) < 160) for sign in clean(text))


@given(st.text(alphabet="aä€😀", min_size=1, max_size=60), st.data())
def test_no_character_is_cut(text: str, data: st.DataObject) -> None:
    """Half of a UTF-8 character would be decoded to a character that the command did not write."""
    whole = text.encode()
    end = data.draw(st.integers(0, len(whole)))
    begin = data.draw(st.integers(end, len(whole)))
    read = Excerpt(whole[:end], begin - end, whole[begin:]).text()

    assert "\ufffd" not in read
    if begin == end:
        assert read == text
    else:
        head, tail = read.split(f"[... {begin - end:,} bytes left out ...]\n")
        assert text.startswith(head.removesuffix("\n"))
        assert text.endswith(tail)
