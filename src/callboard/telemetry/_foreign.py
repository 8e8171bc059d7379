"""Whether somebody else has made a span for a model request; only an SDK's span processor sees that."""

from typing import Any

from opentelemetry import context
from opentelemetry.context import Context

import callboard.telemetry._names as names
from callboard.telemetry._same import Same

_KEY = context.create_key("callboard-model-request")
_REQUESTS = frozenset((names.CHAT, "generate_content", "text_completion"))
_KINDS = (("openinference.span.kind", "LLM"), ("llm.request.type", "chat"), ("traceloop.span.kind", "llm"))
"""How instrumentations from before the conventions say so."""


class Foreign:
    """One model request, under watch."""

    __slots__ = ("was_seen",)

    def __init__(self) -> None:
        self.was_seen = False

    def watched(self) -> Context:
        """The current context, in which spans of others are noticed."""
        return context.set_value(_KEY, self)


class Spotter:
    """The span processor that notices."""

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        _notice(context.get_value(_KEY, parent_context), span)

    def on_end(self, span: Any) -> None:
        _notice(context.get_value(_KEY), span)  # some say only at the end what they are

    def _on_ending(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


_known: set[Same] = set()


def spot(provider: object) -> None:
    """Notice the spans of a provider, if it is an SDK's; once."""
    add = getattr(provider, "add_span_processor", None)
    if Same(provider) in _known or add is None:
        return
    add(Spotter())
    _known.add(Same(provider))


def _notice(request: object, span: Any) -> None:
    if isinstance(request, Foreign) and not request.was_seen:
        request.was_seen = _is_request(span.attributes or {})


def _is_request(attributes: Any) -> bool:
    if attributes.get(names.OPERATION) in _REQUESTS:
        return True
    return any(attributes.get(key) == value for key, value in _KINDS)
