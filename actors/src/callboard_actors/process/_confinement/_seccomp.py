"""Seccomp filter that permanently refuses system calls of this process, and the code that assembles the filter.

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

# System calls that confined workers may make, by name, with their numbers per machine.

MACHINES: Final = ("x86_64", "aarch64")
"""Machine names as in `os.uname()`, one for each column of numbers below; `-` means that the machine lacks the call."""

_ALWAYS: Final = """
    # files, which Landlock judges
    open 2 -; openat 257 56; openat2 437 437; creat 85 -; close 3 57; close_range 436 436; read 0 63; pread64 17 67;
    readv 19 65; preadv 295 69; preadv2 327 286; write 1 64; pwrite64 18 68; writev 20 66; pwritev 296 70;
    pwritev2 328 287; lseek 8 62; stat 4 -; fstat 5 80; lstat 6 -; newfstatat 262 79; statx 332 291; access 21 -;
    faccessat 269 48; faccessat2 439 439; readlink 89 -; readlinkat 267 78; getdents 78 -; getdents64 217 61;
    getcwd 79 17; chdir 80 49; fchdir 81 50; truncate 76 45; ftruncate 77 46; fallocate 285 47; fadvise64 221 223;
    readahead 187 213; fsync 74 82; fdatasync 75 83; sync_file_range 277 84; flock 73 32; dup 32 23; dup2 33 -;
    dup3 292 24; pipe 22 -; pipe2 293 59; sendfile 40 71; copy_file_range 326 285; splice 275 76; tee 276 77;
    umask 95 166; statfs 137 43; fstatfs 138 44; rename 82 -; renameat 264 38; renameat2 316 276; mkdir 83 -;
    mkdirat 258 34; rmdir 84 -; link 86 -; linkat 265 37; unlink 87 -; unlinkat 263 35; symlink 88 -;
    symlinkat 266 36
    # memory
    brk 12 214; mmap 9 222; munmap 11 215; mremap 25 216; mprotect 10 226; msync 26 227; mincore 27 232;
    madvise 28 233; mlock 149 228; mlock2 325 284; munlock 150 229; mbind 237 235; get_mempolicy 239 236;
    set_mempolicy 238 237; membarrier 324 283; pkey_alloc 330 289; pkey_free 331 290; pkey_mprotect 329 288;
    map_shadow_stack 453 453; mseal 462 462
    # threads and this process
    exit 60 93; exit_group 231 94; set_tid_address 218 96; set_robust_list 273 99; get_robust_list 274 100;
    rseq 334 293; futex 202 98; futex_waitv 449 449; futex_wake 454 454; futex_wait 455 455; futex_requeue 456 456;
    arch_prctl 158 -; gettid 186 178; getpid 39 172; getppid 110 173; getpgrp 111 -; getpgid 121 155;
    getsid 124 156; getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getresuid 118 148;
    getresgid 120 150; getgroups 115 158; uname 63 160; sysinfo 99 179; times 100 153; getrusage 98 165;
    getrlimit 97 163; setrlimit 160 164; getcpu 309 168; getrandom 318 278; getpriority 140 141; sched_yield 24 124;
    sched_getaffinity 204 123; sched_getparam 143 121; sched_getscheduler 145 120; sched_get_priority_max 146 125;
    sched_get_priority_min 147 126; sched_rr_get_interval 148 127; restart_syscall 219 128; wait4 61 260;
    waitid 247 95
    # signals to oneself
    rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigpending 127 136; rt_sigtimedwait 128 137;
    rt_sigsuspend 130 133; sigaltstack 131 132; pause 34 -; signalfd 282 -; signalfd4 289 74
    # time
    nanosleep 35 101; clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169;
    time 201 -; getitimer 36 102; setitimer 38 103; alarm 37 -; timer_create 222 107; timer_settime 223 110;
    timer_gettime 224 108; timer_getoverrun 225 109; timer_delete 226 111; timerfd_create 283 85;
    timerfd_settime 286 86; timerfd_gettime 287 87
    # waiting
    poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -; epoll_create1 291 20;
    epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22; epoll_pwait2 441 441; eventfd 284 -; eventfd2 290 19
    # sockets that are there
    sendto 44 206; recvfrom 45 207; sendmsg 46 211; recvmsg 47 212; sendmmsg 307 269; recvmmsg 299 243;
    shutdown 48 210; getsockname 51 204; getpeername 52 205; getsockopt 55 209
