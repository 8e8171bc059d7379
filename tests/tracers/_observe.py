"""Run all traced work under one tracer in a process of its own: `python -m tests.tracers._observe NAME`.

Tracers patch LangChain and LangGraph permanently, which must not affect other tests. The trees are printed as JSON:
those of LangGraph's agent next to those of callboard's.
"""

import json
import sys
import warnings
from typing import Any

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.parity._dump import dump
from tests.parity._prebuilt import candidate, reference
from tests.tracers._tracers import TRACERS, Node
from tests.tracers._work import DOORS, PROVIDER, config_with, do


def plain(node: Node) -> dict[str, Any]:
    facts = {key: dump(_read(value)) for key, value in node.facts.items()}
    return {
        "name": node.name,
        "kind": node.kind,
        "status": dump(node.status),
        "facts": facts,
        "below": [plain(child) for child in node.below],
    }


def _read(value: Any) -> Any:
    """Return an attribute of a span, which may be JSON."""
    if isinstance(value, str) and value[:1] in "[{":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def observe(name: str) -> dict[str, Any]:
    spans = InMemorySpanExporter()
    PROVIDER.add_span_processor(SimpleSpanProcessor(spans))
    trees: dict[str, Any] = {}
    with TRACERS[name](PROVIDER, spans) as tracer:
        for work, doors in DOORS.items():
            for version in ("v1", "v2"):
                for door in doors:
                    for ns in (reference(), candidate()):
                        is_langgraph = ns.side == "langgraph"
                        config = config_with(tracer.handlers)
                        do(work(ns, version), config, "asyncio" if is_langgraph and door == "trio" else door)
                        key = f"{work.__name__} {version} {door}"
                        trees.setdefault(key, {})[ns.side] = [plain(root) for root in tracer.roots()]
                        spans.clear()
    return trees


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # LangGraph's create_react_agent is deprecated
    result = observe(sys.argv[1])
    json.dump(result, sys.stdout, default=repr)
