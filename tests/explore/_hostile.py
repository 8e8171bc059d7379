"""Hostile ids of calls: each call needs its own approval, whatever the model calls it.

Hostile paths, URLs, histories and databases have tests of their own: `tests/middleware/test_sanitize.py`,
`tests/agent/test_history.py` and `tests/agent/test_damaged_databases.py`.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from langchain_core.tools import StructuredTool

from callboard import CallsInterrupted, ToolNode
from callboard.middleware import RequireApproval

from ._batches import messages_in
from ._watch import Complaint, run_on

PIECES = (*"a b | _ # #1 1 : / é e\u0301 None".split(), "\0", " ", "", "a" * 300, "\ud800")


@dataclass(frozen=True)
class Ids:
    """Calls with these ids, each of which has to be approved."""

    ids: tuple[str, ...]


def draw(chance: Random) -> Ids:
    lengths = [chance.randint(0, 3) for _ in range(chance.randint(1, 4))]
    return Ids(tuple("".join(chance.choice(PIECES) for _ in range(length)) for length in lengths))


async def one_approval_runs_one_call(plan: Ids) -> list[str]:
    """Promises 2 and 5: whatever the ids, each call needs its own approval, and one approval runs only that call."""
    ran: list[int] = []

    async def act(number: int) -> str:
        ran.append(number)
        return str(number)

    tool = StructuredTool.from_function(coroutine=act, name="act", description="Act.")
    node = ToolNode([tool], middleware=[RequireApproval()])
    batch = [
        {"name": "act", "args": {"number": index}, "id": call_id, "type": "tool_call"}
        for index, call_id in enumerate(plan.ids)
    ]
    options: dict[str, Any] = {}
    for done in range(len(batch) + 1):
        try:
            result = await node.ainvoke(batch, **options)
        except CallsInterrupted as waiting:
            if len(ran) != done or len(waiting.interrupts) != len(batch) - done:
                return [f"{len(waiting.interrupts)} questions are open and {ran} ran after {done} approvals"]
            first = waiting.interrupts[0]
            options = {"ledger": waiting.ledger, "resume": {first.id: {"type": "accept", "args": None}}}
        else:
            contents = [(message.tool_call_id, message.content) for message in messages_in(result)]
            expected = [(call_id, str(index)) for index, call_id in enumerate(plan.ids)]
            return [] if contents == expected and ran == [*range(len(batch))] else [f"{contents} after {ran} ran"]
    return ["the calls go on asking"]


def play(plan: Ids, backend: str) -> list[Complaint]:
    """Approve the calls one by one on a backend; return the broken promises."""
    promise = one_approval_runs_one_call

    async def main() -> list[Complaint]:
        return [Complaint(promise.__name__, detail) for detail in await promise(plan)]

    return run_on(backend, main)
