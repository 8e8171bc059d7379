"""Checks of `callboard doctor`: whether this system can confine worker processes."""

import json
import platform
import subprocess
import sys

from callboard_actors.process._confinement import _landlock
from callboard_actors.process._confinement._confine import CannotConfineError, Confine
from callboard_actors.process._confinement._confinement import Confinement, reason_not_enforceable

_TIMEOUT = 10.0

Row = tuple[str, str, str, str]
"""Name, state, value and remedy of a check: a row of the table that `callboard doctor` prints."""


def checks() -> list[Row]:
    """Check whether this system can confine workers; return one row per check for the table of `callboard doctor`."""
    # Found by `callboard doctor` as an entry point in the group `callboard.doctor`. In a process of its own: a check
    # forks, which is safe only in a process with one thread.
    try:
        command = [sys.executable, "-m", __name__]
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=True)  # noqa: S603 (our own module)
    except (OSError, subprocess.SubprocessError) as error:
        return [("Confine(...)", "warning", f"the check failed: {error}", "")]
    return [tuple(row) for row in json.loads(done.stdout)]


def _check_rows() -> list[Row]:
    if platform.system() != "Linux":
        return [("Confine(...)", "absent", f"confines on Linux only, and this is {platform.system()}", "")]
    landlock_version = _landlock.version()
    rehearsal_error = None
    try:
        Confinement(Confine()).rehearse()
    except CannotConfineError as error:
        rehearsal_error = str(error)
    version_error = reason_not_enforceable(Confine(), landlock_version)
    return [
        _row("Landlock", f"version {landlock_version}", version_error, "use Linux 6.2 or later"),
        _row("seccomp", "a process confined itself", rehearsal_error, "use Linux 6.2 or later, on x86_64 or aarch64"),
    ]


def _row(name: str, value: str, reason: str | None, remedy: str) -> Row:
    return (name, "ok", value, "") if reason is None else (name, "absent", reason, remedy)


if __name__ == "__main__":
    print(json.dumps(_check_rows()))  # noqa: T201 (for the process that started this one)
