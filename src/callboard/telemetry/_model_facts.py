"""Attributes of a model and of its reply, read from LangChain's objects."""

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence

import callboard.telemetry._names as names


def about_model(model: object) -> dict[str, Any]:
    """Return the attributes of a model (provider, name, parameters) from the description that LangSmith uses."""
    describe: Callable[[], Mapping[str, Any]] = getattr(_bare(model), "_get_ls_params", dict)
    try:
        found = dict(describe())
    except Exception:  # a user-defined model may describe itself wrongly; telemetry must not fail its run
        found = {}
    attributes: dict[str, Any] = {names.PROVIDER: provider_named(found.get("ls_provider"))}
    for key, name, kind in (
        ("ls_model_name", names.REQUEST_MODEL, str),
        ("ls_temperature", names.REQUEST_TEMPERATURE, (int, float)),
        ("ls_max_tokens", names.REQUEST_MAX_TOKENS, int),
    ):
        if isinstance(found.get(key), kind):
            attributes[name] = found[key]
    return attributes


def provider_named(name: object) -> str:
    """Return the conventions' name of a provider that LangChain names."""
    return names.PROVIDERS.get(name, name) if isinstance(name, str) and name else "unknown"


def about_reply(reply: AIMessage | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a request and its reply. The reply fills in a model name that the request lacks."""
    attributes = dict(asked)
    if reply is None:
        return attributes
    told = reply.response_metadata
    if isinstance(model := told.get("model_name") or told.get("model"), str):
        attributes[names.RESPONSE_MODEL] = model
        attributes.setdefault(names.REQUEST_MODEL, model)
    if attributes.get(names.PROVIDER, "unknown") == "unknown":
        attributes[names.PROVIDER] = provider_named(told.get("model_provider"))
    if isinstance(reply.id, str):
        attributes[names.RESPONSE_ID] = told["id"] if isinstance(told.get("id"), str) else reply.id
    if isinstance(reason := told.get("finish_reason") or told.get("stop_reason"), str):
        attributes[names.FINISH_REASONS] = [reason]
    usage = reply.usage_metadata
    if usage is not None:
        attributes[names.INPUT_TOKENS] = usage["input_tokens"]
        attributes[names.OUTPUT_TOKENS] = usage["output_tokens"]
        if cached := usage.get("input_token_details", {}).get("cache_read"):
            attributes[names.CACHED_TOKENS] = cached
    return attributes


def _bare(model: object) -> object:
    """Return the chat model inside bindings and sequences."""
    for _ in range(8):
        if isinstance(model, RunnableBinding):
            model = model.bound
        elif isinstance(model, RunnableSequence):
            model = next((step for step in model.steps if hasattr(step, "_get_ls_params")), model.last)
        else:
            break
    return model
