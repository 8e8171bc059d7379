"""`create_react_agent`: a model that calls tools until it has an answer."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, NoReturn, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.errors import ErrorCode, GraphRecursionError, ParentCommand, create_error_message
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt

from callboard._bridge import run_from_sync, run_on_asyncio
from callboard._langgraph import run_config
from callboard.agent._history import repaired
from callboard.agent._model import Prompt, model_with_tools, prompted
from callboard.agent._trace import traced
from callboard.exceptions import CallsInterrupted
from callboard.tools._node import ToolNode

Ask = Callable[[Any, RunnableConfig], Awaitable[BaseMessage]]
"""From a state and a config to the model's reply."""

NEEDS_MORE_STEPS = "Sorry, need more steps to process this request."
INTERRUPT = "__interrupt__"
END = "__end__"


class Agent(Runnable[Any, Any]):
    """A model and its tools, in a loop; made by `create_react_agent`.

    A turn is a model reply, or the batch of calls in it; each counts as one step of the run's
    `recursion_limit`.
    """

    def __init__(self, ask: Ask, tools: ToolNode, *, name: str | None) -> None:
        self.name = name or "agent"
        self._message_name = name
        self._ask = ask
        self.tools = tools
        self._direct = {tool.name for tool in tools.tools_by_name.values() if tool.return_direct}

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={self.tools!r})"

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """Run until the model has an answer.

        Args:
            input: a dict with `messages`, in any form that LangChain understands.
            config: a LangChain config; its `recursion_limit` bounds the steps, its `max_concurrency` the
                calls of a batch.
            kwargs: accepted and ignored, as by every node of a graph.

        Returns:
            The conversation under `messages`. If calls wait for a person, their questions are under
            `__interrupt__`.

        Raises:
            GraphRecursionError: if the steps are used up.
            ValueError: if there are no messages.
            BaseException: the error of a call that nobody handles.
        """
        config = run_config(config)
        if config["recursion_limit"] < 1:
            raise ValueError("recursion_limit must be at least 1")
        messages = _input_messages(input)
        result = await traced(partial(self._run, messages), input, config, self.name or "agent")
        return cast("dict[str, Any]", result)

    async def _run(self, messages: list[BaseMessage], config: RunnableConfig) -> dict[str, Any]:
        state = _State(messages, config["recursion_limit"])
        try:
            while await self._turn(state, config):
                pass
        except CallsInterrupted as waiting:
            return state.result(waiting.interrupts)
        state.end()
        return state.result()

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """`ainvoke` for sync code, also in the thread of a running event loop, which waits."""
        return run_from_sync(partial(self.ainvoke, input, config, **kwargs))

    async def _turn(self, state: "_State", config: RunnableConfig) -> bool:
        """One reply and its calls; says whether another turn has to follow."""
        state.messages = repaired(state.messages)
        reply = await self._reply(state, config)
        state.add([reply])
        if not isinstance(reply, AIMessage) or not reply.tool_calls or not self.tools.tools_by_name:
            return False
        state.step()
        outputs = await self.tools.ainvoke(state.as_input(), config)
        goto = state.apply(outputs)
        return not (goto == END or self._answers_directly(state.messages))

    async def _reply(self, state: "_State", config: RunnableConfig) -> BaseMessage:
        state.step()
        reply = await run_on_asyncio(partial(self._ask, state.as_input(), config))
        reply.name = self._message_name
        if isinstance(reply, AIMessage) and self._lacks_steps(state, reply):
            return AIMessage(id=reply.id, content=NEEDS_MORE_STEPS)
        return reply

    def _lacks_steps(self, state: "_State", reply: AIMessage) -> bool:
        all_direct = all(call["name"] in self._direct for call in reply.tool_calls)
        return (state.remaining_steps < 1 and all_direct) or (state.remaining_steps < 2 and bool(reply.tool_calls))

    def _answers_directly(self, messages: Sequence[BaseMessage]) -> bool:
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                return False
            if message.name in self._direct:
                return True
        return False


