"""What a confined command needs beside what it was given: the programs of the system.

Its output goes to a file that has no name, and that its worker alone has open: no command finds the output of another.

It may read /proc: by that its worker finds what it has started, and many programs need it. The kernel shows nothing
there of the memory and the variables of processes that are not confined with it, but which there are.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/passwd",
    "/etc/group",
    "/proc",
)


def check_confinement(confine: Any, cwd: Path) -> None:
    """Refuse one in which no command could run.

    Raises:
        ValueError: it has no processes, or not the working directory.
    """
    if not confine.processes:
        raise ValueError("Shell(confine=...): commands are processes; say Confine(processes=True, ...)")
    known = [Path(path) for path in (*confine.read, *confine.write)]
    if not any(cwd.resolve().is_relative_to(path) for path in known):
        raise ValueError(f"Shell(confine=...): its `read` or `write` need the working directory, {str(cwd)!r}")


def confined(confine: Any) -> Any:
    """Return the confinement of the workers that run the commands."""
    system = [path for path in _SYSTEM if Path(path).exists()]
    return replace(confine, read=[*confine.read, *system])
