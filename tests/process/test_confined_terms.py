"""Options of confinement, and the combinations that are refused before a worker starts."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard_actors.process import Confine, Processes
from callboard_actors.process._confinement import _seccomp
from callboard_actors.process._confinement._confinement import reason_not_enforceable


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"read": "/tmp"}, TypeError, "read='/tmp' is no list of paths"),
        ({"write": Path("/tmp")}, TypeError, "write=.* is no list of paths"),
        ({"modules": "/tmp"}, TypeError, "modules='/tmp' is no list of paths"),
        ({"read": None}, TypeError, "read=None is no list of paths"),
        ({"modules": None}, TypeError, "modules=None is no list of paths"),
        ({"read": [1]}, TypeError, "read has 1, which is no path"),
        ({"read": [b"/tmp"]}, TypeError, "read has b'/tmp', which is no path"),
        ({"write": ["/no/such/place"]}, ValueError, "write has '/no/such/place', which is not there"),
        ({"network": 1}, TypeError, "network=1 is neither True nor False"),
        ({"processes": "no"}, TypeError, "processes='no' is neither True nor False"),
        ({"reuse": None}, TypeError, "reuse=None is neither True nor False"),
        ({"environment": ["A=1"]}, TypeError, "environment is a mapping of names to texts, got one of type list"),
        ({"environment": {"A": 1}}, TypeError, "environment has 'A' with a value of type int"),
        ({"environment": {"A=": "1"}}, ValueError, "environment has 'A='"),
    ],
)
def test_a_mistake_is_refused_by_name(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """An invalid option raises an error that names it before anything starts."""
    with pytest.raises(error, match=message):
        Confine(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"confine": True}, TypeError, "confine=True is no Confine"),
        ({"confine": Confine(), "max_calls": 2}, ValueError, r"max_calls=2 needs Confine\(reuse=True\)"),
        ({"confine": Confine(reuse=True), "cpu": 2}, ValueError, r"cpu=2 needs Confine\(reuse=False\)"),
        ({"files": 3}, ValueError, "files=3 is less than 16, which a worker and its modules need"),
        ({"files": 2**40}, ValueError, "files=.* is more than the .* that this process may have"),
    ],
)
def test_terms_that_do_not_go_together_are_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """An option that would weaken another one is refused, not ignored."""
    with pytest.raises(error, match=message):
        Processes(**arguments)


def test_paths_are_resolved_when_they_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are resolved once; links and the working directory may change before a worker starts."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    monkeypatch.chdir(tmp_path)

    assert Confine(read=["link", tmp_path]).read == (os.path.realpath("there"), os.path.realpath(tmp_path))


def test_little_of_our_environment_is_theirs() -> None:
    """Workers get only variables that usually hold no secrets; others have to be named."""
    own_environment = {"PATH": "/bin", "LANG": "C", "LC_ALL": "C", "TZ": "UTC", "API_KEY": "secret", "HOME": "/home/me"}

    assert Confine(environment={"TZ": "CET", "MORE": "1"}).environment_from(own_environment) == {
        "PATH": "/bin",
        "LANG": "C",
        "LC_ALL": "C",
        "TZ": "CET",
        "HOME": "/nonexistent",
        "MORE": "1",
    }


@pytest.mark.parametrize(
    ("confine", "version", "message"),
    [
        (Confine(), 0, "needs Landlock, which this kernel lacks"),
        (Confine(), 2, r"needs Landlock 3 \(Linux 6.2\), and this kernel has 2"),
        (Confine(), 3, None),
        (Confine(network=True), 3, None),
        (Confine(processes=True), 5, r"processes=True needs Landlock 6 \(Linux 6.12\), and this kernel has 5"),
        (Confine(processes=True), 6, None),
        (Confine(), 99, None),
    ],
)
def test_an_old_kernel_is_refused_what_it_cannot_keep(confine: Confine, version: int, message: str | None) -> None:
    """If the kernel lacks a feature, the pool refuses to start and does not use a weaker confinement."""
    reason = reason_not_enforceable(confine, version)
    if message is None:
        assert reason is None
    else:
        import re

        assert re.search(message, reason or "")


class Filter:
    """Minimal interpreter of a BPF filter, as the kernel evaluates it."""

    def __init__(self, code: bytes) -> None:
        self._code = [code[offset : offset + 8] for offset in range(0, len(code), 8)]

    def verdict(self, data: bytes) -> int:
        position = 0
        accumulator = 0
        while True:
            operation = int.from_bytes(self._code[position][:2], "little")
            if_true, if_false = self._code[position][2:4]
            value = int.from_bytes(self._code[position][4:], "little")
            position += 1
            if operation == 0x20:
                accumulator = int.from_bytes(data[value : value + 4], "little")
            elif operation == 0x54:
                accumulator &= value
            elif operation == 0x15:
                position += if_true if accumulator == value else if_false
            elif operation == 0x35:
                position += if_true if accumulator >= value else if_false
            elif operation == 0x05:
                position += value
            elif operation == 0x06:
                return value
            else:
                raise AssertionError(operation)


def _data(machine: str, number: int, *args: int) -> bytes:
    import struct

    audit = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    return struct.pack("<iIQ6Q", number, audit, 0, *args, *[0] * (6 - len(args)))


_ALLOW, _NO_ERROR, _EPERM, _ENOSYS, _KILL = 0x7FFF0000, 0x50000, 0x50001, 0x50026, 0x80000000
_NOTHING = _seccomp.Allowed(network=False, processes=False, signals=False)


@pytest.mark.parametrize("machine", _seccomp.MACHINES)
def test_both_machines_have_the_same_filter_by_other_numbers(machine: str) -> None:
    """Only one architecture is at hand, so the filter of the other one is interpreted here."""
    filtered = Filter(_seccomp.encode_filter(machine, 77, _NOTHING))
    numbers = _seccomp.always_allowed(machine) | _seccomp.conditionally_allowed(machine)

    def verdict(name: str, *args: int) -> int:
        return filtered.verdict(_data(machine, numbers[name], *args))

    assert verdict("openat") == _ALLOW
    assert verdict("clone3") == _ENOSYS
    assert verdict("clone", 0x10000 | 0x100) == _ALLOW
    assert verdict("clone", 17) == _EPERM
    assert verdict("clone", 0x10000 | 0x10000000) == _EPERM
    assert verdict("kill", 77, 9) == _ALLOW
    assert verdict("kill", 78, 9) == _EPERM
    assert verdict("kill", 2**32 - 1, 9) == _EPERM
    assert verdict("tkill", 77, 9) == _EPERM
    assert verdict("socketpair", 1, 1 | 0o2000000) == _ALLOW
    assert verdict("socketpair", 1, 2) == _EPERM
    assert verdict("socket", 2, 1) == _EPERM
    assert verdict("prlimit64", 0, 7) == _ALLOW
    assert verdict("prlimit64", 5, 7) == _EPERM
    assert verdict("setpriority", 0, 77) == _ALLOW
    assert verdict("setpriority", 1, 77) == _EPERM
    assert verdict("fcntl", 3, 4) == _ALLOW
    assert verdict("fcntl", 3, 8) == _EPERM
    assert verdict("ioctl", 0, 0x5412) == _EPERM
    assert verdict("setsockopt", 3, 6, 1) == _ALLOW
    assert verdict("setsockopt", 3, 1, 9) == _ALLOW
    assert verdict("setsockopt", 3, 1, 7) == _NO_ERROR
    assert verdict("setsockopt", 3, 1, 8) == _NO_ERROR
    assert verdict("setsockopt", 3, 1, 32) == _EPERM
    assert verdict("setsockopt", 3, 1, 33) == _EPERM
    assert verdict("setsockopt", 3, 281, 1) == _EPERM
    assert verdict("prctl", 1, 0) == _EPERM
    assert verdict("execve") == _EPERM
    assert filtered.verdict(_data(machine, 500)) == _ENOSYS
    assert filtered.verdict(_data("aarch64" if machine == "x86_64" else "x86_64", 0)) == _KILL


def test_the_second_set_of_numbers_of_x86_64_is_refused() -> None:
    """The x32 numbers of x86_64 reach the same system calls and would pass a list of normal numbers."""
    filtered = Filter(_seccomp.encode_filter("x86_64", 77, _NOTHING))

    assert filtered.verdict(_data("x86_64", 0x40000000 + 59)) == _ENOSYS


FILTERS = [
    (machine, Filter(_seccomp.encode_filter(machine, 77, _seccomp.Allowed(network=yes, processes=yes, signals=yes))))
    for machine in _seccomp.MACHINES
    for yes in (True, False)
]
LISTED = {
    machine: {*_seccomp.always_allowed(machine).values(), *_seccomp.conditionally_allowed(machine).values()}
    for machine in _seccomp.MACHINES
}


@given(number=st.integers(0, 600), arguments=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_a_filter_lets_pass_what_is_listed_and_nothing_else(number: int, arguments: list[int]) -> None:
    for machine, filtered in FILTERS:
        verdict = filtered.verdict(_data(machine, number, *arguments))
        assert verdict in (_ALLOW, _NO_ERROR, _EPERM, _ENOSYS)
        assert number in LISTED[machine] or verdict != _ALLOW
