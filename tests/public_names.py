"""Public names of both distributions: the names in `__all__` of modules without a leading underscore."""

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

import callboard
import callboard_actors

RECEIVED = {
    "Action",
    "ActorChange",
    "ActorContract",
    "ActorEvent",
    "ActorStatistics",
    "Agent",
    "Approval",
    "AskEvent",
    "CallEvent",
    "ChainLink",
    "ChildSpec",
    "Closing",
    "Drained",
    "Event",
    "Exchange",
    "FakedCall",
    "FakedTools",
    "FleetAsk",
    "Keyed",
    "LiveRun",
    "McpApp",
    "LiveCall",
    "ModelRequest",
    "Note",
    "Part",
    "PermitRequest",
    "ReadMessage",
    "RecordedAsk",
    "RecordedAttempt",
    "RecordedCall",
    "RecordedRun",
    "Recording",
    "Replay",
    "Reply",
    "RunEvent",
    "RunInfo",
    "RunningCall",
    "Shutdown",
    "Statistics",
    "StoredThread",
    "Telemetry",
    "ToolActor",
    "ToolExplanation",
    "UnknownCall",
    "Wait",
    "Wakeup",
}
"""Classes whose objects a program gets from callboard, or subclasses; their constructors are private."""


@dataclass(frozen=True, slots=True)
class PublicName:
    """Name in `__all__` of a public module, with its object."""

    module: str
    name: str
    value: object


@cache
def public_names() -> list[PublicName]:
    """Return all public names, module by module. A name that two modules export is listed twice."""
    entries: list[PublicName] = []
    for package in (callboard, callboard_actors):
        names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        for module in [package.__name__, *(name for name in names if "._" not in name)]:
            home = importlib.import_module(module)
            entries += [PublicName(module, name, getattr(home, name)) for name in getattr(home, "__all__", ())]
    return entries


def arguments_in(doc: str) -> dict[str, str]:
    """Return the entries of the section `Args:` of a docstring, by the name of the parameter."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.cleandoc(doc), re.MULTILINE)
    entries = (
        re.findall(r"^    ([\w*, ]+): ((?:.*\n?)(?:^        .*\n?)*)", section[1], re.MULTILINE) if section else []
    )
    return {name.strip(" *"): text for names, text in entries for name in names.split(",")}


def field_docs(kind: type) -> dict[str, str]:
    """Return the texts below the fields of a class and of its base classes in this project."""
    docs: dict[str, str] = {}
    for home in reversed(kind.__mro__):
        if not home.__module__.startswith("callboard"):
            continue
        node = ast.parse(textwrap.dedent(inspect.getsource(home))).body[0]
        assert isinstance(node, ast.ClassDef)
        for field, doc in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(doc):
                docs[field.target.id] = ast.literal_eval(doc.value)
    return docs


def _is_text(node: ast.stmt) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
