"""Agent of the picture of the live page: it builds in the background while it does other work."""

from typing import Any

import anyio
from langchain_core.messages import BaseMessage

from callboard import Agent, CallPolicy, create_react_agent
from callboard.testing import ScriptedModel, calls


async def read_plan(name: str) -> str:
    """Read the plan."""
    await anyio.sleep(0.7)
    return f"{name}: build the app, check the docs"


@CallPolicy(background=True)
async def build(target: str) -> str:
    """Build for longer than anybody looks at the picture."""
    await anyio.sleep(600)
    return target


async def check(part: str) -> str:
    """Check a part."""
    await anyio.sleep({"docs": 1.2, "links": 2.1}.get(part, 1.6))
    return f"{part}: no errors"


def answer(messages: list[BaseMessage]) -> Any:
    """Check what a message names, and say what was found."""
    if messages[-1].type == "human":
        return calls(("check", {"part": messages[-1].text.split()[-1].rstrip(".")}))
    return f"{messages[-1].text}. The app is still being built."


def agent() -> Agent:
    """Return the agent."""
    model = ScriptedModel(
        [
            calls(("read_plan", {"name": "release"}), content="First I read the plan."),
            calls(("build", {"target": "app"}), ("check", {"part": "docs"}), ("check", {"part": "links"})),
            "The docs and the links are fine. The app is being built.",
            answer,
            answer,
        ],
        delay=0.5,
    )
    return create_react_agent(model, [read_plan, build, check], name="crew")
