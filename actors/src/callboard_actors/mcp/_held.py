"""Calls of servers of 2025, which ask while a call is under way: the call stays open for as long as a person takes."""

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from uuid import uuid4

import anyio
from langchain_core.language_models import BaseChatModel
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult

_log = logging.getLogger("callboard")

asks: ContextVar["HeldCall | None"] = ContextVar("callboard_mcp_call", default=None)
"""The call that a request of the server belongs to. Over HTTP it comes with the variables of its call; over stdio it
does not."""


class Asked:
    """A question of a server that waits for its answer."""

    def __init__(self, params: ElicitRequestParams) -> None:
        self.params = params
        self._answered = anyio.Event()
        self._answer: ElicitResult | None = None

    def answer(self, answer: ElicitResult) -> None:
        """Give the server its answer."""
        self._answer = answer
        self._answered.set()

    async def until_answered(self) -> ElicitResult:
        """Wait for the answer."""
        await self._answered.wait()
        assert self._answer is not None
        return self._answer


class HeldCall:
    """A call that goes on in a task of the server's actor, whoever waits for it.

    Args:
        tool: which one.
        name: what tells it apart from others of one body.
        conversation: whose call it is; nobody else is shown its questions.
        send: makes the call.
        may_ask: whether a person can be asked for it.
        model: of the agent whose call it is, if that is known.
    """

    def __init__(
        self,
        tool: str,
        name: str,
        conversation: object,
        send: Callable[[], Awaitable[CallToolResult]],
        *,
        may_ask: bool,
        model: BaseChatModel | None = None,
    ) -> None:
        self.token = uuid4().hex
        self.tool = tool
        self.name = name
        self.conversation = conversation
        self.may_ask = may_ask
        self.model = model
        self._send = send
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._news = anyio.Event()
        self._resumed = anyio.Event()
        self._asked: deque[Asked] = deque()
        self._result: CallToolResult | None = None
        self._error: Exception | None = None

    async def run(self) -> None:
        """Make the call, to its end. Does not raise."""
        asks.set(self)
        try:
            with self._scope:
                self._result = await self._send()
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            self._news.set()

    @property
    def question(self) -> Asked | None:
        """What is open; one is answered after the other."""
        return self._asked[0] if self._asked else None

    async def until_news(self) -> Asked | None:
        """Wait until it asks or ends; what it asks."""
        while self.question is None and not self._ended.is_set():
            await self._news.wait()
            if not self._ended.is_set():
                self._news = anyio.Event()
        return self.question

    def result(self) -> CallToolResult | None:
        """What it has given; `None` if it was ended before.

        Raises:
            Exception: what it has raised.
        """
        if self._error is not None:
            raise self._error
        return self._result

    async def ask(self, params: ElicitRequestParams) -> ElicitResult:
        """Have a person asked, and wait for the answer."""
        asked = Asked(params)
        self._asked.append(asked)
        self._news.set()
        try:
            return await asked.until_answered()
        finally:
            if asked in self._asked:  # the server has given up
                self._asked.remove(asked)

    def answer(self, answer: ElicitResult) -> None:
        """Answer what is open; it may be that the server has given up, and nothing is."""
        if self._asked:
            self._asked.popleft().answer(answer)
        else:
            _log.info("The server has not waited for the answer to what its tool %r asked.", self.tool)

    def hold(self, seconds: float) -> None:
        """Have it end if nobody comes back for so long."""
        self._resumed = anyio.Event()
        self._scope.deadline = anyio.current_time() + seconds

    def go_on(self) -> None:
        """Have it take the time it takes."""
        self._scope.deadline = math.inf
        self._resumed.set()

    async def until_fetched(self) -> None:
        """Wait until somebody comes back for what it has given, but no longer than it is held."""
        with anyio.CancelScope(deadline=self._scope.deadline):
            await self._resumed.wait()

    async def end(self) -> None:
        """End it; the server is told, and it is waited for."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
