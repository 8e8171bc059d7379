"""An application: a research assistant with todos, summaries, an approval, a budget and an MCP server.

python research_assistant.py                      runs the example with a scripted model and a scripted person
python research_assistant.py --model openai:gpt-5.1 "Is tea healthy?"      a real model; you approve at the terminal
callboard run research_assistant:assistant "Is tea healthy?" --db tea.db   the same, as a conversation that is kept

The middleware is LangChain's. The library is an MCP server in its own process, which `callboard mcp` makes of two
functions below. A paper that is not found in time is an error message for the model, and the other papers are kept.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware, TodoListMiddleware
from langchain_core.language_models import BaseChatModel
from langgraph.types import Command

from callboard import Agent, CallPolicy, Limit, create_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp import McpServer

CALLBOARD = str(Path(sys.executable).with_name("callboard"))
THREAD = {"configurable": {"thread_id": "tea"}}


# The library, as an MCP server: `callboard mcp research_assistant:LIBRARY`

PAPERS = {
    "flavanols": "Green tea has flavanols. " + "Cohorts in three countries were followed for nine years. " * 60,
    "caffeine": "A cup of tea has 40 mg of caffeine. " + "The dose was measured in forty kinds of tea. " * 60,
}


def search(words: str) -> list[str]:
    """Search the library, and return the names of papers."""
    return [*PAPERS, "misfiled"]


async def read(paper: str) -> str:
    """Read a paper."""
    if paper == "misfiled":
        await anyio.sleep_forever()  # somebody goes on looking for it
    return PAPERS[paper]


LIBRARY = [search, read]


# The assistant: `callboard run research_assistant:assistant "..."`


def publish(title: str, text: str) -> str:
    """Publish an article, once a person has approved it."""
    Path(os.environ.get("ARTICLES", "."), f"{quote(title, safe='')}.txt").write_text(text)
    return f"published {title!r}"


@asynccontextmanager
async def assistant(model: str | BaseChatModel | None = None, checkpointer: str | None = None) -> AsyncGenerator[Agent]:
    """Yield the assistant, with its library open. The default model is that of $MODEL, or a script."""
    model = model or os.environ.get("MODEL") or script()
    scripted = isinstance(model, ScriptedModel)
    summarizer = ScriptedModel(["Flavanols: yes. Caffeine: 40 mg."], loop=True) if scripted else model
    command = [CALLBOARD, "mcp", "research_assistant:LIBRARY", "--app-dir", str(Path(__file__).parent)]
    async with McpServer(command, name="library", prefix="library_") as library:
        agent = create_agent(
            model,
            [library, publish],
            system_prompt="You are a research assistant. Plan, read in the library, then publish one short article.",
            middleware=[
                TodoListMiddleware(),
                SummarizationMiddleware(summarizer, trigger=("tokens", 1_500), keep=("messages", 2)),
                HumanInTheLoopMiddleware({"publish": True}, interrupt_mode="per_call"),
            ],
            checkpointer=checkpointer,
            timeout=30.0,
            policies={
                "library_read": CallPolicy(
                    timeout=2.0 if scripted else 20.0, limit=Limit(concurrency=2, queue=20), idempotent=True
                )
            },
            budget=600.0,
        )
        async with agent:
            yield agent


Decide = Callable[[dict[str, Any]], dict[str, Any]]


async def research(question: str, decide: Decide, **options: Any) -> dict[str, Any]:
    """Run the assistant on a question, and return its last state; a person decides about each call of `publish`."""
    turn_input: Any = {"messages": [("user", question)]}
    async with assistant(**options) as agent:
        while turn_input:
            async for chunk in agent.astream(turn_input, THREAD, stream_mode="updates"):
                tell(chunk)
            state = await agent.aget_state(THREAD)
            answers = {interrupt.id: decide(interrupt.value) for interrupt in state.interrupts}
            turn_input = Command(resume=answers) if answers else None
        return state.values


def tell(chunk: dict[str, Any]) -> None:
    for node, update in chunk.items():
        for todo in (update or {}).get("todos", ()) if node == "tools" else ():
            print(f"  [{todo['status']}] {todo['content']}")
        for message in (update or {}).get("messages", ()) if node in ("model", "tools") else ():
            if message.text and message.name != "write_todos":
                print(f"{node}: {message.text[:80]}")


def at_terminal(question: dict[str, Any]) -> dict[str, Any]:
    reply = input(f"\n{question['description']}\nPublish it? [y, or a reason why not] ")
    return {"type": "approve"} if reply.strip() in ("y", "yes") else {"type": "reject", "message": reply}


# The rest of the example: a script for the model, and one for the person


def script() -> ScriptedModel:
    todos = [{"content": "read", "status": "in_progress"}, {"content": "publish", "status": "pending"}]
    return ScriptedModel(
        [
            calls(("write_todos", {"todos": todos}), ("library_search", {"words": "tea"})),
            calls(*(("library_read", {"paper": paper}) for paper in ("flavanols", "misfiled", "caffeine"))),
            calls(("publish", {"title": "tea", "text": "Tea is healthy."})),
            calls(("publish", {"title": "tea", "text": "Tea is healthy, says one study."})),
            "Done: one article.",
        ]
    )


def story(folder: Path) -> None:
    os.environ["ARTICLES"] = str(folder)
    texts: list[str] = []

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        texts.append(question["args"]["text"])
        assert not (folder / "tea.txt").exists()
        return {"type": "approve"} if "study" in texts[-1] else {"type": "reject", "message": "Name your source."}

    model = script()
    run = partial(research, model=model, checkpointer=f"sqlite:///{folder / 'tea.db'}")
    state = anyio.run(partial(run, "Is tea healthy?", decide), backend="trio")

    answers = [message for message in state["messages"] if message.type == "tool"]
    print(*(f"{answer.status:7}  {answer.text[:70]}" for answer in answers), sep="\n")
    assert texts == ["Tea is healthy.", "Tea is healthy, says one study."]
    assert (folder / "tea.txt").read_text() == "Tea is healthy, says one study."
    assert state["messages"][-1].text == "Done: one article."
    assert "Here is a summary of the conversation" in state["messages"][0].text
    assert state["todos"][1]["content"] == "publish"
    read = "\n".join(message.text for message in model.requests[2])
    assert "did not finish within its timeout of 2 s" in read


def main() -> None:
    parser = argparse.ArgumentParser(description="LangChain's research assistant on callboard's loop")
    parser.add_argument("question", nargs="?", default="Is tea healthy?")
    parser.add_argument("--model", help="such as openai:gpt-5.1; without it, a script plays the model and the person")
    options = parser.parse_args()
    if options.model is None:
        with tempfile.TemporaryDirectory() as name:
            story(Path(name))
    else:
        run = partial(research, model=options.model, checkpointer="sqlite:///research.db")
        anyio.run(run, options.question, at_terminal)


if __name__ == "__main__":
    main()
