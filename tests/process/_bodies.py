"""Functions that workers run in these tests.

Each worker imports this module, so it is importable by name and loads quickly.
"""

import logging
import os
import signal
import stat
import sys
import threading
import time
from contextvars import ContextVar


def add(one: int, other: int) -> int:
    return one + other


async def add_later(one: int, other: int) -> tuple[int, str]:
    import anyio
    import sniffio

    await anyio.sleep(0.01)
    return one + other, sniffio.current_async_library()


def is_loaded(module: str) -> bool:
    return module in sys.modules


def pid() -> int:
    return os.getpid()


def say_where(folder: str) -> None:
    """Create a file named after the process id, so that the test knows that the function runs."""
    import pathlib

    (pathlib.Path(folder) / str(os.getpid())).touch()


def spin_in_python(folder: str) -> None:
    say_where(folder)
    sum(range(10**12))


def spin_in_c(folder: str) -> None:
    import re

    say_where(folder)
    re.match(r"(a+)+$", "a" * 64 + "b")


def sleep_in_c(folder: str) -> None:
    import ctypes

    say_where(folder)
    ctypes.CDLL(None).sleep(600)


def ignore_sigterm(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_where(folder)
    while True:
        time.sleep(60)


def fork_a_grandchild(folder: str) -> None:
    """Start a grandchild that also ignores SIGTERM."""
    if not os.fork():
        ignore_sigterm(folder)
    say_where(folder)
    time.sleep(600)


def daemonise(folder: str) -> None:
    """Start a grandchild that leaves the process group and whose parent has ended."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            ignore_sigterm(folder)
        os._exit(0)
    os.wait()
    say_where(folder)
    time.sleep(600)


def wait_for_ever(folder: str) -> None:
    say_where(folder)
    time.sleep(600)


def end_with(code: int) -> None:
    print("last words")
    sys.exit(code)


def end_at_once(code: int) -> None:
    os._exit(code)


def signal_oneself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(600)


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


def raise_group() -> None:
    print("before it")
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


def raise_unpicklable() -> None:
    raise type("UnpicklableError", (Exception,), {})("1 and 2")  # a class that other processes cannot find


def return_unpicklable() -> object:
    import socket

    return socket.socket()


class UnreadableResult:
    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def return_unreadable() -> object:
    return UnreadableResult()


def return_bytes(size: int) -> bytes:
    return b"x" * size


def cancel_itself() -> None:
    import asyncio

    raise asyncio.CancelledError


def fill_memory() -> int:
    return len(bytearray(4 * 1024**3))


def burn() -> None:
    while True:
        pass


def limits() -> tuple[int, int]:
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_CORE)[0]


def write_much(size: int) -> int:
    for _ in range(size // 1024):
        sys.stdout.write("x" * 1023 + "\n")
    print("the end")
    raise RuntimeError("after much output")


def write_to_every_stream() -> str:
    import subprocess

    print("by print")
    os.write(1, b"by file descriptor 1\n")
    os.write(2, b"by file descriptor 2\n")
    subprocess.run(["echo", "by a child"], check=True)
    raise RuntimeError("after output")


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def hold_socket_in_a_child_and_end() -> None:
    """Keep the worker's socket open in a forked child, so that the end of the worker does not close it."""
    if not os.fork():
        time.sleep(600)
    os._exit(4)


def open_files() -> list[str]:
    """Return the kinds or paths of the open file descriptors."""
    from pathlib import Path

    return sorted(str(fd.readlink()).split(":")[0] for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())


USER: ContextVar[str] = ContextVar("user")


def user() -> str:
    current_user = USER.get("nobody")
    USER.set("somebody")
    return current_user


def go_on(steps: int, pause: float) -> int:
    from callboard import progress

    for step in range(steps):
        progress(f"step {step}", done=step, total=steps)
        time.sleep(pause)
    return steps


def log_much() -> None:
    import logging

    logger = logging.getLogger("callboard.tests.process")
    logger.debug("nobody wants to know")
    logger.warning("it is %s", "late")
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("made.only.there").exception("\0" * 100_000)


def log_from_compiled_code() -> str:
    code = compile("import logging; logging.warning('from a template')", f"<template {'x' * 100_000}>", "exec")
    exec(code, {})
    return "done"


def context_variables() -> dict[str, object]:
    import structlog

    return structlog.contextvars.get_contextvars()


def trace() -> str:
    from opentelemetry import trace

    return format(trace.get_current_span().get_span_context().trace_id, "x")


def flood(folder: str) -> None:
    from callboard import progress

    say_where(folder)
    while True:
        progress("x" * 100)


def talk_on() -> None:
    """Send log messages from a thread that continues after the call."""
    import contextvars
    import threading

    def speak() -> None:
        from callboard import progress

        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            progress("still here")

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(speak,), daemon=True).start()


def speak_in_a_signal_handler() -> int:
    """Send a message from a signal handler that interrupts another message, again and again."""
    import itertools

    from callboard import progress

    alarms = itertools.count()
    signal.signal(signal.SIGALRM, lambda *_: progress(f"alarm {next(alarms)}" * 1_000))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        progress("word" * 4_000)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return next(alarms)


def speak_in_a_fork() -> None:
    """Send messages from a forked copy, which then returns from the call as well."""
    from callboard import progress

    child = os.fork()
    for _ in range(100):
        progress("who am I?")
    if child:
        os.waitpid(child, 0)


async def wait_there(folder: str) -> None:
    import anyio

    say_where(folder)
    await anyio.sleep(600)


async def block_the_loop(folder: str) -> None:
    say_where(folder)
    time.sleep(600)


async def flood_there(folder: str) -> None:
    flood(folder)


async def clean_up_slowly(folder: str) -> None:
    import pathlib

    import anyio

    say_where(folder)
    try:
        await anyio.sleep(600)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
        (pathlib.Path(folder) / "0").touch()


async def send_raw_there(data: bytes) -> None:
    import anyio

    for fd in range(3, 64):  # the event loop has open files, too
        if _is_socket(fd):
            os.write(fd, data)
    await anyio.sleep(600)


async def end_there() -> None:
    print("last words")
    sys.exit(3)


def log_as_told() -> None:
    """Write to loggers that have levels of their own, also from a thread."""
    logging.getLogger("callboard.tests.loud").debug("in the open")
    logging.getLogger("callboard.tests.quiet").debug("unheard")
    thread = threading.Thread(target=lambda: logging.getLogger("callboard.tests.loud").info("in a thread"))
    thread.start()
    thread.join()
