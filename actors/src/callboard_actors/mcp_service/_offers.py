"""Served objects as MCP tools: each tool of a `ToolNode`, or an agent as one tool that takes a message.

Each call of a tool is a supervised call of the node.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime
from langgraph.types import Command
from mcp import types
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

from callboard import Agent, CallContext, CallsInterrupted, ToolCallWithContext, ToolNode, ToolRuntime
from callboard.extend import ToolActor, actor_behind
from callboard_actors._util._sendable import reason_unsendable
from callboard_actors.mcp._tools import ServersTool
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._questions import NeedsAnswers, Tell, form_questions
from callboard_actors.mcp_service._results import error_result, result_of, result_type

# Tools with a state per conversation: handlers of actors with a key that depends on the thread.

_SOME_THREAD, _OTHER_THREAD = (CallContext(config={"configurable": {"thread_id": name}}) for name in ("some", "other"))
_NO_KEY: Final = object()


def depends_on_thread(tool: BaseTool, arguments: Mapping[str, Any]) -> bool:
    """Return whether the choice of the actor for a tool call depends on the thread of conversation (thread id)."""
    actor = actor_behind(getattr(tool, "coroutine", None))
    if actor is None or actor.key is None or not actor.key.takes_context:
        return False
    # Probes with two thread ids: different keys mean that the key depends on the thread.
    call = {"name": tool.name, "args": arguments, "id": "probe"}
    return _key_of(actor, call, _SOME_THREAD) != _key_of(actor, call, _OTHER_THREAD)


def _key_of(actor: ToolActor, call: object, context: CallContext) -> object:
    """Return the actor key of a call, or a constant if the user's key function fails."""
    try:
        return actor.key and actor.key.of(call, lambda: context)
    except Exception:  # the user's code; the call itself will raise and report the same error
        return _NO_KEY


# Listing of tools: the schema for models, without injected arguments.

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""Annotations of the protocol that are taken from a tool's metadata."""


def tool_entry(tool: BaseTool, output_schema: dict[str, Any] | None) -> types.Tool:
    """Return the entry for a tool in the protocol's list of tools."""
    # `title` and the hints of the protocol (`readOnlyHint`, ...) come from the tool's `metadata`.
    function = convert_to_openai_tool(tool)["function"]
    metadata = tool.metadata or {}
    hints = {name: metadata[name] for name in _HINTS if isinstance(metadata.get(name), bool)}
    title = metadata.get("title")
    return types.Tool(
        name=tool.name,
        title=title if isinstance(title, str) else None,
        description=function.get("description") or None,
        input_schema={"type": "object", "properties": {}, **function.get("parameters", {})},
        # Only for a tool that always returns structured content.
        output_schema=output_schema,
        annotations=types.ToolAnnotations.model_validate(hints) if hints else None,
    )


def check_servable(node: ToolNode) -> None:
    """Raise ValueError for the first tool with an injected argument that only a graph or an agent can provide."""
    for name, tool in node.tools_by_name.items():
        # Injected arguments that a call outside of a graph would lack, with descriptions of the missing values.
        missing: dict[str, str] = {}
        probe: ToolCall = {"name": tool.name, "args": {}, "id": "probe", "type": "tool_call"}
        try:
            injected: dict[str, Any] = node.inject_tool_args(probe, {})["args"]
        except (KeyError, AttributeError) as error:
            missing[str(error.args[0])] = "taken from the state of a graph"
        except ValueError:
            missing["store"] = "the store of a graph"
        else:
            from_state = (argument for argument, value in injected.items() if not isinstance(value, ToolRuntime))
            missing.update(dict.fromkeys(from_state, "the state of a graph"))
            model_fields = _fields(tool.tool_call_schema)
            for argument, info in _fields(tool.get_input_schema()).items():
                is_call_id = any(
                    item is InjectedToolCallId or isinstance(item, InjectedToolCallId) for item in info.metadata
                )
                if argument not in model_fields and argument not in injected and info.is_required() and not is_call_id:
                    missing[argument] = "injected"
        for argument, description in missing.items():
            raise ValueError(
                f"the tool {name!r} cannot be served by itself: its argument {argument!r} is {description}, and no "
                "graph is around it. Serve the agent that has it, or give the argument a default"
            )


