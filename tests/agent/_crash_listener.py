"""An agent for `_crashes` that gets messages of a person while it works: from a tool, and after its last reply."""

import os
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict

from callboard import create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

from . import _crashes as crashes
from ._savers import AT

QUESTIONS = ("first", "second")


def reply(messages: list[BaseMessage]) -> AIMessage:
    number = sum(isinstance(message, AIMessage) for message in messages)
    answer = (
        calls(tool_call("listen", "a1"), tool_call("listen", "a2")) if number == 0 else AIMessage(f"reply {number}")
    )
    name = answer.content or answer.tool_calls[0]["id"]
    crashes.fate.note("asked", name, [message_to_dict(message) for message in messages])
    crashes.fate.point("in the model")
    return answer


def make_agent(_: Path, checkpointer: Any) -> Any:
    numbers = count()

    async def speak(source: str) -> None:
        """Say a text that is not said again."""
        text = f"{source} {next(numbers)} of process {os.getpid()}"
        crashes.fate.note("sent", text)
        crashes.fate.point("before say")
        assert await agent.say(text, AT) is not None
        crashes.fate.note("said", text)
        crashes.fate.point("after say")

    async def listen(name: str = "") -> str:
        """Listen to a person."""
        await speak("tool")
        return "heard"

    async def after_reply(state: Any) -> dict[str, Any]:
        last_person = [message for message in state["messages"] if isinstance(message, HumanMessage)][-1]
        if last_person.content == "first" or last_person.content.startswith("tool"):
            await speak("hook")
        return {}

    agent: Any = create_react_agent(
        ScriptedModel([reply], loop=True),
        [listen],
        checkpointer=checkpointer,
        post_model_hook=after_reply,
        on_unknown="rerun",
    )
    return agent


WORLD = crashes.World(make_agent, questions=QUESTIONS, far=25)
