"""Seccomp filter: permanently refuses system calls of this process. Assembles the program without a library.

Refused calls fail with EPERM, so that programs report it. Setting a socket's buffer sizes does nothing, and succeeds.
Calls newer than this table fail with ENOSYS, so that libraries fall back to older calls. `clone3` fails with ENOSYS,
too, because no filter can read its arguments.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from callboard_actors._engine._libc import prctl
from callboard_actors.process._confinement import _syscalls

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32: Final = 0x40000000
"""First number of the x32 ABI of x86_64, which repeats the system calls under other numbers."""

# Opcodes of classic BPF: load a field of `struct seccomp_data`, mask, conditional jumps, return a verdict.
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
"""New namespaces, CLONE_PARENT, CLONE_PTRACE."""

_FCNTLS: Final = (*range(8), 9, 11, 16, 36, 37, 38, 1030, 1032, 1033, 1034)
"""Allowed commands.

Not F_SETOWN and F_SETSIG, which can send signals to any process. Not F_SETPIPE_SZ: no limit counts its memory.
"""
_IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409, 0x4020940D, 0x802C542A)
"""Allowed requests: terminal queries of `isatty`, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, copies within a file system."""
_PROTOCOLS: Final = (0, 6, 17, 41)
"""Protocols IP, TCP, UDP and IPv6, of which every option is allowed; most sockets of them need `network`."""
_SOCKET_OPTIONS: Final = (2, 5, 6, 9, 10, 12, 13, 15, 16, 18, 19, 20, 21, 29, 35, 37, 46, 49, 63, 64, 65, 66, 67)
"""Allowed SOL_SOCKET options: addresses, keepalive, linger, timeouts, timestamps.

Not SO_SNDBUFFORCE, SO_RCVBUFFORCE and filters: no limit counts their memory.
"""
_BUFFER_SIZES: Final = (7, 8)
"""SO_SNDBUF and SO_RCVBUF: ignored without an error.

The kernel, too, silently grants less than requested. trio sets both for its wake-up socket pair.
"""
_PRCTLS: Final = (2, 3, 15, 16, 21, 23, 38, 39, 41, 42, 50, 51, 54, 55, 56, 0x53564D41)
"""Allowed options: thread names, queries, settings of pointers and vectors. Above all not PR_SET_PDEATHSIG."""


@dataclass(frozen=True, slots=True)
class Test:
    """Condition on an argument: masked, it equals one of these values."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


_Alternatives = tuple[tuple[Test, ...], ...]
"""Conditions of a system call: allowed if all tests of at least one alternative hold."""


def _only(argument: int, *values: int, mask: int = 0xFFFFFFFF) -> _Alternatives:
    return ((Test(argument, values, mask),),)


_FREELY: Final[_Alternatives] = ((),)
_PRETENDED: Final[Mapping[str, _Alternatives]] = {"setsockopt": ((Test(1, (1,)), Test(2, _BUFFER_SIZES)),)}
"""Calls that do nothing and report success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Permissions beyond the system calls that every worker may make."""

    network: bool
    processes: bool
    signals: bool
    """Signals to any process id, because Landlock restricts them to the sandbox."""


def program(machine: str, pid: int, allowed: Allowed) -> bytes:
    """Assemble the filter for the process with this id: an array of `struct sock_filter`."""
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
    """Return the part of the filter that is the same for every process, which is most of it."""
    # First the architecture: under another one, the same numbers are other calls. A 32-bit call kills the process.
    code = [_op(_LOAD, _MACHINE_AT), _op(_EQUAL, _AUDIT[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER_AT)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, 0, 1), _op(_RETURN, _FAIL | errno.ENOSYS)]
    for number in _syscalls.always(machine).values():
        code += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ALLOW)]
    # Its flags lie behind a pointer. ENOSYS makes libc use `clone`, and the filter checks its flags.
    clone3 = _syscalls.conditional(machine)["clone3"]
    return b"".join([*code, _op(_EQUAL, clone3, 0, 1), _op(_RETURN, _FAIL | errno.ENOSYS)])


def _conditions(pid: int, allowed: Allowed) -> Mapping[str, _Alternatives]:
    oneself = (0, pid)
    found: dict[str, _Alternatives] = {
        # Threads only, and in no new namespace.
        "clone": _only(0, _CLONE_THREAD, mask=_CLONE_THREAD | _CLONE_ESCAPES),
        # Stream pairs only: an unconnected or a datagram socket could be connected to any UNIX socket.
        "socketpair": ((Test(0, (1,)), Test(1, (1,), 0xF)),),
        "setsockopt": ((Test(1, _PROTOCOLS),), (Test(1, (1,)), Test(2, _SOCKET_OPTIONS))),
        "fcntl": _only(1, *_FCNTLS),
        "ioctl": _only(1, *_IOCTLS),
        "prctl": _only(0, *_PRCTLS),
        "prlimit64": _only(0, *oneself),
        "setpriority": ((Test(0, (0,)), Test(1, oneself)),),
        **dict.fromkeys(("sched_setaffinity", "sched_setscheduler", "sched_setparam"), _only(0, *oneself)),
        # Only to the process itself, unless Landlock confines signals.
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
    """Return the instructions that decide one system call: allow, pretend success, or refuse."""
    code: list[bytes] = []
    for tests in alternatives:
        code += _all_hold(tests, _ALLOW)
    for tests in pretended:
        code += _all_hold(tests, _FAIL)  # with error number 0, which the caller sees as success
    return [*code, _op(_RETURN, _FAIL | errno.EPERM)]


def _all_hold(tests: Iterable[Test], verdict: int) -> list[bytes]:
    """Return instructions that end with the verdict if all tests hold, and otherwise continue after the block."""
    code = [_op(_RETURN, verdict)]
    for test in reversed(tuple(tests)):
        # A matching value jumps over the values after it, and over the jump that leaves the block.
        count = len(test.values)
        values = [_op(_EQUAL, value, count - place, 0) for place, value in enumerate(test.values)]
        code = [_op(_LOAD, _argument_at(test.argument)), _op(_AND, test.mask), *values, _op(0x05, len(code)), *code]
    return code


def _argument_at(place: int) -> int:
    return 16 + 8 * place  # offset of the lower 32 bits, which are enough for the arguments tested here


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


class _Program(ctypes.Structure):
    """`struct sock_fprog` of the kernel: number of instructions, and the filter."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def take_no_new_privileges() -> None:
    """Ignore set-user-id bits and file capabilities from now on, in this process and its descendants."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install(code: bytes) -> None:
    """Install the filter permanently for this process and its descendants."""
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(code) // 8, code)))
