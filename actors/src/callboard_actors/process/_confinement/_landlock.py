"""Bindings to Landlock, a Linux feature by which a process permanently restricts its use of files, sockets and signals.

Landlock does not restrict `stat`, such as existence, size and times of a file, nor changes of mode, owner and times.
The system call filter refuses these changes.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from callboard_actors._engine._libc import syscall

_LIBRARY: Final = "Landlock"
_CREATE_RULESET: Final = 444
_QUERY_VERSION: Final = 1
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_PATH_BENEATH: Final = 1

# Access rights for files, from linux/landlock.h. Rights that no rule grants, such as device nodes and sockets, have no
# name here.
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

# The kernel rejects a rule for a file that contains rights for folders.
_OF_A_FILE: Final = EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

TRUNCATES: Final = 3
"""First Landlock version that can refuse `truncate`. Before it, a process may empty each file that it may read."""
SIGNALS: Final = 6
"""First Landlock version that confines signals and abstract UNIX sockets to processes of the same sandbox."""

# Bind and connect; then scopes: abstract UNIX sockets and signals.
_TCP: Final = 0b11
_SCOPES: Final = 0b11


class Rule(NamedTuple):
    """Rule of Landlock: an open file or folder, and the access rights to it and to everything below it."""

    fd: int
    rights: int


def version() -> int:
    """Return the version of Landlock in the running kernel; 0 if the kernel does not support it."""
    try:
        return syscall(_LIBRARY, _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_QUERY_VERSION))
    except OSError:
        return 0


def open_rule(path: str, rights: int) -> Rule:
    """Open a path, and return the rule that grants the access rights `rights` to the path."""
    flags = os.O_CLOEXEC
    if sys.platform == "linux":  # for type checkers; this module is used on Linux only
        flags |= os.O_PATH
    fd = os.open(path, flags)
    # Checked after opening: the descriptor, unlike a path, cannot be redirected any more.
    actual_path = str(Path(f"/proc/self/fd/{fd}").readlink())
    if actual_path != path:
        os.close(fd)
        raise OSError(f"{path} leads to {actual_path} now")
    return Rule(fd, rights if stat.S_ISDIR(os.fstat(fd).st_mode) else rights & _OF_A_FILE)


def restrict_process(rules: Iterable[Rule], landlock_version: int, *, network: bool) -> None:
    """Restrict this process and its descendants for ever to files with a rule, and forbid TCP unless `network`."""
    # An encoded `struct landlock_ruleset_attr` with all restrictions that this Landlock version supports. The kernel
    # rejects unknown bits, so each version gets exactly the rights that it knows. Version 5 adds ioctl on devices.
    ruleset = struct.pack("=Q", (1 << (16 if landlock_version >= 5 else 15)) - 1)
    if landlock_version >= 4:
        ruleset += struct.pack("=Q", 0 if network else _TCP)
    if landlock_version >= SIGNALS:
        ruleset += struct.pack("=Q", _SCOPES)
    fd = syscall(_LIBRARY, _CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), ctypes.c_uint(0))
    try:
        # Everything that the attributes name is refused; each rule grants rights again.
        for rule in rules:
            path_rule = struct.pack("=Qi", rule.rights, rule.fd)
            syscall(_LIBRARY, _ADD_RULE, fd, _PATH_BENEATH, path_rule, ctypes.c_uint(0))
        syscall(_LIBRARY, _RESTRICT_SELF, fd, ctypes.c_uint(0))
    finally:
        os.close(fd)
