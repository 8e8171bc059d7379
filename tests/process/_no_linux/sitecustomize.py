"""Simulate a system with little more than POSIX, for every interpreter that has this folder on its path.

When worker processes are imported, `sys.platform` is macOS and Linux-only functions are missing. A process that calls
one of them all the same is ended.
"""

import fcntl
import importlib.abc
import os
import resource
import signal
import socket
import sys
import sysconfig

_ONLY_ON_LINUX = {
    os: ("memfd_create", "MFD_CLOEXEC", "waitid", "WNOWAIT", "P_ALL", "pidfd_open", "pipe2", "O_PATH"),
    socket: ("MSG_CMSG_CLOEXEC", "SO_PEERCRED"),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS"),
    resource: ("RLIMIT_AS", "prlimit"),
    signal: ("sigtimedwait",),
}
_ROOM = "callboard_actors.process"
_FOR_LINUX = (
    "callboard_actors._engine._libc",
    "callboard_actors.process._confinement._confinement",
    "callboard_actors.process._confinement._landlock",
    "callboard_actors.process._confinement._readable",
    "callboard_actors.process._confinement._seccomp",
)


def _end(feature: str) -> None:
    os.write(2, f"this is no Linux, and has no {feature}\n".encode())
    os._exit(99)


class _Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == _ROOM:
            _leave_linux()
        elif name in _FOR_LINUX:
            _end(name)


def _leave_linux() -> None:
    # Extension modules built for this machine have to be loaded under its real platform name.
    import asyncio as asyncio

    import trio as trio

    sysconfig.get_config_vars()
    for module, names in _ONLY_ON_LINUX.items():
        for name in names:
            vars(module).pop(name, None)
    sys.platform = "darwin"
    sys.addaudithook(_watch)


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith("/proc"):
        _end(str(args[0]))


sys.meta_path.insert(0, _Refuses())