class _State:
    """The conversation of one run, and how far it has come."""

    def __init__(self, messages: list[BaseMessage], recursion_limit: int) -> None:
        self.messages = messages
        self._limit = recursion_limit
        self._steps = 0

    @property
    def remaining_steps(self) -> int:
        """Steps after this one, as LangGraph's `RemainingSteps` counts them."""
        return self._limit - self._steps

    def step(self) -> None:
        """Begin a step; LangGraph wants one to spare when the run ends."""
        self._steps += 1
        if self._steps > self._limit:
            self.raise_exhausted()

    def end(self) -> None:
        if self._steps >= self._limit:
            self.raise_exhausted()

    def raise_exhausted(self) -> NoReturn:
        raise GraphRecursionError(
            create_error_message(
                message=f"Recursion limit of {self._limit} reached without hitting a stop condition. You can "
                "increase the limit by setting the `recursion_limit` config key.",
                error_code=ErrorCode.GRAPH_RECURSION_LIMIT,
            )
        )

    def add(self, messages: Any) -> None:
        self.messages = cast("list[BaseMessage]", add_messages(cast("Any", self.messages), messages))

    def as_input(self) -> dict[str, Any]:
        return {"messages": list(self.messages), "remaining_steps": self.remaining_steps}

    def apply(self, outputs: Any) -> object:
        """Take in what the tools returned; returns where a command wants to go."""
        goto: object = None
        for output in outputs if isinstance(outputs, list) else [outputs]:
            if not isinstance(output, Command):
                self.add(output["messages"])
                continue
            if output.graph is not None:
                raise ParentCommand(output)
            if isinstance(output.update, dict) and "messages" in output.update:
                self.add(output.update["messages"])
            goto = output.goto or goto
        return goto

    def result(self, interrupts: Sequence[Interrupt] = ()) -> dict[str, Any]:
        result: dict[str, Any] = {"messages": self.messages}
        if interrupts:
            result[INTERRUPT] = list(interrupts)
        return result


def _input_messages(value: Any) -> list[BaseMessage]:
    messages = value.get("messages") if isinstance(value, dict) else getattr(value, "messages", None)
    if not messages:
        raise ValueError(f"An agent starts from messages, as in {{'messages': [('user', 'hi')]}}; got {value!r}")
    return cast("list[BaseMessage]", add_messages([], messages))


def create_react_agent(
    model: str | Runnable[Any, Any],
    tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any]] | ToolNode,
    *,
    prompt: Prompt | None = None,
    version: Literal["v1", "v2"] = "v2",
    name: str | None = None,
    **unknown: object,
) -> Agent:
    """Make an agent that calls tools until its model has an answer.

    Args:
        model: a chat model, also with its tools bound already, or `provider:name` for langchain's
            `init_chat_model`.
        tools: LangChain tools, functions, descriptions of tools that run at the provider, or a `ToolNode`
            with policies of its own.
        prompt: a system message (text or message) to start with, or a function or Runnable from the state
            to the model's input.
        version: accepted for LangGraph's sake; here every call is a task of its own either way.
        name: of the agent, also on its messages.
        unknown: refused, by name.

    Raises:
        ImportError: if a model is given by name and langchain is not installed.
        TypeError: if the model is none, or for an unknown option.
        ValueError: if the model's tools are not the agent's, or the prompt or the version is unknown.
    """
    if unknown:
        raise TypeError(f"create_react_agent() got unexpected keyword arguments: {unknown}")
    if version not in ("v1", "v2"):
        raise ValueError(f"Invalid version {version}. Supported versions are 'v1' and 'v2'.")
    if isinstance(tools, ToolNode):
        node, provider_tools = tools, []
    else:
        provider_tools = [tool for tool in tools if isinstance(tool, dict)]
        node = ToolNode([tool for tool in tools if not isinstance(tool, dict)])
    bound = model_with_tools(model, list(node.tools_by_name.values()), provider_tools)
    return Agent(prompted(bound, prompt), node, name=name)