"""
_CONDITIONAL: Final = """
    # their arguments are looked at, or it depends on what is allowed
    socket 41 198; socketpair 53 199; clone 56 220; clone3 435 435; kill 62 129; tgkill 234 131; tkill 200 130;
    rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240; pidfd_open 434 434; pidfd_send_signal 424 424; fcntl 72 25;
    ioctl 16 29; prctl 157 167; prlimit64 302 261; setpriority 141 140; sched_setaffinity 203 122;
    sched_setscheduler 144 119; sched_setparam 142 118; connect 42 203; bind 49 200; listen 50 201; accept 43 202;
    accept4 288 242; setsockopt 54 208; fork 57 -; vfork 58 -; execve 59 221; execveat 322 281; setsid 112 157;
    setpgid 109 154
"""
NEWEST: Final = 462
"""Highest system call number known here. The filter refuses higher numbers with ENOSYS, lower numbers with EPERM."""


def always_allowed(machine: str) -> dict[str, int]:
    """Return the system calls that the filter always allows, as a mapping from name to number."""
    # The objects of these calls are protected by Landlock or by the filtering of other calls.
    return _parse_numbers(_ALWAYS, machine)


def conditionally_allowed(machine: str) -> dict[str, int]:
    """Return the system calls that the filter allows only under conditions, as a mapping from name to number."""
    return _parse_numbers(_CONDITIONAL, machine)


@cache
def _parse_numbers(text: str, machine: str) -> dict[str, int]:
    column = 1 + MACHINES.index(machine)
    lines = (entry for entry in text.splitlines() if not entry.strip().startswith("#"))
    rows = [row.split() for entry in lines for row in entry.split(";") if row.strip()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


# The filter.

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_AUDIT_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32: Final = 0x40000000
"""First number of the x32 ABI of x86_64, which repeats the system calls under other numbers."""

# Opcodes of classic BPF: load a field of `struct seccomp_data`, mask, conditional jumps, return a verdict.
_LOAD: Final = 0x20
_AND: Final = 0x54
_JUMP: Final = 0x05
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_FAIL: Final = 0x00050000

_NUMBER_OFFSET: Final = 0
_MACHINE_OFFSET: Final = 4
_ARGUMENTS_OFFSET: Final = 16

# Families, types and option level of sockets.
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_SOCK_STREAM: Final = 1
_SOCK_DGRAM: Final = 2
_SOCK_TYPE_MASK: Final = 0xF
_SOL_SOCKET: Final = 1

_CLONE_THREAD: Final = 0x10000
_CLONE_ESCAPES: Final = 0x7E020000 | 0x8000 | 0x2000
"""Forbidden flags of `clone`: new namespaces, CLONE_PARENT, CLONE_PTRACE."""

_FCNTLS: Final = (*range(8), 9, 11, 16, 36, 37, 38, 1030, 1032, 1033, 1034)
"""Allowed commands of `fcntl`.

Not F_SETOWN and F_SETSIG, which can send signals to any process. Not F_SETPIPE_SZ: no limit counts its memory.
"""
_IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409, 0x4020940D, 0x802C542A)
"""Allowed requests of `ioctl`: queries by `isatty`, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, copies in a file system."""
_PROTOCOLS: Final = (0, 6, 17, 41)
"""Protocols whose socket options are all allowed: IP, TCP, UDP and IPv6. Most sockets of these need `network`."""
_SOCKET_OPTIONS: Final = (2, 5, 6, 9, 10, 12, 13, 15, 16, 18, 19, 20, 21, 29, 35, 37, 46, 49, 63, 64, 65, 66, 67)
"""Allowed socket options of the level SOL_SOCKET: addresses, keepalive, linger, timeouts, timestamps.

