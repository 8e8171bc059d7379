"""Requests to the model of an agent, and execution of the user's models, hooks and prompts.

A request has the agent's prompt and tools. Sync runs use sync methods, async runs async methods.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from anyio.from_thread import check_cancelled
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import BaseMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.tools import BaseTool

from callboard._langgraph._node_scope import MISSING, graph_runnable
from callboard._langgraph._outer_task import runtime_of
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop, is_on_asyncio
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._entry_mode import is_missing, is_sync_entry
from callboard._loops._protocol import Scope
from callboard._loops._threads import run_in_thread
from callboard.conversations._history import repair
from callboard.exceptions import CallboardError

Prompt = (
    str
    | SystemMessage
    | Callable[[Any], LanguageModelInput]
    | Callable[[Any], Awaitable[LanguageModelInput]]
    | Runnable[Any, LanguageModelInput]
)
Model = Runnable[LanguageModelInput, BaseMessage]
ModelChoice = Callable[[Any, Any], Any]
"""Function that takes a state and a runtime and returns a model with bound tools; sync or async."""


def model_with_tools(
    model: "str | Runnable[Any, Any]", tools: Sequence[BaseTool], provider_tools: Sequence[dict[str, Any]]
) -> Model:
    """Return the model with the agent's tools bound; a name `provider:model` is resolved by langchain."""
    if isinstance(model, str):
        model = init_chat_model(model)
    model_object: object = model
    if isinstance(model_object, type):
        raise TypeError(
            f"A model is a chat model, and {model_object.__name__} is a class: write {model_object.__name__}(...)"
        )
    if not isinstance(model, Runnable):
        raise TypeError(f"A model is a chat model or 'provider:name', got {model!r}")
    all_tools = [*tools, *provider_tools]
    model_step = _step_with_tools(model)
    if isinstance(model_step, RunnableBinding) and "tools" in model_step.kwargs:  # the user has bound them
        bound = model_step.kwargs["tools"]
        if len(bound) != len(all_tools):
            expected = len(bound) - len(provider_tools)
            raise ValueError(
                "Number of tools in the model.bind_tools() and tools passed to create_react_agent must match"
                f" Got {len(tools)} tools, expected {expected}"
            )
        if missing := {tool.name for tool in tools} - {_tool_name(tool) for tool in bound}:
            raise ValueError(f"Missing tools '{missing}' in the model.bind_tools()")
        return model
    if not all_tools:
        return model
    bind = getattr(model, "bind_tools", None)
    if bind is None:
        raise TypeError(f"The model has no bind_tools(), so it cannot be told of its tools: {model!r}")
    try:
        return cast("Model", bind(all_tools))
    except NotImplementedError as error:  # LangChain's base method, inherited by the model
        raise no_bind_tools(model, all_tools) from error


def no_bind_tools(model: object, tools: Sequence[object]) -> NotImplementedError:
    """Return the error for a model that has only LangChain's base method `bind_tools`."""
    names = ", ".join(repr(_tool_name(tool)) for tool in tools)
    return NotImplementedError(
        f"{type(model).__name__} has no bind_tools() of its own, so it cannot be told of its tools ({names}): take "
        "a chat model that calls tools, give it that method, or hand over a model that knows them, "
        "model.bind(tools=[...])"
    )


def init_chat_model(name: str) -> BaseChatModel:
    """Return the chat model of a name `provider:model`, made by langchain; raise ImportError without langchain."""
    try:
        from langchain.chat_models import init_chat_model as from_name
    except ImportError:
        raise ImportError(
            "Please install langchain (`pip install langchain`) to use '<provider>:<model>' string syntax for "
            "`model` parameter."
        ) from None
    return from_name(name)


def _tool_name(tool: Any) -> str | None:
    """Return the name of a bound tool: a LangChain tool, a function, or a dict in OpenAI's or Anthropic's form."""
    if not isinstance(tool, dict):
        return getattr(tool, "name", None) or getattr(tool, "__name__", None)
    if tool.get("type") == "function":
        return cast("str", tool["function"]["name"])
    return tool.get("name")


class FixedModel:
    """Model that an agent uses for all requests.

    `prompt` is a system message before the conversation, or it computes the whole input of the model.
    """

    def __init__(
        self,
        model: "str | Runnable[Any, Any]",
        tools: Sequence[BaseTool],
        provider_tools: Sequence[dict[str, Any]],
        prompt: Prompt | None,
    ) -> None:
        self._model = init_chat_model(model) if isinstance(model, str) else model
        self._tools = tools
        self._provider_tools = provider_tools
        self._prompt = _Prompt(prompt)
        self.bound_model = model_with_tools(self._model, tools, provider_tools)
        """Model with its tools bound. That of a `ChosenModel` is `None`, because its model may differ by request."""

    def reply(self, state: Any, config: RunnableConfig, offered: Sequence[BaseTool]) -> Awaitable[BaseMessage]:
        """Send the state to the model and return the reply, which may call only the tools in `offered`."""
        model = self.bound_model
        if len(offered) < len(self._tools):
            if isinstance(model, RunnableBinding) and model is self._model:  # the user has bound the tools
                names = {tool.name for tool in self._tools} - {tool.name for tool in offered}
                offered_tools = [tool for tool in model.kwargs["tools"] if _tool_name(tool) not in names]
                model = model.bound.bind(**{**model.kwargs, "tools": offered_tools})
            else:
                model = model_with_tools(self._model, offered, self._provider_tools)
        return run_model(*self._prompt.model_and_input(model, state), config)

    async def respond(self, state: Any, config: RunnableConfig, response_format: Any) -> object:
        return await request_structured_response(self.bound_model, state, config, response_format)


