"""Differences that docs/how-to/migrate-from-langgraph.md explains; they are removed before traces are compared."""

import re
from collections.abc import Iterable
from typing import Any

Tree = dict[str, Any]

PIECES = (
    ("RunnableSequence", "agent"),
    ("Prompt", "agent"),
    ("call_model", "agent"),
    ("should_continue", "agent"),
    ("generate_structured_response", "generate_structured_response"),
    ("post_model_hook_router", "post_model_hook"),
)
"""Runs of LangGraph's inner pieces, each with the node around it: callboard has no such pieces."""

PATCHES = ("invoke_agent", "create_agent")
"""Names of spans that opentelemetry-instrumentation-langchain makes of LangGraph's classes and functions."""

KEPT_BY_OURS = {"made_prompt": ("RunnableSequence", "Prompt")}
"""Work in which callboard has such pieces, too: its prompt is a function, which runs as one."""

OF_PATCHES = "gen_ai.provider.name"
"""Attribute that this tracer sets only if such a span is an ancestor."""

OF_CHANCE = "traceloop.association.properties.tags"
"""Attribute that appears only if LangGraph's token handler, which writes into shared metadata, ran first."""

A_TIME = "langfuse.observation.completion_start_time"
"""An attribute with a time of day."""

_NO_PIECE = re.compile(
    r"(?<=agent)\.RunnableSequence\b|(?<=generate_structured_response)\.generate_structured_response\b"
)


def without_pieces(roots: list[Tree], kept: Iterable[str], taken: set[str]) -> list[Tree]:
    """Return LangGraph's trees without the explained runs; children of a removed run move to its parent.

    Args:
        roots: the roots that a tracer recorded.
        kept: pieces that callboard has, too.
        taken: collects the names of the removed runs.
    """
    pieces = {piece for piece in PIECES if piece[0] not in kept}

    def splice(nodes: list[Tree], enclosing: str) -> list[Tree]:
        trees: list[Tree] = []
        for node in nodes:
            name = _plain_name(node["name"])
            is_patch = node["name"].startswith(PATCHES)
            below = splice(node["below"], enclosing if is_patch or (name, enclosing) in pieces else name)
            if is_patch or (name, enclosing) in pieces:
                taken.add(node["name"].split()[0] if is_patch else name)
                trees += below
            else:
                trees.append({**node, "below": below})
        return trees

    return splice(roots, "")


def _plain_name(name: str) -> str:
    return name.removeprefix("execute_task ")


def comparable(node: Tree) -> Tree:
    """Return a run in the form that is compared: concurrent siblings in a fixed order, without explained facts."""
    facts = {key: _fact(value) for key, value in node["facts"].items() if key not in (OF_PATCHES, OF_CHANCE, A_TIME)}
    if (path := facts.get("traceloop.entity.path")) is not None:
        facts["traceloop.entity.path"] = _NO_PIECE.sub("", path)
    return {
        "name": node["name"],
        "kind": node["kind"],
        "status": node["status"],
        "facts": facts,
        "below": in_order(comparable(child) for child in node["below"]),
    }


def in_order(nodes: Iterable[Tree]) -> list[Tree]:
    return sorted(nodes, key=lambda node: (node["name"], repr(node["facts"])))


def _fact(value: Any) -> Any:
    """Return a fact without numbering tags, late ids and the count of remaining steps."""
    if isinstance(value, dict):
        left_out = {"remaining_steps", *(["id"] if "tool_call_id" in value else [])}
        return {key: _fact(item) for key, item in value.items() if key not in left_out}
    if isinstance(value, list):
        items = [_fact(item) for item in value if not (isinstance(item, str) and item.startswith("seq:step:"))]
        return sorted(items, key=repr) if all(isinstance(item, str) for item in items) else items
    return value