Not SO_SNDBUFFORCE, SO_RCVBUFFORCE and filters: no limit counts their memory.
"""
_BUFFER_SIZES: Final = (7, 8)
"""Socket options SO_SNDBUF and SO_RCVBUF. Attempts to set them have no effect and report success.

The kernel, too, silently grants less than requested. trio sets both for its wake-up socket pair.
"""
_PRCTLS: Final = (2, 3, 15, 16, 21, 23, 38, 39, 41, 42, 50, 51, 54, 55, 56, 0x53564D41)
"""Allowed options of `prctl`: thread names, queries, settings of pointers and vectors. Never PR_SET_PDEATHSIG."""


@dataclass(frozen=True, slots=True)
class ArgumentTest:
    """Condition on one argument of a system call: the argument, masked with `mask`, equals one of `values`."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


_Alternatives = tuple[tuple[ArgumentTest, ...], ...]
"""Conditions of a system call. It is allowed if all tests of at least one alternative hold."""


def _argument_is(argument: int, *values: int, mask: int = 0xFFFFFFFF) -> _Alternatives:
    return ((ArgumentTest(argument, values, mask),),)


_WITHOUT_CONDITION: Final[_Alternatives] = ((),)
_PRETENDED_SUCCESSES: Final[Mapping[str, _Alternatives]] = {
    "setsockopt": ((ArgumentTest(1, (_SOL_SOCKET,)), ArgumentTest(2, _BUFFER_SIZES)),)
}
"""System calls that do nothing and report success, with their conditions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Groups of system calls that `Confine` permits, beyond the calls that every worker may make."""

    network: bool
    processes: bool
    signals: bool
    """`True` if signals to any process id are allowed, because Landlock restricts signals to the sandbox."""


def encode_filter(machine: str, pid: int, allowed: Allowed) -> bytes:
    """Return the filter for the process with the id `pid`, encoded as an array of `struct sock_filter`."""
    numbers_by_name = conditionally_allowed(machine)
    instructions = [_common_beginning(machine)]
    for name, alternatives in _conditions_by_call(pid, allowed).items():
        if name in numbers_by_name:
            block: list[bytes] = []
            for argument_tests in alternatives:
                block += _return_if_all_hold(argument_tests, _ALLOW)
            for argument_tests in _PRETENDED_SUCCESSES.get(name, ()):
                # A failure with error number 0, which the caller sees as success.
                block += _return_if_all_hold(argument_tests, _FAIL)
            block.append(_bpf(_RETURN, _FAIL | errno.EPERM))
            instructions += [_bpf(_EQUAL, numbers_by_name[name], 0, len(block)), *block]
    instructions += [_bpf(_AT_LEAST, NEWEST + 1, 0, 1), _bpf(_RETURN, _FAIL | errno.ENOSYS)]
    return b"".join([*instructions, _bpf(_RETURN, _FAIL | errno.EPERM)])


