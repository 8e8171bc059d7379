"""LangChain's own agent with callboard's supervision: one changed line supervises a turn of eight calls.

The agent is `langchain.agents.create_agent`, with ordinary sync and async tools. With `Supervise` in its
middleware, at most two searches run at once, a hanging report times out, a call to a flaky server is retried,
and a mail that a person rejects is not sent.
"""

import asyncio
import threading
import time
from collections import Counter

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import CallEvent, CallPolicy, Limit, observe
from callboard.middleware import Retry, Supervise
from callboard.testing import ScriptedModel, calls

lock = threading.Lock()
running = peak = 0
ran: Counter[str] = Counter()


@tool
def search(query: str) -> str:
    """Search, with a blocking client."""
    global running, peak
    with lock:
        running += 1
        peak = max(peak, running)
    time.sleep(0.05)
    with lock:
        running -= 1
    return f"results for {query}"


@tool
async def report(topic: str) -> str:
    """Write a report, which takes an hour."""
    await asyncio.sleep(3600)
    return topic


@tool
async def weather(city: str) -> str:
    """Ask a server that is busy at first."""
    ran["weather"] += 1
    if ran["weather"] == 1:
        raise ConnectionError("busy")
    return f"{city}: sunny"


@tool
async def send_mail(to: str) -> str:
    """Send a mail, once a person agrees."""
    ran["send_mail"] += 1
    return f"sent to {to}"


turn = calls(
    *(("search", {"query": f"tea {n}"}) for n in range(5)),
    ("report", {"topic": "tea"}),
    ("weather", {"city": "Lisbon"}),
    ("send_mail", {"to": "everybody"}),
)

supervise = Supervise(
    timeout=10.0,
    policies={
        "search": CallPolicy(limit=Limit(concurrency=2)),
        "report": CallPolicy(timeout=0.3),
        "weather": CallPolicy(idempotent=True),
    },
    middleware=[Retry(3, initial=0.01, on=(ConnectionError,))],
)

agent = create_agent(
    ScriptedModel([turn, "That is all I could find out."]),
    [search, report, weather, send_mail],
    middleware=[HumanInTheLoopMiddleware({"send_mail": True}, interrupt_mode="per_call"), supervise],
    checkpointer=InMemorySaver(),
)


async def main() -> None:
    thread = {"configurable": {"thread_id": "tea"}}
    events: list[CallEvent] = []

    with observe(events.append):
        paused = await agent.ainvoke({"messages": [("user", "Tell everybody about tea.")]}, thread)
        (question,) = paused["__interrupt__"]
        print("asked:", question.value["description"].splitlines()[0])
        no = {"type": "reject", "message": "Not everybody."}
        done = await agent.ainvoke(Command(resume={question.id: no}), thread)

    answers = [message for message in done["messages"] if isinstance(message, ToolMessage)]
    for answer in answers:
        print(f"{answer.tool_call_id}  {answer.status:7}  {answer.content}")
    assert [answer.status for answer in answers] == ["success"] * 5 + ["error", "success", "error"]
    assert answers[5].additional_kwargs == {"callboard": {"ended": "timeout"}}
    assert ran == {"weather": 2}, "asked again; and nobody was sent a mail"
    assert peak == 2
    assert [event.note for event in events if event.phase == "noted"] == ["retry"]
    assert supervise.statistics().running == 0


if __name__ == "__main__":
    asyncio.run(main())
