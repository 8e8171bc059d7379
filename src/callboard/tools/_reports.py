"""What whoever runs a batch is told of its calls while they run."""

from collections.abc import Awaitable, Callable

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig

from callboard.tools._call_output import Output
from callboard.tools._call_record import CallRecord

OnClaim = Callable[[str, CallRecord], Awaitable[None]]
"""Takes the key of a call whose body is about to start, and what is known of the call."""
OnAsk = Callable[[str, CallRecord], Awaitable[None]]
"""Takes a call's key and its record, with what it asks."""
OnFinish = Callable[[str, ToolCall, Output], Awaitable[None]]
"""Takes a call's key, the call and its output."""

CallBody = Callable[[RunnableConfig | None], Awaitable[Output]]
"""Runs one call, with a config of its own or that of its batch."""
