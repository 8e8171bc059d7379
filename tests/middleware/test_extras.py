"""Middleware that needs an optional dependency: without it, construction fails and names the extra to install."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from langgraph.store.memory import InMemoryStore
from pydantic import create_model

from callboard import ToolNode
from callboard.guards import (
    DEFAULT_DETECTORS,
    Detector,
    MemoryVault,
    Redact,
    RepairArguments,
    Sanitize,
    StoreVault,
    Text,
    Url,
)
from callboard.middleware import Cache, OutputBudget
from callboard.telemetry import RecordingWriter, Tracing, setup

Make = Callable[[], object]
Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Hide packages for the length of a test, as if they were not installed."""

    def hide(*packages: str) -> None:
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    return hide


NEEDS: dict[str, tuple[Make, str, str]] = {
    "Redact, by default": (
        Redact,
        "phonenumbers",
        r"with 'phone' needs phonenumbers: .*'phonenumbers<10,>=9'.* not in \['phone'\]",
    ),
    "phone": (lambda: Redact(["phone"]), "phonenumbers", r"with 'phone' needs phonenumbers: .*'phonenumbers<10,>=9'"),
    "iban": (lambda: Redact(["email", "iban"]), "schwifty", r"with 'iban' needs schwifty: .*'schwifty>="),
    "a vault": (lambda: Redact(["email"]), "cachetools", r"MemoryVault\(...\) needs cachetools: .*, or .*StoreVault"),
    "MemoryVault": (
        MemoryVault,
        "cachetools",
        r"MemoryVault\(...\) needs cachetools: .*'cachetools<9,>=5.5' 'phonenumbers",
    ),
    "Cache": (lambda: Cache(["search"]), "cachetools", r"Cache\(...\) needs cachetools: .*'cachetools<9,>=5.5' 'idna"),
    "OutputBudget": (OutputBudget, "cachetools", r"OutputBudget\(...\) needs cachetools: .*'cachetools<9,>=5.5' 'idna"),
    "Url": (Url, "idna", r"Url\(...\) needs idna: pip install 'cachetools<9,>=5.5' 'idna<4"),
    "spans": (lambda: Tracing(capture=True), "phonenumbers", r"Redact\(\): .*'phonenumbers<10,>=9'.*redact=False"),
    "a recording": (
        lambda: RecordingWriter("x", capture=True),
        "schwifty",
        r"Redact\(\): .*'phonenumbers<10,>=9'.*redact=False",
    ),
    "telemetry": (lambda: setup(capture=True), "schwifty", r"Redact\(\): .*'phonenumbers<10,>=9'.*redact=False"),
}


@pytest.mark.parametrize("feature", NEEDS)
def test_what_lacks_its_library_is_not_made_and_says_what_to_install(hide: Hide, feature: str) -> None:
    """The missing dependency is found when the application starts, not at the first secret."""
    make, package, says = NEEDS[feature]
    hide(package)
    with pytest.raises(ImportError, match=says):
        make()


def test_one_error_names_all_that_redact_lacks(hide: Hide) -> None:
    """One error lists every missing package, so that users do not install them one by one."""
    hide("phonenumbers", "schwifty")
    with pytest.raises(ImportError, match=r"with 'phone', 'iban' needs phonenumbers and schwifty: pip install"):
        Redact()


def test_the_alternative_that_the_error_names_works(hide: Hide) -> None:
    """The alternative code in the error message runs as written."""
    hide("phonenumbers", "schwifty", "cachetools")
    with pytest.raises(ImportError) as caught:
        Redact()
    [names] = re.findall(r"Redact\((\[name for .*\])\)", str(caught.value))
    with pytest.raises(ImportError) as caught:
        Redact(eval(names))
    [vault] = re.findall(r"Redact\(vault=(.*)\)$", str(caught.value))

    redact = Redact(eval(names), vault=eval(vault, {"StoreVault": StoreVault, "store": InMemoryStore()}))

    assert redact.redact("ann@example.com, +49 151 23456789").startswith("<email:")
    assert "phone" in DEFAULT_DETECTORS


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


def tool_of(schema: Any) -> StructuredTool:
    async def remote(**args: Any) -> str:
        return str(args)

    return StructuredTool(name="remote", description="Remote.", coroutine=remote, args_schema=schema)


def test_a_repair_by_json_schema_says_what_it_lacks_when_the_node_is_built(hide: Hide) -> None:
    """A node with pydantic models works without the library.

    A tool with a JSON schema, as from MCP, needs jsonschema.
    """
    hide("jsonschema")
    ToolNode([tool_of(create_model("Remote", path=(str, ...)))], middleware=[RepairArguments()])
    with pytest.raises(
        ImportError, match=r"'remote', whose schema is JSON, needs jsonschema: .*'jsonschema<5,>=4.23', or .*pydantic"
    ):
        ToolNode([tool_of(SCHEMA)], middleware=[RepairArguments()])


WITHOUT: dict[str, Make] = {
    "other detectors": lambda: Redact(["email", "card"], vault=StoreVault(InMemoryStore())),
    "a detector of one's own, by that name": lambda: Redact(
        [Detector("phone", r"\d{5}")], vault=StoreVault(InMemoryStore())
    ),
    "no URL": lambda: Sanitize(tools={"search": {"query": Text()}}),
    "spans without arguments": lambda: Tracing(capture=False),
    "spans with all there is": lambda: Tracing(capture=True, redact=False),
    "a recording with another redactor": lambda: RecordingWriter("x", capture=True, redact=str),
}


@pytest.mark.parametrize("feature", WITHOUT)
def test_what_needs_no_library_does_without(hide: Hide, feature: str) -> None:
    hide("phonenumbers", "schwifty", "cachetools", "idna")
    WITHOUT[feature]()


def test_a_library_that_is_broken_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing a broken library again would not help, so its own error is raised."""
    (tmp_path / "cachetools.py").write_text("import nothing_of_the_kind\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cachetools", raising=False)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_the_kind"):
        Cache(["search"])


PLAIN = """
import sys
for name in ("cachetools", "phonenumbers", "schwifty", "httpx2", "rich", "typer", "langchain"):
    sys.modules[name] = None
from langchain_core.tools import tool
from callboard import ToolNode
@tool
def add(a: int, b: int) -> int:
    'Add.'
    return a + b
call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "1", "type": "tool_call"}
print(ToolNode([add]).invoke([call])["messages"][0].content, "idna" in sys.modules)
"""


@pytest.mark.exhaustive
def test_a_plain_call_needs_none_of_them() -> None:
    """A node without these middleware runs without their libraries."""
    done = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 ")
