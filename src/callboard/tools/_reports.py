"""Callbacks for the caller of a batch, about its calls while they run."""

from collections.abc import Awaitable, Callable
from typing import TypedDict

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig

from callboard.tools._call_output import Output
from callboard.tools._call_record import CallRecord
from callboard.tools._chain import Middleware
from callboard.tools._ledger import Ledger

OnClaim = Callable[[str, CallRecord], Awaitable[None]]
"""Callback with the key and record of a call just before its body starts."""
OnAsk = Callable[[str, CallRecord], Awaitable[None]]
"""Callback with the key and record of a call that asks a question."""
OnFinish = Callable[[str, ToolCall, Output], Awaitable[None]]
"""Callback with the key of a call, the call and its output."""

CallBody = Callable[[RunnableConfig | None], Awaitable[Output]]
"""Function that runs one call, with a config of its own or with the batch's."""
Around = Callable[[Ledger, int, CallBody], Awaitable[Output]]
"""Wrapper of one call: takes the ledger of the batch, the call's index, and the function that runs it."""


class Reports(TypedDict, total=False):
    """Callbacks and wrappers that the caller of a batch supplies."""

    on_finish: OnFinish
    """Called with each result as soon as it exists, before the next step can depend on it."""
    on_claim: OnClaim | None
    """Called for each call that must not run twice, before its body starts."""
    claims_only_said: bool
    """`True` to call `on_claim` only for calls whose policy sets `on_unknown`."""
    on_ask: OnAsk
    """Called for each question of a call, when it is asked."""
    around: Around | None
    """Runs each call, for a caller that observes the call from its beginning to its end."""
    entries: Middleware | None
    """The node's own `invoke` or `ainvoke` override as a middleware around each call, if each call is a task of its
    own."""