@cache
def _common_beginning(machine: str) -> bytes:
    """Return the first instructions of the filter: its largest part, which is the same for every process."""
    # First the architecture: under another one, the same numbers are other calls. A 32-bit call kills the process.
    instructions = [
        _bpf(_LOAD, _MACHINE_OFFSET),
        _bpf(_EQUAL, _AUDIT_ARCHITECTURES[machine], 1, 0),
        _bpf(_RETURN, _KILL),
        _bpf(_LOAD, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        instructions += [_bpf(_AT_LEAST, _X32, 0, 1), _bpf(_RETURN, _FAIL | errno.ENOSYS)]
    for number in always_allowed(machine).values():
        instructions += [_bpf(_EQUAL, number, 0, 1), _bpf(_RETURN, _ALLOW)]
    # Its flags lie behind a pointer. ENOSYS makes libc use `clone`, and the filter checks its flags.
    clone3 = conditionally_allowed(machine)["clone3"]
    return b"".join([*instructions, _bpf(_EQUAL, clone3, 0, 1), _bpf(_RETURN, _FAIL | errno.ENOSYS)])


def _conditions_by_call(pid: int, allowed: Allowed) -> Mapping[str, _Alternatives]:
    own_process = (0, pid)  # these calls accept 0 for the calling process
    conditions: dict[str, _Alternatives] = {
        # Threads only, and in no new namespace.
        "clone": _argument_is(0, _CLONE_THREAD, mask=_CLONE_THREAD | _CLONE_ESCAPES),
        # Stream pairs only: an unconnected or a datagram socket could be connected to any UNIX socket.
        "socketpair": ((ArgumentTest(0, (_AF_UNIX,)), ArgumentTest(1, (_SOCK_STREAM,), _SOCK_TYPE_MASK)),),
        "setsockopt": (
            (ArgumentTest(1, _PROTOCOLS),),
            (ArgumentTest(1, (_SOL_SOCKET,)), ArgumentTest(2, _SOCKET_OPTIONS)),
        ),
        "fcntl": _argument_is(1, *_FCNTLS),
        "ioctl": _argument_is(1, *_IOCTLS),
        "prctl": _argument_is(0, *_PRCTLS),
        "prlimit64": _argument_is(0, *own_process),
        "setpriority": ((ArgumentTest(0, (0,)), ArgumentTest(1, own_process)),),
        **dict.fromkeys(("sched_setaffinity", "sched_setscheduler", "sched_setparam"), _argument_is(0, *own_process)),
        # Only to the process itself, unless Landlock confines signals.
        **dict.fromkeys(("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), _argument_is(0, pid)),
    }
    unconditional: list[str] = []
    if allowed.signals:
        unconditional += ["kill", "tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"]
        unconditional += ["pidfd_open", "pidfd_send_signal"]
    if allowed.processes:
        conditions["clone"] = _argument_is(0, 0, mask=_CLONE_ESCAPES)
        unconditional += ["fork", "vfork", "execve", "execveat", "setsid", "setpgid"]
    if allowed.network:
        families, types = (_AF_INET, _AF_INET6), (_SOCK_STREAM, _SOCK_DGRAM)
        conditions["socket"] = ((ArgumentTest(0, families), ArgumentTest(1, types, _SOCK_TYPE_MASK)),)
        unconditional += ["connect", "bind", "listen", "accept", "accept4"]
    return conditions | dict.fromkeys(unconditional, _WITHOUT_CONDITION)


def _return_if_all_hold(argument_tests: Iterable[ArgumentTest], verdict: int) -> list[bytes]:
    """Return instructions that end the filter with `verdict` if all tests hold."""
    # Otherwise, the filter continues with the instruction after them.
    instructions = [_bpf(_RETURN, verdict)]
    for test in reversed(tuple(argument_tests)):
        # A matching value jumps over the comparisons after it, and over the jump that leaves the block.
        value_count = len(test.values)
        comparisons = [_bpf(_EQUAL, value, value_count - index, 0) for index, value in enumerate(test.values)]
        # Offset of the lower 32 bits, which are enough for the arguments tested here.
        argument_offset = _ARGUMENTS_OFFSET + 8 * test.argument
        instructions = [
            _bpf(_LOAD, argument_offset),
            _bpf(_AND, test.mask),
            *comparisons,
            _bpf(_JUMP, len(instructions)),
            *instructions,
        ]
    return instructions


def _bpf(opcode: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", opcode, if_true, if_false, value)


class _Program(ctypes.Structure):
    """`struct sock_fprog` of the kernel: number of instructions, and the filter."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def take_no_new_privileges() -> None:
    """Permanently forbid this process and its descendants to gain privileges by starting a program (`no_new_privs`)."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_filter(encoded_filter: bytes) -> None:
    """Install an encoded seccomp filter for this process and its descendants; it cannot be removed again."""
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(encoded_filter) // 8, encoded_filter)))