def _fields(schema: object) -> Mapping[str, FieldInfo]:
    """Return the fields of a pydantic model by name; empty for other schemas, which have no injected arguments."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel) or issubclass(schema, RootModel):
        return {}
    return schema.model_fields


# The offer, and its calls.


class NodeOffer:
    """Adapter that offers the tools of a `ToolNode` to MCP clients.

    `promises_schemas` is false for a user's node, whose middleware may replace results. Raise ValueError if a tool
    needs an argument that only a graph provides.
    """

    def __init__(self, node: ToolNode, *, name: str, promises_schemas: bool) -> None:
        check_servable(node)
        self.name = name
        self.opens = self.supervised = node
        self._results = {name: result_type(tool) for name, tool in node.tools_by_name.items()}
        self._of_servers = {name for name, tool in node.tools_by_name.items() if isinstance(tool, ServersTool)}
        self._promises_schemas = promises_schemas
        for tool in self.tools():
            if reason := reason_unsendable(tool.model_dump()):
                raise ValueError(f"the tool {tool.name!r} cannot be served: its description or schema, {reason}")

    def tools(self) -> list[types.Tool]:
        """Return the protocol's list of the tools that the node offers now."""
        tools = [(tool, self._results[tool.name]) for tool in self.supervised.offered_tools()]
        return [
            tool_entry(tool, result.schema if result and self._promises_schemas else None) for tool, result in tools
        ]

    def begin(
        self, name: str, arguments: dict[str, Any], caller: Caller, state: Mapping[str, Any] | None
    ) -> "NodeCall | types.CallToolResult | None":
        """Prepare a client's call of a tool, without starting it; return `None` for an unknown tool.

        `state` is that of an earlier request, from which the call continues. A call that cannot run has an error
        result.
        """
        if name not in self._results:
            return None
        # Each call of a client without an identity has a new thread, so the state of a conversation would be lost.
        if caller.thread_id is None and depends_on_thread(self.supervised.tools_by_name[name], arguments):
            return error_result(_NO_CONVERSATION.format(name))
        convert_result = partial(
            result_of, structured=self._results[name] is not None, of_server=name in self._of_servers
        )
        if not state:
            # A client without an identity gets a random thread id per call, so that it finds no state of other clients.
            configurable: dict[str, Any] = {"thread_id": caller.thread_id or uuid4().hex}
            if caller.call_name is not None:
                configurable["callboard_run"] = caller.call_name  # makes `idempotency_key()` independent of the thread
            call_id = caller.call_name or uuid4().hex
            state = {"id": call_id, "config": {"configurable": configurable}, "ledger": {}}
        call: ToolCall = {"name": name, "args": arguments, "id": state["id"], "type": "tool_call"}
        return NodeCall(self.supervised, call, state["config"], convert_result, state["ledger"])


_NO_CONVERSATION: Final = (
    "Not started: the tool {!r} keeps a state for each conversation, and nothing tells this client from others. "
    "Use a client with a session (a version of MCP until 2025-11-25), or have the server give each client a token of "
    "its own: mcp_app(token={{name: token, ...}}), or callboard mcp --token-env NAME=VARIABLE."
)


@dataclass(slots=True, eq=False)
class NodeCall:
    """Call of one tool of a `ToolNode` for an MCP client."""

    node: ToolNode
    call: ToolCall
    config: RunnableConfig
    convert_result: Callable[[object], types.CallToolResult]
    ledger: dict[str, Any]
    """Results, answers and open questions of this call, which the node keeps here while the call waits for a person."""

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run the call, or resume it with answers; return its result, or new questions to the client's user."""
        # An empty state, for injected state arguments that have defaults.
        node_input = ToolCallWithContext(__type="tool_call_with_context", tool_call=self.call, state={})
        runtime: Runtime[Any] = Runtime(stream_writer=tell)
        try:
            outcome = await self.node.ainvoke(
                node_input, self.config, ledger=self.ledger, resume=answers or None, runtime=runtime
            )
        except CallsInterrupted as waiting:
            return NeedsAnswers(form_questions(waiting.interrupts))
        return self.convert_result(outcome)

    async def forget(self) -> None:
        """Do nothing: all state of the call is in this object."""

    @property
    def state(self) -> Mapping[str, Any]:
        """The id of the call, its config and its ledger. Its arguments are those of the next request, too."""
        return {"id": self.call["id"], "config": self.config, "ledger": self.ledger}


# An agent as one tool.

_INTERRUPT: Final = "__interrupt__"
_MESSAGE: Final = {"type": "string", "description": "What to tell the agent"}
_THREAD: Final = {
    "type": "string",
    "description": "The conversation to go on with, as an earlier answer has named it; without it, a new one begins",
}

