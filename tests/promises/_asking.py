"""Tools that ask questions, for the tests of promise 5 with and without a graph."""

from collections import Counter
from collections.abc import Callable

import anyio
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.types import interrupt
from pydantic import BaseModel

from callboard import tool_call
from callboard.testing import calls


class Decision(BaseModel):
    """Schema of the answer to a question."""

    approve: bool


class Asking:
    """Makes tools that may ask, and counts the executions of each call, and those that came to their end."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    def body(self, who: str, questions: int = 1) -> str:
        self.runs[who] += 1
        answers = [interrupt(f"{who}?{number}") for number in range(questions)]
        self.ends[who] += 1
        return f"{who} got {answers}"

    def tool(self, *, sync: bool = False, seconds: Callable[[str], float] = lambda _: 0.0) -> StructuredTool:
        async def ask(who: str, questions: int = 1) -> str:
            await anyio.sleep(seconds(who))
            return self.body(who, questions)

        if sync:
            return StructuredTool.from_function(func=self.body, name="ask", description="Asks.")
        return StructuredTool.from_function(coroutine=ask, name="ask", description="Asks.")

    def decide(self) -> StructuredTool:
        async def decide() -> str:
            self.runs["decide"] += 1
            return f"approved {interrupt('approve?', response_schema=Decision).approve}"

        return StructuredTool.from_function(coroutine=decide, description="Decides.")


def asks(*questions: tuple[str, int], message_id: str = "ai-1") -> AIMessage:
    """Return a message whose calls ask this many questions each."""
    message = calls(*(tool_call("ask", f"id-{caller}", who=caller, questions=number) for caller, number in questions))
    message.id = message_id
    return message