class ChosenModel:
    """Model that a function of the user chooses for each request."""

    bound_model: Model | None = None

    def __init__(self, choose: ModelChoice, prompt: Prompt | None) -> None:
        self._choose = choose
        self._prompt = _Prompt(prompt)

    async def reply(self, state: Any, config: RunnableConfig, offered: Sequence[BaseTool]) -> BaseMessage:
        return await run_model(*self._prompt.model_and_input(await self._choose_model(state, config), state), config)

    async def respond(self, state: Any, config: RunnableConfig, response_format: Any) -> object:
        return await request_structured_response(
            await self._choose_model(state, config), state, config, response_format
        )

    async def _choose_model(self, state: Any, config: RunnableConfig) -> Model:
        choose = self._choose
        ask, name = partial(choose, state, runtime_of(config)), "the function that chooses a model"

        async def choose_model() -> Any:
            # In a thread, because a slow sync function must not block the event loop.
            model = ask() if inspect.iscoroutinefunction(choose) else await run_function(ask, name)
            return await model if inspect.isawaitable(model) else model

        chosen: object = await _run_in_own_task(choose_model, name)
        if not isinstance(chosen, Runnable):
            raise TypeError(f"model={choose!r} has to return a chat model for the state, got {chosen!r}")
        return chosen


class _Prompt:
    """Prompt of an agent, converted once for all requests; raises ValueError for a prompt of an unknown type."""

    def __init__(self, prompt: Prompt | None) -> None:
        self._messages: list[BaseMessage] = []
        self._make: Runnable[Any, Any] | None = None
        """Runnable that computes the model's input from a state, or `None`.

        If it is `None`, `_messages` come before the conversation.
        """
        if isinstance(prompt, (str, SystemMessage)):
            self._messages = [SystemMessage(content=prompt) if isinstance(prompt, str) else prompt]
        elif isinstance(prompt, Runnable) or callable(prompt):
            self._make = prompt if isinstance(prompt, Runnable) else graph_runnable(prompt, "Prompt", traced=True)
        elif prompt is not None:
            raise ValueError(f"Got unexpected type for `prompt`: {type(prompt)}")

    def model_and_input(self, model: Model, state: Any) -> tuple[Model, Any]:
        if self._make is not None:
            return self._make | model, state
        # A plain list: a `RunnableSequence` would take as long as the rest of the turn.
        messages = messages_of(state)
        return model, [*self._messages, *messages] if self._messages else messages


async def request_structured_response(model: Model, state: Any, config: RunnableConfig, response_format: Any) -> object:
    """Ask the model for the final result in the form `response_format`, in a request without tools."""
    messages = messages_of(state)
    if isinstance(response_format, tuple):
        prompt, response_format = response_format
        messages = [SystemMessage(content=prompt), *messages]
    model = _step_with_tools(model)
    chat_model = model.bound if isinstance(model, RunnableBinding) else model
    if not isinstance(chat_model, BaseChatModel):
        raise TypeError(
            f"Expected `model` to be a ChatModel or RunnableBinding (e.g. model.bind_tools(...)), got "
            f"{type(chat_model)}"
        )
    return await run_model(chat_model.with_structured_output(response_format), messages, config)


def _step_with_tools(model: Any) -> Any:
    if isinstance(model, RunnableSequence):
        return next((step for step in model.steps if isinstance(step, (RunnableBinding, BaseChatModel))), model)
    return model


def for_model(payload: Any, *, before: bool) -> Any:
    """Return the input of a LangGraph `Send` to the model, with its messages in an order that providers accept."""
    # A hook before the model may have written messages for the model alone.
    keys = ("llm_input_messages", "messages") if before else ("messages",)
    messages: Any = next((value for key in keys if (value := value_in(payload, key))), value_in(payload, "messages"))
    if messages is None:
        expected = " or ".join(map(repr, keys))
        raise ValueError(f"Expected input to call_model to have {expected} key, but got {payload}")
    complete_messages = repair(convert_to_messages(messages)).request
    if isinstance(payload, Mapping):
        return {**payload, "messages": complete_messages}
    payload.messages = complete_messages
    return payload


def value_in(payload: Any, key: str) -> Any:
    """Return the value of a key in the input of a `Send`, which is a mapping or an object; `None` if it is missing."""
    return payload.get(key) if isinstance(payload, Mapping) else getattr(payload, key, None)


