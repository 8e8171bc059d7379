"""System calls that confined workers may make, by name, with their numbers per machine."""

from functools import cache
from typing import Final

MACHINES: Final = ("x86_64", "aarch64")
"""Machine names as in `os.uname()`, in the order of the number columns below; `-` means there is no such call."""

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
"""Highest number known to this table. The filter answers ENOSYS for higher ones, EPERM for lower ones."""


def always(machine: str) -> dict[str, int]:
    """Return the system calls that are always allowed; their objects are protected by Landlock or by other calls."""
    return _parsed(_ALWAYS, machine)


def conditional(machine: str) -> dict[str, int]:
    """Return the system calls that depend on their arguments or on the permissions in `Confine`."""
    return _parsed(_CONDITIONAL, machine)


@cache
def _parsed(text: str, machine: str) -> dict[str, int]:
    column = 1 + MACHINES.index(machine)
    lines = (line for line in text.splitlines() if not line.strip().startswith("#"))
    rows = [row.split() for line in lines for row in line.split(";") if row.strip()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
