"""Open calls to servers of 2025, which ask questions during a call; the call stays open until a person answers."""

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
"""Call to which a server's request belongs. Over HTTP the request arrives with the context of its call; over stdio it
does not."""


class Asked:
    """Question of a server, and later its answer."""

    def __init__(self, params: ElicitRequestParams) -> None:
        self.params = params
        self._answered = anyio.Event()
        self._answer: ElicitResult | None = None

    def answer(self, answer: ElicitResult) -> None:
        """Deliver the answer to the waiting request of the server."""
        self._answer = answer
        self._answered.set()

    async def until_answered(self) -> ElicitResult:
        """Wait for the answer."""
        await self._answered.wait()
        assert self._answer is not None
        return self._answer


class HeldCall:
    """Call that runs in a task of the connection's actor, independent of the tasks that wait for it.

    Args:
        tool: name of the tool.
        name: digest that distinguishes the call from others of the same body.
        conversation: conversation of the call; its questions are shown only there.
        send: makes the call.
        may_ask: whether a person can be asked.
        model: model of the calling agent, if known.
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
        """Run the call to its end; errors are kept for `result()`."""
        # Set in this task: the SDK copies the context into requests of the server that arrive for this call.
        asks.set(self)
        try:
            with self._scope:
                self._result = await self._send()
        except Exception as error:
            self._error = error
        finally:
            # Also if the actor is cancelled; otherwise waiting callers would never wake up.
            self._ended.set()
            self._news.set()

    @property
    def question(self) -> Asked | None:
        """Oldest open question, or `None`; questions are answered one after the other."""
        return self._asked[0] if self._asked else None

    async def until_news(self) -> Asked | None:
        """Wait until the server asks, or the call ends; return the question, if any."""
        while self.question is None and not self._ended.is_set():
            await self._news.wait()
            # After the end the event stays set, so that no later wait can block.
            if not self._ended.is_set():
                self._news = anyio.Event()
        return self.question

    def result(self) -> CallToolResult | None:
        """Return the result, or raise the error of the call; `None` if the call was cancelled before its end."""
        if self._error is not None:
            raise self._error
        return self._result

    async def ask(self, params: ElicitRequestParams) -> ElicitResult:
        """Add a question, and wait for its answer."""
        asked = Asked(params)
        self._asked.append(asked)
        self._news.set()
        try:
            return await asked.until_answered()
        finally:
            if asked in self._asked:  # cancelled, because the server has withdrawn the question
                self._asked.remove(asked)

    def answer(self, answer: ElicitResult) -> None:
        """Answer the open question; there may be none left, if the server has withdrawn it."""
        if self._asked:
            self._asked.popleft().answer(answer)
        else:
            _log.info("The server has not waited for the answer to what its tool %r asked.", self.tool)

    def hold(self, seconds: float) -> None:
        """Cancel the call unless somebody returns with an answer within `seconds`."""
        self._resumed = anyio.Event()
        self._scope.deadline = anyio.current_time() + seconds

    def go_on(self) -> None:
        """Remove the time limit of the call, because its caller has returned."""
        self._scope.deadline = math.inf
        self._resumed.set()

    async def until_fetched(self) -> None:
        """Wait until a caller returns for the result, at most until the time limit."""
        with anyio.CancelScope(deadline=self._scope.deadline):
            await self._resumed.wait()

    async def end(self) -> None:
        """Cancel the call and wait for its end, so that the server is notified."""
        self._scope.cancel()
        # Shielded: the caller is usually being cancelled, and the SDK needs time to send its notification.
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