def messages_of(state: Any) -> list[BaseMessage]:
    llm_messages = value_in(state, "llm_input_messages")
    return list(value_in(state, "messages") or () if llm_messages is None else llm_messages)


T = TypeVar("T")


def run_user_code(runnable: Runnable[Any, T], input: Any, config: RunnableConfig, name: str) -> Awaitable[T]:
    """Run a model, hook or prompt that the user gave as a LangChain Runnable, and return its result."""
    # In a sync run in a worker thread, which warnings call `name`; in an async run on asyncio, or in a worker thread if
    # LangGraph would run the sync function on the event loop.
    is_sync_only = getattr(runnable, "func", None) is not None and getattr(runnable, "afunc", MISSING) is None
    if is_sync_only or (is_sync_entry() and has_sync_variant(runnable)):
        return run_function(partial(runnable.invoke, input, config), name)
    return _run_in_own_task(partial(runnable.ainvoke, input, config), name)


def run_model(model: Runnable[Any, T], input: Any, config: RunnableConfig) -> Awaitable[T]:
    """Send a request to a model and return its reply; in a sync run, a worker thread sends it."""
    if is_sync_entry():
        return run_user_code(model, input, with_handler(config, _StopsAtToken()), "the model")
    return _run_in_own_task(partial(model.ainvoke, input, config), "the request to the model")


async def _run_in_own_task(fn: Callable[[], Awaitable[T]], name: str) -> T:
    """Run an async function of the user in an asyncio task, which has time for clean-up if the run is cancelled."""
    # In the task of the run, a context variable that the function sets would reach later tools and the caller.
    if not is_on_asyncio():
        return await run_on_asyncio(fn)
    # An anyio scope cancels the task of the run at every turn of the event loop. LangChain would pass on each of these
    # cancellations to the model's client, and no shield would hold in which the client closes its connection. A result
    # that the function returns in spite of a cancellation is discarded: the nursery raises the cancellation.
    results: list[T] = []
    errors: list[Exception] = []

    async def child(scope: Scope) -> None:
        with scope:
            try:
                results.append(await fn())
            except Exception as error:  # raised in the run below; a child of a nursery must not raise
                errors.append(error)

    async with current_loop().nursery() as nursery:
        nursery.start(child, DEFAULT_GRACE)
    if errors:
        raise errors.pop()
    if not results:
        raise CallboardError(f"{name} was cancelled by other code")
    return results.pop()


async def run_function(fn: Callable[[], T], name: str) -> T:
    # Without a limit of threads: the function may run agents, and they would wait for the thread that it holds.
    return await run_in_thread(current_loop(), fn, name, _NoObserver())


def has_sync_variant(runnable: Runnable[Any, Any]) -> bool:
    """Return whether a Runnable and its parts can run as sync code; a part with only a coroutine function cannot."""
    parts: Sequence[Runnable[Any, Any]] = []
    if isinstance(runnable, RunnableBindingBase):
        parts = [runnable.bound]
    elif isinstance(runnable, RunnableSequence):
        parts = runnable.steps
    elif isinstance(runnable, RunnableParallel):
        parts = list(runnable.steps__.values())
    elif isinstance(runnable, RunnableWithFallbacks):
        parts = list(runnable.runnables)
    if parts:
        return all(has_sync_variant(part) for part in parts)
    cls, attributes = type(runnable), getattr(runnable, "__dict__", {})
    for sync, awaited in _SYNC_AND_ASYNC_METHODS:
        if attributes.get(awaited) is not None and attributes.get(sync) is None:
            return False
    return not any(is_missing(getattr(cls, name, None)) for name in ("invoke", "_generate"))


_SYNC_AND_ASYNC_METHODS = (("func", "afunc"), ("_transform", "_atransform"))
"""Pairs of attribute names under which Runnables store their sync function and their async function."""


class _NoObserver:
    """Observer of worker threads that does nothing when a thread outlives its run.

    Such a thread holds no permit of a limit, so nothing has to be counted.
    """

    def thread_abandoned(self) -> None:
        pass

    def thread_ended(self) -> None:
        pass


class TokenHandler(BaseCallbackHandler):
    """Callback handler that gets the tokens of a reply, in the thread and the context of the request."""

    run_inline = True

    @property
    def ignore_chat_model(self) -> bool:
        """`True`: LangChain must not report the start of a request to this handler, only the tokens of the reply."""
        return True


class _StopsAtToken(TokenHandler):
    """Callback handler that stops the thread of a cancelled model at its next token; no earlier stop is possible."""

    raise_error = True  # the raised cancellation has to reach the model

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        with suppress(RuntimeError):  # the model reports tokens from a thread that anyio did not start
            check_cancelled()


def with_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> RunnableConfig:
    """Return a copy of a config with an additional callback handler."""
    callbacks: Any = config.get("callbacks")
    if callbacks is None or isinstance(callbacks, list):
        return {**config, "callbacks": [*(callbacks or ()), handler]}
    manager = callbacks.copy()
    manager.add_handler(handler, inherit=True)
    return {**config, "callbacks": manager}
