"""Option `--check` of `callboard threads`: open calls of stored conversations that the tools of an agent would refuse.

Nothing is run and nothing is written.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import anyio
from anyio.from_thread import start_blocking_portal
from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError

from callboard import Agent, ToolCallRequest
from callboard._cli._command_options import ThreadsOptions
from callboard._cli._run_command import load_agent
from callboard._cli._shown_text import CommandError, count, escape_name, one_line
from callboard._cli._storage import open_database
from callboard._cli._view import open_console
from callboard.middleware import has_valid_arguments
from callboard.threads import StoredThread, unanswered_calls

REFUSED = 1
"""Exit code if a call would be refused."""
_LONGEST = 300
"""Maximum length of a reason, in characters."""
_KEEP_TOOL = "keep a tool of this name until the thread has ended; without it the model reads an error"
_KEEP_ARGUMENTS = "accept these arguments, too, until the thread has ended; otherwise the model reads an error"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RefusedCall:
    """Open call that the tools of an agent would refuse, with the reason and a remedy."""

    thread_id: str
    call: ToolCall
    reason: str
    remedy: str


def check_threads(options: ThreadsOptions, agent_name: str) -> int:
    """Print the open calls in a database that an agent would refuse; return the exit code."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        agent = load_agent(agent_name, options.app_dir, portal, stack)
        if not isinstance(agent, Agent):
            raise CommandError(f"{agent_name} is a graph of LangGraph's; --check needs an agent of callboard")
        threads = stack.enter_context(open_database(options.db, must_exist=True))

        async def read() -> list[StoredThread]:
            stored_threads = [await threads.read(name) for name in await threads.names()]
            return [thread for thread in stored_threads if thread is not None]

        conversations = anyio.run(read)
    tools = agent.tools.tools_by_name
    open_calls = [(thread, call) for thread in conversations for call in unanswered_calls(thread.messages)]
    refused_calls = [refused_call for thread, call in open_calls for refused_call in _check(thread, call, tools)]
    console = open_console()
    for refused_call in refused_calls:
        call = refused_call.call
        names = [escape_name(str(name)) for name in (refused_call.thread_id, call["id"], call["name"])]
        console.print(f"{'  '.join(names)}  {one_line(refused_call.reason, _LONGEST)}", soft_wrap=True)
        console.print(f"  -> {refused_call.remedy}", soft_wrap=True)
    total = f"{count(len(open_calls), 'open call')} in {count(len(conversations), 'thread')}"
    console.print(f"{total}: {len(refused_calls)} would be refused" if refused_calls else f"{total}: all fit the tools")
    return REFUSED if refused_calls else 0


def _check(thread: StoredThread, call: ToolCall, tools: dict[str, BaseTool]) -> Iterator[_RefusedCall]:
    """Yield the call with the reason, if it would be refused."""
    tool = tools.get(call["name"])
    if tool is None:
        reason = f"the agent has no tool {call['name']!r}, only {sorted(tools)}"
        yield _RefusedCall(thread_id=thread.thread_id, call=call, reason=reason, remedy=_KEEP_TOOL)
        return
    request = ToolCallRequest(call, tool, {"messages": thread.messages}, cast("Any", None))
    if not has_valid_arguments(request):
        reason = _reason_against_arguments(call, tool)
        yield _RefusedCall(thread_id=thread.thread_id, call=call, reason=reason, remedy=_KEEP_ARGUMENTS)


def _reason_against_arguments(call: ToolCall, tool: BaseTool) -> str:
    """Return the reason why the schema of a tool refuses the arguments of a call, without their values."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            schema.model_validate(call["args"])
        except ValidationError as error:
            errors = [(".".join(map(str, detail["loc"])), detail["msg"]) for detail in error.errors()]
            return "; ".join(f"argument {path}: {message}" for path, message in errors)
    return "its arguments do not fit the schema of the tool"
