"""Check of spans against OpenTelemetry's conventions for generative AI.

The names, types and requirements are those of open-telemetry/semantic-conventions-genai 0.1.0 (development status), for
the operations and attributes that callboard records. They are literals, so a slip in the constants of
`callboard.telemetry` cannot hide here.
"""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from tests.telemetry._traces import attributes

CONVENTION_TYPES: dict[str, type] = {
    "gen_ai.agent.name": str,
    "gen_ai.conversation.id": str,
    "gen_ai.input.messages": str,
    "gen_ai.operation.name": str,
    "gen_ai.output.messages": str,
    "gen_ai.provider.name": str,
    "gen_ai.request.max_tokens": int,
    "gen_ai.request.model": str,
    "gen_ai.request.temperature": float,
    "gen_ai.response.finish_reasons": tuple,
    "gen_ai.response.id": str,
    "gen_ai.response.model": str,
    "gen_ai.tool.call.arguments": str,
    "gen_ai.tool.call.id": str,
    "gen_ai.tool.call.result": str,
    "gen_ai.tool.description": str,
    "gen_ai.tool.name": str,
    "gen_ai.tool.type": str,
    "gen_ai.usage.cache_read.input_tokens": int,
    "gen_ai.usage.input_tokens": int,
    "gen_ai.usage.output_tokens": int,
}

PROVIDERS = {
    "anthropic",
    "aws.bedrock",
    "azure.ai.inference",
    "azure.ai.openai",
    "cohere",
    "deepseek",
    "gcp.gemini",
    "gcp.gen_ai",
    "gcp.vertex_ai",
    "groq",
    "ibm.watsonx.ai",
    "mistral_ai",
    "moonshot_ai",
    "openai",
    "perplexity",
    "x_ai",
}
"""Well-known providers; the conventions allow another name for a provider that is not in their list."""

REMOVED = {"chat": set(), "execute_tool": set(), "invoke_agent": {"gen_ai.provider.name"}}
"""Attributes that version 0.1.0 of the conventions has removed from the spans of an operation."""

REQUIRED = {
    "chat": {"gen_ai.provider.name"},
    "execute_tool": {"gen_ai.tool.name"},
    "invoke_agent": set(),
}
"""Required attributes of an operation, besides its name."""

KINDS = {
    "chat": {SpanKind.CLIENT, SpanKind.INTERNAL},
    "execute_tool": {SpanKind.INTERNAL},
    "invoke_agent": {SpanKind.INTERNAL},
}
"""Kinds of the span of an operation; an agent in the same process is internal."""


def convention_violations(span: ReadableSpan) -> list[str]:
    """Return a sentence for each violation of the conventions."""
    recorded = {key: value for key, value in attributes(span).items() if key.startswith("gen_ai.")}
    operation = str(recorded.get("gen_ai.operation.name"))
    if operation not in REQUIRED:
        return [f"operation {operation}"]
    violations = [f"missing {key}" for key in sorted(REQUIRED[operation] - set(recorded))]
    violations += [f"removed {key}" for key in sorted(REMOVED[operation] & set(recorded))]
    violations += [f"kind {span.kind} of {operation}"] if span.kind not in KINDS[operation] else []
    violations += [f"unknown {key}" for key in sorted(set(recorded) - set(CONVENTION_TYPES))]
    violations += [f"{key} is {value!r}" for key, value in recorded.items() if not _has_convention_type(key, value)]
    return violations


def _has_convention_type(key: str, value: Any) -> bool:
    if key == "gen_ai.provider.name":
        return value in PROVIDERS
    if key == "gen_ai.response.finish_reasons":
        return isinstance(value, tuple) and all(isinstance(reason, str) for reason in value)
    return type(value) is CONVENTION_TYPES.get(key, type(value))
