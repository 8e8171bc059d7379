"""Detection of model-request spans made by other instrumentation, by a span processor of the SDK."""

from typing import Any

from opentelemetry import context
from opentelemetry.context import Context

import callboard.telemetry._names as names
from callboard.telemetry._identity import Same

_REQUESTS = frozenset((names.CHAT, "generate_content", "text_completion"))
_KINDS = (("openinference.span.kind", "LLM"), ("llm.request.type", "chat"), ("traceloop.span.kind", "llm"))
"""Attributes by which older instrumentations, from before the conventions, mark the span of a model request."""


class Foreign:
    """Flag of one model request: whether another instrumentation made a span for it."""

    __slots__ = ("was_seen",)

    def __init__(self) -> None:
        self.was_seen = False


class Spotter:
    """Span processor of one provider that notices model-request spans made by other instrumentation."""

    def __init__(self) -> None:
        self._key = context.create_key("callboard-model-request")

    def following(self, request: Foreign) -> Context:
        """Return the current context with the request attached; spans begun in it are inspected."""
        return context.set_value(self._key, request)

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        self._notice(span, parent_context)

    def on_end(self, span: Any) -> None:
        self._notice(span, None)  # some instrumentations set the attributes only before the end

    def _notice(self, span: Any, around: Context | None) -> None:
        request = context.get_value(self._key, around)
        if isinstance(request, Foreign) and not request.was_seen:
            request.was_seen = _is_request(span.attributes or {})

    def _on_ending(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


_known: dict[Same, Spotter] = {}
"""Processors by provider: the SDK cannot remove a processor, so each provider gets one at most."""


def spotter_of(provider: object) -> Spotter:
    """Return the span processor of a provider, and add it at first use. A provider without an SDK takes none."""
    found = _known.get(Same(provider))
    if found is None:
        found = _known[Same(provider)] = Spotter()
        add = getattr(provider, "add_span_processor", None)
        if add is not None:
            add(found)
    return found


def _is_request(attributes: Any) -> bool:
    if attributes.get(names.OPERATION) in _REQUESTS:
        return True
    return any(attributes.get(key) == value for key, value in _KINDS)
