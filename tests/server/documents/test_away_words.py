"""Log lines about a server that is away always give the reason."""

from callboard_actors._server._client import worded


def test_an_error_without_a_text_is_told_by_its_type() -> None:
    """A timeout has no text, and the line once showed empty brackets for it."""
    assert worded(TimeoutError()) == "TimeoutError"
    assert worded(OSError("no route")) == "no route"