_OWN_THREAD_ID: Final = re.compile("[0-9a-f]{32}")
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
        # A name that the protocol allows, in place of LangGraph's default name, too.
        tool = re.sub(r"[^A-Za-z0-9_.-]+", "_", "" if agent.name == "LangGraph" else agent.name)[:128] or "agent"
        properties, answer = {"message": _MESSAGE}, {"answer": {"type": "string"}}
        if self._keeps:
            properties["thread_id"] = _THREAD
            answer["thread_id"] = {"type": "string"}
        self._tool = types.Tool(
            name=tool,
            description=description or f"Ask the agent {tool!r}.",
            input_schema={
                "type": "object",
                "properties": properties,
                "required": ["message"],
                "additionalProperties": False,
            },
            output_schema={"type": "object", "properties": answer, "required": list(answer)},
        )

    def tools(self) -> list[types.Tool]:
        """Return a list with the one tool that stands for the agent."""
        return [self._tool]

    def begin(
        self, name: str, arguments: dict[str, Any], caller: Caller, state: Mapping[str, Any] | None
    ) -> "AgentCall | types.CallToolResult | None":
        """Prepare a run of the agent for a client's call, without starting it; return `None` for an unknown tool.

        `state` is that of an earlier request, from which the run continues. A run that cannot begin has an error
        result.
        """
        if name != self._tool.name:
            return None
        allowed = {"message", "thread_id"} if self._keeps else {"message"}
        if unknown := sorted(arguments.keys() - allowed):
            return error_result(f"The agent takes {' and '.join(sorted(allowed))}; got {', '.join(unknown)}, too.")
        thread_id = arguments.get("thread_id", "")
        if not isinstance(arguments.get("message"), str) or not isinstance(thread_id, str):
            return error_result(
                "The agent takes a message, which is a text, and the name of a thread, which is one, too."
            )
        # Clients without an identity share the names of threads. Only random ids, which nobody can guess, keep their
        # conversations apart.
        is_unidentified = caller.principal is None and caller.is_remote
        if thread_id and is_unidentified and not _OWN_THREAD_ID.fullmatch(thread_id):
            return error_result(
                f"There is no thread {thread_id[:50]!r}: leave thread_id out to begin a conversation, and go on with "
                "it by the thread_id of the answer."
            )
        return AgentCall(self.supervised, {**arguments, **(state or {})}, caller, keeps=self._keeps)


class AgentCall:
    """Run of an agent for one call of a client."""

    def __init__(self, agent: Agent, arguments: Mapping[str, Any], caller: Caller, *, keeps: bool) -> None:
        self._agent = agent
        self._arguments = arguments
        self._keeps = keeps
        self._name = str(arguments.get("thread_id") or uuid4().hex) if keeps else uuid4().hex
        """Thread id of the conversation, as the client knows it."""
        self._thread_id = caller.own_name(self._name)

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run the agent until it has a result, or questions to the client's user; return result or questions."""
        message = {"messages": [("user", self._arguments["message"])]}
        agent_input: object = Command(resume=dict(answers)) if answers else message
        config: RunnableConfig = {"configurable": {"thread_id": self._thread_id}}
        state: Mapping[str, Any] = {}
        stream = self._agent.astream(agent_input, config, stream_mode=["updates", "custom", "values"])
        async with aclosing(stream) as chunks:
            async for mode, chunk in chunks:
                if mode == "values":
                    state = chunk
                    continue
                text = _step_text(chunk) if mode == "updates" else _progress_text(chunk)
                if text:
                    tell({"type": "progress", "message": text})
        if questions := state.get(_INTERRUPT):
            return NeedsAnswers(form_questions(questions))
        messages = state.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        text = str(last.text) if isinstance(last, BaseMessage) else ""
        answer = {"answer": text, "thread_id": self._name} if self._keeps else {"answer": text}
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=answer)

    @property
    def state(self) -> Mapping[str, Any] | None:
        """The thread of conversation; `None` for an agent without a checkpointer, whose thread ends with the call."""
        return {"thread_id": self._name} if self._keeps else None

    async def forget(self) -> None:
        """Delete the run's thread of conversation from the checkpointer, unless the agent has its own checkpointer."""
        if not self._keeps:
            await self._agent.checkpointer.adelete_thread(self._thread_id)


def _progress_text(chunk: object) -> str:
    """Return a progress message of a tool; "" for other chunks. Its numbers do not count the agent's steps."""
    if not isinstance(chunk, dict) or chunk.get("type") != "progress":
        return ""
    return f"{chunk['tool']}: {chunk['message']}" if chunk.get("message") else str(chunk["tool"])


def _step_text(update: Mapping[str, Any]) -> str:
    """Return a progress message about a step of the agent."""
    if not update:
        return ""
    node, changes = next(iter(update.items()))
    messages = changes.get("messages", ()) if isinstance(changes, Mapping) else ()
    names = [call["name"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    if names:
        return f"{node}: calls {', '.join(names)}"
    return "waits for a person" if node == _INTERRUPT else node
