"""Option `--check` of `callboard threads`: open calls of stored conversations that the tools of an agent would refuse.

Nothing is run and nothing is written.
"""

from contextlib import ExitStack
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
from callboard._cli._storage import open_database, read_threads
from callboard._cli._view import open_console
from callboard.middleware import has_valid_arguments
from callboard.threads import StoredThread, unanswered_calls

REFUSED = 1
"""Exit code if a call would be refused."""
_LONGEST = 300
"""Maximum length of a reason, in characters."""
_KEEP_TOOL = "keep a tool of this name until the thread has ended; without it the model reads an error"
_KEEP_ARGUMENTS = "accept these arguments, too, until the thread has ended; otherwise the model reads an error"


def check_threads(options: ThreadsOptions, agent_name: str) -> int:
    """Print the open calls in a database that an agent would refuse; return the exit code."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        agent = load_agent(agent_name, options.app_dir, portal, stack)
        if not isinstance(agent, Agent):
            raise CommandError(f"{agent_name} is a graph of LangGraph's; --check needs an agent of callboard")
        threads = stack.enter_context(open_database(options.db, must_exist=True))
        conversations = anyio.run(read_threads, threads)
    tools = agent.tools.tools_by_name
    open_calls = [(thread, call) for thread in conversations for call in unanswered_calls(thread.messages)]
    refused_calls = [
        (thread, call, *refusal)
        for thread, call in open_calls
        if (refusal := _find_refusal(thread, call, tools)) is not None
    ]
    console = open_console()
    for thread, call, reason, remedy in refused_calls:
        names = [escape_name(str(name)) for name in (thread.thread_id, call["id"], call["name"])]
        console.print(f"{'  '.join(names)}  {one_line(reason, _LONGEST)}", soft_wrap=True)
        console.print(f"  -> {remedy}", soft_wrap=True)
    total = f"{count(len(open_calls), 'open call')} in {count(len(conversations), 'thread')}"
    console.print(f"{total}: {len(refused_calls)} would be refused" if refused_calls else f"{total}: all fit the tools")
    return REFUSED if refused_calls else 0


def _find_refusal(thread: StoredThread, call: ToolCall, tools: dict[str, BaseTool]) -> tuple[str, str] | None:
    """Return the reason for which a call would be refused, and a remedy; `None` if it would run."""
    tool = tools.get(call["name"])
    if tool is None:
        return f"the agent has no tool {call['name']!r}, only {sorted(tools)}", _KEEP_TOOL
    request = ToolCallRequest(call, tool, {"messages": thread.messages}, cast("Any", None))
    if has_valid_arguments(request):
        return None
    return _reason_against_arguments(call, tool), _KEEP_ARGUMENTS


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
