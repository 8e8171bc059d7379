"""Streams and callbacks of the outer graph: chunks of calls get the namespaces that LangGraph would use.

LangGraph's namespaces name the task only, callboard's also the call.
"""

import copy
from collections.abc import Callable
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_STREAM,
    NS_SEP,
)
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph.pregel._tools import StreamToolCallHandler
from langgraph.pregel.protocol import StreamProtocol
from langgraph.types import StreamWriter

from callboard._langgraph._call_scope import CallScratchpad, GraphNames
from callboard._langgraph._outer_task import graph_task, runtime_in

Put = Callable[[Any], None]
"""Consumer of chunks; a chunk has a namespace, a stream mode and a payload."""


def config_for_calls(config: RunnableConfig) -> tuple[RunnableConfig, GraphNames | None]:
    """Return a config in which the outer graph's stream, writer and callback handlers receive LangGraph's namespaces.

    Also returns the mapping of namespaces, in which each graph that a call starts must be registered.
    """
    graphs, is_ours = _graphs_of(config)
    if graphs is not None and is_ours:
        config = _with_stream(_with_handlers(config, graphs), graphs)
    return _with_writer(config, graphs if is_ours else None), graphs


def _graphs_of(config: RunnableConfig) -> tuple[GraphNames | None, bool]:
    """Return the namespace mapping of the outer task, and whether it was created by this call."""
    conf = config.get(CONF, {})
    around = conf.get(CONFIG_KEY_SCRATCHPAD)
    if isinstance(around, CallScratchpad) and around.graphs is not None:
        return around.graphs, False
    namespace = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return (GraphNames(namespace), True) if namespace and graph_task(config) is not None else (None, False)


def _with_stream(config: RunnableConfig, graphs: GraphNames) -> RunnableConfig:
    stream = config[CONF].get(CONFIG_KEY_STREAM)
    if stream is None:
        return config
    named = StreamProtocol(_named(stream, graphs), stream.modes)
    return cast("RunnableConfig", {**config, CONF: {**config[CONF], CONFIG_KEY_STREAM: named}})


def _with_handlers(config: RunnableConfig, graphs: GraphNames) -> RunnableConfig:
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        if not any(map(_is_heard, callbacks.handlers)):
            return config
        named: Any = callbacks.copy()
        known = {id(one): _named_handler(one, graphs) for one in callbacks.handlers}
        named.handlers = [known[id(one)] for one in callbacks.handlers]
        named.inheritable_handlers = [
            known.get(id(one)) or _named_handler(one, graphs) for one in callbacks.inheritable_handlers
        ]
    elif callbacks:
        named = [_named_handler(one, graphs) for one in callbacks]
    else:
        return config
    return cast("RunnableConfig", {**config, "callbacks": named})


def _is_heard(handler: object) -> bool:
    return isinstance(handler, StreamMessagesHandler | StreamToolCallHandler)


def _named_handler(handler: Any, graphs: GraphNames) -> Any:
    """Return a copy of a stream handler that uses LangGraph's namespaces; return other handlers unchanged."""
    if not _is_heard(handler):
        return handler
    # A shallow copy: both share the records of runs and messages, so that no message is streamed twice.
    named = copy.copy(handler)
    named.stream = _named(handler.stream, graphs)
    return named


def _named(put: Put, graphs: GraphNames) -> Put:
    """Return a consumer that passes chunks on with LangGraph's namespaces."""

    def put_named(chunk: tuple[tuple[str, ...], str, Any]) -> None:
        path, mode, payload = chunk
        name = graphs.of(namespace := NS_SEP.join(path))
        if name != namespace:
            path = tuple(name.split(NS_SEP))
            payload = _message_named(payload, graphs) if mode == "messages" else payload
        put((path, mode, payload))

    return put_named


def _message_named(payload: tuple[Any, dict[str, Any]], graphs: GraphNames) -> tuple[Any, dict[str, Any]]:
    message, about = payload
    names = {key: graphs.of(about[key]) for key in _NAMESPACES if isinstance(about.get(key), str)}
    return message, {**about, **names}


_NAMESPACES = ("langgraph_checkpoint_ns", CONFIG_KEY_CHECKPOINT_NS)


def _with_writer(config: RunnableConfig, graphs: GraphNames | None) -> RunnableConfig:
    """Return a config whose stream writer names the graphs of calls as LangGraph would."""
    # LangGraph's writer drops the last segment of the namespace to get the graph. Within a call there is one segment
    # more, so the writer would name the task as the graph.
    runtime = runtime_in(config.get(CONF, {}))
    if runtime is None:
        return config
    write, namespace = runtime.stream_writer, config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")

    def write_named(chunk: Any) -> None:
        current = var_child_runnable_config.get() or cast("RunnableConfig", {})
        name = current.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS, "")
        if not name or name.rpartition(NS_SEP)[0] == namespace:
            _write_within(config, write, chunk)
        elif graphs is None or (named := graphs.of(name)) == name:
            write(chunk)
        else:
            conf = {**current[CONF], CONFIG_KEY_CHECKPOINT_NS: named}
            _write_within(cast("RunnableConfig", {**current, CONF: conf}), write, chunk)

    bound = {**config[CONF], CONFIG_KEY_RUNTIME: runtime.override(stream_writer=write_named)}
    return cast("RunnableConfig", {**config, CONF: bound})


def _write_within(config: RunnableConfig, write: StreamWriter, chunk: Any) -> None:
    token = var_child_runnable_config.set(config)
    try:
        write(chunk)
    finally:
        var_child_runnable_config.reset(token)
