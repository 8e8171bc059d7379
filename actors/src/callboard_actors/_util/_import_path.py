"""Search path of modules, for processes that import what this process would import."""

import sys
from typing import cast


def import_path() -> list[str]:
    """Return the entries of `sys.path` that are texts. Python ignores others, such as a `Path`."""
    return [entry for entry in sys.path if isinstance(cast("object", entry), str)]
