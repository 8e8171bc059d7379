"""Attempts at what a confined worker must not do. Each works in an unconfined worker and then returns True."""

# The system call itself is tested, not the idiomatic way to write it.
# ruff: noqa: PTH123, PTH211

import ctypes
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path


def grow_buffers() -> bool:
    """Return whether the kernel grants larger socket buffers; buffers are kernel memory."""
    first, second = socket.socketpair()
    with first, second:
        before = [first.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            first.setsockopt(socket.SOL_SOCKET, option, 8 * 1024**2)
        after = [first.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    return after > before


def limits_of_files_and_core() -> list[list[int]]:
    return [list(resource.getrlimit(limit)) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]


def raise_limits() -> list[str]:
    """Return the names of the limits that could be raised."""
    raised = []
    for name in ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_AS"):
        hard = resource.getrlimit(getattr(resource, name))[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (hard + 1, hard + 1))
            raised.append(name)
    return raised


def read(path: str) -> bool:
    return bool(Path(path).read_bytes())


def read_a_little(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(1) is not None


def write(path: str) -> bool:
    Path(path).write_text("changed")
    return True


def append(path: str) -> bool:
    with open(path, "a") as file:
        file.write("more")
    return True


def truncate_by_reading(path: str) -> bool:
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    return True


def hard_link(path: str, to: str) -> bool:
    os.link(path, to)
    return read(to)


def read_by_symlink(path: str, to: str) -> bool:
    os.symlink(path, to)
    return read(to)


def write_by_symlink(path: str, to: str) -> bool:
    os.symlink(path, to)
    return write(to)


def read_below_a_folder(folder: str, path: str) -> bool:
    fd = os.open(folder, os.O_PATH)
    return bool(os.read(os.open(path, os.O_RDONLY, dir_fd=fd), 1))


def change_mode_by_fd(path: str) -> bool:
    os.fchmod(os.open(path, os.O_RDONLY), 0o644)
    return True


def change_owner(path: str) -> bool:
    os.chown(path, os.getuid(), os.getgid())
    return True


def connect(family: int, kind: int, address: object) -> bool:
    with socket.socket(family, kind) as sock:
        sock.connect(tuple(address) if isinstance(address, list) else address)
        sock.send(b"hello")
    return True


def listen() -> bool:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1] > 0


def send_datagram(address: str) -> bool:
    """Send a datagram from a socket of a kind that is always allowed, such as a socket pair."""
    sender, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return sender.sendto(b"hello", address) == 5


def bind_to_path(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
    return True


def send_signal_to_thread(pid: int) -> bool:
    return _call({"x86_64": 200, "aarch64": 130}, pid, int(signal.SIGCONT))


def send_signal_to_group(pid: int) -> bool:
    os.killpg(os.getpgid(pid), signal.SIGCONT)
    return True


def send_signal_by_pidfd(pid: int) -> bool:
    signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT)
    return True


def have_signals_sent(pid: int) -> bool:
    """Set the owner of a file descriptor so that the kernel sends a signal to that process when the file is ready."""
    fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, pid)
    return True


def trace(pid: int) -> bool:
    """Seize the process with ptrace; it is released when the worker ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    return _check_result(libc.ptrace(0x4206, pid, None, None))


def read_memory(pid: int) -> bool:
    """Read memory of another process by system call. The address is invalid, which only a permitted reader is told."""
    return _call({"x86_64": 310, "aarch64": 270}, pid, None, 0, None, 0, 0)


def change_limits(pid: int) -> bool:
    hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
    return True


def change_priority(pid: int) -> bool:
    os.setpriority(os.PRIO_PROCESS, pid, 1)
    return True


def choose_processors(pid: int) -> bool:
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return True


def outlive_the_parent() -> bool:
    return _call({"x86_64": 157, "aarch64": 167}, 1, 0, 0, 0, 0)


def dies_with_its_parent() -> bool:
    number = ctypes.c_int()
    _call({"x86_64": 157, "aarch64": 167}, 2, ctypes.byref(number), 0, 0, 0)
    return number.value == signal.SIGKILL


def has_variable(name: str) -> bool:
    if name not in os.environ:
        raise PermissionError(name)
    return True


def fork() -> bool:
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def fork_bomb(count: int) -> bool:
    """Fork a small number of processes that fork again."""
    for _ in range(count):
        if not os.fork():
            time.sleep(60)
            os._exit(0)
    return True


def fork_by_clone() -> bool:
    pid = ctypes.CDLL(None, use_errno=True).syscall({"x86_64": 56, "aarch64": 220}[_machine()], 17, 0, 0, 0, 0)
    if not pid:
        os._exit(0)
    return _check_result(pid)


def execute(*command: str) -> bool:
    subprocess.run(command, check=True)
    return True


def new_namespace() -> bool:
    return _check_result(ctypes.CDLL(None, use_errno=True).unshare(0x10000000))


def keyring() -> bool:
    return _call({"x86_64": 250, "aarch64": 219}, 0, ctypes.c_long(-3), 1)


def memory_without_bound() -> bool:
    return os.memfd_create("more") > 0


def shared_memory() -> bool:
    return _call({"x86_64": 29, "aarch64": 194}, 0, ctypes.c_size_t(4096), 0o1600)


def _call(numbers: dict[str, int], *args: object) -> bool:
    # For a number without a type, ctypes passes only half of the register; the other half is undefined.
    typed_args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _check_result(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[_machine()]), *typed_args))


def _machine() -> str:
    return os.uname().machine


def _check_result(result: int) -> bool:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


# Attempts that also work in a confined worker.


def thread_sum() -> int:
    numbers: list[int] = []
    threads = [threading.Thread(target=numbers.append, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(numbers)


async def thread_sum_later() -> int:
    import anyio

    return await anyio.to_thread.run_sync(thread_sum)


def import_late(names: list[str]) -> list[str]:
    assert not set(names) & sys.modules.keys()
    return [__import__(name).__name__ for name in names]


def compute_in_c() -> str:
    import decimal
    import sqlite3
    import ssl

    with sqlite3.connect(":memory:") as database:
        [number] = database.execute("select 20 + 22").fetchone()
    return f"{decimal.Decimal(number) / 4} {ssl.create_default_context().verify_mode.name}"


def own_pair() -> bytes:
    first, second = socket.socketpair()
    first.send(b"hello")
    return second.recv(5)


def signal_oneself_and_hear() -> bool:
    received_signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: received_signals.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    return len(received_signals) == 2


def what_time_it_is() -> str:
    import zoneinfo
    from datetime import datetime

    return datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Vienna")).isoformat()


def kinds_of_open_files() -> dict[int, str]:
    """Return the kinds of the worker's open file descriptors without reading /proc."""
    import stat

    kinds = {stat.S_ISSOCK: "socket", stat.S_ISFIFO: "pipe", stat.S_ISCHR: "device", stat.S_ISREG: "file"}
    kinds_by_fd: dict[int, str] = {}
    for fd in range(4096):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        kinds_by_fd[fd] = next((name for test, name in kinds.items() if test(mode)), "other")
    return kinds_by_fd


def open_many(count: int) -> int:
    return len([open("/dev/null", "rb") for _ in range(count)])


def burn_deaf() -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    while True:
        pass


def capabilities() -> list[str]:
    return [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Cap")]


def fill_sockets() -> tuple[int, int]:
    """Open as many socket pairs as possible and fill their buffers; return the numbers of pairs and bytes."""
    pairs, written = [], 0
    try:
        while True:
            pair = socket.socketpair()
            pairs.append(pair)
            for end in pair:
                end.setblocking(False)
                try:
                    while True:
                        written += end.send(bytes(65536))
                except BlockingIOError:
                    pass
    except OSError:
        return len(pairs), written
