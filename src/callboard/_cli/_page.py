"""A recording as a page."""

from callboard.telemetry._timeline import Recording


def page(recording: Recording) -> str:
    """The page."""
    return str(recording.path)
