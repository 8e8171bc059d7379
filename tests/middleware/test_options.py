"""Options of middleware that make no sense: the error comes at construction and names the argument."""

from typing import Any

import pytest

from callboard.middleware import Cache, CircuitBreaker, Fallback, OutputBudget, RequireApproval, Retry
from callboard.testing import Recorder

from .test_approval import ALL_ALLOWED


async def never(request: Any) -> bool:
    return False


NEEDED: dict[type, dict[str, Any]] = {Cache: {"tools": ["work"]}, Fallback: {"instead_of": {}}}
"""Options without which a middleware cannot be built."""


@pytest.mark.parametrize(
    ("kind", "options", "error", "says"),
    [
        (RequireApproval, {"tools": "delete"}, TypeError, r"tools=\.\.\.\).*\['delete'\]"),
        (RequireApproval, {"tools": [never]}, TypeError, r"tools=\.\.\.\)"),
        (RequireApproval, {"tools": never}, TypeError, r"tools=\.\.\.\)"),
        (RequireApproval, {"tools": {"delete": "yes"}}, TypeError, r"'delete'"),
        (RequireApproval, {"tools": {"delete": never}}, TypeError, r"async"),
        (RequireApproval, {"tools": {"delete": {"allow_accept": True}}}, ValueError, r"allow_edit"),
        (RequireApproval, {"tools": {"delete": {**ALL_ALLOWED, "allow_all": True}}}, ValueError, r"allow_all"),
        (RequireApproval, {"tools": {"delete": {**ALL_ALLOWED, "allow_edit": "yes"}}}, ValueError, r"True or False"),
        (RequireApproval, {"tools": {"delete": dict.fromkeys(ALL_ALLOWED, False)}}, ValueError, r"open for ever"),
        (RequireApproval, {"when": never}, TypeError, r"when=\.\.\.\).*async"),
        (RequireApproval, {"when": True}, TypeError, r"when=\.\.\.\)"),
        (RequireApproval, {"description": 1}, TypeError, r"description=\.\.\.\)"),
        (RequireApproval, {"description": never}, TypeError, r"async"),
        (RequireApproval, {"allow": []}, ValueError, r"open for ever"),
        (RequireApproval, {"allow": "accept"}, ValueError, r"allow=\.\.\.\)"),
        (RequireApproval, {"allow": ["approve"]}, ValueError, r"'approve'"),
        (CircuitBreaker, {"ratio": "0.5"}, TypeError, r"\(ratio=...\)"),
        (CircuitBreaker, {"ratio": True}, TypeError, r"\(ratio=...\)"),
        (CircuitBreaker, {"ratio": 0}, ValueError, r"\(ratio=...\)"),
        (CircuitBreaker, {"ratio": 1.1}, ValueError, r"\(ratio=...\)"),
        (CircuitBreaker, {"ratio": float("nan")}, ValueError, r"\(ratio=...\)"),
        (CircuitBreaker, {"minimum": 0}, ValueError, r"\(minimum=...\)"),
        (CircuitBreaker, {"minimum": 1.5}, TypeError, r"\(minimum=...\)"),
        (CircuitBreaker, {"window": 0}, ValueError, r"\(window=...\)"),
        (CircuitBreaker, {"window": float("inf")}, ValueError, r"\(window=...\)"),
        (CircuitBreaker, {"window": None}, ValueError, r"\(window=...\)"),
        (CircuitBreaker, {"open_for": -1}, ValueError, r"\(open_for=...\)"),
        (CircuitBreaker, {"open_for": "30"}, TypeError, r"\(open_for=...\)"),
        (CircuitBreaker, {"probes": 0}, ValueError, r"\(probes=...\)"),
        (CircuitBreaker, {"on": "ValueError"}, TypeError, r"\(on=...\)"),
        (CircuitBreaker, {"on": [ValueError]}, TypeError, r"\(on=...\)"),
        (CircuitBreaker, {"key": "host"}, TypeError, r"\(key=...\)"),
        (Cache, {"ttl": 0}, ValueError, r"\(ttl"),
        (Cache, {"ttl": -1}, ValueError, r"\(ttl"),
        (Cache, {"size": 0}, ValueError, r"\(size"),
        (Cache, {"size": 1.5}, TypeError, r"\(size"),
        (Cache, {"key": "query"}, TypeError, r"\(key"),
        (Cache, {"tools": "work"}, TypeError, r"\(tools"),
        (Cache, {"tools": None}, TypeError, r"\(tools"),
        (Cache, {"tools": [Recorder().tool("work")]}, TypeError, r"\(tools"),
        (OutputBudget, {"characters": 0}, ValueError, "characters"),
        (OutputBudget, {"characters": 1.5}, TypeError, "characters"),
        (OutputBudget, {"tools": "work"}, TypeError, "tools"),
        (OutputBudget, {"exclude": "work"}, TypeError, "exclude"),
        (OutputBudget, {"store": {}}, TypeError, "store"),
        (OutputBudget, {"memory": -1}, ValueError, "memory"),
        (OutputBudget, {"media": -1}, ValueError, "media"),
        (OutputBudget, {"media": "5 MB"}, TypeError, "media"),
        (Retry, {"attempts": 0}, ValueError, r"\(attempts=...\)"),
        (Retry, {"factor": 0.5}, ValueError, r"\(factor=...\)"),
        (Retry, {"initial": -1}, ValueError, r"\(initial=...\)"),
        (Retry, {"maximum": float("nan")}, ValueError, r"\(maximum=...\)"),
        (Retry, {"any_tool": "no"}, TypeError, r"any_tool=...\) takes bool, such as True; got 'no'"),
        (Retry, {"on": "ValueError"}, TypeError, r"on=...\) takes an exception type"),
        (Retry, {"on": [ValueError]}, TypeError, r"on=...\) takes an exception type"),
        (Retry, {"on": ValueError("x")}, TypeError, r"on=...\) takes an exception type"),
        (Retry, {"on": BaseException}, TypeError, r"on=...\) takes an exception type"),
        (Retry, {"on": (ValueError, int)}, TypeError, r"on=...\) takes an exception type"),
        (Fallback, {"on": "ValueError"}, TypeError, r"\(on=...\)"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: Any, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        kind(**(NEEDED.get(kind, {}) | options))
    assert str(caught.value).startswith(kind.__name__)
