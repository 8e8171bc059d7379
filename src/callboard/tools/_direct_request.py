"""Direct requests to chat models, without LangChain's callbacks, for use when no callback handler listens.

LangChain's `ainvoke` takes five times as long as the rest of a request: it collects data for tracers and looks for
callback handlers. Without handlers, none of this has an effect.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any

from anyio import CancelScope
from anyio.lowlevel import checkpoint
from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.utils.uuid import uuid7

from callboard._loops._context import InContext
from callboard._loops._current import is_on_asyncio
from callboard.exceptions import CallboardError
from callboard.tools._callbacks import is_traced, manager_of_run

# Methods whose work is left out here, and the names that they use in the releases that were read, on all Pythons. With
# another name, a method may have another effect: then all requests go through `ainvoke`.
_LEFT_OUT = {
    "ainvoke": "_convert_input agenerate_prompt cast ensure_config generations get message pop",
    "agenerate_prompt": "agenerate to_messages",
    "agenerate": """
        AsyncCallbackManager BaseException Exception LLMResult RunInfo _agenerate_with_cache _combine_llm_outputs
        _filter_invocation_params_for_tracing _format_for_tracing _format_ls_structured_output
        _generate_response_from_error _get_invocation_params _get_ls_params_with_defaults _normalize_messages
        _serialized append asyncio callbacks configure enumerate gather generations isinstance len llm_output metadata
        on_chat_model_start on_llm_end on_llm_error pop run run_id tags verbose zip
    """,
    "_convert_input": """
        ChatPromptValue PromptValue Sequence StringPromptValue ValueError convert_to_messages isinstance str type
    """,
}
_NOT_FOR_MODELS = (
    *("ls_structured_output_format", "structured_output_format"),
    *("callbacks", "config", "input", "metadata", "run_id", "run_name", "tags"),
)
"""Options of a request that `agenerate` removes before the model gets them, or that `ainvoke` takes or refuses."""


def _as_read() -> list[tuple[str, FunctionType, CodeType]]:
    """Return the methods named in `_LEFT_OUT`, with their code; an empty list if one of them was changed or wrapped."""
    found: list[tuple[str, FunctionType, CodeType]] = []
    for name, known in _LEFT_OUT.items():
        method = vars(BaseChatModel).get(name)
        # A wrapper of an instrumentation is another type of callable, or a function that was defined elsewhere.
        if type(method) is not FunctionType or method.__code__.co_qualname != f"BaseChatModel.{name}":
            return []
        if not set(known.split()).issuperset(method.__code__.co_names):
            return []
        found.append((name, method, method.__code__))
    return found


_METHODS = _as_read()

_HOOKS = (
    (AsyncCallbackManager, "configure", ""),
    (AsyncCallbackManager, "on_chat_model_start", ""),
    (AsyncCallbackManagerForLLMRun, "on_llm_end", "shielded.<locals>.wrapped"),
    (AsyncCallbackManagerForLLMRun, "on_llm_error", "shielded.<locals>.wrapped"),
)
"""Methods that `ainvoke` calls although no handler listens, and the name in their code if LangChain wraps them."""


def _hooks_as_read() -> list[tuple[type, str, object]] | None:
    """Return the methods in `_HOOKS`; `None` if an instrumentation has wrapped one of them before this import."""
    found: list[tuple[type, str, object]] = []
    for owner, name, wrapper in _HOOKS:
        hook = vars(owner).get(name)
        function = getattr(hook, "__func__", hook)
        if type(function) is not FunctionType:
            return None
        if function.__code__.co_qualname != (wrapper or f"{owner.__name__}.{name}"):
            return None
        found.append((owner, name, hook))
    return found


_HOOKS_AS_READ = _hooks_as_read()


def manager_of_request(
    model: BaseChatModel, options: Mapping[str, Any], config: RunnableConfig
) -> AsyncCallbackManager | None:
    """Return a callback manager without handlers, for a direct request to the model.

    Returns `None` if the request has to go through `ainvoke`: something may listen, a method is overridden or wrapped,
    or the model needs asyncio and the event loop is trio's.
    """
    if not _METHODS or _HOOKS_AS_READ is None:
        return None
    kind, own = type(model), vars(model)
    for name, method, code in _METHODS:
        # First, because a mock may have no other attributes.
        if getattr(kind, name, None) is not method or name in own or method.__code__ is not code:
            return None
    for owner, name, hook in _HOOKS_AS_READ:
        if vars(owner).get(name) is not hook:
            return None
    if config.get("callbacks") or model.callbacks or model.verbose or is_traced():
        return None
    if config.get("tags") or model.tags:  # a model may read them in its run manager, such as to send them to a gateway
        return None
    # `ainvoke` takes what the config lacks, such as callbacks, from the context variable.
    if var_child_runnable_config.get() is not config or not options.keys().isdisjoint(_NOT_FOR_MODELS):
        return None
    if not is_on_asyncio() and not _runs_on_trio(model):
        return None
    if kind._get_invocation_params is not BaseChatModel._get_invocation_params:
        model._get_invocation_params(**options)  # for tracers only; but a model may check its options there
    metadata: dict[str, Any] = {
        **ensure_config(config)["metadata"],
        **model._get_ls_params_with_defaults(**options),
    }
    whole = {**metadata, **(model.metadata or {})}
    manager = AsyncCallbackManager([], metadata=whole, inheritable_metadata=metadata)
    # Instrumentation such as OpenInference adds its handlers to each manager that is made.
    return None if manager.handlers else manager


def _runs_on_trio(model: BaseChatModel) -> bool:
    """Return whether a model is marked as able to run on trio, and has no cache or rate limiter, which need asyncio."""
    if not _declares_trio(type(model)) or model.rate_limiter is not None:
        return False
    return model.cache is False or (model.cache is None and get_llm_cache() is None)


_ASKED = frozenset(("_agenerate", "_agenerate_with_cache", "_astream"))


@cache
def _declares_trio(kind: type[BaseChatModel]) -> bool:
    """Return whether a class declares that it runs on trio; a subclass with its own `_agenerate` declares it anew."""
    for one in kind.__mro__:
        if "runs_on_trio" in vars(one):
            return vars(one)["runs_on_trio"] is True
        if not _ASKED.isdisjoint(vars(one)):
            return False
    return False


async def request(
    model: BaseChatModel,
    messages: Sequence[MessageLikeRepresentation],
    manager: AsyncCallbackManager,
    options: Mapping[str, Any],
) -> BaseMessage:
    """Send a request to a model, and return its reply; `manager` comes from `manager_of_request`."""
    await checkpoint()  # as in `ainvoke`: a run that is being cancelled sends no request
    run = manager_of_run(AsyncCallbackManagerForLLMRun, manager, uuid7())
    whole: Any = [*messages]
    # Nearly all conversations consist of texts. Others are converted as in `ainvoke`, which looks at each message.
    if not _KINDS.issuperset(map(type, whole)) or {*map(type, map(_content_of, whole))} != {str}:
        whole = _normalize_messages(convert_to_messages(whole))
    ask = partial(model._agenerate_with_cache, whole, run_manager=run, **options)
    result = await (_in_own_task(ask()) if is_on_asyncio() else InContext(None, copy_context(), ask))
    model._combine_llm_outputs([result.llm_output])  # a model may count its tokens there
    return result.generations[0].message


async def _in_own_task(asking: Coroutine[Any, Any, ChatResult]) -> ChatResult:
    """Run a request in an asyncio task of its own, as `ainvoke` does."""
    # The model's client may cancel its own task, leave cancel scopes open, or set context variables: none of these may
    # reach the task of the run.
    task = asyncio.ensure_future(asking)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        # Not `gather`: it would pass on each cancellation of an anyio scope, which come at every turn of the loop, and
        # no shield in the client could hold. A second cancellation by other code is passed on.
        while not task.done():
            task.cancel()
            with CancelScope(shield=True), suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # read, or asyncio would log it: the cancellation of the run wins
        raise
    try:
        if task.cancelled():
            # Not raised as it is: a cancellation that nobody requested would end the run's task without an error.
            raise CallboardError("the request to the model was cancelled by other code")
        return task.result()
    finally:
        del task  # the traceback of its error refers to this frame: a reference cycle


_KINDS = frozenset((AIMessage, HumanMessage, SystemMessage, ToolMessage))
_content_of = attrgetter("content")
