"""Where a warning points to: the line of whoever uses callboard."""

import sys
from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def level_of_user() -> int:
    """The `stacklevel` with which a warning, raised by our caller, shows the first line outside of callboard."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
