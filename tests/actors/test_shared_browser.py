"""One browser for ten agents at once, of which some are cancelled and some have a call that times out.

The fake browser has the two properties that make real ones hard to share: a connection with its own task, which must be
closed by the task that opened it, and a current page.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio
from langchain_core.messages import ToolMessage

from callboard import Actor, CallPolicy, ToolNode, handler, tool_call

AGENTS = 10
CANCELLED = {3, 8}
TIMED_OUT = {2, 7}
POLICIES = {"hang": CallPolicy(timeout=0.5)}

Conversation = Callable[[], Awaitable[list[ToolMessage]]]


@dataclass
class Seen:
    """Record of a browser and its users."""

    lives: list[str] = field(default_factory=list)
    answers: dict[int, list[str]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)

    async def converse(self, number: int, conversation: Conversation) -> None:
        """Run one conversation, which may be cancelled in the middle of a call."""
        with anyio.CancelScope() as scope:
            self.scopes[number] = scope
            answers = await conversation()
            self.answers[number] = [
                str(message.additional_kwargs.get("callboard") or message.content) for message in answers
            ]
        if scope.cancelled_caught:
            self.cancelled.add(number)

    async def all_at_once(self, conversations: Sequence[Conversation]) -> None:
        async with anyio.create_task_group() as group:
            for number, conversation in enumerate(conversations):
                group.start_soon(self.converse, number, conversation)

    def judge(self) -> None:
        """Check that the browser started once, and that each uncancelled conversation has its own answers."""
        assert self.lives == ["opened", "closed"]
        assert self.cancelled == CANCELLED
        assert set(self.answers) == set(range(AGENTS)) - CANCELLED
        for number, (first, second) in self.answers.items():
            assert second == f"read page {number}"
            assert first == ("{'ended': 'timeout'}" if number in TIMED_OUT else f"looked for {number}")


@asynccontextmanager
async def connection(record: Seen) -> AsyncGenerator[None]:
    """Open a connection like those of real clients.

    A task group with a listening task, left by the task that entered it.
    """

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        record.lives.append("opened")
        try:
            yield
        finally:
            record.lives.append("closed")
            group.cancel_scope.cancel()


class Browser(Actor):
    """Fake browser: `visit` is exclusive, and several calls of `look` may run at once."""

    groups: ClassVar = {"looks": 4}
    fatal: ClassVar = (ConnectionError,)

    def __init__(self, record: Seen) -> None:
        self.record = record

    async def start(self) -> None:
        self.url = "about:blank"
        self.looking = self.visiting = 0
        await self.enter(connection(self.record))

    @handler
    async def visit(self, url: str) -> str:
        """Go to a page and read it."""
        assert not self.looking
        assert not self.visiting
        self.visiting += 1
        self.url = url
        await anyio.sleep(0.02)
        self.visiting -= 1
        return f"read {self.url}"

    @handler(group="looks")
    async def look(self, number: int) -> str:
        """Look at the page, beside others who do."""
        assert not self.visiting
        self.looking += 1
        await anyio.sleep(0.02)
        self.looking -= 1
        return f"looked for {number}"

    @handler
    async def hang(self, number: int) -> str:
        """Wait for what never comes."""
        await anyio.sleep_forever()
        return f"never {number}"

    @handler
    async def stall(self, number: int) -> str:
        """Wait for what never comes, with somebody who loses patience."""
        self.record.scopes[number].cancel()
        return await self.hang(number)

    @handler
    async def crash(self) -> str:
        """Crash the page."""
        raise ConnectionError("Page crashed")


def steps_of(number: int) -> list[tuple[str, dict[str, Any]]]:
    first = "stall" if number in CANCELLED else "hang" if number in TIMED_OUT else "look"
    return [(first, {"number": number}), ("visit", {"url": f"page {number}"})]


def without_model(number: int, node: ToolNode) -> Conversation:
    """Call the tools of a conversation in order, without leaving the event loop."""

    async def converse() -> list[ToolMessage]:
        answers: list[ToolMessage] = []
        for name, args in steps_of(number):
            answers += (await node.ainvoke([tool_call(name, f"{name} {number}", **args)]))["messages"]
        return answers

    return converse


async def test_ten_callers_share_one_browser() -> None:
    record = Seen()
    node = ToolNode([Browser(record)], policies=POLICIES)

    async with node:
        await record.all_at_once([without_model(number, node) for number in range(AGENTS)])

    record.judge()


async def test_whose_call_kills_the_browser_does_not_take_it_from_the_others() -> None:
    record = Seen()

    async with ToolNode([Browser(record)], on_unknown="rerun") as node:

        async def crash() -> list[ToolMessage]:
            return list((await node.ainvoke([tool_call("crash", "1")]))["messages"])

        good = [without_model(number, node) for number in (0, 1, 4, 5)]
        await record.all_at_once([good[0], crash, *good[1:]])

    assert record.answers[1] == ["{'ended': 'unknown'}"]
    for position, number in zip((0, 2, 3, 4), (0, 1, 4, 5), strict=True):
        # The conversation that saw the page of an earlier life also gets the notice of lost state.
        assert record.answers[position][1].partition("\n")[0] == f"read page {number}"
    assert record.lives == ["opened", "closed"] * (len(record.lives) // 2)
    assert len(record.lives) in (6, 8)  # three deaths, and one more start if anyone asked after the last
