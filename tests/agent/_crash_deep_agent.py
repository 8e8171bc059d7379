"""An agent of the library deepagents, with `create_agent` of callboard, for `_crashes`.

It has files in its state, a shell, and a sub-agent with both, which two calls of one reply run at the same time. Only
a fork imports deepagents: it is no dependency of the tests, and must find callboard's `create_agent` in LangChain's
place.
"""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall

import callboard
from callboard import Agent, tool_call
from callboard.agent._create_agent import _langchains_factory
from callboard.testing import ScriptedModel, calls

from . import _crashes as crashes
from ._crash_create_agent import RAN, Noted


def run(call_id: str) -> ToolCall:
    return tool_call("execute", call_id, command=RAN.format(call_id))


def research(topic: str) -> tuple[AIMessage, ...]:
    """Return the replies of the sub-agent about a topic, with calls whose ids begin with it."""
    write = tool_call("write_file", f"{topic}-2", file_path=f"/state/{topic}", content=topic)
    return calls(run(f"{topic}-1"), write), calls(run(f"{topic}-3")), AIMessage(f"{topic} is found")


TOPICS = {"tea": research("tea"), "pot": research("pot")}
SCRIPT = (
    calls(
        tool_call("write_file", "w1", file_path="/state/one", content="1"),
        run("c1"),
        tool_call("task", "r1", description="tea", subagent_type="helper"),
        tool_call("task", "r2", description="pot", subagent_type="helper"),
    ),
    calls(
        tool_call("edit_file", "e1", file_path="/state/one", old_string="1", new_string="11"),
        run("c2"),
        tool_call("read_file", "f1", file_path="/state/tea"),
    ),
    calls(run("c3")),
    AIMessage("done"),
)


def reply_of_helper(messages: list[BaseMessage]) -> AIMessage:
    topic = next(message.content for message in messages if isinstance(message, HumanMessage))
    return crashes.next_reply(TOPICS[str(topic)], messages)


def make_agent(directory: Path, checkpointer: Any) -> Agent:
    import langchain.agents

    _langchains_factory()
    langchain.agents.create_agent = partial(callboard.create_agent, on_unknown="rerun")
    deepagents: Any = import_module("deepagents")
    backends: Any = import_module("deepagents.backends")

    class Backend(backends.LocalShellBackend):
        def execute(self, command: str, **options: Any) -> Any:
            crashes.fate.point("before the command")
            response = super().execute(command, **options)
            crashes.fate.point("after the command")
            return response

    shell = Backend(directory, virtual_mode=True)
    helper = {
        "name": "helper",
        "description": "Finds things out.",
        "system_prompt": "Find it out.",
        "model": ScriptedModel([reply_of_helper], loop=True),
        "middleware": [Noted()],
    }
    return deepagents.create_deep_agent(
        crashes.replies(SCRIPT),
        middleware=[Noted()],
        backend=backends.CompositeBackend(shell, {"/state/": backends.StateBackend()}),
        subagents=[helper],
        checkpointer=checkpointer,
    )


WORLD = crashes.World(make_agent)
