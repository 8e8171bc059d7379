"""The public names of `callboard` exist, lead to their definitions, and are known to type checkers."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import callboard
import callboard.guards
import callboard.middleware
import callboard.testing
import callboard.threads
from tests.public_names import public_names

WINDOWS = [callboard, callboard.guards, callboard.middleware, callboard.testing, callboard.threads]

LANGGRAPH_NAMES = {
    "ActionRequest",
    "AgentState",
    "AgentStatePydantic",
    "AgentStateWithStructuredResponse",
    "AgentStateWithStructuredResponsePydantic",
    "AsyncToolCallWrapper",
    "HumanInterrupt",
    "HumanInterruptConfig",
    "HumanResponse",
    "INVALID_TOOL_NAME_ERROR_TEMPLATE",
    "InjectedState",
    "InjectedStore",
    "TOOL_CALL_ERROR_TEMPLATE",
    "TOOL_EXECUTION_ERROR_TEMPLATE",
    "TOOL_INVOCATION_ERROR_TEMPLATE",
    "ToolCallRequest",
    "ToolCallTransformer",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolInvocationError",
    "ToolNode",
    "ToolRuntime",
    "ValidationNode",
    "create_react_agent",
    "msg_content_output",
    "tools_condition",
}


def test_every_exported_name_can_be_had() -> None:
    """Names are loaded lazily, so the test has to access each one."""
    assert [name for name in callboard.__all__ if getattr(callboard, name) is None] == []


def test_the_names_of_langgraph_prebuilt_are_all_there() -> None:
    """Promise 12: code that imports from `langgraph.prebuilt` works after a change of the import alone."""
    assert set(callboard.__all__) >= LANGGRAPH_NAMES


def test_type_checkers_see_the_names_that_are_there() -> None:
    """The imports under `TYPE_CHECKING` and the table for lazy imports have the same names."""
    for window in WINDOWS:
        tree = ast.parse(Path(window.__file__ or "").read_text())
        block = next(node for node in tree.body if isinstance(node, ast.If))
        checked_names = {
            (name, node.module)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name in (alias.asname, "*")
            for name in (import_module(node.module or "").__all__ if alias.name == "*" else [alias.name])
        }
        assert checked_names == {(name, home) for home, names in window._HOMES.items() for name in names}
        assert set(window.__all__) <= set(dir(window))


def test_an_unknown_name_is_refused_by_name() -> None:
    """With lazy imports, a misspelt name must still raise `AttributeError` with that name."""
    with pytest.raises(AttributeError, match="'callboard' has no attribute 'Toolnode'"):
        callboard.Toolnode  # noqa: B018


def test_exceptions_are_exported_from_their_module_and_from_the_window() -> None:
    """`callboard` and `callboard.exceptions` export the same exception classes."""
    from callboard import exceptions

    assert set(exceptions.__all__) <= set(callboard.__all__)


def test_two_public_objects_never_share_a_name() -> None:
    """A reader who meets `Recorder` in a page or a traceback must not have to ask which one is meant."""
    publics = public_names()
    first = {public.name: public for public in reversed(publics)}
    clashes = [
        f"{public.name}: {first[public.name].module} and {public.module}"
        for public in publics
        if public.value is not first[public.name].value
    ]

    assert len(first) > 250
    assert clashes == []


def test_importing_callboard_loads_nothing_heavy() -> None:
    """`import callboard` loads neither LangChain nor LangGraph; modules are loaded when a name is used."""
    code = "import sys, callboard.testing; print(*{'trio', 'langgraph', 'langchain_core'} & set(sys.modules))"

    assert subprocess.check_output([sys.executable, "-c", code], timeout=60, text=True) == "\n"


def test_what_needs_an_extra_is_imported_without_it_and_names_it_when_it_is_used() -> None:
    """Applications import from `callboard` what they use by configuration; these packages are optional."""
    code = """if True:
        import sys
        for name in ("langchain", "langchain.agents", "langchain.agents.middleware", "rich"):
            sys.modules[name] = None
        from callboard import *
        from callboard.testing import ScriptedModel
        try:
            create_agent(ScriptedModel(["hi"]), [], timeout=1.0)
        except ImportError as error:
            print(error)
        try:
            with watch():
                print("not here")
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True, check=False)

    assert done.stderr == ""
    without_langchain, without_rich = done.stdout.splitlines()
    assert without_langchain.startswith("create_agent runs LangChain's agent: pip install 'langchain<2,>=")
    assert re.search(r"^watch\(\) needs rich: pip install .*'rich[^']*'", without_rich)
