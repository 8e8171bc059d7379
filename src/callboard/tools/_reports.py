"""What whoever runs a batch is told of its calls while they run."""

from collections.abc import Awaitable, Callable
from typing import TypedDict

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig

from callboard.tools._call_output import Output
from callboard.tools._call_record import CallRecord
from callboard.tools._chain import Middleware
from callboard.tools._ledger import Ledger

OnClaim = Callable[[str, CallRecord], Awaitable[None]]
"""Takes the key of a call whose body is about to start, and what is known of the call."""
OnAsk = Callable[[str, CallRecord], Awaitable[None]]
"""Takes a call's key and its record, with what it asks."""
OnFinish = Callable[[str, ToolCall, Output], Awaitable[None]]
"""Takes a call's key, the call and its output."""

CallBody = Callable[[RunnableConfig | None], Awaitable[Output]]
"""Runs one call, with a config of its own or that of its batch."""
Around = Callable[[Ledger, int, CallBody], Awaitable[Output]]
"""Takes the ledger of a batch, the place of a call in the batch, and what runs the call."""


class Reports(TypedDict, total=False):
    """What whoever runs a batch wants to know of its calls, and to have around them."""

    on_finish: OnFinish
    """Told each result as it is there, before the next step may know of it."""
    on_claim: OnClaim | None
    """Told each call that must not run twice, before its body starts."""
    claims_only_said: bool
    """Whether it is told of those calls only whose policy says what becomes of them."""
    on_ask: OnAsk
    """Told what each call asks, as it does."""
    around: Around | None
    """Runs each call, for whoever wants to know of it from its beginning to its end."""
    entries: Middleware | None
    """What the node's own `invoke` or `ainvoke` is around each call, where each is a task."""
