"""Confinement of commands: the user's permissions, and the programs of the system.

The output of a command goes to a file without a name that only its worker has open, so no command can find the output
of another.

Commands may read /proc: the worker finds its descendants there, and many programs need it. The kernel hides the memory
and the variables of processes outside of the confinement, but not their existence.
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
    """Raise ValueError for a confinement in which no command could run: without processes or the working directory."""
    if not confine.processes:
        raise ValueError("Shell(confine=...): commands are processes; say Confine(processes=True, ...)")
    known = [Path(path) for path in (*confine.read, *confine.write)]
    if not any(cwd.resolve().is_relative_to(path) for path in known):
        raise ValueError(f"Shell(confine=...): its `read` or `write` need the working directory, {str(cwd)!r}")


def confined(confine: Any) -> Any:
    """Return the confinement of the workers that run the commands."""
    system = [path for path in _SYSTEM if Path(path).exists()]
    return replace(confine, read=[*confine.read, *system])
