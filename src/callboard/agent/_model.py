"""What an agent calls when it calls its model: the prompt, the model, the tools it is told of."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableLambda, RunnableSequence
from langchain_core.tools import BaseTool

Prompt = (
    str
    | SystemMessage
    | Callable[[Any], LanguageModelInput]
    | Callable[[Any], Awaitable[LanguageModelInput]]
    | Runnable[Any, LanguageModelInput]
)
Model = Runnable[LanguageModelInput, BaseMessage]


def model_with_tools(
    model: "str | Runnable[Any, Any]", tools: Sequence[BaseTool], provider_tools: Sequence[dict[str, Any]]
) -> Model:
    """The model, knowing its tools.

    Args:
        model: a chat model, one that has its tools already, a sequence that ends in one, or
            `provider:name` for langchain's `init_chat_model`.
        tools: those that run here.
        provider_tools: those that run at the provider, as the provider describes them.

    Raises:
        ImportError: if a name is given and langchain is not installed.
        TypeError: if the model is none.
        ValueError: if the tools that it has are not those that the agent has.
    """
    if isinstance(model, str):
        model = _init_chat_model(model)
    if not isinstance(model, Runnable):
        raise TypeError(f"A model is a chat model or 'provider:name', got {model!r}")
    everything = [*tools, *provider_tools]
    if _has_tools(model, tools, len(provider_tools)) or not everything:
        return model
    bind = getattr(model, "bind_tools", None)
    if bind is None:
        raise TypeError(f"The model has no bind_tools(), so it cannot be told of its tools: {model!r}")
    return cast("Model", bind(everything))


def _init_chat_model(name: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError:
        raise ImportError(
            "Please install langchain (`pip install langchain`) to use '<provider>:<model>' string syntax for "
            "`model` parameter."
        ) from None
    return init_chat_model(name)


def _has_tools(model: Runnable[Any, Any], tools: Sequence[BaseTool], at_provider: int) -> bool:
    """Whether the model was told of its tools already; they have to be ours then."""
    if isinstance(model, RunnableSequence):
        model = next((step for step in model.steps if isinstance(step, (RunnableBinding, BaseChatModel))), model)
    if not isinstance(model, RunnableBinding) or "tools" not in model.kwargs:
        return False
    bound = model.kwargs["tools"]
    if len(tools) != len(bound) - at_provider:
        raise ValueError(
            "Number of tools in the model.bind_tools() and tools passed to create_react_agent must match"
            f" Got {len(tools)} tools, expected {len(bound) - at_provider}"
        )
    if missing := {tool.name for tool in tools} - {_bound_name(tool) for tool in bound}:
        raise ValueError(f"Missing tools '{missing}' in the model.bind_tools()")
    return True


def _bound_name(tool: Any) -> str | None:
    """A tool's name in OpenAI's form or in Anthropic's."""
    if not isinstance(tool, dict):
        return getattr(tool, "name", None)
    if tool.get("type") == "function":
        return cast("str", tool["function"]["name"])
    return tool.get("name")


def prompted(model: Model, prompt: Prompt | None) -> Callable[[Any, RunnableConfig], Awaitable[BaseMessage]]:
    """From the state to the model's reply.

    Raises:
        ValueError: if the prompt is of none of the known kinds.
    """
    if prompt is None or isinstance(prompt, (str, SystemMessage)):
        # No sequence of Runnables for what is a list: it would cost as much as all the rest of a turn.
        system = [SystemMessage(content=prompt)] if isinstance(prompt, str) else [prompt] if prompt else []
        return lambda state, config: model.ainvoke([*system, *_messages(state)], config)
    sequence: Runnable[Any, BaseMessage] = _prompt_runnable(prompt) | model
    return sequence.ainvoke


def _prompt_runnable(prompt: Prompt) -> Runnable[Any, LanguageModelInput]:
    if isinstance(prompt, Runnable):
        return prompt
    if inspect.iscoroutinefunction(prompt):
        return RunnableLambda(_no_sync_prompt, afunc=prompt, name="Prompt")
    if callable(prompt):
        return RunnableLambda(cast("Callable[[Any], LanguageModelInput]", prompt), name="Prompt")
    raise ValueError(f"Got unexpected type for `prompt`: {type(prompt)}")


def _messages(state: Any) -> list[BaseMessage]:
    return list(state["messages"] if isinstance(state, dict) else state.messages)


def _no_sync_prompt(state: Any) -> LanguageModelInput:
    raise TypeError(f"the prompt is an async function, so it cannot be called in sync code with {type(state)}")
