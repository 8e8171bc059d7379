"""Invalid options are refused when the server is described; the error says what to write instead."""

import subprocess
import sys
from typing import Any

import pytest

from callboard_actors.mcp import McpBounds, McpServer

from ._asked import ROOT

URL = "http://127.0.0.1:9/mcp"


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("npx -y server", {}, r"is no URL.*a command is a list: McpServer\(\['npx', '-y', 'server'\]\)"),
        ("http://", {}, "is no URL"),
        ([], {}, "a command as a list of texts, the program first"),
        (["npx", 3], {}, "a command as a list of texts, the program first"),
        (None, {}, "a command as a list"),
        (object(), {}, "a command as a list"),
        (URL, {"env": {"KEY": "x"}}, r"env=...\) is not for a URL"),
        (["npx"], {"env": {"PORT": 8000}}, r"env=...\) has 'PORT' with a value of type int"),
        (URL, {"cwd": "/"}, r"cwd=...\) is not for a URL"),
        (["npx"], {"headers": {"x": "y"}}, r"headers=...\) is not for a command"),
        (["npx"], {"auth": object()}, r"auth=...\) is not for a command"),
        (URL, {"cap": 3}, r"cap=3\) is for connections by key"),
        (URL, {"idle": 3.0}, r"idle=3.0\) is for connections by key"),
        (URL, {"key": "user"}, "is a function of a run's config"),
        (URL, {"allow": "echo"}, r"allow=...\) is a list of names, such as \['echo'\]"),
        (URL, {"name": ""}, r"name=...\) is a text"),
        (URL, {"prefix": None}, r"prefix=...\) is a text"),
        (URL, {"bounds": {"grace": 1}}, "is an McpBounds"),
        (URL, {"mode": "2024-01-01"}, "mode"),
    ],
)
def test_what_cannot_be_is_refused(target: Any, options: dict[str, Any], says: str) -> None:
    """Invalid values raise an error before any connection is opened; none is ignored."""
    with pytest.raises((TypeError, ValueError), match=says):
        McpServer(target, **options)


def test_what_may_be_secret_is_not_shown() -> None:
    """The representation may be logged, so it hides possible secrets."""
    server = McpServer("http://ann:secret@127.0.0.1/mcp?key=secret", headers={"authorization": "secret"})
    assert repr(server) == "McpServer('127.0.0.1')"


@pytest.mark.parametrize(
    ("option", "value"),
    [("parallel", 0), ("max_message", 0), ("max_values", 0), ("max_arguments", 0), ("start_timeout", 0), ("grace", -1)],
)
def test_numbers_out_of_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"McpBounds\({option}={value}\) is a"):
        McpBounds(**{option: value})


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.modules['mcp'] = None; import callboard_actors.mcp", "pip install 'jsonschema<5,>=4.20' 'mcp<3,>=2.3'"),
        ("import callboard_actors.mcp; assert 'mcp' not in sys.modules; print('lazy')", "lazy"),
    ],
    ids=["without the extra it says how to install it", "the SDK takes long to load, and the room alone does not"],
)
def test_an_import_of_the_room(code: str, says: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}"], capture_output=True, text=True, check=False)
    assert says in done.stdout + done.stderr


@pytest.mark.exhaustive
def test_all_that_a_call_needs_is_loaded_when_a_server_is_described() -> None:
    """An import of SDK modules during the first call would block the event loop and all other calls."""
    look = (
        "import sys, anyio; from callboard_actors.mcp import McpServer; from tests.mcp._served import server\n"
        "async def main():\n"
        "    async with McpServer(server()) as served:\n"
        "        before = set(sys.modules)\n"
        "        await served.call('echo', {'text': 'x'})\n"
        "        print(sorted(name for name in set(sys.modules) - before if name.startswith(('json', 'ref', 'mcp'))))\n"
        "anyio.run(main)"
    )
    result = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"
