"""Options are checked when the transport and the tool are made, and the extra is named."""

import inspect
import subprocess
import sys

import pytest

from callboard.extend import install_command
from callboard_actors.http import GuardedTransport, fetch_tool

WRONG = [
    ({"hosts": "example.org"}, TypeError, r"one text.*\['example.org'\]"),
    ({"hosts": []}, ValueError, "no host at all"),
    ({"hosts": ["http://example.org/"]}, ValueError, "takes hosts such as"),
    ({"hosts": ["10.0.0.1/8"]}, ValueError, "bits behind its mask"),
    ({"hosts": ["exa mple"]}, ValueError, "exa mple"),
    ({"timeout": 0}, ValueError, "timeout=0"),
    ({"timeout": float("inf")}, ValueError, "timeout=inf"),
    ({"max_bytes": 0}, ValueError, "max_bytes=0"),
    ({"ports": [0.5]}, TypeError, "whole number"),
    ({"resolver": 5}, TypeError, "is an async function"),
    ({"tls": False}, TypeError, "ssl.SSLContext; leave it out"),
    ({"max_byte": 5}, TypeError, "max_byte"),
]


@pytest.mark.parametrize(("options", "kind", "message"), WRONG, ids=[repr(options) for options, _, _ in WRONG])
def test_what_cannot_work_is_an_error_when_it_is_made(options: dict, kind: type, message: str) -> None:
    """The error does not wait for the first page; the tool raises the same one."""
    for make in (GuardedTransport, fetch_tool):
        with pytest.raises(kind, match=message):
            make(**options)


def test_a_tool_shows_at_least_a_hundred_characters() -> None:
    """A model would need very many calls for a page."""
    with pytest.raises(ValueError, match=r"fetch_tool\(max_chars=5\) is a whole number, at least 100"):
        fetch_tool(max_chars=5)


def test_the_tool_has_every_option_of_the_transport() -> None:
    """A program that needs another bound should not have to write its own tool."""
    assert set(inspect.signature(GuardedTransport).parameters) < set(inspect.signature(fetch_tool).parameters)


@pytest.mark.parametrize("package", ["httpx2", "justhtml"])
def test_a_missing_extra_is_named(package: str) -> None:
    """The error comes with the import; other parts do not need the extra."""
    code = (
        "import importlib.util as u, sys\n"
        "there = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {package!r} else there(name, *rest)\n"
        "import callboard_actors\n"
        "try:\n    import callboard_actors.http\n"
        "except ImportError as error:\n    sys.exit(str(error))"
    )
    run = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)

    assert run.stderr.strip() == f"callboard_actors.http needs {package}: {install_command('callboard-actors', 'http')}"


@pytest.mark.exhaustive
def test_neither_the_package_nor_the_tool_loads_what_is_not_used() -> None:
    """The parser of pages is imported in its process only, and httpx only by its users."""
    code = (
        "import sys, callboard_actors.http\nassert 'httpx2' not in sys.modules\n"
        "from callboard_actors.http import fetch_tool\nfetch_tool()\n"
        "sys.exit('justhtml' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
