"""`ToolNode` as MCP tools: each tool of the node is a tool of the server, each call a supervised call of the node."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.runtime import Runtime
from mcp import types
from pydantic import BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo

from callboard import CallContext, CallsInterrupted, ToolCallWithContext, ToolNode, ToolRuntime
from callboard.extend import ToolActor, actor_behind
from callboard_actors.mcp._tools import ServersTool
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._questions import Begun, FormQuestion, NeedsAnswers, Tell, asked
from callboard_actors.mcp_service._results import ERRORS_OF_CALLS, failed, failed_with, result_of, result_type

# Tools with a state per conversation: handlers of actors with a key that depends on the thread.

_SOME, _OTHER = (CallContext(config={"configurable": {"thread_id": name}}) for name in ("some", "other"))
_NO_KEY: Final = object()


def depends_on_thread(tool: BaseTool, arguments: Mapping[str, Any]) -> bool:
    """Return whether calls of a tool with these arguments reach different actors in different conversations."""
    actor = actor_behind(getattr(tool, "coroutine", None))
    if actor is None or actor.key is None or not actor.key.takes_context:
        return False
    # Probes with two thread ids: different keys mean that the key depends on the thread.
    call = {"name": tool.name, "args": arguments, "id": "probe"}
    return _of(actor, call, _SOME) != _of(actor, call, _OTHER)


def _of(actor: ToolActor, call: object, context: CallContext) -> object:
    """Return the actor key of a call, or a constant if the key function fails: such a call reaches no actor."""
    try:
        return actor.key and actor.key.of(call, lambda: context)
    except Exception:  # the user's code; the call itself will raise and report the same error
        return _NO_KEY


# Listing of tools: the schema for models, without injected arguments.

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""Annotations of the protocol that are taken from a tool's metadata."""


def listed(tool: BaseTool, output_schema: dict[str, Any] | None) -> types.Tool:
    """Return the entry for a tool in the protocol's list of tools.

    `output_schema` is given only for tools that always return structured content.
    """
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
        output_schema=output_schema,
        annotations=types.ToolAnnotations.model_validate(hints) if hints else None,
    )


def check_servable(node: ToolNode) -> None:
    """Raise ValueError for the first tool with an injected argument that only a graph or an agent can provide."""
    for name, tool in node.tools_by_name.items():
        for argument, what in _missing(node, tool):
            raise ValueError(
                f"the tool {name!r} cannot be served by itself: its argument {argument!r} is {what}, and no graph is "
                "around it. Serve the agent that has it, or give the argument a default"
            )


def _missing(node: ToolNode, tool: BaseTool) -> Iterator[tuple[str, str]]:
    """Yield the injected arguments that a call outside of a graph would lack."""
    # Each is a pair: the name of the argument, and a text that describes the missing value.
    probe: ToolCall = {"name": tool.name, "args": {}, "id": "probe", "type": "tool_call"}
    try:
        injected: dict[str, Any] = node.inject_tool_args(probe, {})["args"]
    except (KeyError, AttributeError) as error:
        yield str(error.args[0]), "taken from the state of a graph"
        return
    except ValueError:
        yield "store", "the store of a graph"
        return
    yield from (
        (name, "the state of a graph") for name, value in injected.items() if not isinstance(value, ToolRuntime)
    )
    written = _fields(tool.tool_call_schema)
    for name, info in _fields(tool.get_input_schema()).items():
        if name not in written and name not in injected and info.is_required() and not _is_call_id(info):
            yield name, "injected"


def _fields(schema: object) -> Mapping[str, FieldInfo]:
    """Return the fields of a pydantic model by name; empty for other schemas, which have no injected arguments."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel) or issubclass(schema, RootModel):
        return {}
    return schema.model_fields


def _is_call_id(field: FieldInfo) -> bool:
    return any(one is InjectedToolCallId or isinstance(one, InjectedToolCallId) for one in field.metadata)


# The offer, and its calls.


class NodeOffer:
    """Tools of a `ToolNode`, as an MCP server lists and calls them.

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

    def tools(self) -> list[types.Tool]:
        """Return the protocol's list of the tools that the node offers now."""
        return [listed(tool, self._output_schema(tool.name)) for tool in self.supervised.offered_tools()]

    def _output_schema(self, name: str) -> dict[str, Any] | None:
        found = self._results[name]
        return found.schema if found is not None and self._promises_schemas else None

    def begin(self, name: str, arguments: dict[str, Any], caller: Caller) -> Begun:
        """Prepare a client's call of a tool, and return it without starting it.

        Return an error result if the call cannot run, and `None` for an unknown tool.
        """
        if name not in self._results:
            return None
        # Each call of a client without an identity has a new thread, so the state of a conversation would be lost.
        if caller.thread_id is None and depends_on_thread(self.supervised.tools_by_name[name], arguments):
            return failed(_NO_CONVERSATION.format(name))
        call: ToolCall = {"name": name, "args": arguments, "id": caller.call_name or uuid4().hex, "type": "tool_call"}
        told = partial(result_of, structured=self._results[name] is not None, of_server=name in self._of_servers)
        return NodeCall(self.supervised, call, _place(caller), told)


_NO_CONVERSATION: Final = (
    "Not started: the tool {!r} keeps a state for each conversation, and nothing tells this client from others. "
    "Use a client with a session (a version of MCP until 2025-11-25), or have the server give each client a token of "
    "its own: mcp_app(token={{name: token, ...}}), or callboard mcp --token-env NAME=VARIABLE."
)


def _place(caller: Caller) -> RunnableConfig:
    """Return the LangChain config of a call: a thread id, and the call name, if any, for idempotency keys."""
    # A client without an identity gets a random thread id per call, so that it finds no state of other clients.
    place: dict[str, Any] = {"thread_id": caller.thread_id or uuid4().hex}
    if caller.call_name is not None:
        place["callboard_run"] = caller.call_name  # makes `idempotency_key()` independent of the thread
    return {"configurable": place}


@dataclass(slots=True, eq=False)
class NodeCall:
    """Call of one tool of a `ToolNode` for an MCP client."""

    node: ToolNode
    call: ToolCall
    place: RunnableConfig
    told: Callable[[object], types.CallToolResult]
    _ledger: dict[str, Any] = field(default_factory=dict[str, Any])
    """Results, answers and open questions of this call, which the node keeps here while the call waits for a person."""
    _questions: list[FormQuestion] = field(default_factory=list[FormQuestion])

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run the call, or resume it with answers; return its result, or new questions to a person."""
        # An empty state, for injected state arguments that have defaults.
        given = ToolCallWithContext(__type="tool_call_with_context", tool_call=self.call, state={})
        runtime: Runtime[Any] = Runtime(stream_writer=tell)
        try:
            outcome = await self.node.ainvoke(
                given, self.place, ledger=self._ledger, resume=answers or None, runtime=runtime
            )
        except CallsInterrupted as waiting:
            self._questions = asked(waiting.interrupts)
            return NeedsAnswers(self._questions)
        except ERRORS_OF_CALLS as error:
            if answers and isinstance(error, ValidationError):  # an invalid answer: the question stays open
                return NeedsAnswers(self._questions, str(error))
            return failed_with(error)
        return self.told(outcome)

    async def forget(self) -> None:
        """Do nothing: all state of the call is in this object."""
