"""Agent as an MCP tool: the one tool takes a message and returns the agent's answer."""

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt
from mcp import types
from pydantic import ValidationError

from callboard import Agent
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._questions import Begun, FormQuestion, NeedsAnswers, Tell, asked
from callboard_actors.mcp_service._results import ERRORS_OF_CALLS, failed, failed_with, text_of

_INTERRUPT: Final = "__interrupt__"
_MESSAGE: Final = {"type": "string", "description": "What to tell the agent"}
_THREAD: Final = {
    "type": "string",
    "description": "The conversation to go on with, as an earlier answer has named it; without it, a new one begins",
}

_OF_OURS: Final = re.compile("[0-9a-f]{32}")
"""Pattern of the thread ids that this server makes. They are random: no client can guess ids of other clients."""


class AgentOffer:
    """Agent that is served to MCP clients as one tool.

    An agent with a checkpointer keeps its conversations, and a client may continue one by its thread id. An agent
    without one gets a checkpointer in memory, because questions need it; each thread is deleted after its call.
    """

    def __init__(self, agent: Agent, *, name: str, description: str | None) -> None:
        self.name = name
        self._keeps = agent.checkpointer is not None
        self._saver = InMemorySaver()
        self.opens = agent
        """Context manager that opens the agent's actors and databases while the agent is served."""
        self.supervised = agent if self._keeps else agent.copy({"checkpointer": self._saver})
        tool = _tool_name(agent.name)
        self._tool = _tool(tool, description or f"Ask the agent {tool!r}.", keeps=self._keeps)

    def tools(self) -> list[types.Tool]:
        """Return a list with the one tool that stands for the agent."""
        return [self._tool]

    def begin(self, name: str, arguments: dict[str, Any], caller: Caller) -> Begun:
        """Prepare a run of the agent for a client's call, and return it without starting it.

        Return an error result for invalid arguments, and `None` if `name` is not the name of the agent's tool.
        """
        if name != self._tool.name:
            return None
        if mistake := _mistake_in(arguments, keeps=self._keeps) or _unnamed_thread(arguments, caller):
            return failed(mistake)
        return AgentCall(self.supervised, arguments, caller, keeps=self._keeps)


def _tool_name(name: str) -> str:
    """Return the name of the agent's tool, in a form that the protocol allows."""
    # LangGraph's default name is replaced by "agent".
    if name == "LangGraph":
        return "agent"
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:128] or "agent"


def _tool(name: str, description: str, *, keeps: bool) -> types.Tool:
    answer: dict[str, Any] = {"answer": {"type": "string"}}
    return types.Tool(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": {"message": _MESSAGE, **({"thread_id": _THREAD} if keeps else {})},
            "required": ["message"],
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {**answer, "thread_id": {"type": "string"}} if keeps else answer,
            "required": ["answer", "thread_id"] if keeps else ["answer"],
        },
    )


class AgentCall:
    """Run of an agent for one call of a client."""

    def __init__(self, agent: Agent, arguments: Mapping[str, Any], caller: Caller, *, keeps: bool) -> None:
        self._agent = agent
        self._arguments = arguments
        self._keeps = keeps
        self._name = str(arguments.get("thread_id") or uuid4().hex) if keeps else uuid4().hex
        """Thread id of the conversation, as the client knows it."""
        self._thread_id = caller.own_name(self._name)
        self._questions: list[FormQuestion] = []

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run the agent until it has an answer, or a person must be asked; return the result or the questions."""
        message = {"messages": [("user", self._arguments["message"])]}
        given: object = Command(resume=dict(answers)) if answers else message
        try:
            state = await self._run(given, tell)
        except ERRORS_OF_CALLS as error:
            if answers and isinstance(error, ValidationError):  # an invalid answer: the question stays open
                return NeedsAnswers(self._questions, str(error))
            await self.forget()
            return failed_with(error)
        return await self._outcome(state)

    async def _run(self, given: object, tell: Tell) -> Mapping[str, Any]:
        config: RunnableConfig = {"configurable": {"thread_id": self._thread_id}}
        state: Mapping[str, Any] = {}
        stream = self._agent.astream(given, config, stream_mode=["updates", "custom", "values"])
        async with aclosing(stream) as chunks:
            async for mode, chunk in chunks:
                if mode == "values":
                    state = chunk
                elif (message := _step(chunk) if mode == "updates" else _said(chunk)) is not None:
                    tell({"type": "progress", "message": message})
        return state

    async def _outcome(self, state: Mapping[str, Any]) -> types.CallToolResult | NeedsAnswers:
        questions: tuple[Interrupt, ...] = tuple(state.get(_INTERRUPT, ()))
        if questions:
            self._questions = asked(questions)
            return NeedsAnswers(self._questions)
        await self.forget()
        text = _answer_in(state.get("messages", ()))
        told = {"answer": text, "thread_id": self._name} if self._keeps else {"answer": text}
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=told)

    async def forget(self) -> None:
        """Delete the thread of the run from the checkpointer, unless the agent has its own checkpointer."""
        if not self._keeps:
            await self._agent.checkpointer.adelete_thread(self._thread_id)


def _mistake_in(arguments: Mapping[str, Any], *, keeps: bool) -> str | None:
    """Return an error text, for the client's model, about invalid arguments; `None` if they are valid."""
    allowed = {"message", "thread_id"} if keeps else {"message"}
    if unknown := sorted(arguments.keys() - allowed):
        return f"The agent takes {' and '.join(sorted(allowed))}; got {', '.join(unknown)}, too."
    if not isinstance(arguments.get("message"), str) or not isinstance(arguments.get("thread_id", ""), str):
        return "The agent takes a message, which is a text, and the name of a thread, which is one, too."
    return None


def _unnamed_thread(arguments: Mapping[str, Any], caller: Caller) -> str | None:
    """Return an error text if the client made up a thread id and may not do so, else `None`."""
    # Clients without an identity share the names of threads. Only random ids, which nobody can guess, keep their
    # conversations apart.
    name = arguments.get("thread_id")
    if not name or caller.principal is not None or not caller.is_remote or _OF_OURS.fullmatch(str(name)):
        return None
    return (
        f"There is no thread {str(name)[:50]!r}: leave thread_id out to begin a conversation, and go on with it by the "
        "thread_id of the answer."
    )


def _step(update: Mapping[str, Any]) -> str:
    """Return a progress message about a step of the agent."""
    for node, written in update.items():
        messages = written.get("messages", ()) if isinstance(written, Mapping) else ()
        names = [call["name"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls]
        if names:
            return f"{node}: calls {', '.join(names)}"
        return "waits for a person" if node == _INTERRUPT else node
    return ""


def _said(chunk: object) -> str | None:
    """Return the text of a tool's progress report in a chunk of the agent's stream; `None` for any other chunk."""
    # Its numbers are dropped, because they do not count the agent's steps.
    if not isinstance(chunk, dict) or chunk.get("type") != "progress":
        return None
    return f"{chunk['tool']}: {chunk['message']}" if chunk.get("message") else str(chunk["tool"])


def _answer_in(messages: object) -> str:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return text_of(last) if isinstance(last, BaseMessage) else ""
