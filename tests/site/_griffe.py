"""Extension of Griffe: constants of LangGraph, which have no docstring, get their line of `docs/reference/api.md`."""

from typing import Any

from griffe import Docstring, Extension, Module

from tests.site import _pages


class Constants(Extension):
    """Extension that documents the constants of `langgraph.prebuilt`."""

    def on_module(self, *, mod: Module, **_: Any) -> None:
        """Add the docstrings when Griffe has read the module."""
        if mod.canonical_path == "langgraph.prebuilt.tool_node":
            for name, meaning in _pages.meanings().items():
                found = mod.attributes.get(name)
                if found is not None and found.docstring is None:
                    found.docstring = Docstring(f"{meaning[0].upper()}{meaning[1:]}.", parent=found)
