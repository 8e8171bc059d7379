"""A log line about a server that is away always says why."""

from callboard_actors._server._client import worded


def test_an_error_without_a_text_is_told_by_its_type() -> None:
    """The line had empty brackets for a timeout."""
    assert worded(TimeoutError()) == "TimeoutError"
    assert worded(OSError("no route")) == "no route"
