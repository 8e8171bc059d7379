"""Files, sockets and processes that a process does without from now on: Landlock, through ctypes.

What it does not know of is not refused by it: to ask whether a file is there, how large it is and when it was
changed, and to change its mode, owner and times. The latter is left to the filter of system calls.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from callboard_actors.process._libc import syscall

_NAME: Final = "Landlock"
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_REMOVE: Final = 1 << 4 | 1 << 5
_MAKE_DIR: Final = 1 << 7
_MAKE_FILE: Final = 1 << 8
_MAKE_LINK: Final = 1 << 12
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14

READ: Final = _READ_FILE | _READ_DIR
WRITE: Final = READ | _WRITE_FILE | _REMOVE | _MAKE_DIR | _MAKE_FILE | _MAKE_LINK | _REFER | _TRUNCATE

_OF_A_FILE: Final = EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

TRUNCATES: Final = 3
"""The first version that refuses to empty a file; before it, reading is enough for that."""
SIGNALS: Final = 6
"""The first version that keeps signals, and abstract UNIX sockets, to those that are confined together."""

_TCP: Final = 0b11
_SCOPES: Final = 0b11


class Rule(NamedTuple):
    """What may be done with a file, or with all below a folder."""

    fd: int
    rights: int


def version() -> int:
    """The version that this kernel has; 0 for none."""
    try:
        return syscall(_NAME, _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def rule(path: str, rights: int) -> Rule:
    """Open a path, and nothing behind a link that has come into it since it was resolved.

    Raises:
        OSError: it cannot be opened, or leads elsewhere now.
    """
    flags = os.O_CLOEXEC
    if sys.platform == "linux":  # it is nowhere else that anybody comes here
        flags |= os.O_PATH
    fd = os.open(path, flags)
    now = str(Path(f"/proc/self/fd/{fd}").readlink())
    if now != path:
        os.close(fd)
        raise OSError(f"{path} leads to {now} now")
    return Rule(fd, rights if stat.S_ISDIR(os.fstat(fd).st_mode) else rights & _OF_A_FILE)


def restrict(rules: Iterable[Rule], at_version: int, *, network: bool) -> None:
    """Refuse this process, and all that it starts, every file but these, for good.

    Also signals and tracing of any process but those that it starts, from `SIGNALS` on, and TCP without `network`.
    """
    ruleset = _attributes(at_version, network=network)
    fd = syscall(_NAME, _CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), ctypes.c_uint(0))
    try:
        for one in rules:
            beneath = struct.pack("=Qi", one.rights, one.fd)
            syscall(_NAME, _ADD_RULE, fd, _PATH_BENEATH, beneath, ctypes.c_uint(0))
        syscall(_NAME, _RESTRICT_SELF, fd, ctypes.c_uint(0))
    finally:
        os.close(fd)


def _attributes(at_version: int, *, network: bool) -> bytes:
    """Make a `struct landlock_ruleset_attr` with all that a kernel of this version can refuse."""
    files = (1 << (16 if at_version >= 5 else 15)) - 1
    found = struct.pack("=Q", files)
    if at_version >= 4:
        found += struct.pack("=Q", 0 if network else _TCP)
    if at_version >= SIGNALS:
        found += struct.pack("=Q", _SCOPES)
    return found
