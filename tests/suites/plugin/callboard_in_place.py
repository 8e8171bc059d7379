"""A pytest plugin that replaces the names of `langgraph.prebuilt` by callboard's.

Loaded with `-p callboard_in_place` before a suite imports anything, so that `from langgraph.prebuilt import ...`,
in the suite and in the library that it tests, gives callboard's names. All of callboard is imported before, so that
its own references to LangGraph's classes are not replaced.
"""

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

import langgraph.prebuilt
import langgraph.prebuilt.chat_agent_executor
import langgraph.prebuilt.interrupt
import langgraph.prebuilt.tool_node
import langgraph.prebuilt.tool_validator

import callboard

LANGGRAPHS = (
    langgraph.prebuilt,
    langgraph.prebuilt.chat_agent_executor,
    langgraph.prebuilt.interrupt,
    langgraph.prebuilt.tool_node,
    langgraph.prebuilt.tool_validator,
)


def load_whole(package: ModuleType) -> None:
    """Import every module of a package, except modules that need an extra which is not installed."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print(f"not loaded: {module.name}: {error}", file=sys.stderr)


def put_in_place() -> list[str]:
    """Replace each name that both packages have; return the replaced names."""
    replaced = []
    for module in LANGGRAPHS:
        for name in callboard.__all__:
            if hasattr(module, name) and getattr(module, name) is not getattr(callboard, name):
                setattr(module, name, getattr(callboard, name))
                replaced.append(f"{module.__name__}.{name}")
    return replaced


def forget_importers(package: str) -> None:
    """Remove a package from `sys.modules`, because it imported LangGraph's names before they were replaced."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


load_whole(callboard)
REPLACED = put_in_place()
forget_importers("langchain.agents")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the replaced names, so that a run without replacements is noticed."""
    terminalreporter.write_line(f"callboard in place of {len(REPLACED)} names: {', '.join(REPLACED)}")
