"""System calls that a process does without from now on: a seccomp filter, as the kernel wants it, without a library.

What is not allowed fails with EPERM, so that a program goes on and says so; sizes of socket buffers are set to nothing
without an error. What nobody knew when this was written, and `clone3`, whose arguments no filter can see, fails with
ENOSYS, so that libraries take the older way.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from callboard_actors.process import _syscalls
from callboard_actors.process._libc import prctl

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32: Final = 0x40000000
"""From here on x86_64 has the same system calls once more, by other numbers."""

_LOAD: Final = 0x20
_AND: Final = 0x54
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_FAIL: Final = 0x00050000

_NUMBER_AT: Final = 0
_MACHINE_AT: Final = 4

_CLONE_THREAD: Final = 0x10000
_CLONE_ESCAPES: Final = 0x7E020000 | 0x8000 | 0x2000
"""Namespaces; a child of our parent; a tracer that comes along."""

_FCNTLS: Final = (*range(8), 9, 11, 16, 36, 37, 38, 1030, 1032, 1033, 1034)
"""Not F_SETOWN and its like, which send signals to anybody, and not F_SETPIPE_SZ, memory that no limit counts."""
_IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409, 0x4020940D, 0x802C542A)
"""Of terminals what `isatty` asks, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, and copies within a file system."""
_PROTOCOLS: Final = (0, 6, 17, 41)
"""Of IP, TCP, UDP and IPv6 any option may be set; for most of them the network has to be allowed."""
_SOCKET_OPTIONS: Final = (2, 5, 6, 9, 10, 12, 13, 15, 16, 18, 19, 20, 21, 29, 35, 37, 46, 49, 63, 64, 65, 66, 67)
"""Options of sockets themselves: addresses, keepalive, linger, timeouts, stamps of time. Not SO_SNDBUFFORCE and
SO_RCVBUFFORCE, nor filters: memory that no limit counts."""
_BUFFER_SIZES: Final = (7, 8)
"""SO_SNDBUF and SO_RCVBUF. They stay as they are without an error: the kernel, too, gives less than what was asked for
without a word, and trio sets them for a pair of its own."""
_PRCTLS: Final = (2, 3, 15, 16, 21, 23, 38, 39, 41, 42, 50, 51, 54, 55, 56, 0x53564D41)
"""Names of threads, what is asked only, and what concerns pointers and vectors; above all not PR_SET_PDEATHSIG."""


@dataclass(frozen=True, slots=True)
class Test:
    """An argument, masked, is one of these."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


_Alternatives = tuple[tuple[Test, ...], ...]
"""A call is allowed if all tests of one of them hold."""


def _only(argument: int, *values: int, mask: int = 0xFFFFFFFF) -> _Alternatives:
    return ((Test(argument, values, mask),),)


_FREELY: Final[_Alternatives] = ((),)
_PRETENDED: Final[Mapping[str, _Alternatives]] = {"setsockopt": ((Test(1, (1,)), Test(2, _BUFFER_SIZES)),)}
"""Calls that do nothing and succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a filter lets pass beside what everybody may."""

    network: bool
    processes: bool
    signals: bool
    """To anybody, because something else sees to it that they reach nobody outside."""


def program(machine: str, pid: int, allowed: Allowed) -> bytes:
    """Assemble a filter for the process with this number; an array of `struct sock_filter`."""
    numbers = _syscalls.conditional(machine)
    code = [_beginning(machine)]
    for name, alternatives in _conditions(pid, allowed).items():
        if name in numbers:
            block = _block(alternatives, _PRETENDED.get(name, ()))
            code += [_op(_EQUAL, numbers[name], 0, len(block)), *block]
    code += [_op(_AT_LEAST, _syscalls.NEWEST + 1, 0, 1), _op(_RETURN, _FAIL | errno.ENOSYS)]
    return b"".join([*code, _op(_RETURN, _FAIL | errno.EPERM)])


@cache
def _beginning(machine: str) -> bytes:
    """The part of the filter that is the same for every process, which is most of it."""
    code = [_op(_LOAD, _MACHINE_AT), _op(_EQUAL, _AUDIT[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER_AT)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, 0, 1), _op(_RETURN, _FAIL | errno.ENOSYS)]
    for number in _syscalls.always(machine).values():
        code += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ALLOW)]
    clone3 = _syscalls.conditional(machine)["clone3"]
    return b"".join([*code, _op(_EQUAL, clone3, 0, 1), _op(_RETURN, _FAIL | errno.ENOSYS)])


def _conditions(pid: int, allowed: Allowed) -> Mapping[str, _Alternatives]:
    oneself = (0, pid)
    found: dict[str, _Alternatives] = {
        "clone": _only(0, _CLONE_THREAD, mask=_CLONE_THREAD | _CLONE_ESCAPES),
        # An unconnected socket, or one of datagrams, could be connected to anybody's.
        "socketpair": ((Test(0, (1,)), Test(1, (1,), 0xF)),),
        "setsockopt": ((Test(1, _PROTOCOLS),), (Test(1, (1,)), Test(2, _SOCKET_OPTIONS))),
        "fcntl": _only(1, *_FCNTLS),
        "ioctl": _only(1, *_IOCTLS),
        "prctl": _only(0, *_PRCTLS),
        "prlimit64": _only(0, *oneself),
        "setpriority": ((Test(0, (0,)), Test(1, oneself)),),
        **dict.fromkeys(("sched_setaffinity", "sched_setscheduler", "sched_setparam"), _only(0, *oneself)),
        **dict.fromkeys(("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), _only(0, pid)),
    }
    free: list[str] = []
    if allowed.signals:
        free += ["kill", "tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal"]
    if allowed.processes:
        found["clone"] = _only(0, 0, mask=_CLONE_ESCAPES)
        free += ["fork", "vfork", "execve", "execveat", "setsid", "setpgid"]
    if allowed.network:
        found["socket"] = ((Test(0, (2, 10)), Test(1, (1, 2), 0xF)),)
        free += ["connect", "bind", "listen", "accept", "accept4"]
    return found | dict.fromkeys(free, _FREELY)


def _block(alternatives: _Alternatives, pretended: _Alternatives) -> list[bytes]:
    """Return allowed, pretended or refused for a system call that is the right one."""
    code: list[bytes] = []
    for tests in alternatives:
        code += _all_hold(tests, _ALLOW)
    for tests in pretended:
        code += _all_hold(tests, _FAIL)  # by no error at all, so that the caller sees a success
    return [*code, _op(_RETURN, _FAIL | errno.EPERM)]


def _all_hold(tests: Iterable[Test], verdict: int) -> list[bytes]:
    """Return the verdict if all tests hold, else go on behind it."""
    code = [_op(_RETURN, verdict)]
    for test in reversed(tuple(tests)):
        # Each value that fits jumps over those that are left, and over the jump to the end.
        count = len(test.values)
        values = [_op(_EQUAL, value, count - place, 0) for place, value in enumerate(test.values)]
        code = [_op(_LOAD, _argument_at(test.argument)), _op(_AND, test.mask), *values, _op(0x05, len(code)), *code]
    return code


def _argument_at(place: int) -> int:
    return 16 + 8 * place  # the lower half, which is all that those that we look at have


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


class _Program(ctypes.Structure):
    """`struct sock_fprog` of the kernel: a filter, and how many instructions it has."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def take_no_new_privileges() -> None:
    """From now on nothing that is executed may do more than this process; no file is set-user-id."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install(code: bytes) -> None:
    """Have the kernel ask this filter about every system call of this process, and of all that it starts."""
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(code) // 8, code)))
