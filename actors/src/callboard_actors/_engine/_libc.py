"""System calls for which Python has no function; a refusal is raised as `OSError`."""

import ctypes
import os
from functools import cache


@cache
def _libc() -> ctypes.CDLL:
    # `use_errno`: ctypes keeps a copy of errno per thread, safe from other calls in between.
    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int, pointer: object = None) -> None:
    """Call `prctl`, which changes an attribute of this process; raise `OSError` if the kernel refuses."""
    _check_result(_libc().prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)), "prctl")


def syscall(name: str, number: int, *args: object) -> int:
    """Make the system call `number` and return its result; `name` names it in errors."""
    return _check_result(_libc().syscall(ctypes.c_long(number), *args), name)


def _check_result(result: int, call_name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call_name}: {os.strerror(number)}")
    return result
